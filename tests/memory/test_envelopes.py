"""An envelope has the documented structure, fades with time, and shows what its subject allows to whom it allows."""

import json
from datetime import timedelta
from typing import Any

import jsonschema_rs
import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.core.errors import Invalid
from apps.memory import envelopes, services
from apps.memory.envelopes import Envelope
from apps.memory.models import EnvelopeLoaded, MemoryPolicy, Subject
from apps.memory.states import ItemType
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import ALICE, add, at, change, envelope, facts, refused, remember

SCHEMA = jsonschema_rs.validator_for(Envelope.model_json_schema(mode="serialization"))
DAY, TICK = timedelta(days=1), timedelta(microseconds=1)
WINDOWS = {ItemType.USER_FACT: 30, ItemType.USER_PATTERN: 14, ItemType.SHARED_NARRATIVE: 7}


def shown(viewer: Caller, **given: Any) -> dict[str, Any]:
    """An envelope as its readers get it, which is as its schema says."""
    document: dict[str, Any] = json.loads(envelope(viewer, **given).model_dump_json())
    SCHEMA.validate(document)
    return document


def test_an_envelope_has_the_documented_structure(as_kee: Caller) -> None:
    add(
        as_kee,
        display_name="Z8phyR",
        learning_level="advanced",
        domains=["music production"],
        preferences={"detail_level": "high", "humour": "dry"},
        share_with=["Kee"],
        delete_after_days=365,
    )
    remember(as_kee, "Loves fettuccini", confidence=0.85)
    remember(as_kee, "Prefers step-by-step explanations", type=ItemType.USER_PATTERN, source="multiple sessions")
    remember(as_kee, "Been chatting since 2019", type=ItemType.SHARED_NARRATIVE, confidence=0.95)
    services.record_session(
        principal=as_kee,
        conversation_id="c-1",
        subject_id=ALICE,
        summary="Talked about food.",
        topics=["fettuccini"],
        tone="playful",
        now=T0,
    )

    assert shown(as_kee) == {
        "identity": {
            "subject_id": ALICE,
            "tenant_id": "TENANT:acme",
            "subject_type": "USER",
            "display_name": "Z8phyR",
        },
        "relational": {
            "memorable_facts": [
                {
                    "fact": "Loves fettuccini",
                    "confidence": 0.85,
                    "added_at": "2026-01-03T20:15:00Z",
                    "age_days": 0,
                    "type": "USER_FACT",
                }
            ],
            "patterns": [
                {
                    "pattern": "Prefers step-by-step explanations",
                    "confidence": 0.8,
                    "inferred_from": "multiple sessions",
                    "type": "USER_PATTERN",
                }
            ],
            "narratives": [
                {"narrative": "Been chatting since 2019", "confidence": 0.95, "type": "SHARED_NARRATIVE"},
            ],
            "confidence_score": 0.8667,
            "learning_level": "advanced",
            "domains": ["music production"],
            "preferences": {
                "communication_style": None,
                "detail_level": "high",
                "explanation_style": None,
                "humour": "dry",
            },
        },
        "recent_context": {
            "session_id": "c-1",
            "last_active": "2026-01-03T20:15:00Z",
            "session_summary": "Talked about food.",
            "topics_discussed": ["fettuccini"],
            "tone": "playful",
        },
        "constraints": {
            "memory_enabled": True,
            "learn_patterns": True,
            "share_with": ["Kee"],
            "anonymize_dates": False,
            "delete_after_days": 365,
        },
        "metadata": {
            "created_at": "2026-01-03T20:15:00Z",
            "cache_ttl_seconds": 900,
            "source": "memory_system:v1.0",
            "schema_version": "1.0",
        },
    }


def test_what_is_not_set_is_null_or_empty(as_kee: Caller) -> None:
    add(as_kee)
    document = shown(as_kee)
    assert document["identity"]["display_name"] is None
    assert document["relational"] == {
        "memorable_facts": [],
        "patterns": [],
        "narratives": [],
        "confidence_score": 0,
        "learning_level": None,
        "domains": [],
        "preferences": {"communication_style": None, "detail_level": None, "explanation_style": None},
    }
    assert document["recent_context"] == {
        "session_id": None,
        "last_active": None,
        "session_summary": None,
        "topics_discussed": [],
        "tone": None,
    }


def texts(document: dict[str, Any]) -> set[str]:
    known = document["relational"]
    return {
        one[name]
        for kind, name in (("memorable_facts", "fact"), ("patterns", "pattern"), ("narratives", "narrative"))
        for one in known[kind]
    }


@pytest.mark.parametrize(("type_", "days"), WINDOWS.items())
def test_an_item_counts_while_its_age_in_whole_days_is_within_its_window(
    as_kee: Caller, type_: ItemType, days: int
) -> None:
    add(as_kee)
    remember(as_kee, "x", type=type_)
    end = T0 + (days + 1) * DAY
    assert texts(shown(as_kee, now=end - TICK)) == {"x"}
    assert texts(shown(as_kee, now=end)) == set()


@pytest.mark.parametrize(("type_", "days"), WINDOWS.items())
def test_confidence_falls_evenly_to_half_at_the_end_of_the_window(as_kee: Caller, type_: ItemType, days: int) -> None:
    add(as_kee)
    remember(as_kee, "x", type=type_, confidence=0.8)
    moments = (T0, T0 + days * DAY / 2, T0 + days * DAY, T0 + (days + 1) * DAY - TICK)
    scores = [shown(as_kee, now=now)["relational"]["confidence_score"] for now in moments]
    assert scores == [0.8, 0.6, 0.4, 0.4]


def test_the_score_is_the_mean_of_what_counts(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "one", confidence=1.0)
    remember(as_kee, "two", confidence=0.5, now=T0 + 15 * DAY)
    assert shown(as_kee, now=T0 + 15 * DAY)["relational"]["confidence_score"] == 0.625


def test_an_age_is_in_whole_days(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee)
    ages = [
        shown(as_kee, now=now)["relational"]["memorable_facts"][0]["age_days"]
        for now in (T0 + DAY - TICK, T0 + DAY, T0 - DAY)
    ]
    assert ages == [0, 1, 0]


def test_a_tenant_settles_its_own_windows(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee)
    services.set_memory_policy(author=as_kee, fact_days=2, now=T0)
    assert facts(as_kee, now=T0 + 3 * DAY - TICK) == ["Loves fettuccini"]
    assert facts(as_kee, now=T0 + 3 * DAY) == []


def test_the_surest_come_first(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "old and sure", confidence=0.9)
    remember(as_kee, "new and sure", confidence=0.9, now=T0 + DAY)
    remember(as_kee, "new and unsure", confidence=0.3, now=T0 + DAY)
    assert facts(as_kee, now=T0 + DAY) == ["new and sure", "old and sure", "new and unsure"]


def test_an_envelope_holds_the_newest_hundred_of_each_type(as_kee: Caller) -> None:
    add(as_kee)
    for number in range(103):
        remember(as_kee, f"fact {number}", now=T0 + timedelta(seconds=number))
    assert set(facts(as_kee, now=T0 + DAY)) == {f"fact {number}" for number in range(3, 103)}


# Constraints.


def test_where_memory_is_disabled_an_envelope_is_identity_and_constraints(as_kee: Caller) -> None:
    add(as_kee, display_name="Alice", learning_level="beginner", domains=["ci"], preferences={"a": "b"})
    remember(as_kee)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, summary="s", now=T0)
    empty = add(as_kee, "USER:empty", memory_enabled=False)

    change(as_kee, memory_enabled=False)
    document, nothing = shown(as_kee), shown(as_kee, subject_id=empty.key)
    assert document["identity"]["display_name"] == "Alice"
    assert document["constraints"]["memory_enabled"] is False
    assert (document["relational"], document["recent_context"]) == (nothing["relational"], nothing["recent_context"])


def test_whom_a_subject_is_not_shared_with_gets_the_answer_of_one_that_is_not_there(
    as_kee: Caller, tenant: Tenant
) -> None:
    lee = make_caller(tenant, "Lee")
    add(as_kee, share_with=["Kee"])
    assert facts(as_kee) == []
    refusals = []
    for subject_id in (ALICE, "USER:nobody"):
        with refused("unknown_subject") as refusal:
            envelope(lee, subject_id)
        refusals.append((refusal.value.detail.replace(subject_id, "…"), refusal.value.extra, refusal.value.code))
    assert refusals[0] == refusals[1]


@pytest.mark.parametrize(
    ("own", "tenants", "seen"),
    [
        (None, None, True),
        (None, ["Lee"], True),
        (None, ["Max"], False),
        (None, [], False),
        (["Lee"], [], True),
        ([], None, False),
        ([], ["Lee"], False),
    ],
)
def test_sharing_is_the_subjects_own_else_the_tenants(
    as_kee: Caller, tenant: Tenant, own: list[str] | None, tenants: list[str] | None, seen: bool
) -> None:
    lee, _ = make_caller(tenant, "Lee"), make_caller(tenant, "Max")
    add(as_kee, share_with=own)
    if tenants is not None:
        services.set_memory_policy(author=as_kee, share_with=tenants, now=T0)
    if seen:
        assert shown(lee)["constraints"]["share_with"] == (own if own is not None else tenants)
    else:
        with refused("unknown_subject"):
            envelope(lee)


def test_anonymized_dates_are_months_and_ages_are_dropped(as_kee: Caller) -> None:
    add(as_kee, anonymize_dates=True)
    remember(as_kee)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    document = shown(as_kee)
    (fact,) = document["relational"]["memorable_facts"]
    assert fact == {"fact": "Loves fettuccini", "confidence": 0.8, "added_at": "2026-01", "type": "USER_FACT"}
    assert document["recent_context"]["last_active"] == "2026-01"


def test_what_is_to_be_deleted_after_days_is_not_shown_from_that_moment(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    remember(as_kee)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, summary="s", now=T0)
    before, after = (shown(as_kee, now=now) for now in (T0 + 2 * DAY - TICK, T0 + 2 * DAY))
    assert (texts(before), before["recent_context"]["session_summary"]) == ({"Loves fettuccini"}, "s")
    assert (texts(after), after["recent_context"]["session_summary"]) == (set(), None)


def test_what_is_not_yet_or_no_longer_so_is_not_shown(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "On holiday", valid_from=T0 + DAY, valid_to=T0 + 2 * DAY)
    moments = (T0 + DAY - TICK, T0 + DAY, T0 + 2 * DAY - TICK, T0 + 2 * DAY)
    assert [bool(facts(as_kee, now=now)) for now in moments] == [False, True, True, False]


def test_what_was_written_by_a_clock_that_is_ahead_is_shown_at_once(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, now=T0 + timedelta(seconds=5))
    assert facts(as_kee, now=T0) == ["Loves fettuccini"]


# Who was given what.


def test_a_note_of_the_reader_holds_no_content(as_kee: Caller) -> None:
    add(as_kee, display_name="Canary Alice")
    remember(as_kee, "Canary fact")
    for moment in (T0, T0 + TICK):
        envelope(as_kee, now=moment)
    change(as_kee, display_name="Other")
    envelope(as_kee)

    with connection.cursor() as cursor:
        cursor.execute("select l::text from memory_envelopeloaded l order by id")
        rows = [row for (row,) in cursor.fetchall()]
    assert not [row for row in rows if "anary" in row or "alice" in row.lower()]
    first, second, third = EnvelopeLoaded.objects.order_by("pk")
    assert (first.rev, first.viewer_id, first.loaded_at) == (2, as_kee.principal_id, T0)
    assert bytes(first.digest) == bytes(second.digest) != bytes(third.digest)


def test_notes_of_readers_can_not_be_changed(as_kee: Caller) -> None:
    add(as_kee)
    envelope(as_kee)
    with pytest.raises(IntegrityError, match="immutable"), transaction.atomic():
        EnvelopeLoaded.objects.update(rev=7)


def test_old_audit_records_are_deleted_in_parts(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.memory.services._AT_ONCE", 2)
    monkeypatch.setattr("apps.memory.services._PARTS", 3)
    add(as_kee)
    for _ in range(9):
        envelope(as_kee)

    at(T0 + 366 * DAY)
    assert [services.forget_expired() for _ in range(3)] == [6, 3, 0]


# Versions, statements, plans.


def test_an_envelope_of_another_version_is_refused(as_kee: Caller) -> None:
    add(as_kee)
    document = shown(as_kee)
    assert envelopes.load(json.dumps(document)) == Envelope.model_validate(document)
    document["metadata"]["schema_version"] = "2.0"
    with pytest.raises(Invalid, match="no envelope"):
        envelopes.load(json.dumps(document))
    assert not SCHEMA.is_valid(document)


@pytest.mark.parametrize("missing", ["identity", "relational", "recent_context", "constraints", "metadata"])
def test_the_schema_requires_every_part(as_kee: Caller, missing: str) -> None:
    add(as_kee)
    document = shown(as_kee)
    del document[missing]
    assert not SCHEMA.is_valid(document)


def test_an_envelope_is_one_statement_and_the_note_of_its_reader(as_kee: Caller) -> None:
    add(as_kee)
    for type_ in ItemType:
        remember(as_kee, "x", type=type_)
    with CaptureQueriesContext(connection) as captured:
        envelope(as_kee)
    assert len(captured) == 2


# Several subjects, several tenants.


@pytest.mark.parametrize("later", [DAY, 11 * DAY, 40 * DAY])
def test_nothing_shown_of_an_anonymized_item_tells_when_in_its_month_it_was_said(
    as_kee: Caller, later: timedelta
) -> None:
    services.set_memory_policy(author=as_kee, fact_days=100, now=T0)
    documents = []
    month = T0.replace(day=1, hour=0, minute=0)
    for subject_id, said_at in (("USER:a", month), ("USER:b", month + 31 * DAY - TICK)):
        add(as_kee, subject_id, anonymize_dates=True)
        remember(as_kee, "x", subject_id, now=said_at)
        document = shown(as_kee, subject_id=subject_id, now=month + 31 * DAY + later)
        documents.append({**document, "identity": None})
    assert documents[0] == documents[1]
    assert documents[0]["relational"]["confidence_score"] == pytest.approx(
        0.8 * (1 - later / (100 * DAY) / 2), abs=1e-4
    )


def test_what_is_to_be_so_takes_no_place_from_what_is(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Is here")
    for number in range(100):
        remember(as_kee, f"Meets {number}", valid_from=T0 + 3 * DAY + number * TICK, now=T0 + timedelta(seconds=number))
    assert facts(as_kee, now=T0 + DAY) == ["Is here"]
    assert facts(as_kee, now=T0 + 3 * DAY) == ["Meets 0", "Is here"]
    assert len(facts(as_kee, now=T0 + 4 * DAY)) == 100


def test_two_subjects_of_a_tenant_are_told_apart(as_kee: Caller) -> None:
    add(as_kee)
    add(as_kee, "USER:bob")
    remember(as_kee)
    assert (facts(as_kee), facts(as_kee, "USER:bob")) == (["Loves fettuccini"], [])


def test_the_same_id_in_two_tenants_is_two_subjects(db: None) -> None:
    kee, stranger = make_caller(make_tenant("acme")), make_caller(make_tenant("globex"))
    for caller, text in ((kee, "Ours"), (stranger, "Theirs")):
        with acting_as(caller):
            add(caller)
            remember(caller, text)
    for caller, text in ((kee, "Ours"), (stranger, "Theirs")):
        with acting_as(caller):
            assert facts(caller) == [text]


# What the database refuses.


@pytest.mark.parametrize(
    "values", [{"rev": 0}, {"delete_after_days": 0}, {"key": "USER:bob"}], ids=lambda values: next(iter(values))
)
def test_the_database_refuses_what_no_subject_can_be(as_kee: Caller, values: dict[str, Any]) -> None:
    add(as_kee)
    add(as_kee, "USER:bob")
    with pytest.raises(IntegrityError), transaction.atomic():
        Subject.objects.filter(key=ALICE).update(**values)


@pytest.mark.parametrize("days", [0, 36_501])
@pytest.mark.parametrize("window", ["fact_days", "pattern_days", "narrative_days"])
def test_the_database_refuses_windows_that_show_nothing_or_never_end(as_kee: Caller, window: str, days: int) -> None:
    services.set_memory_policy(author=as_kee, now=T0)
    with pytest.raises(IntegrityError), transaction.atomic():
        MemoryPolicy.objects.update(**{window: days})
