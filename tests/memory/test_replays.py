"""What was forgotten is not brought back by writing it again, wherever it was written."""

import json
from collections.abc import Callable
from datetime import timedelta, timezone
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from apps.core.erasure import Wanted
from apps.memory import services
from apps.memory.errors import ForgottenOnRequest, TooManyNamed
from apps.memory.models import Concept, Item, Observation, Pattern, Session
from apps.memory.references import subject_ids_in
from apps.memory.texts import is_telling
from apps.memory.tools.shapes import SubjectId
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import ALICE, add, change, remember

pytestmark = pytest.mark.usefixtures("own_artifacts")

BOB = "USER:bob"
DAY = timedelta(days=1)
ELSEWHERE = timezone(timedelta(hours=9))
ABOUT = {"people": [{"subject_id": ALICE}]}


def observe(author: Caller, text: str = "Has a zebra.", **said: Any) -> Observation:
    return services.store_observation(author=author, text=text, now=T0, **said)


def write_pattern(author: Caller, **said: Any) -> Pattern:
    given: dict[str, Any] = {"category": "c", "pattern_name": "n", "pattern_text": "t", "confidence": 1} | said
    return services.update_pattern(author=author, now=T0, **given)


def describe(author: Caller, **said: Any) -> Concept:
    return services.store_concept(author=author, now=T0, **({"name": "zebra"} | said))


def relate(author: Caller, **said: Any) -> object:
    ends = {"from_concept": "a", "to_concept": "b", "rel_type": "knows"}
    return services.add_relationship(author=author, now=T0, **(ends | said))


def record(author: Caller, conversation_id: str = "c", **said: Any) -> Session:
    return services.record_session(principal=author, conversation_id=conversation_id, now=T0, **said)


def forget(author: Caller, **what: Any) -> None:
    services.forget(author=author, subject_id=ALICE, now=T0, **what)


NAMING: dict[str, Callable[[Caller], object]] = {
    "observation": lambda kee: observe(kee, f"{ALICE} has a zebra."),
    "transcript": lambda kee: observe(kee, f"{ALICE}: I have a zebra."),
    "metadata": lambda kee: observe(kee, metadata=ABOUT),
    "key": lambda kee: observe(kee, metadata={ALICE: 1}),
    "document": lambda kee: observe(kee, metadata={"raw": json.dumps({"note": f"\n{ALICE}"})}),
    "evidence": lambda kee: observe(kee, evidence=[f"said by {ALICE}."]),
    "speaker": lambda kee: observe(kee, speaker=ALICE),
    "pattern": lambda kee: write_pattern(kee, pattern_text=f"{ALICE} asks twice"),
    "pattern's name": lambda kee: write_pattern(kee, pattern_name=ALICE),
    "concept": lambda kee: describe(kee, description=f"Kept by {ALICE}"),
    "alias": lambda kee: describe(kee, aliases=[ALICE]),
    "concept's metadata": lambda kee: describe(kee, metadata=ABOUT),
    "relationship": lambda kee: relate(kee, description=f"says {ALICE}"),
    "end": lambda kee: relate(kee, to_concept=ALICE),
    "summary": lambda kee: record(kee, summary=f"With {ALICE}, of zebras"),
    "topics": lambda kee: record(kee, topics=["zebras", ALICE]),
    "conversation": lambda kee: record(kee, f"with {ALICE}/1"),
    "turn's conversation": lambda kee: observe(kee, conversation_id=f"with {ALICE}"),
    "another's item": lambda kee: remember(kee, f"Married to {ALICE}", BOB),
    "another's preference": lambda kee: change(kee, BOB, preferences={"friend": ALICE}),
    "another": lambda kee: add(kee, "USER:carol", display_name=f"friend of {ALICE}"),
}


@pytest.mark.parametrize("write", NAMING.values(), ids=NAMING)
def test_what_names_a_forgotten_subject_is_refused_until_it_is_remembered_again(
    as_kee: Caller, write: Callable[[Caller], object]
) -> None:
    add(as_kee, BOB)
    add(as_kee)
    with transaction.atomic():
        write(as_kee)
        transaction.set_rollback(True)
    forget(as_kee)
    with pytest.raises(ForgottenOnRequest), transaction.atomic():
        write(as_kee)
    services.add_subject(
        author=as_kee, subject_id=ALICE, change=services.SubjectChange(given={}), remember_again=True, now=T0
    )
    write(as_kee)


def test_another_whose_id_is_longer_and_another_tenants_are_not_refused(as_kee: Caller) -> None:
    add(as_kee)
    forget(as_kee)
    observe(as_kee, f"{ALICE}2 and {ALICE}+work and X:{ALICE} have zebras.")
    stranger = make_caller(make_tenant("globex"))
    with acting_as(stranger):
        observe(stranger, f"{ALICE} has a zebra.")


def test_what_was_said_with_a_forgotten_subject_is_not_said_again_in_that_conversation(
    as_kee: Caller, tenant: Tenant
) -> None:
    add(as_kee)
    record(as_kee, subject_id=ALICE, summary="About zebras.")
    for text in ("I have a zebra.", "How nice!"):
        observe(as_kee, text, conversation_id="c")
    forget(as_kee)
    for replay in (
        lambda: observe(as_kee, "i have a zebra", conversation_id="c"),
        lambda: record(as_kee, summary="About zebras."),
    ):
        with pytest.raises(ForgottenOnRequest), transaction.atomic():
            replay()
    observe(as_kee, "Another day.", conversation_id="c")
    observe(as_kee, "How nice!", conversation_id="other")
    observe(as_kee, "How nice!")
    lee = make_caller(tenant, "Lee")
    with acting_as(lee):
        observe(lee, "How nice!", conversation_id="c")


def test_what_tells_next_to_nothing_is_refused_where_it_is_the_same_turn_and_nowhere_else(as_kee: Caller) -> None:
    add(as_kee)
    record(as_kee, subject_id=ALICE)
    observe(as_kee, "Yes.", conversation_id="c", occurred_at=T0 - DAY)
    observe(as_kee, "Yes.", conversation_id="c")
    forget(as_kee)

    for replayed in ({"occurred_at": T0 - DAY}, {"occurred_at": (T0 - DAY).astimezone(ELSEWHERE)}, {}):
        with pytest.raises(ForgottenOnRequest), transaction.atomic():
            observe(as_kee, "yes", conversation_id="c", **replayed)
    services.store_observation(author=as_kee, text="Yes.", conversation_id="c", now=T0 + DAY)
    observe(as_kee, "Yes.", conversation_id="other", occurred_at=T0 - DAY)
    assert Observation.objects.exclude(text="").count() == 2


def test_a_short_turn_that_held_a_forgotten_item_is_refused_where_it_is_the_same_turn_alone(as_kee: Caller) -> None:
    add(as_kee)
    item = remember(as_kee, "A zebra").item
    record(as_kee, subject_id=ALICE)
    observe(as_kee, "A zebra.", conversation_id="c")
    forget(as_kee, item=item.pk)
    with pytest.raises(ForgottenOnRequest), transaction.atomic():
        observe(as_kee, "A zebra.", conversation_id="c")
    services.store_observation(author=as_kee, text="A zebra.", conversation_id="c", now=T0 + DAY)


def test_a_summary_is_known_again_by_its_words_however_few(as_kee: Caller) -> None:
    add(as_kee)
    record(as_kee, subject_id=ALICE, summary="Divorce.")
    forget(as_kee)
    with pytest.raises(ForgottenOnRequest), transaction.atomic():
        record(as_kee, summary="Divorce.")


@pytest.mark.parametrize("text", ["Yes.", "Good morning!", "Thank you!", "はい", "Ok, да."])
def test_what_everybody_says_tells_nothing(text: str) -> None:
    assert not is_telling(text)


@pytest.mark.parametrize("text", ["I have a zebra.", "我有一匹斑马", "My name is Bob"])
def test_what_somebody_says_of_something_tells_it(text: str) -> None:
    assert is_telling(text)


def test_what_was_erased_with_a_forgotten_item_is_not_written_again(as_kee: Caller) -> None:
    add(as_kee)
    item = remember(as_kee, "Has a zebra at home").item
    record(as_kee, subject_id=ALICE, summary="Has a zebra at home, I hear.")
    observe(as_kee, "Say: has a zebra at home", conversation_id="c")
    observe(as_kee, "It has a zebra at home!", metadata=ABOUT)
    forget(as_kee, item=item.pk)
    assert set(Observation.objects.values_list("text", flat=True)) == {""}
    for replay in (
        lambda: record(as_kee, summary="Has a zebra at home, I hear."),
        lambda: observe(as_kee, "Say: has a zebra at home", conversation_id="c"),
        lambda: observe(as_kee, "It has a zebra at home!", metadata=ABOUT),
        lambda: observe(as_kee, "Has a zebra at home", metadata=ABOUT),
    ):
        with pytest.raises(ForgottenOnRequest), transaction.atomic():
            replay()
    observe(as_kee, "Has a zebra at home")
    observe(as_kee, "Asked about the weather", metadata=ABOUT)
    remember(as_kee, "Has a zebra at home", remember_again=True)
    observe(as_kee, "Has a zebra at home", metadata=ABOUT)


def test_what_names_nobody_and_is_of_no_conversation_costs_no_look_and_anything_else_one(as_kee: Caller) -> None:
    def looks(**said: Any) -> int:
        with CaptureQueriesContext(connection) as captured:
            observe(as_kee, **said)
        return sum("memory_forgotten" in query["sql"] for query in captured)

    assert looks(metadata={"plan": "plan-1", "at": "10:30", "url": "http://x/"}, evidence=["task:task_7"]) == 0
    assert looks(conversation_id="c") == 1
    assert looks(text=f"{ALICE} met {BOB}", metadata=ABOUT, conversation_id="c") == 1


@pytest.mark.parametrize(
    "said",
    [
        {"metadata": {f"A:b{number}": "" for number in range(3_000)}},
        {"metadata": {"ids": [f"A:b{number}" for number in range(3_000)]}},
        {"metadata": {"one": "A:b " * 6_000}},
        {"metadata": {"raw": ["”".join(f"A:{number}" for number in range(700))]}},
        {"text": "A:%41%42“" * 6_000},
    ],
    ids=["keys", "strings", "again", "many ends", "escaped"],
)
def test_what_may_name_more_than_is_looked_for_is_refused_before_anything_is_asked(
    as_kee: Caller, said: dict[str, Any]
) -> None:
    with (
        CaptureQueriesContext(connection) as captured,
        pytest.raises(TooManyNamed),
        transaction.atomic(),
    ):
        observe(as_kee, **said)
    assert not any("memory_forgotten" in query["sql"] for query in captured)
    assert not Observation.objects.exists()


def test_a_long_log_is_written_although_its_levels_look_like_kinds(as_kee: Caller) -> None:
    log = "".join(f"ERROR: disk {number} is full\nWARNING: it is {number}\n" for number in range(5_000))
    observe(as_kee, "The log.", metadata={"log": log, "mails": "INFO:root:started\n" * 1_000})


def test_what_hides_behind_many_others_is_found(as_kee: Caller) -> None:
    add(as_kee)
    forget(as_kee)
    with pytest.raises(ForgottenOnRequest), transaction.atomic():
        observe(as_kee, f"{'A:b ' * 2_000} {ALICE}")


def test_however_many_are_remembered_again_it_costs_two_looks(as_kee: Caller) -> None:
    names = [f"USER:{number}" for number in range(20)]
    for name in names:
        add(as_kee, name)
        services.forget(author=as_kee, subject_id=name, now=T0)
        change_of = services.SubjectChange(given={})
        services.add_subject(author=as_kee, subject_id=name, change=change_of, remember_again=True, now=T0)
    with CaptureQueriesContext(connection) as captured:
        observe(as_kee, " ".join(names))
    assert sum("memory_forgotten" in query["sql"] for query in captured) == 1
    assert sum('from "memory_subject"' in query["sql"].lower() for query in captured) == 1


def test_a_delegate_does_not_promote_what_was_forgotten(as_kee: Caller, tenant: Tenant) -> None:
    add(as_kee)
    forget(as_kee)
    coder = make_caller(tenant, "Coder", Kind.DELEGATE)
    services.set_promotion_policy(
        author=as_kee, delegate="Coder", domains=["zoo"], confidence_threshold=0, requires_novel=True, now=T0
    )
    with acting_as(coder):
        done = services.promote(delegate=coder, text=f"{ALICE} has a zebra.", domain="zoo", confidence=1, now=T0)
    assert (done.verdict, done.observation) == (services.Verdict.FORGOTTEN, None)
    assert Item.objects.count() == 0


_IDS = TypeAdapter(SubjectId)
_ODD = st.sampled_from("aZ9_:@.+~- \n\\\"'/,;(){}[]é“”東 \u00a0😀")


@given(before=st.text(_ODD, max_size=8), name=st.text(_ODD, min_size=1, max_size=8), after=st.text(_ODD, max_size=8))
@example(before="", name="alice", after="”, said Bob")
@example(before="ä", name="josé", after=".")
@example(before="(", name="“a” “b”", after=")")
@example(before="of ", name="al+1@é", after=" and")
@example(before="", name="al:1", after=": yes")
def test_every_id_by_which_forgetting_would_find_a_text_is_found_in_it(before: str, name: str, after: str) -> None:
    subject_id = f"USER:{name}"
    try:
        _IDS.validate_python(subject_id)
    except ValidationError:
        assume(False)
    wanted = Wanted(tenant_id=1, reference=subject_id)
    text = f"{before}{subject_id}{after}"
    in_json, in_address = json.dumps(text), quote(text)
    for said in (
        text, in_json, json.dumps(text, ensure_ascii=False), in_json.replace("+", r"\u002B"),
        in_address, quote(text, safe=":@"), quote(in_address),
    ):  # fmt: skip
        if wanted.stands_in(said):
            assert subject_id in subject_ids_in({"said": [said]})
    if wanted.stands_in(json.dumps({"said": text}, ensure_ascii=False)):
        assert subject_id in subject_ids_in({"said": text})


@pytest.mark.parametrize(
    "text", ["USER:zoë saves 50%20 of it.", "See /subjects/USER:zo%C3%AB now.", "USER:zoë, in C:\\u00e9tage"]
)
def test_who_lives_and_is_called_longer_with_a_letter_beyond_ascii_is_no_repetition(as_kee: Caller, text: str) -> None:
    for name in ("USER:zo", "USER:zoë"):
        add(as_kee, name)
    services.forget(author=as_kee, subject_id="USER:zo", now=T0)
    assert not Wanted(tenant_id=1, reference="USER:zo").stands_in(text)
    observe(as_kee, text)
    with pytest.raises(ForgottenOnRequest), transaction.atomic():
        observe(as_kee, f"{text} USER:zo.")


def test_who_is_remembered_again_at_its_own_wish_may_be_called_by_its_id(as_kee: Caller) -> None:
    add(as_kee)
    forget(as_kee)
    called = services.SubjectChange(given={"display_name": ALICE}, preferences={"friend": ALICE})
    with pytest.raises(ForgottenOnRequest), transaction.atomic():
        services.add_subject(author=as_kee, subject_id=ALICE, change=called, now=T0)
    services.add_subject(author=as_kee, subject_id=ALICE, change=called, remember_again=True, now=T0)
    forget(as_kee)
    with pytest.raises(ForgottenOnRequest), transaction.atomic():
        add(as_kee, BOB, preferences={"friend": ALICE})
