"""How concepts stand to each other is told page by page, by any name of theirs, and read off an index."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.memory import selectors, services
from apps.memory.models import Relationship
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_token
from tests.memory.subjects import refused


def relate(author: Caller, source: str, rel_type: str, target: str, description: str | None = None) -> Relationship:
    return services.add_relationship(
        author=author, from_concept=source, to_concept=target, rel_type=rel_type, description=description, now=T0
    )


def told(viewer: Caller, **narrowed: Any) -> list[str]:
    found, _ = selectors.relationships(tenant_id=viewer.tenant_id, **narrowed)
    return [f"{one.from_concept} {one.rel_type} {one.to_concept}" for one in found]


def ask(token: str, **given: str) -> tuple[int, dict[str, Any]]:
    answer = Client().get("/api/v1/memory/relationships", given, headers={"Authorization": f"Bearer {token}"})
    return answer.status_code, answer.json()


def test_what_was_said_of_concepts_is_read_by_others_page_by_page(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        for number in range(5):
            relate(kee, "build", "uses", f"part {number}", f"It needs {number}.")
    token = make_token(tenant, "Hexy")
    _, page = ask(token, limit="2")
    pages = [[one["to_concept"] for one in page["relationships"]]]
    while page["next"]:
        _, page = ask(token, limit="2", cursor=page["next"])
        pages.append([one["to_concept"] for one in page["relationships"]])
    assert pages == [["part 4", "part 3"], ["part 2", "part 1"], ["part 0"]]
    (first,) = ask(token, to_concept="part 0")[1]["relationships"]
    assert {name: first[name] for name in ("from_concept", "rel_type", "description", "author")} == {
        "from_concept": "build",
        "rel_type": "uses",
        "description": "It needs 0.",
        "author": "Kee",
    }


def test_relationships_are_found_by_any_name_of_their_ends_and_by_their_type(as_kee: Caller) -> None:
    services.store_concept(author=as_kee, name="PostgreSQL", aliases=["the elephant"], now=T0)
    relate(as_kee, "build", "uses", "PostgreSQL")
    relate(as_kee, "PostgreSQL", "runs_on", "Linux")
    relate(as_kee, "build", "runs_on", "Linux")
    assert told(as_kee, to_concept="The  Elephant") == ["build uses PostgreSQL"]
    assert told(as_kee, from_concept="the elephant") == ["PostgreSQL runs_on Linux"]
    assert told(as_kee, rel_type="runs_on") == ["build runs_on Linux", "PostgreSQL runs_on Linux"]
    assert told(as_kee, from_concept="build", to_concept="linux", rel_type="runs_on") == ["build runs_on Linux"]
    assert told(as_kee, from_concept="build", rel_type="knows") == []


def test_of_a_concept_that_nobody_has_named_it_is_said_that_there_is_none(tenant: Tenant, as_kee: Caller) -> None:
    with refused("unknown_memory"):
        told(as_kee, from_concept="nowhere")


def test_a_cursor_of_another_list_is_refused(tenant: Tenant) -> None:
    status, problem = ask(make_token(tenant), cursor="nonsense")
    assert (status, problem["code"]) == (400, "bad_cursor")


@pytest.mark.parametrize(
    ("narrowed", "statements"),
    [({}, 1), ({"rel_type": "uses"}, 1), ({"from_concept": "c1"}, 2), ({"from_concept": "c1", "to_concept": "c2"}, 2)],
)
def test_a_page_takes_one_statement_and_another_for_names(
    as_kee: Caller, narrowed: dict[str, Any], statements: int
) -> None:
    for number in range(3):
        relate(as_kee, f"c{number}", "uses", f"c{number + 1}")
    with CaptureQueriesContext(connection) as captured:
        selectors.relationships(tenant_id=as_kee.tenant_id, **narrowed)
    assert len(captured) == statements
