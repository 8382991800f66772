"""The export of a subject, and what is deleted after the days that it allows."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core import erasure
from apps.memory import selectors, services
from apps.memory.models import EnvelopeLoaded, Session, Subject
from apps.memory.tools.subjects import ExportSubject, export_subject
from apps.principals.tenancy import Caller, acting_as_system
from tests.factories import T0
from tests.memory.subjects import (
    ALICE,
    CANARY,
    DAY,
    add,
    at,
    change,
    envelope,
    items,
    observations,
    remember,
    talk,
)


def test_export_holds_all_rows_of_a_subject(as_kee: Caller) -> None:
    add(as_kee, display_name=f"{CANARY} 1", preferences={f"{CANARY} 2": f"{CANARY} 3"}, domains=[f"{CANARY} 4"])
    remember(as_kee, f"{CANARY} 5", slot=f"{CANARY} 6", source=f"{CANARY} 7")
    remember(as_kee, f"{CANARY} 8", slot=f"{CANARY} 6")
    services.record_session(
        principal=as_kee, conversation_id="c", subject_id=ALICE, title=f"{CANARY} 9", topics=[f"{CANARY} 10"], now=T0
    )
    talk(as_kee, f"{CANARY} 11", speaker=f"{CANARY} 12", metadata={"said": f"{CANARY} 13"}, domain=f"{CANARY} 14")
    talk(as_kee, "of nobody", conversation_id="of nobody")
    exported = selectors.export(Subject.objects.get(), now=T0).model_dump_json()
    assert [number for number in range(1, 15) if f'"{CANARY} {number}"' not in exported] == []
    assert "of nobody" not in exported


def test_export_pages_each_list_to_its_end(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.memory.selectors.AT_ONCE", 2)
    add(as_kee)
    for number in range(5):
        remember(as_kee, f"fact {number}")
        named = f"c{number}"
        services.record_session(principal=as_kee, conversation_id=named, subject_id=ALICE, now=T0)
        talk(as_kee, f"turn {number}", conversation_id=named)
        envelope(as_kee)

    told: dict[str, list[Any]] = {"items": [], "sessions": [], "envelopes_loaded": [], "turns": []}
    asked: dict[str, int] = {}
    goes_on = True
    while goes_on:
        with CaptureQueriesContext(connection) as captured:
            page = export_subject(as_kee, ExportSubject(subject_id=ALICE, **asked))
        assert sum(query["sql"].endswith("LIMIT 2") for query in captured) == (len(asked) or len(told))
        assert bool(page.subject) == (not asked)
        for name in told:
            told[name] += getattr(page, name)
        following = {f"{name}_after": getattr(page, f"next_{name}_after") for name in told}
        asked = {name: number for name, number in following.items() if number is not None}
        goes_on = bool(asked)

    assert [one["text"] for one in told["items"]] == [f"fact {number}" for number in range(5)]
    assert [one["conversation_id"] for one in told["sessions"]] == [f"c{number}" for number in range(5)]
    assert [one["text"] for one in told["turns"]] == [f"turn {number}" for number in range(5)]
    assert len({one["id"] for one in told["envelopes_loaded"]}) == 5


def test_export_of_turns_continues_after_a_forgotten_turn(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.memory.selectors.AT_ONCE", 2)
    add(as_kee)
    for named in ("a", "b"):
        services.record_session(principal=as_kee, conversation_id=named, subject_id=ALICE, now=T0)
    for number in range(4):
        talk(as_kee, f"turn {number}", conversation_id="ab"[number % 2])
    first = export_subject(as_kee, ExportSubject(subject_id=ALICE))
    assert [one["text"] for one in first.turns] == ["turn 0", "turn 1"]
    with acting_as_system("test"), erasure.redacting():
        services.forget_memories([first.turns[-1]["id"]])
    second = export_subject(as_kee, ExportSubject(subject_id=ALICE, turns_after=first.next_turns_after))
    assert [one["text"] for one in second.turns] == ["turn 2", "turn 3"]


def test_export_continues_only_the_lists_asked_for(as_kee: Caller) -> None:
    add(as_kee)
    first, second = (remember(as_kee, text).item.pk for text in ("one", "two"))
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    page = export_subject(as_kee, ExportSubject(subject_id=ALICE, items_after=first))
    assert [one["id"] for one in page.items] == [second]
    assert (page.subject, page.sessions, page.next_items_after) == ({}, [], None)


def test_sweep_deletes_what_is_older_than_the_subject_allows(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    add(as_kee, "USER:bob")
    for subject_id in (ALICE, "USER:bob"):
        remember(as_kee, "old", subject_id)
        remember(as_kee, "new", subject_id, now=T0 + DAY)
        services.record_session(principal=as_kee, conversation_id=subject_id, subject_id=subject_id, now=T0)
    revisions = dict(Subject.objects.values_list("key", "rev"))

    at(T0 + 2 * DAY - timedelta(microseconds=1))
    assert services.forget_expired() == 0
    at(T0 + 2 * DAY)
    assert services.forget_expired() == 1
    at(T0 + 2 * DAY)
    assert services.forget_expired() == 0

    assert sorted(items().values_list("subject__key", "text")) == [
        (ALICE, "new"),
        ("USER:bob", "new"),
        ("USER:bob", "old"),
    ]
    assert list(Session.objects.values_list("subject__key", flat=True)) == ["USER:bob"]
    after = dict(Subject.objects.values_list("key", "rev"))
    assert (after[ALICE] > revisions[ALICE], after["USER:bob"]) == (True, revisions["USER:bob"])


def said() -> list[str]:
    """What is left of what was said, and found."""
    return list(observations().order_by("pk").values_list("text", flat=True))


def test_sweep_deletes_old_turns_of_a_live_conversation(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    add(as_kee, "USER:bob")
    for subject_id, conversation_id in ((ALICE, "c"), ("USER:bob", "of bob"), (ALICE, "d")):
        services.record_session(
            principal=as_kee, conversation_id=conversation_id, subject_id=subject_id, summary="s", now=T0
        )
    for day in range(4):
        talk(as_kee, f"day {day}", speaker="Alice", metadata={"mood": "glad"}, now=T0 + day * DAY)
    talk(as_kee, "of bob", conversation_id="of bob")
    talk(as_kee, "of nobody", conversation_id="of nobody")

    for moment, left in (
        (T0 + 2 * DAY - timedelta(microseconds=1), ["day 0", "day 1", "day 2", "day 3"]),
        (T0 + 2 * DAY, ["day 1", "day 2", "day 3"]),
        (T0 + 4 * DAY, ["day 3"]),
        (T0 + 5 * DAY, []),
    ):
        at(moment)
        services.forget_expired()
        assert said() == [*left, "of bob", "of nobody"]
    assert services.forget_expired() == 0


def test_conversation_survives_the_deletion_of_its_turns(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    talk(as_kee, "old")
    services.record_session(principal=as_kee, conversation_id="c", summary="still here", now=T0 + DAY)
    at(T0 + 2 * DAY)
    assert services.forget_expired() == 1
    assert envelope(as_kee, now=T0 + 2 * DAY).recent_context.session_summary == "still here"
    talk(as_kee, "new", now=T0 + 2 * DAY)
    assert said() == ["new"]


def test_sweep_deletes_turns_from_before_the_subject_was_known(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    talk(as_kee, "old")
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0 + DAY)
    at(T0 + 2 * DAY)
    services.forget_expired()
    assert said() == []


def test_changed_days_apply_to_stored_items(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee)
    at(T0 + 100 * DAY)
    assert services.forget_expired() == 0
    for days, left in ((200, 1), (101, 1), (None, 1), (100, 0)):
        change(as_kee, delete_after_days=days, now=T0 + 100 * DAY)
        services.forget_expired()
        assert items().count() == left
    assert Subject.objects.get().expires_at is None


def test_sweep_deletes_in_parts(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.memory.services._AT_ONCE", 2)
    add(as_kee, delete_after_days=2)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    for number in range(5):
        talk(as_kee, f"turn {number}")
        remember(as_kee, f"item {number}")
    talk(as_kee, "new", now=T0 + DAY)
    at(T0 + 2 * DAY)
    assert services.forget_expired() == 1
    assert (said(), items().count()) == (["new"], 0)


def test_sweep_deletes_old_notes_of_readers(as_kee: Caller) -> None:
    add(as_kee)
    envelope(as_kee)
    at(T0 + 365 * DAY)
    services.forget_expired()
    assert EnvelopeLoaded.objects.exists()
    at(T0 + 365 * DAY + timedelta(seconds=1))
    services.forget_expired()
    assert not EnvelopeLoaded.objects.exists()
