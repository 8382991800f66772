"""Whatever is erased, with a subject or with an item of it, is known again by its words, and not written twice."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from apps.core import erasure
from apps.memory import services
from apps.memory.errors import ForgottenOnRequest, TooManyNamed
from apps.memory.models import Forgotten, Item, Relationship, Session, Subject
from apps.memory.services.marks import TOLD
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_caller
from tests.memory.subjects import ALICE, add, change, facts, remember
from tests.memory.test_forgetting import traces
from tests.memory.test_replays import ABOUT, BOB, describe, forget, observe, record, relate, write_pattern

pytestmark = pytest.mark.usefixtures("own_artifacts")

ZEBRA = "Has a zebra at home"

Write = Callable[[Caller, str], object]


def noted(author: Caller, **said: Any) -> object:
    return observe(author, "Noted, as she wished.", **said)


# Whatever can hold words of somebody who is named beside them.
NAMING: dict[str, Write] = {
    "observation": lambda kee, told: observe(kee, told, metadata=ABOUT),
    "metadata": lambda kee, told: noted(kee, metadata={**ABOUT, "note": [told]}),
    "key": lambda kee, told: noted(kee, metadata={**ABOUT, told: 1}),
    "document": lambda kee, told: noted(kee, metadata={**ABOUT, "raw": json.dumps({"note": told})}),
    "evidence": lambda kee, told: noted(kee, metadata=ABOUT, evidence=[told]),
    "speaker": lambda kee, told: noted(kee, metadata=ABOUT, speaker=told),
    "domain": lambda kee, told: noted(kee, metadata=ABOUT, domain=told),
    "pattern": lambda kee, told: write_pattern(kee, pattern_text=f"{ALICE} says: {told}"),
    "pattern's name": lambda kee, told: write_pattern(kee, pattern_name=told, pattern_text=ALICE),
    "category": lambda kee, told: write_pattern(kee, category=told, pattern_text=ALICE),
    "concept": lambda kee, told: describe(kee, description=f"As {ALICE} says: {told}"),
    "concept's name": lambda kee, told: describe(kee, name=told, metadata=ABOUT),
    "alias": lambda kee, told: describe(kee, aliases=[told], metadata=ABOUT),
    "type": lambda kee, told: describe(kee, concept_type=told, metadata=ABOUT),
    "concept's metadata": lambda kee, told: describe(kee, metadata={**ABOUT, "note": told}),
    "relationship": lambda kee, told: relate(kee, description=f"{ALICE} says: {told}"),
    "relationship's type": lambda kee, told: relate(kee, rel_type=told, description=ALICE),
    "relationship of a concept": lambda kee, told: (
        describe(kee, metadata=ABOUT, description=ZEBRA),
        relate(kee, from_concept="zebra", description=f"{told}, {ALICE}"),
    ),
    "another's item": lambda kee, told: remember(kee, f"{ALICE} says: {told}", BOB),
    "another's source": lambda kee, told: remember(kee, f"Married to {ALICE}", BOB, source=told),
    "another's slot": lambda kee, told: remember(kee, f"Married to {ALICE}", BOB, slot=told),
    "another's evidence": lambda kee, told: remember(kee, f"Married to {ALICE}", BOB, evidence=[told]),
    "another's preference": lambda kee, told: change(kee, BOB, preferences={"friend": f"as {ALICE} says: {told}"}),
    "another's preferences": lambda kee, told: change(kee, BOB, preferences={told: f"as {ALICE} does"}),
    "another's domain": lambda kee, told: change(kee, BOB, domains=["pets", f"{told} ({ALICE})"]),
    "summary": lambda kee, told: record(kee, "of nobody", summary=f"{ALICE} says: {told}"),
    "title": lambda kee, told: record(kee, "of nobody", title=told, summary=ALICE),
    "topics": lambda kee, told: record(kee, "of nobody", topics=[told, ALICE]),
    "tone": lambda kee, told: record(kee, "of nobody", tone=told, title=ALICE),
    "platform": lambda kee, told: record(kee, "of nobody", platform=told[:50], title=ALICE),
    "conversation": lambda kee, told: record(kee, f"{ALICE}/{told}", tone="calm"),
    "turn of another's": lambda kee, told: observe(kee, told, metadata=ABOUT, conversation_id="of bob"),
}
# And what is said with a subject, which nobody needs to name.
WITH_HER: dict[str, Write] = {
    "turn": lambda kee, told: observe(kee, told, conversation_id="c"),
    "turn's speaker": lambda kee, told: noted(kee, speaker=told, conversation_id="c"),
    "turn's metadata": lambda kee, told: noted(kee, metadata={"note": told}, conversation_id="c"),
    "own summary": lambda kee, told: record(kee, subject_id=ALICE, summary=told),
    "own title": lambda kee, told: record(kee, subject_id=ALICE, title=told),
    "own topics": lambda kee, told: record(kee, topics=["pets", told]),
    "own tone": lambda kee, told: record(kee, tone=told),
    "own platform": lambda kee, told: record(kee, platform=told),
    "own item": remember,
    "own preference": lambda kee, told: change(kee, preferences={"pet": told, "tea": "green"}),
    "own domain": lambda kee, told: change(kee, domains=["pets", told]),
    "own level": lambda kee, told: change(kee, learning_level=told),
    "own slot": lambda kee, told: remember(kee, "Wishes for a lion", slot=told),
    "own source": lambda kee, told: remember(kee, "Wishes for a lion", source=told),
}
ALL = NAMING | WITH_HER


def meet(kee: Caller) -> int:
    """Somebody of whom one thing is known, somebody else, and a conversation with each; the answer is what is known."""
    for name, conversation_id in ((ALICE, "c"), (BOB, "of bob")):
        add(kee, name)
        record(kee, conversation_id, subject_id=name)
    return remember(kee, ZEBRA).item.pk


def refused(write: Write, kee: Caller, told: str) -> bool:
    with suppress(ForgottenOnRequest), transaction.atomic():
        write(kee, told)
        return False
    return True


@pytest.mark.parametrize("what", ALL)
def test_what_was_erased_with_an_item_is_refused_wherever_it_stood(as_kee: Caller, what: str) -> None:
    item = meet(as_kee)
    ALL[what](as_kee, f"So: {ZEBRA}, yes")
    forget(as_kee, item=item)
    assert traces("zebra at home") == {}
    assert refused(ALL[what], as_kee, f"so:  {ZEBRA.upper()}, yes")


@pytest.mark.parametrize("what", WITH_HER)
def test_what_was_forgotten_of_a_subject_is_refused_in_whatever_is_said_with_it(as_kee: Caller, what: str) -> None:
    item = meet(as_kee)
    forget(as_kee, item=item)
    assert refused(WITH_HER[what], as_kee, f"{ZEBRA.lower()}.")


@pytest.mark.parametrize("name", ["evidence", "source", "slot"])
def test_what_was_forgotten_of_a_subject_is_refused_beside_other_words_of_it(as_kee: Caller, name: str) -> None:
    item = meet(as_kee)
    forget(as_kee, item=item)
    told: dict[str, Any] = {name: [ZEBRA] if name == "evidence" else ZEBRA}
    assert refused(lambda kee, _: remember(kee, "Often at the zoo", type="USER_PATTERN", **told), as_kee, "")
    remember(as_kee, "Often at the zoo", BOB, **told)


@pytest.mark.parametrize("name", ["text", "speaker", "domain", "evidence", "metadata"])
def test_a_conversation_in_which_it_was_said_does_not_come_to_be_with_whom_it_was_forgotten_of(
    as_kee: Caller, name: str
) -> None:
    told: dict[str, Any] = {"evidence": [ZEBRA], "metadata": {"note": [ZEBRA]}}
    item = meet(as_kee)
    forget(as_kee, item=item)
    for number in range(3):
        observe(as_kee, f"Of the weather, day {number}", conversation_id="new")
    observe(as_kee, conversation_id="new", **{"text": "Noted, as she wished."} | {name: told.get(name, ZEBRA)})
    assert refused(lambda kee, _: record(kee, "new", subject_id=ALICE), as_kee, "")
    record(as_kee, "new", subject_id=BOB)
    assert refused(lambda kee, _: record(kee, "new", subject_id=ALICE), as_kee, "")
    remember(as_kee, ZEBRA, remember_again=True)
    record(as_kee, "new", subject_id=ALICE)


def test_a_conversation_in_which_everybody_may_have_said_it_comes_to_be_with_anybody(as_kee: Caller) -> None:
    add(as_kee)
    forget(as_kee, item=remember(as_kee, "A zebra").item.pk)
    observe(as_kee, "A zebra.", conversation_id="c")
    record(as_kee, subject_id=ALICE)


def test_who_may_not_know_a_subject_does_not_bring_back_what_was_forgotten_of_it(
    as_kee: Caller, tenant: Tenant
) -> None:
    item = meet(as_kee)
    change(as_kee, share_with=["Kee"])
    forget(as_kee, item=item)
    lee = make_caller(tenant, "Lee")
    with acting_as(lee):
        assert refused(NAMING["observation"], lee, ZEBRA)
        assert not refused(NAMING["observation"], lee, "Has two lions at home")
        observe(lee, ZEBRA, metadata={"subject_id": "USER:nobody"})


ROWS: dict[str, Callable[..., object]] = {
    "concept": lambda kee, **said: describe(kee, name="Alice", **said),
    "session": lambda kee, **said: record(kee, "b", **said),
}
WHO: dict[str, dict[str, Any]] = {
    "concept": {"aliases": [ALICE], "metadata": ABOUT, "concept_type": ALICE, "description": f"Is {ALICE}."},
    "session": {"subject_id": ALICE, "title": f"Of {ALICE}", "summary": ALICE, "topics": [ALICE], "tone": ALICE},
}
WHAT: dict[str, dict[str, Any]] = {
    "concept": {"aliases": [ZEBRA], "metadata": {"note": ZEBRA}, "concept_type": ZEBRA, "description": ZEBRA},
    "session": {"platform": ZEBRA, "title": ZEBRA, "summary": ZEBRA, "topics": ["pets", ZEBRA], "tone": ZEBRA},
}


@pytest.mark.parametrize(("kind", "who"), [(kind, who) for kind, names in WHO.items() for who in names])
def test_what_was_forgotten_of_a_subject_is_refused_where_it_comes_to_stand_beside_its_id(
    as_kee: Caller, kind: str, who: str
) -> None:
    item = meet(as_kee)
    forget(as_kee, item=item)
    naming = {who: WHO[kind][who]}
    for what in WHAT[kind].keys() - (naming.keys() - {"aliases"}):
        telling = {what: WHAT[kind][what]}
        for one, other in ((naming, telling), (telling, naming)):
            with transaction.atomic():
                ROWS[kind](as_kee, **one)
                with pytest.raises(ForgottenOnRequest), transaction.atomic():
                    ROWS[kind](as_kee, **other)
                transaction.set_rollback(True)


@pytest.mark.parametrize("kind", ROWS)
def test_what_comes_to_stand_in_the_place_of_what_was_forgotten_may_name_its_subject(as_kee: Caller, kind: str) -> None:
    item = meet(as_kee)
    forget(as_kee, item=item)
    name = "description" if kind == "concept" else "summary"
    ROWS[kind](as_kee, **{name: ZEBRA})
    ROWS[kind](as_kee, **{name: f"Is {ALICE}."})


@pytest.mark.parametrize("kind", ROWS)
def test_what_stands_beside_the_id_of_a_subject_already_is_not_said_anew_with_something_else(
    as_kee: Caller, kind: str
) -> None:
    text = "She feels well again."
    said, more = ("description", "concept_type") if kind == "concept" else ("summary", "tone")
    add(as_kee)
    item = remember(as_kee, "HIV").item.pk
    observe(as_kee, text, domain="HIV", metadata=ABOUT)
    ROWS[kind](as_kee, **{"aliases" if kind == "concept" else "topics": [ALICE], said: text})
    forget(as_kee, item=item)
    ROWS[kind](as_kee, **{more: "of the calm sort"})
    assert refused(lambda kee, told: ROWS[kind](kee, **{said: told}), as_kee, text)


@pytest.mark.parametrize("text", [ZEBRA, f"{ALICE} has a zebra"])
def test_at_the_wish_of_the_subject_all_that_was_forgotten_with_an_item_is_said_with_it_again(
    as_kee: Caller, text: str
) -> None:
    told: dict[str, Any] = {"source": f"Bob: {text}", "slot": text, "evidence": [f"So says Bob: {text}"]}
    add(as_kee)
    item = remember(as_kee, text, **told).item.pk
    forget(as_kee, item=item)
    assert refused(lambda kee, text: remember(kee, text, **told), as_kee, text)
    assert refused(remember, as_kee, text)
    remember(as_kee, text, remember_again=True, **told)
    remember(as_kee, text)
    forget(as_kee, item=Item.objects.get(superseded_at=None).pk)
    assert refused(remember, as_kee, text)


_AROUND = st.text(st.sampled_from("aZ9 \n\"'\\,.!?{}é東%:+ß"), max_size=7)


# Each example forgets something in earnest: a smaller one is not worth minutes.
_IN_EARNEST = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=set(Phase) - {Phase.shrink, Phase.explain},
)


@_IN_EARNEST
@given(what=st.sampled_from(list(ALL)), before=_AROUND, after=_AROUND)
def test_whatever_was_erased_with_an_item_is_refused_however_it_was_told(
    as_kee: Caller, what: str, before: str, after: str
) -> None:
    told = f"{before} {ZEBRA} {after}"
    with transaction.atomic():
        item = meet(as_kee)
        ALL[what](as_kee, told)
        forget(as_kee, item=item)
        assert refused(ALL[what], as_kee, told)
        transaction.set_rollback(True)


def says(name: str) -> Write:
    return lambda kee, told: record(kee, **{name: told})


@pytest.mark.parametrize("is_with_her", [True, False])
@pytest.mark.parametrize("what", ["turn", "summary", "title", "tone"])
def test_what_went_with_a_conversation_is_refused_there_though_it_names_nobody(
    as_kee: Caller, what: str, is_with_her: bool
) -> None:
    add(as_kee)
    record(as_kee, **({"subject_id": ALICE} if is_with_her else {"platform": f"of {ALICE}"}))
    write = WITH_HER["turn"] if what == "turn" else says(what)
    write(as_kee, "I have two zebras.")
    forget(as_kee)
    assert traces("zebra") == {}
    assert refused(write, as_kee, "I have two zebras")
    assert not refused(write, as_kee, "They have two lions.")


@pytest.mark.parametrize("name", ["summary", "title", "tone"])
@pytest.mark.parametrize("of_item", [True, False])
def test_what_a_conversation_said_earlier_is_refused_there(as_kee: Caller, name: str, of_item: bool) -> None:
    item = meet(as_kee)
    for said in ("I have two zebras.", ZEBRA, "They have two lions."):
        says(name)(as_kee, said)
    forget(as_kee, **({"item": item} if of_item else {}))
    for said in ("I have two zebras.", ZEBRA):
        assert refused(says(name), as_kee, said)
    assert refused(says(name), as_kee, "They have two lions.") == (not of_item)
    assert not refused(says(name), as_kee, "Of tigers, at length.")


def test_what_a_conversation_said_earlier_is_kept_as_digests_of_the_latest_of_it(as_kee: Caller) -> None:
    add(as_kee)
    record(as_kee, subject_id=ALICE)
    for number in range(60):
        with CaptureQueriesContext(connection) as captured:
            record(as_kee, summary=f"Zebra number {number}, at length.", tone="calm" * (number % 2))
        assert sum('update "memory_session"' in query["sql"].lower() for query in captured) == 1
    kept = [bytes(one) for one in Session.objects.get().overwritten]
    assert ({len(one) for one in kept}, len(kept)) == ({32}, 50)
    forget(as_kee)
    assert not Session.objects.exists()
    assert refused(says("summary"), as_kee, "Zebra number 58, at length.")
    assert not refused(says("summary"), as_kee, "Zebra number 1, at length.")


@pytest.mark.parametrize("of_item", [True, False])
def test_what_was_said_in_a_conversation_that_is_over_is_refused_where_it_was_said(
    as_kee: Caller, tenant: Tenant, of_item: bool
) -> None:
    add(as_kee)
    item = remember(as_kee, ZEBRA).item.pk
    lee = make_caller(tenant, "Lee")
    replayed = {"turn": WITH_HER["turn"], "summary": says("summary")}
    with acting_as(lee):
        record(lee, subject_id=ALICE)
        for write in replayed.values():
            write(lee, f"{ZEBRA}, truly.")
    change(as_kee, share_with=["Kee"])
    with acting_as(lee):
        observe(lee, "Another day it is.", conversation_id="c")
        # By the name that it has now it is over as well.
        over = Session.objects.exclude(was_called=None).get()
        observe(lee, "Yet another day.", conversation_id=over.conversation_id)
    forget(as_kee, **({"item": item} if of_item else {}))
    assert traces("zebra") == {}
    with acting_as(lee):
        for write in replayed.values():
            assert refused(write, lee, f"{ZEBRA}, truly.")
        observe(lee, "Yet another.", conversation_id="c")


def test_what_is_anybodys_is_no_repetition(as_kee: Caller) -> None:
    item = meet(as_kee)
    labels = {"domain": "customer-support", "speaker": "Alexander the Great"}
    observe(as_kee, f"So: {ZEBRA}, yes", metadata=ABOUT | {"lang": "en"}, **labels)
    observe(as_kee, f"So: {ZEBRA}, yes", conversation_id="c", **labels)
    noted(as_kee, metadata=ABOUT | {"note": ZEBRA}, conversation_id="c", **labels)
    record(as_kee, "of nobody", summary=f"{ALICE} says: {ZEBRA}", topics=["pets at home"], platform="claude-desktop")
    forget(as_kee, item=item)

    observe(as_kee, "Asked about the weather", metadata=ABOUT | {"lang": "en"}, **labels)
    noted(as_kee, metadata=ABOUT, conversation_id="c", **labels)
    observe(as_kee, f"So: {ZEBRA}, yes")
    observe(as_kee, f"So: {ZEBRA}, yes", metadata={"subject_id": BOB})
    observe(as_kee, f"So: {ZEBRA}, yes", conversation_id="of bob")
    record(as_kee, "of nobody", summary="Of the weather.", topics=["pets at home"], platform="claude-desktop")


@pytest.mark.parametrize("label", ["domain", "speaker"])
def test_a_label_that_is_anybodys_is_known_again_by_what_it_stood_with(as_kee: Caller, label: str) -> None:
    add(as_kee)
    item = remember(as_kee, "HIV").item.pk
    given: dict[str, Any] = {label: "HIV", "metadata": ABOUT}
    observe(as_kee, "She feels well again.", **given)
    forget(as_kee, item=item)
    with pytest.raises(ForgottenOnRequest), transaction.atomic():
        observe(as_kee, "She feels well again.", **given)
    observe(as_kee, "She is at work again.", **given)


@pytest.mark.parametrize("kind", ["pattern", "concept"])
def test_what_hung_from_something_that_was_erased_and_held_the_words_is_refused_too(as_kee: Caller, kind: str) -> None:
    def told_of(text: str) -> None:
        if kind == "pattern":
            write_pattern(as_kee, pattern_name=ALICE, pattern_text=text)
        else:
            relate(as_kee, from_concept=ALICE, description=text)

    item = meet(as_kee)
    told_of("Wishes for two lions.")
    if kind == "pattern":
        told_of(f"{ZEBRA}, says Bob")
        told_of(f"{ZEBRA}, says everybody")
    else:
        describe(as_kee, name=ALICE, description=ZEBRA)
        told_of(f"{ZEBRA}, says Bob")
    forget(as_kee, item=item)
    assert traces("zebra at home") == {}
    with pytest.raises(ForgottenOnRequest), transaction.atomic():
        told_of(f"{ZEBRA}, says Bob")
    told_of("Wishes for two lions.")


@pytest.mark.parametrize("about", [{"metadata": ABOUT}, {"aliases": [ALICE]}, {"description": f"Is {ALICE}."}], ids=str)
@pytest.mark.parametrize(
    "said", [{"aliases": ["HIV"]}, {"description": "Also: HIV."}, {"metadata": {"icd": "HIV"}}], ids=str
)
def test_a_relationship_between_a_subject_and_what_an_item_says_goes_with_the_item_and_is_refused(
    as_kee: Caller, about: dict[str, Any], said: dict[str, Any]
) -> None:
    add(as_kee)
    item = remember(as_kee, "HIV").item.pk
    describe(as_kee, name="Alice", **about)
    describe(as_kee, name="illness", **said)
    relate(as_kee, from_concept="Alice", to_concept="illness", description="Since years, they say.")
    relate(as_kee, from_concept="illness", to_concept="Alice")
    relate(as_kee, from_concept="Alice", to_concept="Bob")
    relate(as_kee, from_concept="Bob", to_concept="illness")

    done = services.forget(author=as_kee, subject_id=ALICE, item=item, now=T0)

    assert done.erased == {"memory_item": 1, "memory_relationship": 2}
    assert done.remaining == {}
    assert set(map(str, Relationship.objects.all())) == {"Alice knows Bob", "Bob knows illness"}
    told = {"from_concept": "alice", "to_concept": "illness", "description": "Since years, they say."}
    assert refused(lambda kee, _: relate(kee, **told), as_kee, "")
    relate(as_kee, from_concept="Alice", to_concept="lion")
    relate(as_kee, from_concept="Bob", to_concept="illness", description="Since years, they say.")


def test_a_short_turn_beside_a_short_label_is_refused_where_it_is_the_same_turn(as_kee: Caller) -> None:
    add(as_kee)
    item = remember(as_kee, "HIV").item.pk
    record(as_kee, subject_id=ALICE)
    observe(as_kee, "Yes.", speaker="HIV", conversation_id="c")
    forget(as_kee, item=item)
    with pytest.raises(ForgottenOnRequest), transaction.atomic():
        observe(as_kee, "Yes.", speaker="HIV", conversation_id="c")
    observe(as_kee, "Yes.", conversation_id="c", occurred_at=T0 - timedelta(days=1))


def test_a_name_of_whatever_length_that_an_item_gave_is_refused_beside_its_subject(as_kee: Caller) -> None:
    add(as_kee)
    item = remember(as_kee, "HIV").item.pk
    forget(as_kee, item=item)
    writes: list[Callable[[], object]] = [
        lambda: describe(as_kee, name="HIV", metadata=ABOUT),
        lambda: describe(as_kee, aliases=["HIV"], metadata=ABOUT),
        lambda: write_pattern(as_kee, pattern_name="HIV", pattern_text=ALICE),
        lambda: relate(as_kee, from_concept=ALICE, to_concept="HIV"),
        lambda: record(as_kee, "new", subject_id=ALICE, title="HIV"),
        lambda: record(as_kee, "new", subject_id=ALICE, summary="hiv."),
    ]
    for write in writes:
        with pytest.raises(ForgottenOnRequest), transaction.atomic():
            write()
    describe(as_kee, name="HIV")


def test_what_a_subject_prefers_is_refused_as_a_whole_however_short(as_kee: Caller) -> None:
    add(as_kee)
    item = remember(as_kee, "HIV").item.pk
    change(as_kee, preferences={"illness": "HIV", "tea": "green"}, domains=["HIV"])
    forget(as_kee, item=item)
    for told in ({"preferences": {"illness": "hiv"}}, {"domains": ["HIV", "pets"]}):
        with pytest.raises(ForgottenOnRequest), transaction.atomic():
            change(as_kee, **told)
    change(as_kee, preferences={"illness": "flu", "tea": "green"}, domains=["pets"])
    change(as_kee, preferences={"illness": None})


def test_of_how_many_strings_and_subjects_a_write_may_be_it_costs_one_look_and_a_repetition_two(
    as_kee: Caller,
) -> None:
    def looks(**said: Any) -> int:
        with CaptureQueriesContext(connection) as captured, suppress(ForgottenOnRequest), transaction.atomic():
            observe(as_kee, **said)
        return sum("memory_forgotten" in query["sql"] for query in captured)

    item = meet(as_kee)
    forget(as_kee, item=item)
    many = {f"USER:{number}": f"a long note of number {number}" for number in range(500)}
    assert looks(metadata={**many, **ABOUT}, conversation_id="c") == 1
    assert looks(metadata={**many, **ABOUT, "note": ZEBRA}) == 2
    assert looks(metadata={**many, "note": ZEBRA}) == 2


def test_what_says_too_much_of_too_many_again_is_refused_before_all_that_is_asked(as_kee: Caller) -> None:
    add(as_kee)
    told = [f"{ZEBRA}, and {number} more" for number in range(11)]
    for text in told:
        services.forget(author=as_kee, subject_id=ALICE, item=remember(as_kee, text).item.pk, now=T0)
    with pytest.raises(TooManyNamed), transaction.atomic():
        observe(as_kee, " ".join(f"USER:{number}" for number in range(500)), evidence=told)
    observe(as_kee, " ".join(f"USER:{number}" for number in range(400)), evidence=told)


def test_the_proof_of_a_forgotten_item_is_its_own_and_is_kept(as_kee: Caller) -> None:
    add(as_kee)
    items = [remember(as_kee, text).item.pk for text in ("Loves rye bread", ZEBRA)]
    proofs = {services.forget(author=as_kee, subject_id=ALICE, item=item, now=T0).proof for item in items}
    proofs |= {services.forget(author=as_kee, subject_id=ALICE, now=T0).proof}
    assert len(proofs) == 3
    assert proofs <= {bytes(one).hex() for one in Forgotten.objects.values_list("digest", flat=True)}


@pytest.mark.parametrize("of_item", [True, False])
def test_an_envelope_changes_that_held_what_was_forgotten_of_another(as_kee: Caller, of_item: bool) -> None:
    item = meet(as_kee)
    remember(as_kee, f"Married to {ALICE}. She: {ZEBRA}", BOB)
    assert len(facts(as_kee, BOB)) == 1
    before = Subject.objects.get(key=BOB).rev
    forget(as_kee, **({"item": item} if of_item else {}))
    assert Subject.objects.get(key=BOB).rev > before
    assert facts(as_kee, BOB) == []


def test_all_that_is_erased_of_memory_can_be_known_again() -> None:
    places = {place.name for place in erasure.all_places() if place.name.startswith("memory_")}
    # The first is known again entry by entry, of the others nothing is erased.
    others = {"memory_subject", "memory_passage", "memory_memorypolicy", "memory_promotionpolicy"}
    assert places - {told.rows.name for told in TOLD} == others
