"""Recall within a subject: validity, expiry, rules, and the totals of the search index."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Sum
from django.test.utils import CaptureQueriesContext

from apps.core.ticks import run
from apps.memory import search, services
from apps.memory.models import Memory, SearchTerm, SearchTotals, Subject, TermFrequency
from apps.memory.selectors import export, recall
from apps.memory.shapes import RecalledMemory
from apps.memory.sql import held
from apps.memory.states import ItemType, Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0, at, refused
from tests.memory.subjects import (
    ALICE,
    DAY,
    TICK,
    add,
    change,
    facts,
    items,
    observations,
    observe,
    record,
    remember,
    talk,
)
from tests.waiters import Other, acting, at_once, until_somebody_waits_for_this_transaction


def ask(caller: Caller, query: str = "", subject_id: str = ALICE, **narrowed: Any) -> list[RecalledMemory]:
    return recall(query, caller=caller, subject_id=subject_id, **narrowed)


def texts(caller: Caller, query: str = "", **narrowed: Any) -> list[str]:
    return [hit.text for hit in ask(caller, query, **narrowed)]


def check_totals() -> None:
    """The totals of each scope equal what counting gives."""
    for scope in {
        *SearchTotals.objects.values_list("scope", flat=True),
        *Memory.objects.values_list("scope", flat=True),
    }:
        told = SearchTotals.objects.filter(scope=scope).aggregate(
            rows=Sum("memories", default=0), words=Sum("words", default=0), said=Sum("observations", default=0)
        )
        rows = Memory.objects.filter(scope=scope)
        assert told == {
            "rows": rows.count(),
            "words": rows.aggregate(words=Sum("length", default=0))["words"],
            "said": rows.filter(kind=Kind.OBSERVATION, superseded_at=None).count(),
        }
        assert (
            SearchTerm.objects.filter(scope=scope).aggregate(words=Sum("frequency", default=0))["words"]
            == told["words"]
        )


def test_item_is_found_by_its_words(as_kee: Caller) -> None:
    add(as_kee)
    item = remember(as_kee, "Loves walking dogs", confidence=0.7).item
    remember(as_kee, "Is often late", type=ItemType.USER_PATTERN)
    (hit,) = ask(as_kee, "Who walks a dog?")
    assert (hit.ref, hit.text, hit.confidence, hit.author) == (item.ref, "Loves walking dogs", 0.7, "Kee")
    assert (hit.domain, hit.occurred_at, hit.why) == ("USER_FACT", T0, "has dog, walk")
    assert texts(as_kee) == ["Is often late", "Loves walking dogs"]
    assert texts(as_kee, domain="USER_PATTERN") == ["Is often late"]
    check_totals()


def test_memories_of_a_subject_are_found_and_counted_within_it_only(as_kee: Caller) -> None:
    for subject_id in (ALICE, "USER:bob"):
        add(as_kee, subject_id)
        remember(as_kee, f"Loves dogs, says {subject_id}", subject_id)
    record(as_kee)
    talk(as_kee, "I have a dog.")
    observe(as_kee, "Dogs bark.")
    with CaptureQueriesContext(connection) as captured:
        assert sorted(texts(as_kee, "dog")) == ["I have a dog.", "Loves dogs, says USER:alice"]
    # Who may read the subject, and what is found.
    assert len(captured) == 2
    assert [hit.text for hit in recall("dog", caller=as_kee)] == ["Dogs bark."]
    assert [hit.text for hit in recall(caller=as_kee)] == ["Dogs bark."]
    assert held(tenant_id=as_kee.tenant_id)[:3] == (1, 0, 0)


def test_messages_follow_their_session_to_its_subject(as_kee: Caller) -> None:
    add(as_kee)
    add(as_kee, "USER:bob")
    talk(as_kee, "I have a dog.")
    talk(as_kee, "What kind of dog?")
    assert len(recall("dog", caller=as_kee)) == 2
    record(as_kee)
    talk(as_kee, "A small dog.")
    assert recall("dog", caller=as_kee) == []
    assert len(texts(as_kee, "dog")) == 3
    assert [hit.why for hit in ask(as_kee, "kind")] == ["has kind", *["what was said around it is about this"] * 2]
    check_totals()
    record(as_kee, "USER:bob")
    assert texts(as_kee, "dog") == []
    assert len(texts(as_kee, "dog", subject_id="USER:bob")) == 3
    check_totals()


def test_message_of_a_subject_is_superseded_within_it_only(as_kee: Caller) -> None:
    add(as_kee)
    record(as_kee)
    message = talk(as_kee, "I have a dog.")
    with refused("about_another"), transaction.atomic():
        observe(as_kee, "Dogs bark.", supersedes=message.ref)
    talk(as_kee, "I have two dogs.", supersedes=message.ref)
    assert [hit.text for hit in recall("dogs", caller=as_kee, subject_id=ALICE)] == ["I have two dogs."]
    check_totals()


def test_item_is_found_while_it_is_valid(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Was a student", valid_from=T0 - 9 * DAY, valid_to=T0 - DAY)
    remember(as_kee, "Will be a teacher", valid_from=T0 + 40_000 * DAY)
    remember(as_kee, "Is on holiday", valid_from=T0 + DAY, valid_to=T0 + 2 * DAY)
    remember(as_kee, "Is here")
    assert texts(as_kee, "student teacher") == []
    for query in ("", "student teacher holiday"):
        found = [
            "Is on holiday" in texts(as_kee, query, as_of=moment)
            for moment in (T0 + DAY - TICK, T0 + DAY, T0 + 2 * DAY - TICK, T0 + 2 * DAY)
        ]
        assert found == [False, True, True, False]


@pytest.mark.parametrize("narrowing", [{}, {"domain": "USER_FACT"}])
def test_past_and_future_items_hide_no_current_one(
    as_kee: Caller, monkeypatch: pytest.MonkeyPatch, narrowing: dict[str, str]
) -> None:
    monkeypatch.setattr(search, "_LEADING", 10)
    add(as_kee)
    for day in range(8):
        remember(as_kee, f"Meets Tom {day}", valid_from=T0 - 2 * DAY - day * DAY, valid_to=T0 - DAY - day * DAY)
        remember(as_kee, f"Meets Tom -{day}", valid_from=T0 + (40_000 + day) * DAY)
    remember(as_kee, "Meets everybody whom a friend calls Tom")
    assert texts(as_kee, "meets tom", **narrowing) == ["Meets everybody whom a friend calls Tom"]


def test_superseded_items_hide_no_current_one(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_SCORED", 3)
    add(as_kee)
    remember(as_kee, "Thinks that moods pass")
    for day in range(5):
        remember(as_kee, f"Mood {day}", slot="mood", valid_from=T0 - (9 - day) * DAY)
    assert items().filter(superseded_at=None).count() == 6
    assert texts(as_kee, "mood") == ["Mood 4", "Thinks that moods pass"]
    assert texts(as_kee, "mood", as_of=T0 + DAY) == ["Mood 4", "Thinks that moods pass"]


@pytest.mark.parametrize("narrowing", [{}, {"domain": "USER_FACT"}])
def test_item_by_a_clock_ahead_is_found_at_once(as_kee: Caller, narrowing: dict[str, str]) -> None:
    add(as_kee)
    ahead = T0 + timedelta(seconds=30)
    remember(as_kee, "Loves zebras", now=ahead)
    remember(as_kee, "Will love zebras more", now=ahead, valid_from=ahead + timedelta(seconds=1))
    at(T0)
    assert texts(as_kee, "zebras", **narrowing) == texts(as_kee, **narrowing) == facts(as_kee) == ["Loves zebras"]
    assert texts(as_kee, "zebras", as_of=T0, **narrowing) == []


def test_rest_of_an_item_expires_with_the_item(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    remember(as_kee, "Lives in Berlin", slot="home", valid_from=T0 - 9 * DAY)
    remember(as_kee, "Lived in Rome", slot="home", valid_from=T0 - 5 * DAY, valid_to=T0 - 4 * DAY, now=T0 + DAY)
    for moment, found in ((T0 + 2 * DAY - TICK, ["Lives in Berlin"]), (T0 + 2 * DAY, [])):
        at(moment)
        assert texts(as_kee, "Berlin") == found


def test_message_expires_by_when_it_was_said(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    record(as_kee)
    for text, occurred_at in (("said now", T0), ("said yesterday", T0 - DAY), ("said to be so then", T0 + 9 * DAY)):
        talk(as_kee, text, occurred_at=occurred_at)

    def shown(moment: datetime) -> list[list[str]]:
        at(moment)
        exported = export(Subject.objects.get(), now=moment).messages
        return [sorted(texts(as_kee, "said")), sorted(texts(as_kee)), sorted(row["text"] for row in exported)]

    before = ["said now", "said to be so then", "said yesterday"]
    assert shown(T0 + DAY - TICK) == [before] * 3
    assert services.forget_expired() == 0
    # At once, before it is swept.
    assert shown(T0 + DAY) == [before[:2]] * 3
    assert services.forget_expired() == 1
    assert sorted(observations().exclude(text="").values_list("text", flat=True)) == before[:2]
    # What has had its days when it is stored goes with the next sweep.
    talk(as_kee, "said last week", occurred_at=T0 - 7 * DAY, now=T0 + DAY)
    assert shown(T0 + DAY) == [before[:2]] * 3
    assert services.forget_expired() == 1
    assert shown(T0 + 2 * DAY) == [[]] * 3


def test_rules_of_a_subject_hold_for_recall(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Loves dogs")
    remember(as_kee, "Loves cats", now=T0 + DAY)
    change(as_kee, anonymize_dates=True)
    assert {(hit.recorded_at.isoformat(), str(hit.occurred_at)) for hit in ask(as_kee)} == {
        ("2026-01-01T00:00:00+00:00", "2026-01-01 00:00:00+00:00")
    }
    change(as_kee, delete_after_days=2)
    for moment, found in ((T0 + 2 * DAY - TICK, 2), (T0 + 2 * DAY, 1), (T0 + 3 * DAY - TICK, 1), (T0 + 3 * DAY, 0)):
        at(moment)
        assert (len(texts(as_kee)), len(texts(as_kee, "loves"))) == (found, found)
    change(as_kee, delete_after_days=None, memory_enabled=False)
    assert texts(as_kee) == texts(as_kee, "loves") == []


def test_forgotten_memories_are_neither_found_nor_counted(transactional_db: None, kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
        add(kee, "USER:bob")
        remember(kee, "Loves dogs", "USER:bob")
        gone = remember(kee, "Loves dogs").item
        remember(kee, "Loves cats")
        record(kee)
        talk(kee, "Dogs and cats.")
    run("memory.fold_totals")
    with acting_as(kee):
        services.forget(author=kee, subject_id=ALICE, item=gone.pk, now=T0)
        assert sorted(texts(kee)) == ["Dogs and cats.", "Loves cats"]
        check_totals()
    with acting_as(kee):
        services.forget(author=kee, subject_id=ALICE, now=T0)
        check_totals()
        assert Memory.objects.count() == items().count() == 1
        assert not SearchTotals.objects.filter(scope=gone.subject_id or 0).exists()


def test_superseded_message_is_not_counted_when_moved_or_forgotten(as_kee: Caller) -> None:
    add(as_kee)
    message = observe(as_kee, "I have a dog.", conversation_id="c")
    observe(as_kee, "I have two cats.", conversation_id="c", supersedes=message.ref)
    record(as_kee)
    check_totals()
    item = remember(as_kee, "I have a dog").item
    services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)
    assert texts(as_kee) == ["I have two cats."]
    check_totals()


@pytest.mark.parametrize("tick", [search.fold_totals, partial(search.count_frequencies, 1)], ids=["folded", "counted"])
def test_job_does_not_write_again_what_is_forgotten(
    transactional_db: None, tick: Callable[[], object], kee: Caller
) -> None:
    with acting_as(kee):
        add(kee)
        for number in range(3):
            remember(kee, f"Loves dog {number}")
    if tick is not search.fold_totals:
        search.fold_totals()
    forget = acting(kee, lambda: services.forget(author=kee, subject_id=ALICE, now=T0))
    with acting_as_system("test"):
        tick()
        forgetting = Other(forget)
        until_somebody_waits_for_this_transaction()
    assert forgetting.ends() is None
    with acting_as(kee):
        check_totals()
        assert not SearchTotals.objects.exclude(scope=0).exists()
        assert not TermFrequency.objects.exists()


def test_jobs_skip_while_something_is_forgotten(transactional_db: None, kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
        for number in range(3):
            remember(kee, f"Loves dog {number}")
    with acting_as(kee):
        services.forget(author=kee, subject_id=ALICE, now=T0)
        assert at_once(search.fold_totals, search.count_frequencies) == [None, 0]
    with acting_as(kee):
        assert not SearchTotals.objects.exclude(scope=0).exists()
