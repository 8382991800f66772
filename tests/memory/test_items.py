"""What is remembered of subjects: both times, duplicates, contradictions, echoes; and what a subject forbids."""

import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from pydantic import BaseModel

from apps.core import erasure
from apps.core.errors import Conflict, NotFound
from apps.core.operations import Operation, all_operations
from apps.memory import selectors, services
from apps.memory.envelopes import format_envelope_for_llm
from apps.memory.models import Memory, MemoryPolicy, Session, Subject
from apps.memory.services import MOST_PREFERENCES, Outcome
from apps.memory.states import ItemType, Kind
from apps.memory.tools.subjects import ListItems, OfSubject, get_subject, list_memory_items
from apps.principals import services as principals
from apps.principals.errors import UnknownPrincipal
from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0, make_caller, make_principal, make_tenant, make_token
from tests.memory.subjects import ALICE, add, change, envelope, facts, items, observations, refused, remember

DAY, TICK = timedelta(days=1), timedelta(microseconds=1)


def call(token: str, method: str, path: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
    answered: dict[str, Any] = (
        Client()
        .generic(
            method,
            f"/api/v1/subjects{path}",
            "" if given is None else json.dumps(given),
            content_type="application/json",
            headers={"Authorization": f"Bearer {token}"},
        )
        .json()
    )
    return answered


def rev(subject_id: str = ALICE) -> int:
    return Subject.objects.get(key=subject_id).rev


def seen(author: Caller, text: str = "Had two plates of it.") -> str:
    """The reference of something that was observed."""
    return services.store_observation(author=author, text=text, now=T0).ref


def history(subject: Subject, **asked: Any) -> list[str]:
    return sorted(item.text for item in selectors.items(subject, **{"now": T0, **asked}))


# Writing.


def test_what_is_remembered_says_by_whom_on_what_evidence_and_for_what_time(as_kee: Caller) -> None:
    add(as_kee)
    evidence = [seen(as_kee), "task:task_7"]
    stored = remember(as_kee, evidence=evidence, source="session c-1", slot="food", stated=True)
    item = items().get()
    assert (stored.outcome, stored.replaced, stored.item) == (Outcome.STORED, [], item)
    assert (item.author.name, item.evidence, item.source, item.slot) == (
        "Kee",
        evidence,
        "session c-1",
        "food",
    )
    assert (item.valid_from, item.valid_to, item.occurred_at, item.recorded_at) == (T0, None, T0, T0)


def test_every_write_raises_the_revision(as_kee: Caller) -> None:
    add(as_kee)
    revisions = [rev()]
    for write in (
        lambda: remember(as_kee),
        lambda: change(as_kee, display_name="Alice"),
        lambda: services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0),
        lambda: services.record_session(principal=as_kee, conversation_id="c", tone="dry", now=T0),
        lambda: services.store_observation(author=as_kee, text="x", conversation_id="c", now=T0),
    ):
        write()
        revisions.append(rev())
    assert revisions == [1, 2, 3, 4, 5, 6]


def test_a_session_that_changes_its_subject_raises_both_revisions(as_kee: Caller) -> None:
    add(as_kee)
    add(as_kee, "USER:bob")
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, summary="s", now=T0)
    before = rev(), rev("USER:bob")
    services.record_session(principal=as_kee, conversation_id="c", subject_id="USER:bob", now=T0)
    assert (rev(), rev("USER:bob")) == (before[0] + 1, before[1] + 1)
    assert envelope(as_kee).recent_context.session_id is None
    assert envelope(as_kee, "USER:bob").recent_context.session_summary == "s"


def test_the_database_refuses_to_rewrite_an_item(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee)
    with pytest.raises(IntegrityError, match="immutable"), transaction.atomic():
        items().update(text="Never mind.")


def test_a_subject_is_added_once(as_kee: Caller) -> None:
    add(as_kee, display_name="Alice")
    with refused("subject_exists"), transaction.atomic():
        add(as_kee, display_name="Other")
    assert Subject.objects.get().display_name == "Alice"


def test_a_change_leaves_what_it_does_not_name(as_kee: Caller) -> None:
    add(as_kee, display_name="Alice", preferences={"a": "1", "b": "2"}, share_with=["Kee"])
    change(as_kee, preferences={"b": None, "c": "3"}, anonymize_dates=True)
    subject = Subject.objects.get()
    assert (subject.display_name, subject.preferences) == ("Alice", {"a": "1", "c": "3"})
    assert (subject.share_with, subject.anonymize_dates, subject.rev) == (["Kee"], True, 2)


# What a subject forbids.


def test_a_subject_has_so_many_preferences_and_no_more(as_kee: Caller) -> None:
    add(as_kee, preferences={f"k{number}": "v" for number in range(MOST_PREFERENCES)})
    with refused("too_many_preferences"), transaction.atomic():
        change(as_kee, preferences={"one": "more"})
    subject = change(as_kee, preferences={"one": "more", "k0": None})
    assert len(subject.preferences) == MOST_PREFERENCES


def test_what_has_had_its_days_is_in_no_export_though_no_tick_has_deleted_it(as_kee: Caller) -> None:
    subject = add(as_kee, delete_after_days=2)
    remember(as_kee)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    services.store_observation(author=as_kee, text="Hello.", conversation_id="c", now=T0)

    def parts(now: datetime) -> list[int]:
        found = selectors.export(subject, now=now)
        return [len(rows) for rows in (found.items, found.sessions, found.turns)]

    assert [parts(T0 + 2 * DAY - TICK), parts(T0 + 2 * DAY)] == [[1, 1, 1], [0, 0, 0]]
    services.record_session(principal=as_kee, conversation_id="c", tone="dry", now=T0 + DAY)
    assert parts(T0 + 2 * DAY) == [0, 1, 0]
    assert [parts(now) for now in (T0 + 3 * DAY, T0)] == [[0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize("month", [1, 12])
def test_the_day_of_an_anonymized_item_is_not_found_out_by_asking_for_one_moment_after_another(
    as_kee: Caller, month: int
) -> None:
    add(as_kee, anonymize_dates=True)
    said_at = T0.replace(month=month, day=14)
    remember(as_kee, "lives in Ghent", slot="home", now=said_at)
    remember(as_kee, "lives in Rome", slot="home", now=said_at + DAY)

    def told(**asked: datetime) -> list[str]:
        return [one.text for one in list_memory_items(as_kee, ListItems(subject_id=ALICE, **asked)).items]

    first, last = said_at.replace(day=1, hour=0), said_at.replace(day=31, hour=23, minute=59, second=59)
    for name in ("known_at", "true_at"):
        within = [told(**{name: moment}) for moment in (first, said_at, said_at + 2 * DAY, last)]
        assert within == [within[0]] * 4
        assert "lives in Rome" in within[0]
        assert told(**{name: first - DAY}) == []
    assert told(true_at=datetime(9999, 12, 29, tzinfo=UTC)) == ["lives in Rome"]


# What operations are asked for besides a subject, and those that answer of none.
GIVEN: dict[str, Any] = {
    "fact": "Went to Ghent",
    "conversation_id": "c",
    "observation": "Hello again.",
    "query": "hello",
    "constraints": {"anonymize_dates": True},
}
OF_NONE = {
    "get_memory_policy", "list_memory_relationships", "memory_add_concept_relationship", "memory_promote",
    "memory_store_concept", "memory_update_pattern", "set_memory_policy", "set_promotion_policy",
}  # fmt: skip
OF_SUBJECTS = [one for one in all_operations() if one.app == "memory" and one.name not in OF_NONE]


def test_the_operations_that_answer_of_subjects_are_found() -> None:
    assert {"export_subject", "memory_bootstrap", "memory_recall", "memory_store", "record_session"} <= {
        declared.name for declared in OF_SUBJECTS
    }


@pytest.mark.parametrize("declared", OF_SUBJECTS, ids=lambda declared: declared.name)
def test_no_operation_tells_a_day_of_an_anonymized_subject(as_kee: Caller, declared: Operation) -> None:
    add(as_kee, anonymize_dates=True)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, summary="s", now=T0)
    said = services.store_observation(author=as_kee, text="Hello.", conversation_id="c", now=T0 + DAY)
    item = remember(as_kee, "Went to the clinic", now=T0 + DAY).item
    subject_id = "USER:bob" if declared.name == "add_subject" else ALICE
    asked = GIVEN | {"subject_id": subject_id, "subject_ids": [subject_id], "subject": subject_id}
    answers = []
    # A session and a question may name no subject, and have to do with one.
    optional = {name for name, field in declared.input.model_fields.items() if not field.is_required()}
    for ref, left_out in ((said.ref, set()), (item.ref, optional & {"subject_id", "subject"})):
        named = asked | {"ref": ref}
        given = {name: named[name] for name in declared.input.model_fields if name in named and name not in left_out}
        with suppress(NotFound, Conflict):
            answer = declared.run(as_kee, declared.input.model_validate(given))
            assert isinstance(answer, BaseModel)
            answers.append(answer.model_dump_json())
    # When an envelope was made has to do with its reader alone.
    told = [re.sub(r'"metadata":{"created_at":"[^"]*"', "", answer) for answer in answers]
    moments = [moment for answer in told for moment in re.findall(r"\d{4}-\d\d-\d\d[^\"]*", answer)]
    assert answers
    assert {moment[7:].replace("+00:00", "Z") for moment in moments} <= {"-01T00:00:00Z"}


def test_who_may_know_a_subject_is_for_who_added_it_and_administrators_to_say(as_kee: Caller, tenant: Tenant) -> None:
    lee, ada = make_caller(tenant, "Lee"), make_caller(tenant, "Ada")
    ada = replace(ada, scopes=ada.scopes | {Scope.ADMIN})
    add(as_kee)
    with refused("shared_by_another"), transaction.atomic():
        change(lee, share_with=["Lee"])
    change(lee, share_with=None, anonymize_dates=True)
    change(as_kee, share_with=["Kee", "Lee"])
    with refused("shared_by_another"), transaction.atomic():
        change(lee, share_with=None)
    change(ada, share_with=["Lee"])
    # Of what was added when nobody noted by whom, all that may know it may say.
    Subject.objects.update(added_by=None)
    change(lee, share_with=["Lee", "Kee"])


STRICT: dict[str, Any] = {
    "memory_enabled": False,
    "learn_patterns": False,
    "anonymize_dates": True,
    "delete_after_days": 30,
}


@pytest.mark.parametrize(
    "lifted",
    [
        {"memory_enabled": True},
        {"learn_patterns": True},
        {"anonymize_dates": False},
        {"delete_after_days": None},
        {"delete_after_days": 31},
        {"delete_after_days": 29, "anonymize_dates": False},
    ],
    ids=str,
)
def test_what_a_subject_has_settled_is_lifted_by_none_of_those_whom_it_binds(
    as_kee: Caller, tenant: Tenant, lifted: dict[str, Any]
) -> None:
    lee, ada = make_caller(tenant, "Lee"), make_caller(tenant, "Ada")
    ada = replace(ada, scopes=ada.scopes | {Scope.ADMIN})
    add(as_kee, **STRICT)
    before = Subject.objects.values().get()
    with refused("settled_by_another"), transaction.atomic():
        change(lee, **lifted)
    assert Subject.objects.values().get() == before
    for settler in (as_kee, ada):
        change(settler, **lifted)
        assert Subject.objects.filter(**lifted).exists()
        change(as_kee, **STRICT)
    Subject.objects.update(added_by=None)
    change(lee, **lifted)


@pytest.mark.parametrize("before", [{}, {"delete_after_days": 31}, STRICT], ids=str)
def test_whoever_may_know_a_subject_may_have_it_settle_more(
    as_kee: Caller, tenant: Tenant, before: dict[str, Any]
) -> None:
    add(as_kee, **before)
    change(make_caller(tenant, "Lee"), **STRICT)
    assert Subject.objects.filter(**STRICT).exists()


def test_a_name_of_nobody_shuts_nobody_out(as_kee: Caller, tenant: Tenant) -> None:
    """Unless it stood there before: whoever it was is called otherwise now."""
    make_caller(make_tenant("globex"), "Mia")
    lee = make_principal(tenant, "Lee")
    add(as_kee)
    services.set_memory_policy(author=as_kee, share_with=["Kee", "Lee"], now=T0)
    for share in (
        lambda names: add(as_kee, "USER:bob", share_with=names),
        lambda names: change(as_kee, share_with=names),
        lambda names: services.set_memory_policy(author=as_kee, share_with=names, now=T0),
    ):
        for nobody in ("Ke", "Mia"):
            with pytest.raises(UnknownPrincipal, match=nobody), transaction.atomic():
                share(["Kee", nobody, "Lee"])
    assert (Subject.objects.get().share_with, MemoryPolicy.objects.get().share_with) == (None, ["Kee", "Lee"])
    change(as_kee, share_with=["Kee", "Lee"])
    principals.disable_principal(principal_id=lee.pk, now=T0)
    add(as_kee, "USER:bob", share_with=["Lee"])
    principals.rename_principal(principal_id=lee.pk, name="Leo")
    change(as_kee, share_with=["Lee", "Leo"])
    services.set_memory_policy(author=as_kee, share_with=["Lee"], now=T0)


@pytest.mark.parametrize("closed_by", ["its own wish", "the tenant's"])
def test_who_added_a_subject_can_share_it_with_itself_again(as_kee: Caller, tenant: Tenant, closed_by: str) -> None:
    lee, mia = make_caller(tenant, "Lee"), make_caller(tenant, "Mia")
    add(as_kee)
    remember(as_kee)
    if closed_by == "its own wish":
        change(as_kee, share_with=["Mia"])
    else:
        services.set_memory_policy(author=as_kee, share_with=["Mia"], now=T0)
    change(mia, display_name="Alice")
    # What is remembered of it is for those that it is shared with.
    asking: list[Callable[[Caller], object]] = [
        envelope,
        remember,
        lambda who: selectors.subject_of(ALICE, viewer=who),
        lambda who: selectors.recall("", caller=who, subject_id=ALICE),
        lambda who: services.forget(author=who, subject_id=ALICE, now=T0),
    ]
    for ask in asking:
        for who in (as_kee, lee):
            with refused("unknown_subject"), transaction.atomic():
                ask(who)
    itself = OfSubject(subject_id=ALICE)
    assert get_subject(as_kee, itself).display_name == "Alice"
    with refused("unknown_subject"):
        get_subject(lee, itself)
    with refused("unknown_subject"), transaction.atomic():
        change(lee, share_with=["Lee"])
    change(as_kee, share_with=["Kee", "Mia"])
    assert facts(as_kee) == ["Loves fettuccini"]


def test_a_subject_and_the_policy_say_who_added_and_who_changed_them_last(as_kee: Caller, tenant: Tenant) -> None:
    lee = make_caller(tenant, "Lee")
    add(as_kee)
    change(lee, display_name="Alice")
    remember(as_kee)
    subject = Subject.objects.get()
    assert (subject.added_by_id, subject.author_id) == (as_kee.principal_id, lee.principal_id)
    exported = selectors.export(subject, now=T0).subject
    assert (exported["added_by"], exported["author_name"]) == ("Kee", "Lee")
    for who in (as_kee, lee):
        services.set_memory_policy(author=who, fact_days=7, now=T0)
        assert MemoryPolicy.objects.get().author_id == who.principal_id


def test_nothing_is_remembered_of_a_subject_that_forbids_it(as_kee: Caller) -> None:
    add(as_kee, memory_enabled=False)
    for write in (
        lambda: remember(as_kee),
        lambda: services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0),
    ):
        with refused("memory_disabled"), transaction.atomic():
            write()
    assert not items().exists()
    assert not Session.objects.exists()
    assert rev() == 1


def test_no_conversation_goes_on_with_a_subject_that_forbids_it_by_now(as_kee: Caller) -> None:
    add(as_kee)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    change(as_kee, memory_enabled=False)
    for write in (
        lambda: services.store_observation(author=as_kee, text="I have a dog.", conversation_id="c", now=T0),
        lambda: services.record_session(principal=as_kee, conversation_id="c", summary="Of a dog.", now=T0),
    ):
        with refused("memory_disabled"), transaction.atomic():
            write()
    assert not observations().exists()
    assert (Session.objects.get().turns, Session.objects.get().summary) == (0, "")


@pytest.mark.parametrize(
    "told", [{"preferences": {"tone": "dry"}}, {"display_name": "A"}, {"learning_level": "high"}, {"domains": ["ci"]}]
)
def test_nothing_is_told_or_shown_of_a_subject_itself_that_forbids_it_but_may_be_taken_back(
    as_kee: Caller, told: dict[str, Any]
) -> None:
    with refused("memory_disabled"), transaction.atomic():
        add(as_kee, memory_enabled=False, **told)
    add(as_kee, **told)
    with refused("memory_disabled"), transaction.atomic():
        change(as_kee, memory_enabled=False, **told)
    change(as_kee, memory_enabled=False)
    with refused("memory_disabled"), transaction.atomic():
        change(as_kee, **told)
    shown = get_subject(as_kee, OfSubject(subject_id=ALICE))
    assert (shown.preferences, shown.learning_level, shown.domains) == ({}, None, [])
    gone: dict[str, Any] = {"preferences": {"tone": None}, "display_name": "", "learning_level": "", "domains": []}
    change(as_kee, **gone)
    change(as_kee, memory_enabled=True, **told)


def test_no_pattern_is_learned_of_a_subject_that_forbids_it(as_kee: Caller) -> None:
    add(as_kee, learn_patterns=False)
    with refused("patterns_not_learned"), transaction.atomic():
        remember(as_kee, type=ItemType.USER_PATTERN)
    assert not items().exists()
    remember(as_kee)


def test_who_may_not_know_a_subject_is_answered_as_if_there_were_none(as_kee: Caller, tenant: Tenant) -> None:
    lee = make_caller(tenant, "Lee")
    add(as_kee, share_with=["Kee"])
    remember(as_kee)
    for subject_id in (ALICE, "USER:nobody"):
        for ask in (
            lambda key: remember(lee, "x", key),
            lambda key: change(lee, key, display_name="x"),
            lambda key: envelope(lee, key),
            lambda key: selectors.subject_of(key, viewer=lee),
            lambda key: services.record_session(principal=lee, conversation_id="c", subject_id=key, now=T0),
        ):
            with refused("unknown_subject") as refusal, transaction.atomic():
                ask(subject_id)
            assert refusal.value.detail == f"Nothing is known of {subject_id!r}."
    assert (items().count(), rev(), Session.objects.count()) == (1, 2, 0)


@pytest.mark.parametrize("sharing", ["own", "tenant's"])
@pytest.mark.parametrize("speaks", [True, False])
def test_who_may_no_longer_know_a_subject_finds_their_conversation_as_if_it_were_forgotten(
    as_kee: Caller, tenant: Tenant, sharing: str, speaks: bool
) -> None:
    def known(lee: Caller) -> list[Any]:
        """What somebody is told, and finds, of a conversation that goes on."""
        begun = selectors.recent_sessions(principal_id=lee.principal_id, now=T0)
        if speaks:
            services.store_observation(author=lee, text="Go on.", conversation_id="c", now=T0 + DAY)
        services.record_session(principal=lee, conversation_id="c", tone="dry", now=T0 + DAY)
        session = Session.objects.get(principal_id=lee.principal_id, conversation_id="c")
        told = (session.title, session.tone, session.turns, session.subject, session.started_at)
        return [begun, told, selectors.recent_sessions(principal_id=lee.principal_id, now=T0 + DAY)]

    lee, mia = make_caller(tenant, "Lee"), make_caller(tenant, "Mia")
    for who, subject_id in ((lee, ALICE), (mia, "USER:bob")):
        add(as_kee, subject_id)
        services.record_session(principal=who, conversation_id="c", subject_id=subject_id, title="of it", now=T0)
        services.store_observation(author=who, text="I have a dog.", conversation_id="c", now=T0)
    if sharing == "own":
        change(as_kee, share_with=["Kee"])
    else:
        services.set_memory_policy(author=as_kee, share_with=["Kee"], now=T0)
    services.forget(author=as_kee, subject_id="USER:bob", now=T0)
    found = [known(lee), known(mia)]
    assert found[0] == found[1]
    # What was said with her is hers still, and nothing that was said since.
    assert [hit.text for hit in selectors.recall("", caller=as_kee, subject_id=ALICE)] == ["I have a dog."]
    assert envelope(as_kee).recent_context.session_summary is None


# The same words.


def test_the_same_words_are_one_item_that_new_evidence_makes_surer(as_kee: Caller) -> None:
    add(as_kee)
    one, other = seen(as_kee), seen(as_kee)
    first = remember(as_kee, "Loves fettuccini.", confidence=0.5, evidence=[one])
    second = remember(as_kee, "loves  FETTUCCINI", confidence=0.5, evidence=[other], now=T0 + DAY)
    assert (second.outcome, second.replaced) == (Outcome.MERGED, [first.item.pk])
    assert (second.item.confidence, second.item.evidence) == (0.75, [one, other])
    assert (second.item.valid_from, second.item.occurred_at) == (T0, T0 + DAY)
    assert facts(as_kee, now=T0 + DAY) == ["loves  FETTUCCINI"]


def test_saying_it_again_without_new_evidence_makes_nothing_surer(as_kee: Caller) -> None:
    add(as_kee)
    one = seen(as_kee)
    said: list[list[str]] = [[one], [one], [one.replace("observation:", "obs-")], []]
    assert {remember(as_kee, confidence=0.5, evidence=each).item.confidence for each in said} == {0.5}
    assert items().get(superseded_at=None).evidence == [one]


@pytest.mark.parametrize("ref", ["item", f"envelope:{ALICE}"])
def test_that_it_is_remembered_already_makes_nothing_surer(as_kee: Caller, ref: str) -> None:
    add(as_kee)
    known = remember(as_kee, confidence=0.5).item.ref
    cited = known if ref == "item" else ref
    assert remember(as_kee, confidence=0.5, evidence=[cited]).item.confidence == 0.5


def test_who_says_it_again_is_as_sure_of_it_as_they_have_ever_been(as_kee: Caller) -> None:
    add(as_kee)
    said = (0.5, 0.9, 0.3)
    assert [remember(as_kee, confidence=confidence).item.confidence for confidence in said] == [0.5, 0.9, 0.9]


def test_who_has_said_the_same_words_as_another_type_is_still_a_witness(as_kee: Caller, tenant: Tenant) -> None:
    add(as_kee)
    remember(as_kee, type=ItemType.SHARED_NARRATIVE)
    remember(make_caller(tenant, "Lee"), confidence=0.5)
    assert remember(as_kee, confidence=0.5).item.confidence == 0.75


def test_another_witness_makes_it_surer_and_nothing_is_certain(as_kee: Caller, tenant: Tenant) -> None:
    add(as_kee)
    lee = make_caller(tenant, "Lee")
    remember(as_kee, confidence=0.9)
    assert remember(lee, confidence=0.5).item.confidence == pytest.approx(0.95)
    assert remember(make_caller(tenant, "Mia"), confidence=0.98).item.confidence == 0.99


def test_two_who_say_the_same_in_turns_are_two_witnesses_and_no_more(as_kee: Caller, tenant: Tenant) -> None:
    add(as_kee)
    said = [as_kee, make_caller(tenant, "Lee")] * 3
    assert [remember(who, confidence=0.5).item.confidence for who in said] == [0.5, 0.75, 0.75, 0.75, 0.75, 0.75]


def test_the_same_words_of_another_type_or_time_are_another_item(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, valid_from=T0 - 9 * DAY, valid_to=T0 - 8 * DAY)
    outcomes = [remember(as_kee).outcome, remember(as_kee, type=ItemType.SHARED_NARRATIVE).outcome]
    assert outcomes == [Outcome.STORED, Outcome.STORED]


def test_the_same_words_with_an_end_end_what_was_so(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee)
    ended = remember(as_kee, valid_to=T0 + DAY, now=T0 + 2 * DAY)
    assert (ended.outcome, ended.item.valid_from, ended.item.valid_to) == (Outcome.MERGED, T0, T0 + DAY)
    assert facts(as_kee, now=T0 + 2 * DAY) == []


def test_the_same_words_with_a_later_beginning_correct_the_earlier(as_kee: Caller) -> None:
    subject = add(as_kee)
    remember(as_kee, valid_from=T0 - 9 * DAY)
    remember(as_kee, valid_from=T0 - DAY, now=T0 + DAY)
    moments = (T0 - 5 * DAY, T0)
    assert [history(subject, true_at=moment) for moment in moments] == [[], ["Loves fettuccini"]]
    assert history(subject, true_at=T0 - 5 * DAY, known_at=T0) == ["Loves fettuccini"]


@pytest.mark.parametrize("stated", [False, True])
def test_the_same_words_answer_two_questions(as_kee: Caller, stated: bool) -> None:
    subject = add(as_kee)
    remember(as_kee, "Berlin", slot="home town", stated=True)
    born = remember(as_kee, "Berlin", slot="birth place", stated=stated, now=T0 + DAY, evidence=["task:task_7"])
    assert (born.outcome, born.replaced) == (Outcome.STORED, [])
    assert [history(subject, slot=slot) for slot in ("home town", "birth place")] == [["Berlin"]] * 2


def test_to_correct_one_of_two_answers_of_the_same_words_leaves_the_other(as_kee: Caller) -> None:
    subject = add(as_kee)
    for slot in ("home town", "birth place"):
        remember(as_kee, "Berlin", slot=slot, stated=True)
    remember(as_kee, "Rome", slot="birth place", stated=True, valid_from=T0 - DAY, now=T0 + DAY)
    assert [history(subject, slot=slot) for slot in ("home town", "birth place")] == [["Berlin"], ["Rome"]]


def test_words_to_no_question_join_the_answer_of_these_words_that_was_said_last(as_kee: Caller) -> None:
    subject = add(as_kee)
    home = remember(as_kee, "Berlin", slot="home town").item
    born = remember(as_kee, "Berlin", slot="birth place", now=T0 + DAY).item
    joined = remember(as_kee, "Berlin", now=T0 + 2 * DAY)
    assert (joined.outcome, joined.replaced, joined.item.slot) == (Outcome.MERGED, [born.pk], "birth place")
    assert [one.ref for one in selectors.items(subject, now=T0, slot="home town")] == [home.ref]


def test_an_answer_takes_up_the_same_words_to_no_question(as_kee: Caller) -> None:
    add(as_kee)
    bare = remember(as_kee, "Berlin").item
    assert remember(as_kee, "Berlin", slot="home town").replaced == [bare.pk]
    assert remember(as_kee, "Berlin", slot="birth place").replaced == []


def test_who_has_said_the_same_words_to_another_question_is_still_a_witness(as_kee: Caller, tenant: Tenant) -> None:
    add(as_kee)
    remember(as_kee, "Berlin", slot="home town")
    remember(make_caller(tenant, "Lee"), "Berlin", slot="birth place", confidence=0.5)
    assert remember(as_kee, "Berlin", slot="birth place", confidence=0.5).item.confidence == 0.75


def test_slots_are_told_apart_as_names_are(as_kee: Caller) -> None:
    subject = add(as_kee)
    remember(as_kee, "Lives in Berlin", slot="home town")
    newer = remember(as_kee, "Lives in Rome", slot="Home\u00a0 Town", now=T0 + DAY)
    assert (newer.outcome, newer.item.slot) == (Outcome.SUPERSEDED, "Home\u00a0 Town")
    assert facts(as_kee, now=T0 + DAY) == ["Lives in Rome"]
    assert history(subject, slot="HOME TOWN", true_at=T0 + DAY) == ["Lives in Rome"]
    assert history(subject, slot=" ") == []


@pytest.mark.parametrize("slot", [" ", "\ufdfa" * 12], ids=["nothing", "too long"])
def test_what_names_nothing_is_no_slot(as_kee: Caller, slot: str) -> None:
    add(as_kee)
    with refused("unusable_name"), transaction.atomic():
        remember(as_kee, slot=slot)
    assert not items().exists()


# Contradictions.


def test_a_newer_answer_to_the_same_question_stands_and_history_stays(as_kee: Caller) -> None:
    subject = add(as_kee)
    remember(as_kee, "Lives in Berlin", slot="home", valid_from=T0 - 1000 * DAY)
    newer = remember(as_kee, "Lives in Paris", slot="home", now=T0 + DAY)
    assert newer.outcome == Outcome.SUPERSEDED
    assert facts(as_kee, now=T0 + DAY) == ["Lives in Paris"]

    assert history(subject, true_at=T0 - DAY) == ["Lives in Berlin"]
    assert history(subject, true_at=T0 + DAY) == ["Lives in Paris"]
    assert history(subject, known_at=T0, true_at=T0 + DAY) == ["Lives in Berlin"]
    assert history(subject, known_at=T0 - DAY) == []
    assert history(subject, slot="home") == ["Lives in Berlin", "Lives in Paris"]


def test_an_answer_for_a_time_in_between_leaves_both_ends(as_kee: Caller) -> None:
    subject = add(as_kee)
    remember(as_kee, "Lives in Berlin", slot="home", valid_from=T0 - 100 * DAY)
    remember(as_kee, "Lived in Rome", slot="home", valid_from=T0 - 50 * DAY, valid_to=T0 - 40 * DAY, now=T0 + DAY)
    moments = (T0 - 51 * DAY, T0 - 50 * DAY, T0 - 40 * DAY - TICK, T0 - 40 * DAY, T0)
    assert [history(subject, true_at=moment) for moment in moments] == [
        ["Lives in Berlin"],
        ["Lived in Rome"],
        ["Lived in Rome"],
        ["Lives in Berlin"],
        ["Lives in Berlin"],
    ]
    # What stays is no younger for it.
    assert {fact.age_days for fact in envelope(as_kee, now=T0 + DAY).relational.memorable_facts} == {1}


def test_of_an_item_and_what_was_left_of_it_one_is_known_at_any_moment(as_kee: Caller) -> None:
    subject = add(as_kee)
    remember(as_kee, "Lives in Berlin", slot="home", valid_from=T0 - 100 * DAY)
    remember(as_kee, "Lived in Rome", slot="home", valid_from=T0 - 50 * DAY, valid_to=T0 - 40 * DAY, now=T0 + DAY)
    split = ["Lived in Rome", "Lives in Berlin", "Lives in Berlin"]
    moments = (T0, T0 + DAY - TICK, T0 + DAY)
    assert [history(subject, known_at=moment) for moment in moments] == [["Lives in Berlin"]] * 2 + [split]


def test_what_is_superseded_by_name_and_was_so_at_another_time_was_never_so(as_kee: Caller) -> None:
    subject = add(as_kee)
    older = remember(as_kee, "Lived in Rome", valid_from=T0 - 9 * DAY, valid_to=T0 - 8 * DAY).item
    remember(as_kee, "Lives in Berlin", supersedes=older.pk, now=T0 + DAY)
    assert history(subject, now=T0 + DAY) == ["Lives in Berlin"]
    assert history(subject, true_at=T0 - 9 * DAY) == []


def test_an_item_is_superseded_by_name(as_kee: Caller) -> None:
    add(as_kee)
    older = remember(as_kee).item
    newer = remember(as_kee, "Hates fettuccini", supersedes=older.pk)
    older.refresh_from_db()
    assert (newer.outcome, older.superseded_by, older.superseded_at) == (Outcome.SUPERSEDED, newer.item, T0)
    with refused("already_superseded"), transaction.atomic():
        remember(as_kee, "Likes fettuccini", supersedes=older.pk)
    with refused("unknown_memory"), transaction.atomic():
        remember(as_kee, "Likes fettuccini", supersedes=10**15)
    assert facts(as_kee) == ["Hates fettuccini"]


def test_an_item_of_another_subject_can_not_be_superseded(as_kee: Caller) -> None:
    add(as_kee)
    add(as_kee, "USER:bob")
    older = remember(as_kee).item
    with refused("unknown_memory"), transaction.atomic():
        remember(as_kee, "x", "USER:bob", supersedes=older.pk)


def test_what_is_learned_does_not_undo_what_the_subject_said(as_kee: Caller) -> None:
    add(as_kee)
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
def test_what_is_learned_in_the_subjects_own_words_changes_neither_their_time_nor_their_question(
    as_kee: Caller, tenant: Tenant, given: dict[str, Any]
) -> None:
    add(as_kee)
    said = remember(as_kee, "Wants short answers", slot="length", stated=True).item
    lee = make_caller(tenant, "Lee")
    for supersedes in (None, said.pk):
        with refused("statement_stands") as refusal, transaction.atomic():
            remember(lee, "Wants short answers", now=T0 + DAY, supersedes=supersedes, **given)
        assert refusal.value.extra == {"existing": said.ref}
    assert items().get() == said


def test_what_is_learned_in_the_subjects_own_words_to_another_question_stands_beside_them_not_in_their_place(
    as_kee: Caller, tenant: Tenant
) -> None:
    add(as_kee)
    said = remember(as_kee, "Wants short answers", slot="length", stated=True).item
    lee = make_caller(tenant, "Lee")
    with refused("statement_stands"), transaction.atomic():
        remember(lee, "Wants short answers", slot="other", supersedes=said.pk)
    assert remember(lee, "Wants short answers", slot="other").replaced == []
    assert items().get(stated=True) == said


def test_what_is_learned_in_the_subjects_own_words_makes_them_surer_and_they_stay_its_own(
    as_kee: Caller, tenant: Tenant
) -> None:
    add(as_kee)
    remember(as_kee, "Wants short answers", slot="length", stated=True, confidence=0.5, valid_to=T0 + 9 * DAY)
    lee = make_caller(tenant, "Lee")
    merged = remember(lee, "Wants short answers", confidence=0.5, now=T0 + DAY).item
    assert (merged.stated, merged.slot, merged.confidence) == (True, "length", 0.75)
    assert (merged.valid_from, merged.valid_to) == (T0, T0 + 9 * DAY)
    with refused("statement_stands"), transaction.atomic():
        remember(lee, "Wants long answers", slot="length", now=T0 + DAY)


def test_what_the_subject_says_undoes_what_was_learned(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Prefers long answers", slot="length", type=ItemType.USER_PATTERN, confidence=1)
    remember(as_kee, "Wants short answers", slot="length", stated=True, confidence=0.1)
    known = envelope(as_kee).relational
    assert ([one.fact for one in known.memorable_facts], known.patterns) == (["Wants short answers"], [])


def test_what_ends_before_it_begins_was_never_so(as_kee: Caller) -> None:
    add(as_kee)
    for begin, end in ((T0, T0), (None, T0 - DAY)):
        with refused("impossible_period"), transaction.atomic():
            remember(as_kee, valid_from=begin, valid_to=end)
    assert not items().exists()


@pytest.mark.parametrize("fact", ["\u200b", "\u2060 \u00ad", "\u202e\u202c", "\u3164", "\u2800", " \t"], ids=ascii)
def test_a_fact_that_nobody_sees_is_refused(as_kee: Caller, tenant: Tenant, fact: str) -> None:
    add(as_kee)
    assert call(make_token(tenant), "POST", f"/{ALICE}/items", {"fact": fact})["status"] == 422
    assert not items().exists()
    assert call(make_token(tenant), "POST", f"/{ALICE}/items", {"fact": f"{fact}🎉"})["status"] == "stored"


# Echoes.


def test_what_was_read_in_an_envelope_is_no_new_evidence(as_kee: Caller) -> None:
    add(as_kee)
    known = remember(as_kee, confidence=0.5).item
    remember(as_kee, "asks twice", type=ItemType.USER_PATTERN)
    envelope(as_kee)
    for text, given in (
        ("LOVES fettuccini!", {}),
        ("Loves fettuccini", {"type": ItemType.SHARED_NARRATIVE}),
        ("Loves fettuccini", {"evidence": [f"envelope:{ALICE}", known.ref]}),
        ("Often asks twice", {"type": ItemType.USER_PATTERN}),
    ):
        with refused("echo"), transaction.atomic():
            remember(as_kee, text, **given)
    assert items().count() == 2


@pytest.mark.parametrize("text", ['Says "ciao" often', "Often says C:\\new", '"Quoted"', "Was\nhere", "東京が好き"])
@pytest.mark.parametrize("type_", list(ItemType))
def test_a_line_of_a_formatted_envelope_is_no_new_evidence(as_kee: Caller, text: str, type_: str) -> None:
    add(as_kee)
    remember(as_kee, text, type=type_)
    prompt = format_envelope_for_llm(envelope(as_kee)).text
    (line,) = [line for line in prompt.splitlines() if line.startswith("  - ")]
    for said in (line, line.removeprefix("  - "), f"{line}."):
        with refused("echo"), transaction.atomic():
            remember(as_kee, said, type=type_)
        with refused("echo"), transaction.atomic():
            remember(as_kee, said, type=type_, evidence=[seen(as_kee, line)])
    remember(as_kee, f"{text}, and more", type=type_)


def test_with_evidence_of_its_own_or_the_subjects_words_it_is_no_echo(as_kee: Caller, tenant: Tenant) -> None:
    add(as_kee)
    remember(as_kee, confidence=0.5)
    envelope(as_kee)
    assert remember(as_kee, confidence=0.5, evidence=[seen(as_kee)]).item.confidence == 0.75
    envelope(as_kee)
    assert remember(as_kee, stated=True).outcome == Outcome.MERGED
    # Who was given nothing has nothing to repeat.
    assert remember(make_caller(tenant, "Lee")).outcome == Outcome.MERGED


@pytest.mark.parametrize("store", ["observation", "pattern", "concept"])
def test_what_was_read_in_an_envelope_is_no_evidence_for_itself_when_it_was_stored_first(
    as_kee: Caller, tenant: Tenant, store: str
) -> None:
    def stored(author: Caller, text: str) -> str:
        if store == "observation":
            return seen(author, text)
        if store == "concept":
            return services.store_concept(author=author, name="Alice", description=text, now=T0).ref
        return services.update_pattern(
            author=author, category="c", pattern_name="n", pattern_text=text, confidence=1, now=T0
        ).ref

    add(as_kee)
    remember(as_kee, confidence=0.5)
    lee, joe = make_caller(tenant, "Lee"), make_caller(tenant, "Joe")
    envelope(lee)
    echo = stored(lee, "loves FETTUCCINI!")
    with refused("echo"), transaction.atomic():
        remember(lee, evidence=[echo])
    assert remember(as_kee, confidence=0.5, evidence=[echo]).item.confidence == 0.5
    # What one says before one is given it, one has seen.
    assert remember(lee, confidence=0.5, evidence=[stored(joe, "Loves fettuccini.")]).item.confidence == 0.75


def test_what_one_saw_before_one_was_given_the_same_is_evidence_and_what_one_wrote_after_is_none(
    as_kee: Caller, tenant: Tenant
) -> None:
    lee = make_caller(tenant, "Lee")
    add(as_kee)
    remember(as_kee, confidence=0.5)
    before, after = (
        services.store_observation(author=lee, text="Loves fettuccini.", now=moment).ref
        for moment in (T0, T0 + 2 * DAY)
    )
    envelope(lee, now=T0 + DAY)
    with refused("echo"), transaction.atomic():
        remember(lee, evidence=[after], now=T0 + 3 * DAY)
    assert remember(lee, confidence=0.5, evidence=[before], now=T0 + 3 * DAY).item.confidence == 0.75


@pytest.mark.parametrize(
    "ref", ["observation:999999", "obs-999999", "pattern:999999", "concept:nothing", "item:999999", "gone", "hidden"]
)
def test_evidence_that_is_not_there_or_not_for_the_author_is_none(as_kee: Caller, tenant: Tenant, ref: str) -> None:
    lee = make_caller(tenant, "Lee")
    add(as_kee)
    add(as_kee, "USER:bob", share_with=["Kee"])
    hidden, gone = remember(as_kee, "Loves tea", "USER:bob").item.ref, seen(as_kee)
    with acting_as_system("a test"), erasure.redacting():
        services.forget_memories([int(gone.removeprefix("observation:"))])
    cited = {"gone": gone, "hidden": hidden}.get(ref, ref)
    for write in (
        lambda: remember(lee, evidence=[cited]),
        lambda: services.store_observation(author=lee, text="x", evidence=[cited], now=T0),
    ):
        with refused("unknown_memory"), transaction.atomic():
            write()
    assert items().count() == 1


@pytest.mark.parametrize(
    "ref",
    [
        "Envelope:1",
        " envelope:1",
        "ENVELOPE://USER:alice",
        "envelope-1",
        "item-1",
        "Item-1.",
        "\uff49tem\uff1a1",
        "envelope:",
        "item",
    ],
)
def test_what_names_an_envelope_or_an_item_is_no_evidence_however_it_is_written(as_kee: Caller, ref: str) -> None:
    add(as_kee)
    known = remember(as_kee, confidence=0.5).item
    envelope(as_kee)
    for cited in [f" {known.ref}", known.ref.upper()] if ref == "item" else [ref]:
        with refused("echo"), transaction.atomic():
            remember(as_kee, confidence=0.5, evidence=[cited])
    assert remember(as_kee, confidence=0.5, evidence=["item-of-the-shop", "envelopes:3"]).item.confidence == 0.75


def test_a_memory_is_cited_in_capitals_or_not(as_kee: Caller) -> None:
    add(as_kee)
    cited = seen(as_kee)
    number = cited.removeprefix("observation:")
    for ref in (f" {cited}\n", cited.upper(), f"OBS-{number}", f"Obs:{number}"):
        assert remember(as_kee, evidence=[ref]).item.evidence == [cited]
    assert services.store_observation(author=as_kee, text="x", evidence=[cited.title()], now=T0).evidence == [cited]


def test_evidence_of_memory_is_named_by_its_number(as_kee: Caller) -> None:
    add(as_kee)
    for ref in ("observation:abc", "obs-0", "pattern:", "item:one", "Item:one", " item:one", "OBS-x"):
        with refused("malformed_memory_reference"), transaction.atomic():
            remember(as_kee, evidence=[ref])
    remember(as_kee, evidence=["item-7", "concept-7", "what I saw", "plan:p-1"])


def test_it_stays_an_echo_when_another_has_said_it_since_or_it_was_superseded(as_kee: Caller, tenant: Tenant) -> None:
    lee = make_caller(tenant, "Lee")
    add(as_kee)
    remember(as_kee, confidence=0.5)
    remember(as_kee, "Lives in Berlin", slot="home")
    envelope(as_kee)
    remember(lee, confidence=0.5, now=T0 + DAY)
    remember(lee, "Lives in Paris", slot="home", now=T0 + DAY)
    for text, given in (("Loves fettuccini", {}), ("Lives in Berlin", {"slot": "home"}), ("Lives in Berlin", {})):
        with refused("echo"), transaction.atomic():
            remember(as_kee, text, now=T0 + 2 * DAY, **given)
    assert facts(as_kee, now=T0 + 2 * DAY) == ["Lives in Paris", "Loves fettuccini"]


def test_what_was_remembered_after_or_superseded_before_an_envelope_was_given_is_no_echo_of_it(
    as_kee: Caller, tenant: Tenant
) -> None:
    lee = make_caller(tenant, "Lee")
    add(as_kee)
    remember(lee, "Lives in Berlin", slot="home")
    remember(lee, "Lives in Paris", slot="home", now=T0 + DAY)
    envelope(as_kee, now=T0 + DAY)
    remember(lee, "Loves fettuccini", now=T0 + 2 * DAY)
    assert remember(as_kee, "Lives in Berlin", slot="home", now=T0 + 3 * DAY).outcome == Outcome.SUPERSEDED
    assert remember(as_kee, "Loves fettuccini", now=T0 + 3 * DAY).outcome == Outcome.MERGED


@pytest.mark.parametrize(("type_", "days"), [("USER_FACT", 31), ("USER_PATTERN", 15), ("SHARED_NARRATIVE", 8)])
def test_what_counted_no_more_when_an_envelope_was_given_is_no_echo_of_it(
    as_kee: Caller, tenant: Tenant, type_: str, days: int
) -> None:
    lee, joe = make_caller(tenant, "Lee"), make_caller(tenant, "Joe")
    add(as_kee)
    remember(as_kee, type=type_)
    last = T0 + days * DAY - TICK
    envelope(lee, now=last)
    envelope(joe, now=last + TICK)
    with refused("echo"), transaction.atomic():
        remember(lee, type=type_, now=last + DAY)
    assert remember(joe, type=type_, now=last + DAY).outcome == Outcome.MERGED


def test_what_was_not_yet_true_when_an_envelope_was_given_is_no_echo_of_it(as_kee: Caller, tenant: Tenant) -> None:
    lee, joe = make_caller(tenant, "Lee"), make_caller(tenant, "Joe")
    add(as_kee)
    remember(as_kee, valid_from=T0 + DAY)
    envelope(lee, now=T0 + DAY)
    envelope(joe, now=T0 + DAY - TICK)
    with refused("echo"), transaction.atomic():
        remember(lee, now=T0 + 2 * DAY)
    assert remember(joe, now=T0 + 2 * DAY).outcome == Outcome.MERGED


# The database's own rules.


@pytest.mark.parametrize(
    "values",
    [
        {"confidence": 1.01},
        {"confidence": -0.01},
        {"domain": "USER_SECRET"},
        {"slot": "", "slot_key": "x"},
        {"slot": "x", "slot_key": ""},
        {"slot": "x"},
        {"slot_key": "x"},
        {"valid_to": T0},
        {"slot": "Home", "slot_key": "home"},
        {"text_digest": b"1", "slot": "home", "slot_key": "home"},
        {"text_digest": b"2"},
    ],
    ids=str,
)
def test_the_database_refuses_what_no_item_can_be(as_kee: Caller, values: dict[str, Any]) -> None:
    subject = add(as_kee)
    sound = {
        "tenant_id": as_kee.tenant_id, "subject": subject, "author_id": as_kee.principal_id, "domain": "USER_FACT",
        "text": "x", "confidence": 0.5, "valid_from": T0, "occurred_at": T0, "recorded_at": T0, "kind": Kind.ITEM,
    }  # fmt: skip
    Memory.objects.create(**sound, text_digest=b"1", slot="home", slot_key="home")
    Memory.objects.create(**sound, text_digest=b"2")
    with pytest.raises(IntegrityError), transaction.atomic():
        Memory.objects.create(**{**sound, "text_digest": b"3", **values})


def test_an_item_is_not_superseded_without_a_time(as_kee: Caller) -> None:
    add(as_kee)
    older, newer = remember(as_kee).item, remember(as_kee, "Hates fettuccini").item
    with pytest.raises(IntegrityError, match="at_a_time"), transaction.atomic():
        items().filter(pk=older.pk).update(superseded_by=newer)


def test_an_item_is_not_superseded_by_itself(as_kee: Caller) -> None:
    add(as_kee)
    item = remember(as_kee).item
    with pytest.raises(IntegrityError), transaction.atomic():
        items().update(superseded_at=T0, superseded_by=item)


# Rivals.


def test_of_rivals_for_one_slot_one_answer_stands_and_all_are_known(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee):
        subject = add(kee)
    barrier, outcomes = threading.Barrier(6), []

    def answer(number: int) -> None:
        try:
            barrier.wait(timeout=20)
            with acting_as(kee):
                moment = T0 + timedelta(seconds=number)
                outcomes.append(remember(kee, f"Lives at {number}", slot="home", valid_from=T0, now=moment).outcome)
        finally:
            connection.close()

    threads = [threading.Thread(target=answer, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert sorted(outcomes) == [Outcome.STORED, *[Outcome.SUPERSEDED] * 5]
    with acting_as(kee):
        assert (items().count(), len(history(subject)), rev()) == (6, 1, 7)
