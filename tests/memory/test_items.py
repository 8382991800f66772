"""Items of subjects: both times, equal texts, slots, statements, evidence and echoes."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.core import erasure
from apps.memory import selectors, services
from apps.memory.models import Memory, Subject
from apps.memory.services import Outcome
from apps.memory.states import ItemType, Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0, refused
from tests.memory.subjects import ALICE, DAY, TICK, add, envelope, facts, items, observe, remember, rev, revise
from tests.waiters import acting, at_once

BOB = "USER:bob"


def history(subject: Subject, **asked: Any) -> list[str]:
    return sorted(item.text for item in selectors.items(subject, **{"now": T0, **asked}))


@pytest.fixture
def alice(as_kee: Caller) -> Subject:
    return add(as_kee)


def test_item_has_author_evidence_source_slot_and_times(as_kee: Caller, alice: Subject) -> None:
    evidence = [observe(as_kee).ref, "task:task_7"]
    stored = remember(as_kee, evidence=evidence, source="session c-1", slot="food", stated=True)
    item = items().get()
    assert (stored.outcome, stored.replaced, stored.item) == (Outcome.STORED, [], item)
    assert (item.author.name, item.evidence, item.source, item.slot) == ("Kee", evidence, "session c-1", "food")
    assert (item.valid_from, item.valid_to, item.occurred_at, item.recorded_at) == (T0, None, T0, T0)


# The same text.


def test_same_text_is_merged_and_new_evidence_raises_confidence(as_kee: Caller, alice: Subject) -> None:
    one, other = observe(as_kee).ref, observe(as_kee).ref
    first = remember(as_kee, "Loves fettuccini.", confidence=0.5, evidence=[one])
    second = remember(as_kee, "loves  FETTUCCINI", confidence=0.5, evidence=[other], now=T0 + DAY)
    assert (second.outcome, second.replaced) == (Outcome.MERGED, [first.item.pk])
    assert (second.item.confidence, second.item.evidence) == (0.75, [one, other])
    assert (second.item.valid_from, second.item.occurred_at) == (T0, T0 + DAY)
    assert facts(as_kee, now=T0 + DAY) == ["loves  FETTUCCINI"]


def test_repetition_without_new_evidence_does_not_raise_confidence(as_kee: Caller, alice: Subject) -> None:
    one = observe(as_kee).ref
    known = remember(as_kee, confidence=0.5, evidence=[one]).item.ref
    for evidence in ([one], [one.replace("observation:", "obs-")], [], [known], [f"envelope:{ALICE}"]):
        assert remember(as_kee, confidence=0.5, evidence=evidence).item.confidence == 0.5
    said = (0.9, 0.3)
    assert [remember(as_kee, confidence=confidence).item.confidence for confidence in said] == [0.9, 0.9]


def test_text_from_an_envelope_is_no_evidence_for_itself(as_kee: Caller, alice: Subject, lee: Caller) -> None:
    known = remember(as_kee, confidence=0.5).item.ref
    envelope(lee)
    for evidence in ([], [known], [f"envelope:{ALICE}"]):
        assert remember(lee, confidence=0.5, evidence=evidence).item.confidence == 0.5
    assert remember(lee, confidence=0.5, evidence=[observe(lee).ref]).item.confidence == 0.75
    assert remember(lee, confidence=0.99, evidence=[observe(lee).ref]).item.confidence == 0.99


def test_same_text_of_another_type_or_time_is_another_item(as_kee: Caller, alice: Subject) -> None:
    remember(as_kee, valid_from=T0 - 9 * DAY, valid_to=T0 - 8 * DAY)
    outcomes = [remember(as_kee).outcome, remember(as_kee, type=ItemType.SHARED_NARRATIVE).outcome]
    assert outcomes == [Outcome.STORED, Outcome.STORED]


def test_same_text_with_bounds_corrects_the_period(as_kee: Caller, alice: Subject) -> None:
    remember(as_kee, valid_from=T0 - 9 * DAY)
    remember(as_kee, valid_from=T0 - DAY, now=T0 + DAY)
    moments = (T0 - 5 * DAY, T0)
    assert [history(alice, true_at=moment) for moment in moments] == [[], ["Loves fettuccini"]]
    assert history(alice, true_at=T0 - 5 * DAY, known_at=T0) == ["Loves fettuccini"]
    ended = remember(as_kee, valid_to=T0 + 2 * DAY, now=T0 + 3 * DAY)
    assert (ended.outcome, ended.item.valid_from, ended.item.valid_to) == (Outcome.MERGED, T0 - DAY, T0 + 2 * DAY)
    assert facts(as_kee, now=T0 + 3 * DAY) == []


# Slots.


@pytest.mark.parametrize("stated", [False, True])
def test_same_text_in_two_slots_is_two_items(as_kee: Caller, alice: Subject, stated: bool) -> None:
    remember(as_kee, "Berlin", slot="home town", stated=True)
    born = remember(as_kee, "Berlin", slot="birth place", stated=stated, now=T0 + DAY, evidence=["task:task_7"])
    assert (born.outcome, born.replaced) == (Outcome.STORED, [])
    remember(as_kee, "Rome", slot="birth place", stated=True, valid_from=T0 - DAY, now=T0 + 2 * DAY)
    assert [history(alice, slot=slot) for slot in ("home town", "birth place")] == [["Berlin"], ["Rome"]]


def test_text_without_slot_joins_the_item_said_last(as_kee: Caller, alice: Subject) -> None:
    bare = remember(as_kee, "Berlin").item
    home = remember(as_kee, "Berlin", slot="home town")
    born = remember(as_kee, "Berlin", slot="birth place", now=T0 + DAY)
    assert (home.replaced, born.replaced) == ([bare.pk], [])
    joined = remember(as_kee, "Berlin", now=T0 + 2 * DAY)
    assert (joined.outcome, joined.replaced, joined.item.slot) == (Outcome.MERGED, [born.item.pk], "birth place")
    assert [one.ref for one in selectors.items(alice, now=T0, slot="home town")] == [home.item.ref]


def test_slots_are_compared_without_case_width_and_spacing(as_kee: Caller, alice: Subject) -> None:
    remember(as_kee, "Lives in Berlin", slot="home town")
    newer = remember(as_kee, "Lives in Rome", slot="Home\u00a0 Town", now=T0 + DAY)
    assert (newer.outcome, newer.item.slot) == (Outcome.SUPERSEDED, "Home\u00a0 Town")
    assert history(alice, slot="HOME TOWN", true_at=T0 + DAY) == ["Lives in Rome"]
    assert history(alice, slot=" ") == []
    for slot in (" ", "\ufdfa" * 12):
        with refused("unusable_name"), transaction.atomic():
            remember(as_kee, slot=slot)


# Superseding.


def test_newer_answer_supersedes_and_history_stays(as_kee: Caller, alice: Subject) -> None:
    remember(as_kee, "Lives in Berlin", slot="home", valid_from=T0 - 1000 * DAY)
    newer = remember(as_kee, "Lives in Paris", slot="home", now=T0 + DAY)
    assert newer.outcome == Outcome.SUPERSEDED
    assert facts(as_kee, now=T0 + DAY) == ["Lives in Paris"]
    asked: list[tuple[dict[str, Any], list[str]]] = [
        ({"true_at": T0 - DAY}, ["Lives in Berlin"]),
        ({"true_at": T0 + DAY}, ["Lives in Paris"]),
        ({"known_at": T0, "true_at": T0 + DAY}, ["Lives in Berlin"]),
        ({"known_at": T0 - DAY}, []),
        ({"slot": "home"}, ["Lives in Berlin", "Lives in Paris"]),
    ]
    assert [history(alice, **one) for one, _ in asked] == [found for _, found in asked]


def test_answer_for_a_period_leaves_the_rest_before_and_after(as_kee: Caller, alice: Subject) -> None:
    remember(as_kee, "Lives in Berlin", slot="home", valid_from=T0 - 100 * DAY)
    remember(as_kee, "Lived in Rome", slot="home", valid_from=T0 - 50 * DAY, valid_to=T0 - 40 * DAY, now=T0 + DAY)
    moments = (T0 - 51 * DAY, T0 - 50 * DAY, T0 - 40 * DAY - TICK, T0 - 40 * DAY, T0)
    berlin, rome = ["Lives in Berlin"], ["Lived in Rome"]
    assert [history(alice, true_at=moment) for moment in moments] == [berlin, rome, rome, berlin, berlin]
    # What is left was said when the whole was said.
    assert {fact.age_days for fact in envelope(as_kee, now=T0 + DAY).relational.memorable_facts} == {1}
    known = [history(alice, known_at=moment) for moment in (T0, T0 + DAY - TICK, T0 + DAY)]
    assert known == [berlin, berlin, [*rome, *berlin, *berlin]]


def test_item_is_superseded_by_reference_as_a_whole(as_kee: Caller, alice: Subject) -> None:
    add(as_kee, BOB)
    older = remember(as_kee, "Lived in Rome", valid_from=T0 - 9 * DAY, valid_to=T0 - 8 * DAY).item
    newer = remember(as_kee, "Lives in Berlin", supersedes=older.pk, now=T0 + DAY)
    older.refresh_from_db()
    assert (newer.outcome, older.superseded_by, older.superseded_at) == (Outcome.SUPERSEDED, newer.item, T0 + DAY)
    assert history(alice, now=T0 + DAY) == ["Lives in Berlin"]
    assert history(alice, true_at=T0 - 9 * DAY) == []
    for subject_id, number, code in (
        (ALICE, older.pk, "already_superseded"),
        (ALICE, 10**15, "unknown_memory"),
        (BOB, newer.item.pk, "unknown_memory"),
    ):
        with refused(code), transaction.atomic():
            remember(as_kee, "x", subject_id, supersedes=number)


def test_learned_answer_does_not_supersede_a_statement(as_kee: Caller, alice: Subject) -> None:
    said = remember(as_kee, "Wants short answers", slot="length", stated=True).item
    for given in ({"slot": "length"}, {"supersedes": said.pk}):
        with refused("statement_stands") as refusal, transaction.atomic():
            remember(as_kee, "Prefers long answers", type=ItemType.USER_PATTERN, confidence=1, **given)
        assert refusal.value.extra == {"existing": said.ref}
    assert items().count() == 1
    remember(as_kee, "Wants long answers", slot="length", stated=True)
    assert facts(as_kee) == ["Wants long answers"]


@pytest.mark.parametrize(
    "given",
    [
        {"valid_to": T0 + 2 * DAY},
        {"valid_from": T0 + DAY},
        {"slot": "length", "valid_to": T0 + 2 * DAY, "evidence": ["task:task_7"], "confidence": 1},
    ],
    ids=", ".join,
)
def test_learned_text_does_not_change_the_period_of_a_statement(
    as_kee: Caller, alice: Subject, lee: Caller, given: dict[str, Any]
) -> None:
    said = remember(as_kee, "Wants short answers", slot="length", stated=True).item
    for supersedes in (None, said.pk):
        with refused("statement_stands"), transaction.atomic():
            remember(lee, "Wants short answers", now=T0 + DAY, supersedes=supersedes, **given)
    assert items().get() == said


def test_learned_text_raises_confidence_of_a_statement_that_stays_one(
    as_kee: Caller, alice: Subject, lee: Caller
) -> None:
    remember(as_kee, "Wants short answers", slot="length", stated=True, confidence=0.5, valid_to=T0 + 9 * DAY)
    evidence = [observe(lee).ref]
    merged = remember(lee, "Wants short answers", confidence=0.5, evidence=evidence, now=T0 + DAY).item
    assert (merged.stated, merged.slot, merged.confidence) == (True, "length", 0.75)
    assert (merged.valid_from, merged.valid_to) == (T0, T0 + 9 * DAY)
    with refused("statement_stands"), transaction.atomic():
        remember(lee, "Wants short answers", slot="other", supersedes=merged.pk)
    # In another slot it is another item.
    assert remember(lee, "Wants short answers", slot="other").replaced == []


def test_statement_supersedes_what_was_learned(as_kee: Caller, alice: Subject) -> None:
    remember(as_kee, "Prefers long answers", slot="length", type=ItemType.USER_PATTERN, confidence=1)
    remember(as_kee, "Wants short answers", slot="length", stated=True, confidence=0.1)
    known = envelope(as_kee).relational
    assert ([one.fact for one in known.memorable_facts], known.patterns) == (["Wants short answers"], [])


def test_period_that_ends_before_it_begins_is_refused(as_kee: Caller, alice: Subject) -> None:
    for begin, end in ((T0, T0), (None, T0 - DAY)):
        with refused("impossible_period"), transaction.atomic():
            remember(as_kee, valid_from=begin, valid_to=end)
    assert not items().exists()


# Evidence.


@pytest.mark.parametrize(
    "ref", ["observation:999999", "obs-999999", "pattern:999999", "concept:nothing", "item:999999", "gone", "hidden"]
)
def test_evidence_must_exist_and_be_readable(as_kee: Caller, alice: Subject, lee: Caller, ref: str) -> None:
    add(as_kee, BOB, share_with=["Kee"])
    hidden, gone = remember(as_kee, "Loves tea", BOB).item.ref, observe(as_kee)
    with acting_as_system("a test"), erasure.redacting():
        services.forget_memories([gone.pk])
    cited = {"gone": gone.ref, "hidden": hidden}.get(ref, ref)
    writes: list[Callable[[], object]] = [
        lambda: remember(lee, evidence=[cited]),
        lambda: observe(lee, evidence=[cited]),
        lambda: observe(lee, supersedes=gone.ref),
        lambda: revise(lee, "x", evidence_observation_ids=[gone.pk]),
    ]
    for write in writes:
        with refused("unknown_memory"), transaction.atomic():
            write()
    assert Memory.objects.count() == 1


def test_evidence_is_stored_in_one_form_or_refused(as_kee: Caller, alice: Subject) -> None:
    cited = observe(as_kee).ref
    number = cited.removeprefix("observation:")
    for ref in (f" {cited}\n", cited.upper(), f"OBS-{number}", f"Obs:{number}"):
        assert remember(as_kee, evidence=[ref]).item.evidence == [cited]
    for ref in ("observation:abc", "obs-0", "pattern:", "Item:one", " item:one", "OBS-x"):
        with refused("malformed_memory_reference"), transaction.atomic():
            remember(as_kee, evidence=[ref])
    remember(as_kee, evidence=["item-7", "concept-7", "what I saw", "plan:p-1"])


# What the database refuses.


@pytest.mark.parametrize(
    "values",
    [
        {"confidence": 1.01},
        {"domain": "USER_SECRET"},
        {"slot": "", "slot_key": "x"},
        {"slot": "x"},
        {"valid_to": T0},
        {"slot": "Home", "slot_key": "home"},
        {"text_digest": b"1", "slot": "home", "slot_key": "home"},
        {"text_digest": b"2"},
    ],
    ids=str,
)
def test_database_refuses_impossible_items(as_kee: Caller, alice: Subject, values: dict[str, Any]) -> None:
    sound = {
        "tenant_id": as_kee.tenant_id, "subject": alice, "author_id": as_kee.principal_id, "domain": "USER_FACT",
        "text": "x", "confidence": 0.5, "valid_from": T0, "occurred_at": T0, "recorded_at": T0, "kind": Kind.ITEM,
    }  # fmt: skip
    Memory.objects.create(**sound, text_digest=b"1", slot="home", slot_key="home")
    Memory.objects.create(**sound, text_digest=b"2")
    with pytest.raises(IntegrityError), transaction.atomic():
        Memory.objects.create(**{**sound, "text_digest": b"3", **values})


@pytest.mark.parametrize("kind", [Kind.ITEM, Kind.OBSERVATION])
def test_database_refuses_rewriting_and_impossible_superseding(as_kee: Caller, alice: Subject, kind: Kind) -> None:
    if kind == Kind.ITEM:
        newer, older = remember(as_kee).item, remember(as_kee, "Hates fettuccini").item
    else:
        newer, older = observe(as_kee), observe(as_kee)
    for message, values in (
        ("immutable", {"text": "Never mind."}),
        ("at_a_time", {"superseded_by": newer}),
        ("not_superseded_by_itself", {"superseded_at": T0, "superseded_by": older}),
        ("known_before_superseded", {"superseded_at": T0 - DAY, "superseded_by": newer}),
    ):
        with pytest.raises(IntegrityError, match=message), transaction.atomic():
            Memory.objects.filter(pk=older.pk).update(**values)


def test_of_rivals_in_one_slot_one_answer_stands(transactional_db: None, kee: Caller) -> None:
    with acting_as(kee):
        subject = add(kee)

    def answer(number: int) -> Callable[[], object]:
        now = T0 + timedelta(seconds=number)
        return lambda: remember(kee, f"Lives at {number}", slot="home", valid_from=T0, now=now).outcome

    outcomes = at_once(*(acting(kee, answer(number)) for number in range(6)))
    assert sorted(map(str, outcomes)) == [Outcome.STORED, *[Outcome.SUPERSEDED] * 5]
    with acting_as(kee):
        assert (items().count(), len(history(subject)), rev()) == (6, 1, 7)
