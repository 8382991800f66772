"""Who forgets and who writes at the same time wait for each other in one order: nobody's transaction is broken off."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from apps.core.erasure import Wanted, remaining
from apps.core.errors import NotFound, Unavailable
from apps.memory import services, sql
from apps.memory.errors import ForgottenOnRequest, UnknownSubject
from apps.memory.models import Concept, Item, Observation, Passage, Pattern, Session, Subject, Vector
from apps.memory.services import ItemDraft, SubjectChange
from apps.memory.services.subjects import held
from apps.principals.selectors import tenant_named
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import ALICE, add, change, remember
from tests.waiters import (
    Other,
    until_somebody_waits_for_this_transaction,
    until_somebody_waits_for_who_waits_for_this_transaction,
)

BOB = "USER:bob"
NAMES = [f"USER:{number}" for number in range(8)]


@pytest.fixture
def kee(transactional_db: None) -> Caller:
    return make_caller(make_tenant("acme"))


def forget(author: Caller, subject_id: str = ALICE) -> services.Erasure:
    # Not through the interfaces, which would try once more whatever the database breaks off.
    with acting_as(author):
        return services.forget(author=author, subject_id=subject_id, now=T0)


def test_subjects_that_name_each_other_are_forgotten_at_once_and_none_is_broken_off(kee: Caller) -> None:
    with acting_as(kee):
        for name in NAMES:
            add(kee, name)
        for name in NAMES:
            others = ", ".join(other for other in NAMES if other != name)
            remember(kee, f"knows {others}", name)
            services.record_session(
                principal=kee, conversation_id=f"of {name}", subject_id=name, summary=f"of {others}", now=T0
            )
            services.store_observation(author=kee, text=f"met {others}", conversation_id=f"of {name}", now=T0)
            services.store_observation(author=kee, text=f"met {others}", now=T0)
            services.store_concept(author=kee, name=f"friends of {name}", metadata={"are": others}, now=T0)
    barrier = threading.Barrier(len(NAMES))

    def forgetting(name: str) -> Callable[[], Any]:
        def act() -> None:
            barrier.wait(20)
            forget(kee, name)

        return act

    rivals = [Other(forgetting(name)) for name in NAMES]

    assert [rival.ends() for rival in rivals] == [None] * len(NAMES)
    with acting_as(kee):
        assert not Subject.objects.exists()
        assert not Item.objects.exists()
        assert not Observation.objects.exclude(text="").exists()
        assert not Session.objects.exclude(summary="").exists()


def test_who_speaks_with_somebody_is_waited_for_before_whom_it_speaks_with_is_held(kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
        add(kee, BOB)
        remember(kee, f"knows {ALICE}", BOB)
        services.record_session(principal=kee, conversation_id="c", subject_id=BOB, summary=f"of {ALICE}", now=T0)
    with acting_as(kee):
        Session.objects.select_for_update().get()
        forgetting = Other(lambda: forget(kee))
        until_somebody_waits_for_this_transaction()
        services.store_observation(author=kee, text="Hello.", conversation_id="c", now=T0)
    assert forgetting.ends() is None
    with acting_as(kee):
        assert (Subject.objects.get().key, Item.objects.exists()) == (BOB, False)


@pytest.mark.parametrize("kind", ["pattern", "concept"])
def test_who_holds_what_names_somebody_is_waited_for_and_says_no_more_of_whom_is_being_forgotten(
    kee: Caller, kind: str
) -> None:
    def say(text: str) -> None:
        if kind == "concept":
            services.store_concept(author=kee, name=ALICE, description=text, now=T0)
        else:
            services.update_pattern(
                author=kee, category="c", pattern_name=ALICE, pattern_text=text, confidence=1, now=T0
            )

    with acting_as(kee):
        add(kee)
        say("once")
    with acting_as(kee):
        (Pattern if kind == "pattern" else Concept).objects.select_for_update().get()
        forgetting = Other(lambda: forget(kee))
        until_somebody_waits_for_this_transaction()
        with pytest.raises(Unavailable):
            say("again")
    assert forgetting.ends() is None
    with acting_as(kee):
        assert (Pattern.objects.exists(), Concept.objects.exists()) == (False, False)


def test_what_would_come_to_name_somebody_while_it_is_forgotten_is_refused_and_waits_for_nobody(kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
        add(kee, BOB)
        services.record_session(principal=kee, conversation_id="c", subject_id=BOB, now=T0)
        services.store_observation(author=kee, text=f"Met {ALICE}.", conversation_id="c", now=T0)
        services.update_pattern(author=kee, category="c", pattern_name=ALICE, pattern_text="t", confidence=1, now=T0)

    def speak() -> None:
        with acting_as(kee):
            remember(kee, f"knows {ALICE}", BOB)

    with acting_as(kee):
        Pattern.objects.select_for_update().get()
        forgetting = Other(lambda: forget(kee))
        until_somebody_waits_for_this_transaction()
        assert isinstance(Other(speak).ends(), Unavailable)

    assert forgetting.ends() is None
    with acting_as(kee):
        assert (Subject.objects.get().key, Item.objects.exists()) == (BOB, False)
        assert Observation.objects.get().text == ""


WRITES: dict[str, Callable[[Caller], Any]] = {
    "turn": lambda kee: services.store_observation(author=kee, text="Has a zebra.", conversation_id="c", now=T0),
    "summary": lambda kee: services.record_session(principal=kee, conversation_id="c", summary="Of zebras.", now=T0),
    "pattern": lambda kee: services.update_pattern(
        author=kee, category="c", pattern_name=ALICE, pattern_text="again", confidence=1, now=T0
    ),
    "concept": lambda kee: services.store_concept(author=kee, name=ALICE, description="again", now=T0),
    "relationship": lambda kee: services.add_relationship(
        author=kee, from_concept=ALICE, to_concept="zebra", rel_type="has", now=T0
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_who_repeats_something_while_it_is_forgotten_is_refused_once_it_is(
    kee: Caller, write: Callable[[Caller], Any]
) -> None:
    with acting_as(kee):
        add(kee)
        services.record_session(principal=kee, conversation_id="c", subject_id=ALICE, summary="Of zebras.", now=T0)
        services.store_observation(author=kee, text="Has a zebra.", conversation_id="c", now=T0)
        services.store_concept(author=kee, name=ALICE, now=T0)
        for name in (ALICE, f"the last that is held, of {ALICE}"):
            services.update_pattern(author=kee, category="c", pattern_name=name, pattern_text="t", confidence=1, now=T0)

    def writing() -> None:
        with acting_as(kee):
            write(kee)

    with acting_as(kee):
        Pattern.objects.select_for_update().get(name__startswith="the last")
        forgetting = Other(lambda: forget(kee))
        until_somebody_waits_for_this_transaction()
        repeating = Other(writing)
        until_somebody_waits_for_who_waits_for_this_transaction()
    assert forgetting.ends() is None
    assert isinstance(repeating.ends(), ForgottenOnRequest)
    with acting_as(kee):
        assert set(Observation.objects.values_list("text", flat=True)) == {""}
        assert not Session.objects.exclude(summary="").exists()
        assert not Pattern.objects.exists()
        assert not Concept.objects.exists()


def test_what_has_had_its_days_is_swept_another_time_while_something_else_is_forgotten(kee: Caller) -> None:
    with acting_as(kee):
        add(kee, delete_after_days=2)
        remember(kee)
        add(kee, BOB)
    with acting_as(kee):
        held(kee, BOB)
        forgetting = Other(lambda: forget(kee, BOB))
        until_somebody_waits_for_this_transaction()
        assert services.forget_expired() == 0
        assert Item.objects.exists()
    assert forgetting.ends() is None
    assert services.forget_expired() == 1


def tell_of_alice(kee: Caller) -> None:
    """All that she is known by: an item, a turn, and what else names her."""
    add(kee, delete_after_days=2)
    remember(kee, "Has a zebra")
    services.record_session(principal=kee, conversation_id="c", subject_id=ALICE, now=T0)
    services.store_observation(author=kee, text="Has a zebra.", conversation_id="c", now=T0)
    services.store_observation(author=kee, text=f"{ALICE} has a zebra.", now=T0)


def keep_vectors_of_everything() -> None:
    texts = sql.unembedded(7, limit=10)
    assert sql.keep_vectors(7, texts, dict.fromkeys(texts, "[0.6,0.8]")) == Passage.objects.count() > 0


def forget_zebra(kee: Caller) -> None:
    with acting_as(kee):
        services.forget(author=kee, subject_id=ALICE, item=Item.objects.get().pk, now=T0)


def forget_expired(_: Caller) -> None:
    assert services.forget_expired() == 1


# How it is told of, how forgotten, and how many are left that may be found.
MET: dict[str, tuple[Callable[[Caller], Any], Callable[[Caller], Any], int]] = {
    "subject": (tell_of_alice, forget, 0),
    "subject of items": (lambda kee: (add(kee), remember(kee)), forget, 0),
    "item": (tell_of_alice, forget_zebra, 0),
    "days": (tell_of_alice, forget_expired, 1),
}


@pytest.mark.parametrize(("tell", "forgetting", "left"), MET.values(), ids=MET)
def test_what_is_forgotten_while_the_embedder_tells_what_it_means_is_gone_with_its_vectors(
    kee: Caller, tell: Callable[[Caller], Any], forgetting: Callable[[Caller], Any], left: int
) -> None:
    with acting_as(kee):
        tell(kee)
    with acting_as_system("what memories mean"):
        keep_vectors_of_everything()
        rival = Other(lambda: forgetting(kee))
        until_somebody_waits_for_this_transaction()
    assert rival.ends() is None
    with acting_as(kee):
        assert (Passage.objects.count(), Vector.objects.count()) == (left, left)


def test_a_conversation_that_gets_a_subject_while_the_embedder_tells_what_it_means_takes_its_vectors_along(
    kee: Caller,
) -> None:
    with acting_as(kee):
        alice = add(kee)
        services.store_observation(author=kee, text="Has a zebra.", conversation_id="c", now=T0)

    def naming() -> None:
        with acting_as(kee):
            services.record_session(principal=kee, conversation_id="c", subject_id=ALICE, now=T0)

    with acting_as_system("what memories mean"):
        keep_vectors_of_everything()
        rival = Other(naming)
        until_somebody_waits_for_this_transaction()
    assert rival.ends() is None
    with acting_as(kee):
        assert (Passage.objects.get().scope, Vector.objects.get().scope) == (alice.pk, alice.pk)


ACTS: dict[str, Callable[[Caller], Any]] = {
    "remember": remember,
    "update": lambda lee: services.update_subject(author=lee, subject_id=ALICE, change=SubjectChange(given={}), now=T0),
    "forget": lambda lee: services.forget(author=lee, subject_id=ALICE, now=T0),
    "forget an item": lambda lee: services.forget(author=lee, subject_id=ALICE, item=1, now=T0),
    "record": lambda lee: services.record_session(principal=lee, conversation_id="c", subject_id=ALICE, now=T0),
    "supersede": lambda lee: services.remember(
        author=lee, draft=ItemDraft(subject_id=ALICE, text="t", supersedes=1), now=T0
    ),
}


@pytest.mark.parametrize("act", ACTS)
def test_whom_a_subject_is_not_shared_with_does_not_wait_for_it(kee: Caller, act: str) -> None:
    with acting_as(kee):
        add(kee, share_with=[kee.name])
    with acting_as_system("test"):
        lee = make_caller(tenant_named(kee.tenant_slug), "Lee")

    def acting() -> None:
        with acting_as(lee):
            ACTS[act](lee)

    with acting_as(kee):
        assert held(kee, ALICE)
        assert isinstance(Other(acting).ends(), UnknownSubject)


@pytest.mark.parametrize("what", [{"subject_id": BOB}, {"subject_id": ALICE, "item": 1}], ids=["subject", "item"])
def test_who_forgets_what_is_not_there_waits_for_nobody_elses_turn(kee: Caller, what: dict[str, Any]) -> None:
    with acting_as(kee):
        add(kee)

    def forgetting() -> None:
        with acting_as(kee):
            services.forget(author=kee, now=T0, **what)

    with acting_as(kee):
        sql.await_turn(kee.tenant_id)
        assert isinstance(Other(forgetting).ends(), NotFound)


MANY = [f"USER:of-many-{number}" for number in range(100)]
NAMING: dict[str, Callable[[Caller], Any]] = {
    "observation": lambda kee: services.store_observation(author=kee, text=f"{ALICE} has a zebra.", now=T0),
    "metadata": lambda kee: services.store_observation(author=kee, text="x", metadata={"a": ALICE}, now=T0),
    "session": lambda kee: services.record_session(
        principal=kee, conversation_id="new", summary=f"{ALICE} has a zebra", now=T0
    ),
    "pattern": lambda kee: services.update_pattern(
        author=kee, category="c", pattern_name="p", pattern_text=f"{ALICE} has a zebra", confidence=1, now=T0
    ),
    "concept": lambda kee: services.store_concept(author=kee, name="zebra", description=f"of {ALICE}", now=T0),
    "relationship": lambda kee: services.add_relationship(
        author=kee, from_concept="a", to_concept="b", rel_type="r", description=f"of {ALICE}", now=T0
    ),
    "item": lambda kee: remember(kee, f"knows {ALICE}", BOB),
    "preference": lambda kee: change(kee, BOB, preferences={"friend": ALICE}),
    "name": lambda kee: add(kee, "USER:carol", display_name=f"friend of {ALICE}"),
    "many": lambda kee: services.store_observation(author=kee, text=" ".join([*MANY, ALICE]), now=T0),
}


@pytest.mark.parametrize("what", NAMING)
def test_what_was_being_written_of_somebody_is_waited_for_and_goes_too(kee: Caller, what: str) -> None:
    told: list[dict[str, int]] = []
    with acting_as(kee):
        add(kee)
        add(kee, BOB)
    with acting_as(kee):
        NAMING[what](kee)
        forgetting = Other(lambda: told.append(forget(kee).remaining))
        until_somebody_waits_for_this_transaction()
    assert forgetting.ends() is None

    with acting_as_system("test"):
        assert told == [remaining(Wanted(tenant_id=kee.tenant_id, reference=ALICE))]
    # What another subject is called stays, and is told to stay.
    assert told == [{"memory_subject": 1} if what == "name" else {}]


@pytest.mark.parametrize("what", [*NAMING, "herself"])
def test_of_whom_is_being_forgotten_nothing_is_written_meanwhile(kee: Caller, what: str) -> None:
    write = {**NAMING, "herself": add}[what]
    with acting_as(kee):
        add(kee)
        add(kee, BOB)
    failures: list[Exception | None] = []
    with acting_as(kee):
        services.forget(author=kee, subject_id=ALICE, now=T0)
        failures.append(Other(lambda: _as(kee, write)).ends())
    failures.append(Other(lambda: _as(kee, write)).ends())

    assert [type(failure) for failure in failures] == [Unavailable, ForgottenOnRequest]


def test_of_others_things_are_written_while_somebody_is_forgotten(kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
        add(kee, BOB)
    with acting_as(kee):
        services.forget(author=kee, subject_id=ALICE, now=T0)
        assert Other(lambda: _as(kee, lambda kee: remember(kee, "knows USER:carol", BOB))).ends() is None


def _as(kee: Caller, write: Callable[[Caller], Any]) -> None:
    with acting_as(kee):
        write(kee)
