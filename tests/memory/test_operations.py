"""Memory over HTTP: documented arguments, named refusals, nothing stored by a refused request."""

from typing import Any

import pytest
from django.test import Client

from apps.memory import services
from apps.memory.selectors import recall
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_token
from tests.memory.subjects import concepts, observations


def call(token: str, path: str, body: object) -> tuple[int, dict[str, Any]]:
    answer = Client().post(
        f"/api/v1/memory/{path}", body, content_type="application/json", headers={"Authorization": f"Bearer {token}"}
    )
    return answer.status_code, answer.json()


def test_what_is_stored_is_recalled(tenant: Tenant) -> None:
    token = make_token(tenant)
    status, stored = call(
        token,
        "observations",
        {
            "observation": "Delegated 'analyze codebase' to code-analyzer. Completed in 420s.",
            "domain": "delegation_trace",
            "confidence": 1.0,
            "evidence": ["plan:plan-abc", "exec:7"],
            "metadata": {"plan_id": "plan-abc", "steps_count": 2},
        },
    )
    assert (status, stored["status"], stored["ref"]) == (201, "stored", f"observation:{stored['id']}")

    found = Client().get(
        "/api/v1/memory/recall", {"q": "analyzing codebases"}, headers={"Authorization": f"Bearer {token}"}
    )
    (hit,) = found.json()["hits"]
    assert (hit["ref"], hit["domain"], hit["author"]) == (stored["ref"], "delegation_trace", "Kee")

    _, filtered = call(token, "recall", {"filters": {"plan_id": "plan-abc", "steps_count": 2}})
    assert [hit["ref"] for hit in filtered["hits"]] == [stored["ref"]]
    assert call(token, "recall", {"filters": {"plan_id": "plan-xyz"}})[1]["hits"] == []


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("observations", {"observation": "{}"}),
        ("concepts", {"name": "kilometers", "description": "{}"}),
        ("patterns", {"category": "units", "pattern_name": "kilometers", "pattern_text": "{}"}),
    ],
)
def test_a_text_that_is_compared_as_a_longer_one_is_stored_and_found_by_its_beginning(
    tenant: Tenant, path: str, told: dict[str, str]
) -> None:
    token = make_token(tenant)
    # Each of these signs is six letters of three bytes.
    text = " ".join(f"{number:04d} " + "\u3316" * 110 for number in range(560))
    assert call(token, path, {name: value.format(text) for name, value in told.items()})[0] in {200, 201}
    found = call(token, "recall", {"query": "0007", "max_tokens": 1_000_000})[1]
    assert [hit["text"].endswith(text) for hit in found["hits"]] == [True]


def test_concepts_relationships_patterns_and_sessions_take_documented_arguments(tenant: Tenant) -> None:
    token = make_token(tenant)
    concept = {
        "name": "code-analyzer",
        "concept_type": "worker",
        "description": "Reads code.",
        "metadata": {"tools": 2},
    }
    relation = {"from_concept": "code-analyzer", "to_concept": "code_analysis", "rel_type": "provides"}
    pattern = {"category": "c", "pattern_name": "n", "pattern_text": "t", "confidence": 0.95}
    assert call(token, "concepts", concept)[1]["ref"] == "concept:code-analyzer"
    assert call(token, "relationships", relation)[0] == 201
    assert call(token, "patterns", pattern | {"evidence_observation_ids": []})[1]["revision"] == 1
    assert call(token, "sessions", {"conversation_id": "c-1", "title": "t"})[1]["title"] == "t"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("observations", {}, 422),
        ("observations", {"observation": ""}, 422),
        ("observations", {"observation": 5}, 422),
        ("observations", {"observation": "x", "confidence": 1.5}, 422),
        ("observations", {"observation": "x", "wrong": 1}, 422),
        ("observations", {"observation": "a\x00b"}, 422),
        ("observations", {"observation": "x", "supersedes": "observation:1000000000000000"}, 404),
        ("observations", {"observation": "x", "supersedes": "nonsense"}, 400),
        ("observations", {"observation": "x" * 70_000}, 413),
        ("concepts", {"name": "x", "metadata": {"a": "\x00"}}, 422),
        (
            "patterns",
            {"category": "c", "pattern_name": "n", "pattern_text": "t", "evidence_observation_ids": [10**15]},
            404,
        ),
        ("recall", {"limit": 0}, 422),
        ("recall", {"query": "\x00"}, 422),
    ],
)
def test_wrong_input_is_named_and_nothing_is_stored(
    tenant: Tenant, kee: Caller, path: str, body: object, status: int
) -> None:
    answered, problem = call(make_token(tenant), path, body)
    assert (answered, problem["status"]) == (status, status)
    with acting_as(kee):
        assert not observations().exists()
        assert not concepts().exists()


@pytest.mark.parametrize(
    "subject_id", ["user:a", "USER", "USER:", "USER:a.", "USER:a-", "USER:a:", "USER:a b", "USER:a,b"]
)
def test_what_a_subjects_id_looks_like_is_told_in_words(tenant: Tenant, subject_id: str) -> None:
    status, problem = call(make_token(tenant), "sessions", {"conversation_id": "c", "subject_id": subject_id})
    assert (status, problem["errors"][0]["pointer"]) == (422, "/subject_id")
    assert "a kind in capitals, a colon and a name" in problem["detail"]
    assert "\\" not in problem["detail"]


def test_without_the_scope_memory_is_closed(tenant: Tenant) -> None:
    assert call(make_token(tenant, scopes=[]), "observations", {"observation": "x"})[0] == 403


@pytest.mark.parametrize(
    "filters",
    [
        {"a": 1, "a.b": 2},
        {"a.b": 2, "a": 1},
        {"a.b": 1, "a.b.c": 1},
        {"metadata.a": 1, "a": 1},
        {"a.b": 1, "a": {"b": 1}},
    ],
    ids=str,
)
def test_filters_that_are_about_the_same_place_are_refused(tenant: Tenant, filters: dict[str, Any]) -> None:
    status, problem = call(make_token(tenant), "recall", {"filters": filters})
    assert (status, problem["code"]) == (400, "clashing_filters")


def test_filters_add_to_a_document_and_leave_it_as_it_was_given(as_kee: Caller) -> None:
    services.store_observation(author=as_kee, text="x", metadata={"a": {"b": 1, "c": 2}}, now=T0)
    given = {"a.c": 2, "a": {"b": 1}}
    assert len(recall("", caller=as_kee, filters=given)) == 1
    assert recall("", caller=as_kee, filters=given | {"a.c": 3}) == []
    assert given == {"a.c": 2, "a": {"b": 1}}
