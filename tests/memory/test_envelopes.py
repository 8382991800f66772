"""Envelopes: structure, fading, constraints, and the record of who was given one."""

import json
from datetime import timedelta
from typing import Any

import jsonschema_rs
import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from pydantic import ValidationError

from apps.core.sql import fetch
from apps.memory import services
from apps.memory.envelopes import Envelope
from apps.memory.models import EnvelopeLoaded
from apps.memory.states import ItemType
from apps.principals.tenancy import Caller
from tests.factories import T0, at
from tests.memory.subjects import ALICE, DAY, TICK, add, change, envelope, facts, record, remember

SCHEMA = jsonschema_rs.validator_for(Envelope.model_json_schema(mode="serialization"))
WINDOWS = {ItemType.USER_FACT: 30, ItemType.USER_PATTERN: 14, ItemType.SHARED_NARRATIVE: 7}


def shown(viewer: Caller, **given: Any) -> dict[str, Any]:
    """An envelope as its readers get it, checked against its schema."""
    document: dict[str, Any] = json.loads(envelope(viewer, **given).model_dump_json())
    SCHEMA.validate(document)
    return document


def test_envelope_has_the_documented_structure(as_kee: Caller) -> None:
    add(
        as_kee, display_name="Z8phyR", learning_level="advanced", domains=["music production"],
        preferences={"detail_level": "high", "humour": "dry"}, share_with=["Kee"], delete_after_days=365,
    )  # fmt: skip
    remember(as_kee, "Loves fettuccini", confidence=0.85)
    remember(as_kee, "Prefers step-by-step explanations", type=ItemType.USER_PATTERN, source="multiple sessions")
    remember(as_kee, "Been chatting since 2019", type=ItemType.SHARED_NARRATIVE, confidence=0.95)
    record(as_kee, conversation_id="c-1", summary="Talked about food.", topics=["fettuccini"], tone="playful")

    assert shown(as_kee) == {
        "identity": {
            "subject_id": ALICE, "tenant_id": "TENANT:acme", "subject_type": "USER", "display_name": "Z8phyR",
        },
        "relational": {
            "memorable_facts": [
                {
                    "fact": "Loves fettuccini", "confidence": 0.85, "added_at": "2026-01-03T20:15:00Z", "age_days": 0,
                    "type": "USER_FACT",
                }
            ],
            "patterns": [
                {
                    "pattern": "Prefers step-by-step explanations", "confidence": 0.8,
                    "inferred_from": "multiple sessions", "type": "USER_PATTERN",
                }
            ],
            "narratives": [
                {"narrative": "Been chatting since 2019", "confidence": 0.95, "type": "SHARED_NARRATIVE"},
            ],
            "confidence_score": 0.8667,
            "learning_level": "advanced",
            "domains": ["music production"],
            "preferences": {
                "communication_style": None, "detail_level": "high", "explanation_style": None, "humour": "dry",
            },
        },
        "recent_context": {
            "session_id": "c-1", "last_active": "2026-01-03T20:15:00Z", "session_summary": "Talked about food.",
            "topics_discussed": ["fettuccini"], "tone": "playful",
        },
        "constraints": {
            "memory_enabled": True, "learn_patterns": True, "share_with": ["Kee"], "anonymize_dates": False,
            "delete_after_days": 365,
        },
        "metadata": {
            "created_at": "2026-01-03T20:15:00Z", "cache_ttl_seconds": 900, "source": "memory_system:v1.0",
            "schema_version": "1.0",
        },
    }  # fmt: skip


def test_unset_parts_are_null_or_empty_and_every_part_is_required(as_kee: Caller) -> None:
    add(as_kee)
    document = shown(as_kee)
    assert document["identity"]["display_name"] is None
    assert document["relational"] == {
        "memorable_facts": [], "patterns": [], "narratives": [], "confidence_score": 0, "learning_level": None,
        "domains": [],
        "preferences": {"communication_style": None, "detail_level": None, "explanation_style": None},
    }  # fmt: skip
    assert document["recent_context"] == {
        "session_id": None, "last_active": None, "session_summary": None, "topics_discussed": [], "tone": None,
    }  # fmt: skip
    for part in document:
        assert not SCHEMA.is_valid({name: value for name, value in document.items() if name != part})
    document["metadata"]["schema_version"] = "2.0"
    assert not SCHEMA.is_valid(document)
    with pytest.raises(ValidationError):
        Envelope.model_validate(document)


def texts(document: dict[str, Any]) -> set[str]:
    known = document["relational"]
    return {
        one[name]
        for kind, name in (("memorable_facts", "fact"), ("patterns", "pattern"), ("narratives", "narrative"))
        for one in known[kind]
    }


# Fading.


@pytest.mark.parametrize(("type_", "days"), WINDOWS.items())
def test_item_fades_to_half_and_leaves_after_its_window(as_kee: Caller, type_: ItemType, days: int) -> None:
    add(as_kee)
    remember(as_kee, "x", type=type_, confidence=0.8)
    end = T0 + (days + 1) * DAY
    moments = (T0, T0 + days * DAY / 2, T0 + days * DAY, end - TICK, end)
    documents = [shown(as_kee, now=now) for now in moments]
    assert [document["relational"]["confidence_score"] for document in documents] == [0.8, 0.6, 0.4, 0.4, 0]
    assert [texts(document) for document in documents] == [*[{"x"}] * 4, set()]


def test_score_is_a_mean_ages_are_whole_days_and_the_surest_come_first(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "one", confidence=1.0)
    remember(as_kee, "two", confidence=0.5, now=T0 + 15 * DAY)
    known = shown(as_kee, now=T0 + 15 * DAY)["relational"]
    assert known["confidence_score"] == 0.625
    assert [(one["fact"], one["age_days"]) for one in known["memorable_facts"]] == [("one", 15), ("two", 0)]
    for now, age in ((T0 + DAY - TICK, 0), (T0 + DAY, 1), (T0 - DAY, 0)):
        assert shown(as_kee, now=now)["relational"]["memorable_facts"][0]["age_days"] == age


def test_tenant_sets_its_own_windows(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee)
    services.set_memory_policy(author=as_kee, fact_days=2, now=T0)
    assert facts(as_kee, now=T0 + 3 * DAY - TICK) == ["Loves fettuccini"]
    assert facts(as_kee, now=T0 + 3 * DAY) == []


def test_envelope_holds_the_newest_hundred_current_items_of_a_type(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Is here")
    for number in range(100):
        remember(as_kee, f"Meets {number}", valid_from=T0 + 3 * DAY + number * TICK, now=T0 + timedelta(seconds=number))
    assert facts(as_kee, now=T0 + DAY) == ["Is here"]
    assert facts(as_kee, now=T0 + 3 * DAY) == ["Meets 0", "Is here"]
    assert set(facts(as_kee, now=T0 + 4 * DAY)) == {f"Meets {number}" for number in range(100)}


def test_item_is_shown_while_it_is_valid(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "On holiday", valid_from=T0 + DAY, valid_to=T0 + 2 * DAY)
    moments = (T0 + DAY - TICK, T0 + DAY, T0 + 2 * DAY - TICK, T0 + 2 * DAY)
    assert [bool(facts(as_kee, now=now)) for now in moments] == [False, True, True, False]
    # By a clock that is ahead.
    remember(as_kee, now=T0 + timedelta(seconds=5))
    assert facts(as_kee, now=T0) == ["Loves fettuccini"]


# Constraints. Sharing is in test_subjects.py.


def test_envelope_of_disabled_memory_is_identity_and_constraints(as_kee: Caller) -> None:
    add(as_kee, display_name="Alice", learning_level="beginner", domains=["ci"], preferences={"a": "b"})
    remember(as_kee)
    record(as_kee, summary="s")
    empty = add(as_kee, "USER:empty", memory_enabled=False)
    change(as_kee, memory_enabled=False)
    document, nothing = shown(as_kee), shown(as_kee, subject_id=empty.key)
    assert document["identity"]["display_name"] == "Alice"
    assert document["constraints"]["memory_enabled"] is False
    assert (document["relational"], document["recent_context"]) == (nothing["relational"], nothing["recent_context"])


def test_anonymized_dates_are_months_and_ages_are_left_out(as_kee: Caller) -> None:
    add(as_kee, anonymize_dates=True)
    remember(as_kee)
    record(as_kee)
    document = shown(as_kee)
    (fact,) = document["relational"]["memorable_facts"]
    assert fact == {"fact": "Loves fettuccini", "confidence": 0.8, "added_at": "2026-01", "type": "USER_FACT"}
    assert document["recent_context"]["last_active"] == "2026-01"


@pytest.mark.parametrize("later", [DAY, 40 * DAY])
def test_confidence_of_an_anonymized_item_does_not_tell_its_day(as_kee: Caller, later: timedelta) -> None:
    services.set_memory_policy(author=as_kee, fact_days=100, now=T0)
    documents = []
    month = T0.replace(day=1, hour=0, minute=0)
    for subject_id, said_at in (("USER:a", month), ("USER:b", month + 31 * DAY - TICK)):
        add(as_kee, subject_id, anonymize_dates=True)
        remember(as_kee, "x", subject_id, now=said_at)
        document = shown(as_kee, subject_id=subject_id, now=month + 31 * DAY + later)
        documents.append({**document, "identity": None})
    assert documents[0] == documents[1]
    faded = 0.8 * (1 - later / (100 * DAY) / 2)
    assert documents[0]["relational"]["confidence_score"] == pytest.approx(faded, abs=1e-4)


def test_data_due_for_deletion_is_not_shown(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    remember(as_kee)
    record(as_kee, summary="s")
    before, after = (shown(as_kee, now=now) for now in (T0 + 2 * DAY - TICK, T0 + 2 * DAY))
    assert (texts(before), before["recent_context"]["session_summary"]) == ({"Loves fettuccini"}, "s")
    assert (texts(after), after["recent_context"]["session_summary"]) == (set(), None)


# The record of who was given an envelope.


def test_envelope_is_one_statement_and_a_record_without_content(as_kee: Caller) -> None:
    add(as_kee, display_name="Canary Alice")
    remember(as_kee, "Canary fact")
    with CaptureQueriesContext(connection) as captured:
        envelope(as_kee)
    assert len(captured) == 2
    envelope(as_kee, now=T0 + TICK)
    change(as_kee, display_name="Other")
    envelope(as_kee)

    rows = [row for (row,) in fetch("select l::text from memory_envelopeloaded l order by id")]
    assert not [row for row in rows if "anary" in row or "alice" in row.lower()]
    first, second, third = EnvelopeLoaded.objects.order_by("pk")
    assert (first.rev, first.viewer_id, first.loaded_at) == (2, as_kee.principal_id, T0)
    assert bytes(first.digest) == bytes(second.digest) != bytes(third.digest)
    with pytest.raises(IntegrityError, match="immutable"), transaction.atomic():
        EnvelopeLoaded.objects.update(rev=7)


def test_records_are_deleted_after_a_year_in_parts(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.memory.services._AT_ONCE", 2)
    monkeypatch.setattr("apps.memory.services._PARTS", 3)
    add(as_kee)
    for _ in range(9):
        envelope(as_kee)
    at(T0 + 365 * DAY)
    assert services.forget_expired() == 0
    at(T0 + 365 * DAY + TICK)
    assert [services.forget_expired() for _ in range(3)] == [6, 3, 0]
