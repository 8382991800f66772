"""What is remembered of a subject is found by those who name it and may know it, and by nobody else."""

import threading
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
from apps.memory.search import held
from apps.memory.selectors import export, recall
from apps.memory.shapes import RecalledMemory
from apps.memory.states import ItemType, Kind
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import ALICE, add, at, change, facts, items, observations, refused, remember
from tests.memory.test_store import observe
from tests.waiters import until_somebody_waits_for_this_transaction

DAY = timedelta(days=1)


def ask(caller: Caller, query: str = "", subject_id: str = ALICE, **narrowed: Any) -> list[RecalledMemory]:
    return recall(query, caller=caller, subject_id=subject_id, **narrowed)


def texts(caller: Caller, query: str = "", **narrowed: Any) -> list[str]:
    return [hit.text for hit in ask(caller, query, **narrowed)]


def say(author: Caller, text: str, conversation_id: str = "c") -> None:
    services.store_observation(author=author, text=text, conversation_id=conversation_id, speaker="Alice", now=T0)


def meet(author: Caller, subject_id: str = ALICE, conversation_id: str = "c") -> None:
    services.record_session(principal=author, conversation_id=conversation_id, subject_id=subject_id, now=T0)


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


def test_an_item_is_found_by_its_words_and_says_what_it_is(as_kee: Caller) -> None:
    add(as_kee)
    item = remember(as_kee, "Loves walking dogs", confidence=0.7).item
    remember(as_kee, "Is often late", type=ItemType.USER_PATTERN)
    (hit,) = ask(as_kee, "Who walks a dog?")
    assert (hit.ref, hit.text, hit.confidence, hit.author) == (item.ref, "Loves walking dogs", 0.7, "Kee")
    assert (hit.domain, hit.occurred_at, hit.why) == ("USER_FACT", T0, "has dog, walk")
    assert texts(as_kee) == ["Is often late", "Loves walking dogs"]
    assert texts(as_kee, domain="USER_PATTERN") == ["Is often late"]
    check_totals()


def test_what_is_about_a_subject_is_found_within_it_alone(as_kee: Caller) -> None:
    for subject_id in (ALICE, "USER:bob"):
        add(as_kee, subject_id)
        remember(as_kee, f"Loves dogs, says {subject_id}", subject_id)
    observe(as_kee, "Dogs bark.")
    assert texts(as_kee, "dog") == ["Loves dogs, says USER:alice"]
    assert [hit.text for hit in recall("dog", caller=as_kee)] == ["Dogs bark."]
    assert [hit.text for hit in recall(caller=as_kee)] == ["Dogs bark."]
    assert held(tenant_id=as_kee.tenant_id)[0] == 1


def test_what_is_said_with_a_subject_is_about_it_whether_it_is_known_before_or_after(as_kee: Caller) -> None:
    add(as_kee)
    add(as_kee, "USER:bob")
    say(as_kee, "I have a dog.")
    say(as_kee, "What kind of dog?")
    assert len(recall("dog", caller=as_kee)) == 2
    meet(as_kee)
    say(as_kee, "A small dog.")
    assert recall("dog", caller=as_kee) == []
    assert len(texts(as_kee, "dog")) == 3
    assert [hit.why for hit in ask(as_kee, "kind")] == ["has kind", *["what was said around it is about this"] * 2]
    check_totals()
    meet(as_kee, "USER:bob")
    assert texts(as_kee, "dog") == []
    assert len(texts(as_kee, "dog", subject_id="USER:bob")) == 3
    check_totals()


def test_what_is_said_with_a_subject_is_not_counted_among_what_everybody_may_know(as_kee: Caller) -> None:
    add(as_kee, share_with=["Kee"])
    observe(as_kee, "Dogs bark.")
    meet(as_kee)
    say(as_kee, "I have a dog.")
    assert held(tenant_id=as_kee.tenant_id)[0] == 1


def test_whom_a_subject_is_not_shared_with_gets_the_answer_of_one_that_is_not_there(
    as_kee: Caller, tenant: Tenant
) -> None:
    lee = make_caller(tenant, "Lee")
    add(as_kee, share_with=["Kee"])
    remember(as_kee, "Loves dogs")
    meet(as_kee)
    say(as_kee, "I have a dog.")
    assert len(texts(as_kee, "dog")) == 2
    answers = []
    for subject_id in (ALICE, "USER:alicf"):
        with refused("unknown_subject") as refusal:
            ask(lee, "dog", subject_id)
        answers.append((type(refusal.value), refusal.value.detail.replace(subject_id, "…"), refusal.value.extra))
    assert answers[0] == answers[1]
    assert recall("dog", caller=lee) == recall(caller=lee) == []


@pytest.mark.parametrize(
    ("own", "tenants", "allowed"),
    [(None, None, True), (None, ["Lee"], True), (None, [], False), ([], None, False), (["Lee"], [], True)],
)
def test_sharing_is_the_subjects_own_else_the_tenants(
    as_kee: Caller, tenant: Tenant, own: list[str] | None, tenants: list[str] | None, allowed: bool
) -> None:
    lee = make_caller(tenant, "Lee")
    add(as_kee, share_with=own)
    if tenants is not None:
        services.set_memory_policy(author=as_kee, share_with=tenants, now=T0)
    if allowed:
        assert ask(lee) == []
        return
    with refused("unknown_subject"):
        ask(lee)


def test_another_tenants_subject_of_the_same_id_is_another(db: None) -> None:
    kee, stranger = make_caller(make_tenant("acme")), make_caller(make_tenant("globex"))
    for caller, text in ((kee, "Loves dogs"), (stranger, "Hates dogs")):
        with acting_as(caller):
            add(caller)
            remember(caller, text)
    with acting_as(kee):
        assert texts(kee, "dog") == texts(kee) == ["Loves dogs"]


def test_what_was_said_with_a_subject_is_superseded_by_what_is_about_it_too(as_kee: Caller, tenant: Tenant) -> None:
    add(as_kee, share_with=["Kee"])
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    turn = services.store_observation(author=as_kee, text="I have a dog.", conversation_id="c", now=T0)
    stranger = make_caller(tenant, "Lee")
    with refused("unknown_memory"), transaction.atomic():
        services.store_observation(author=stranger, text="Never mind.", supersedes=turn.ref, now=T0)
    with refused("about_another"), transaction.atomic():
        services.store_observation(author=as_kee, text="Dogs bark.", supersedes=turn.ref, now=T0)
    services.store_observation(author=as_kee, text="I have two dogs.", conversation_id="c", supersedes=turn.ref, now=T0)
    assert [hit.text for hit in recall("dogs", caller=as_kee, subject_id=ALICE)] == ["I have two dogs."]
    check_totals()


def test_what_was_superseded_is_found_as_of_before(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Lives in Paris", slot="home", valid_from=T0 - 9 * DAY)
    remember(as_kee, "Lives in Berlin", slot="home", valid_from=T0 - 5 * DAY, now=T0 + DAY)
    assert texts(as_kee, "lives") == ["Lives in Berlin"]
    assert texts(as_kee, "lives", as_of=T0) == ["Lives in Paris"]


def test_what_is_so_no_longer_or_not_yet_is_not_found(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Was a student", valid_from=T0 - 9 * DAY, valid_to=T0 - DAY)
    remember(as_kee, "Will be a teacher", valid_from=T0 + 40_000 * DAY)
    remember(as_kee, "Is here")
    assert texts(as_kee) == ["Is here"]
    assert texts(as_kee, "student teacher") == []


@pytest.mark.parametrize("narrowing", [{}, {"domain": "USER_FACT"}])
def test_what_has_ended_or_is_yet_to_come_hides_nothing_that_is_so(as_kee: Caller, narrowing: dict[str, str]) -> None:
    add(as_kee)
    for day in range(130):
        remember(as_kee, f"Meets Tom {day}", valid_from=T0 - 2 * DAY - day * DAY, valid_to=T0 - DAY - day * DAY)
        remember(as_kee, f"Meets Tom -{day}", valid_from=T0 + (40_000 + day) * DAY)
    remember(as_kee, "Meets everybody whom a friend calls Tom")
    assert texts(as_kee, "meets tom", **narrowing) == ["Meets everybody whom a friend calls Tom"]


def test_a_question_that_is_answered_anew_hides_nothing_that_has_a_word_in_common(
    as_kee: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_SCORED", 3)
    add(as_kee)
    remember(as_kee, "Thinks that moods pass")
    for day in range(5):
        remember(as_kee, f"Mood {day}", slot="mood", valid_from=T0 - (9 - day) * DAY)
    assert items().filter(superseded_at=None).count() == 6
    assert texts(as_kee, "mood") == ["Mood 4", "Thinks that moods pass"]
    assert texts(as_kee, "mood", as_of=T0 + DAY) == ["Mood 4", "Thinks that moods pass"]


def test_what_was_not_so_yet_is_not_found_as_of_then(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Is on holiday", valid_from=T0 + DAY)
    assert texts(as_kee, as_of=T0 + DAY - timedelta(microseconds=1)) == []
    assert texts(as_kee, as_of=T0 + DAY) == texts(as_kee) == ["Is on holiday"]


@pytest.mark.parametrize("narrowing", [{}, {"domain": "USER_FACT"}])
def test_what_is_so_from_when_it_was_written_on_is_found_at_once_though_the_writers_clock_is_ahead(
    as_kee: Caller, narrowing: dict[str, str]
) -> None:
    add(as_kee)
    ahead = T0 + timedelta(seconds=30)
    remember(as_kee, "Loves zebras", now=ahead)
    remember(as_kee, "Will love zebras more", now=ahead, valid_from=ahead + timedelta(seconds=1))
    at(T0)
    assert texts(as_kee, "zebras", **narrowing) == texts(as_kee, **narrowing) == facts(as_kee) == ["Loves zebras"]
    assert texts(as_kee, "zebras", as_of=T0, **narrowing) == []


def test_what_is_so_up_to_a_moment_is_so_at_it_no_longer(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Is on holiday", valid_to=T0 + DAY)
    for query in ("", "holiday"):
        assert texts(as_kee, query, as_of=T0 + DAY - timedelta(microseconds=1)) == ["Is on holiday"]
        assert texts(as_kee, query, as_of=T0 + DAY) == []


def test_what_was_left_of_an_item_is_recalled_for_no_longer_than_the_item(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    remember(as_kee, "Lives in Berlin", slot="home", valid_from=T0 - 9 * DAY)
    remember(as_kee, "Lived in Rome", slot="home", valid_from=T0 - 5 * DAY, valid_to=T0 - 4 * DAY, now=T0 + DAY)
    for moment, found in ((T0 + 2 * DAY - timedelta(microseconds=1), ["Lives in Berlin"]), (T0 + 2 * DAY, [])):
        at(moment)
        assert texts(as_kee, "Berlin") == found


def test_a_turn_has_its_days_from_when_it_was_said_however_late_it_is_stored(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    meet(as_kee)
    for text, occurred_at in (("said now", T0), ("said yesterday", T0 - DAY), ("said to be so then", T0 + 9 * DAY)):
        services.store_observation(author=as_kee, text=text, conversation_id="c", occurred_at=occurred_at, now=T0)

    def shown(moment: datetime) -> list[list[str]]:
        at(moment)
        exported = export(Subject.objects.get(), now=moment).turns
        return [sorted(texts(as_kee, "said")), sorted(texts(as_kee)), sorted(row["text"] for row in exported)]

    before = ["said now", "said to be so then", "said yesterday"]
    assert shown(T0 + DAY - timedelta(microseconds=1)) == [before] * 3
    assert services.forget_expired() == 0
    # At once, before it is swept.
    assert shown(T0 + DAY) == [before[:2]] * 3
    assert services.forget_expired() == 1
    assert sorted(observations().exclude(text="").values_list("text", flat=True)) == before[:2]
    # What has had its days when it is stored goes with the next sweep.
    services.store_observation(
        author=as_kee, text="said last week", conversation_id="c", occurred_at=T0 - 7 * DAY, now=T0 + DAY
    )
    assert shown(T0 + DAY) == [before[:2]] * 3
    assert services.forget_expired() == 1
    assert shown(T0 + 2 * DAY) == [[]] * 3


def test_what_a_subject_has_settled_holds_for_recall_too(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Loves dogs")
    remember(as_kee, "Loves cats", now=T0 + DAY)
    change(as_kee, anonymize_dates=True)
    assert {(hit.recorded_at.isoformat(), str(hit.occurred_at)) for hit in ask(as_kee)} == {
        ("2026-01-01T00:00:00+00:00", "2026-01-01 00:00:00+00:00")
    }
    change(as_kee, delete_after_days=2)
    tick = timedelta(microseconds=1)
    for moment, found in ((T0 + 2 * DAY - tick, 2), (T0 + 2 * DAY, 1), (T0 + 3 * DAY - tick, 1), (T0 + 3 * DAY, 0)):
        at(moment)
        assert (len(texts(as_kee)), len(texts(as_kee, "loves"))) == (found, found)
    change(as_kee, delete_after_days=None, memory_enabled=False)
    assert texts(as_kee) == texts(as_kee, "loves") == []


def test_it_is_two_statements_who_may_know_and_what_is_known(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Loves dogs")
    with CaptureQueriesContext(connection) as captured:
        assert len(ask(as_kee, "dog")) == 1
    assert len(captured) == 2


def test_what_is_forgotten_is_found_no_more_and_counted_no_more(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee):
        add(kee)
        add(kee, "USER:bob")
        remember(kee, "Loves dogs", "USER:bob")
        gone = remember(kee, "Loves dogs").item
        remember(kee, "Loves cats")
        meet(kee)
        say(kee, "Dogs and cats.")
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


def test_what_was_superseded_is_counted_neither_where_it_is_moved_to_nor_when_it_is_forgotten(as_kee: Caller) -> None:
    add(as_kee)
    turn = observe(as_kee, "I have a dog.", conversation_id="c")
    observe(as_kee, "I have two cats.", conversation_id="c", supersedes=turn.ref)
    meet(as_kee)
    check_totals()
    item = remember(as_kee, "I have a dog").item
    services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)
    assert texts(as_kee) == ["I have two cats."]
    check_totals()


@pytest.mark.parametrize("tick", [search.fold_totals, partial(search.count_frequencies, 1)], ids=["folded", "counted"])
def test_what_is_being_summed_up_while_it_is_forgotten_is_not_written_again(
    transactional_db: None, tick: Callable[[], object]
) -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee):
        add(kee)
        for number in range(3):
            remember(kee, f"Loves dog {number}")
    if tick is not search.fold_totals:
        search.fold_totals()

    def forget() -> None:
        try:
            with acting_as(kee):
                services.forget(author=kee, subject_id=ALICE, now=T0)
        finally:
            connection.close()

    forgetting = threading.Thread(target=forget)
    with acting_as_system("test"):
        tick()
        forgetting.start()
        until_somebody_waits_for_this_transaction()
    forgetting.join(30)

    with acting_as(kee):
        check_totals()
        assert not SearchTotals.objects.exclude(scope=0).exists()
        assert not TermFrequency.objects.exists()


def test_nothing_is_summed_up_while_something_is_forgotten(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee):
        add(kee)
        for number in range(3):
            remember(kee, f"Loves dog {number}")
    held, done = threading.Event(), threading.Event()

    def forget() -> None:
        try:
            with acting_as(kee):
                services.forget(author=kee, subject_id=ALICE, now=T0)
                held.set()
                assert done.wait(30)
        finally:
            connection.close()

    forgetting = threading.Thread(target=forget)
    forgetting.start()
    assert held.wait(30)
    search.fold_totals()
    assert search.count_frequencies() == 0
    done.set()
    forgetting.join(30)

    with acting_as(kee):
        assert not SearchTotals.objects.exclude(scope=0).exists()


def test_every_item_is_findable_whatever_has_become_of_it(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Lives in Paris", slot="home", valid_from=T0 - 9 * DAY)
    remember(as_kee, "Lived in Rome", slot="home", valid_from=T0 - 5 * DAY, valid_to=T0 - 4 * DAY)
    remember(as_kee, "Lives in Paris", slot="home")
    assert items().filter(terms__term="pari").distinct().count() == items().filter(text="Lives in Paris").count() > 1
    check_totals()
