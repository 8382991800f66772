"""Subjects: their rules, whom they are shared with, and what a principal without access can find out."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from pydantic import BaseModel

from apps.core.errors import Conflict, NotFound
from apps.core.operations import Operation, all_operations
from apps.memory import selectors, services
from apps.memory.models import MemoryPolicy, Session, Subject
from apps.memory.selectors import memory_of
from apps.memory.services import MOST_PREFERENCES
from apps.memory.states import ItemType
from apps.memory.tools import ListItems, OfSubject, get_subject, list_memory_items
from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from apps.principals.selectors import UnknownPrincipal
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_caller, make_principal, make_tenant, refused
from tests.memory.subjects import (
    ALICE,
    DAY,
    add,
    change,
    envelope,
    facts,
    items,
    observations,
    observe,
    record,
    remember,
    rev,
    revise,
    talk,
)

BOB, NOBODY = "USER:bob", "USER:nobody"


@pytest.fixture
def ada(tenant: Tenant) -> Caller:
    """An administrator."""
    ada = make_caller(tenant, "Ada")
    return replace(ada, scopes=ada.scopes | {Scope.ADMIN})


def test_subject_is_added_once_and_a_change_keeps_what_it_does_not_name(as_kee: Caller, lee: Caller) -> None:
    add(as_kee, display_name="Alice", preferences={"a": "1", "b": "2"}, domains=["ci"])
    with refused("subject_exists"), transaction.atomic():
        add(as_kee, display_name="Other")
    change(lee, preferences={"b": None, "c": "3"}, anonymize_dates=True)
    subject = Subject.objects.get()
    assert (subject.display_name, subject.preferences) == ("Alice", {"a": "1", "c": "3"})
    assert (subject.domains, subject.anonymize_dates, subject.rev) == (["ci"], True, 2)
    assert (subject.added_by_id, subject.author_id) == (as_kee.principal_id, lee.principal_id)
    change(as_kee, preferences={f"k{number}": "v" for number in range(MOST_PREFERENCES - 2)})
    with refused("too_many_preferences"), transaction.atomic():
        change(as_kee, preferences={"one": "more"})
    assert len(change(as_kee, preferences={"one": "more", "k0": None}).preferences) == MOST_PREFERENCES


def test_every_write_raises_the_revision_of_its_subjects(as_kee: Caller) -> None:
    add(as_kee)
    add(as_kee, BOB)
    writes: list[Callable[[], object]] = [
        lambda: remember(as_kee),
        lambda: change(as_kee, display_name="Alice"),
        lambda: record(as_kee, summary="s"),
        lambda: record(as_kee, None, tone="dry"),
        lambda: talk(as_kee, "x"),
        lambda: record(as_kee, BOB),
    ]
    revisions = []
    for write in writes:
        write()
        revisions.append((rev(), rev(BOB)))
    assert revisions == [(2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 2)]
    assert envelope(as_kee).recent_context.session_id is None
    assert envelope(as_kee, BOB).recent_context.session_summary == "s"


# Constraints.

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
        {"delete_after_days": 29},
    ],
    ids=str,
)
def test_rules_are_lifted_by_who_added_the_subject_or_administers(
    as_kee: Caller, lee: Caller, ada: Caller, lifted: dict[str, Any]
) -> None:
    add(as_kee, **STRICT)
    before = Subject.objects.values().get()
    with refused("settled_by_another"), transaction.atomic():
        change(lee, **lifted)
    assert Subject.objects.values().get() == before
    for settler in (as_kee, ada):
        change(settler, **lifted)
        assert Subject.objects.filter(**lifted).exists()
        # Everybody may make them stricter again; when memories are deleted is not everybody's to say.
        change(settler if "delete_after_days" in lifted else lee, **STRICT)
        assert Subject.objects.filter(**STRICT).exists()


def test_nothing_is_stored_about_a_subject_that_disables_memory(as_kee: Caller) -> None:
    add(as_kee)
    record(as_kee)
    change(as_kee, memory_enabled=False)
    before = rev()
    writes: list[Callable[[], object]] = [
        lambda: remember(as_kee),
        lambda: record(as_kee, conversation_id="d"),
        lambda: talk(as_kee, "I have a dog."),
        lambda: record(as_kee, None, summary="Of a dog."),
    ]
    for write in writes:
        with refused("memory_disabled"), transaction.atomic():
            write()
    assert not items().exists()
    assert not observations().exists()
    assert (Session.objects.get().message_count, Session.objects.get().summary, rev()) == (0, "", before)
    change(as_kee, memory_enabled=True, learn_patterns=False)
    with refused("patterns_not_learned"), transaction.atomic():
        remember(as_kee, type=ItemType.USER_PATTERN)
    remember(as_kee)


@pytest.mark.parametrize(
    "told", [{"preferences": {"tone": "dry"}}, {"display_name": "A"}, {"learning_level": "high"}, {"domains": ["ci"]}]
)
def test_disabled_subject_takes_no_data_hides_it_and_lets_it_go(as_kee: Caller, told: dict[str, Any]) -> None:
    with refused("memory_disabled"), transaction.atomic():
        add(as_kee, memory_enabled=False, **told)
    add(as_kee, **told)
    change(as_kee, memory_enabled=False)
    with refused("memory_disabled"), transaction.atomic():
        change(as_kee, **told)
    shown = get_subject(as_kee, OfSubject(subject_id=ALICE))
    assert (shown.preferences, shown.learning_level, shown.domains) == ({}, None, [])
    gone: dict[str, Any] = {"preferences": {"tone": None}, "display_name": "", "learning_level": "", "domains": []}
    change(as_kee, **gone)
    change(as_kee, memory_enabled=True, **told)


# Anonymized dates.


def test_anonymized_items_are_asked_for_by_the_month(as_kee: Caller) -> None:
    add(as_kee, anonymize_dates=True)
    said_at = T0.replace(month=12, day=14)
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


# What operations are asked for besides a subject, and those that answer of no subject.
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


@pytest.mark.parametrize("declared", OF_SUBJECTS, ids=lambda declared: declared.name)
def test_no_operation_shows_a_day_of_an_anonymized_subject(as_kee: Caller, declared: Operation) -> None:
    add(as_kee, anonymize_dates=True)
    record(as_kee, summary="s")
    said = talk(as_kee, "Hello.", now=T0 + DAY)
    item = remember(as_kee, "Went to the clinic", now=T0 + DAY).item
    subject_id = BOB if declared.name == "add_subject" else ALICE
    asked = GIVEN | {"subject_id": subject_id, "subject": subject_id}
    answers = []
    # A session or a question may name no subject, and still concern one.
    optional = {name for name, field in declared.input.model_fields.items() if not field.is_required()}
    for ref, left_out in ((said.ref, set()), (item.ref, optional & {"subject_id", "subject"})):
        named = asked | {"ref": ref}
        given = {name: named[name] for name in declared.input.model_fields if name in named and name not in left_out}
        with suppress(NotFound, Conflict):
            answer = declared.run(as_kee, declared.input.model_validate(given))
            assert isinstance(answer, BaseModel)
            answers.append(answer.model_dump_json())
    # The moment at which an envelope was made concerns its reader only.
    told = [re.sub(r'"metadata":{"created_at":"[^"]*"', "", answer) for answer in answers]
    moments = [moment for answer in told for moment in re.findall(r"\d{4}-\d\d-\d\d[^\"]*", answer)]
    assert answers
    assert {moment[7:].replace("+00:00", "Z") for moment in moments} <= {"-01T00:00:00Z"}


# Sharing.


@pytest.mark.parametrize(
    ("own", "tenants", "seen"),
    [
        (None, None, True),
        (None, ["Lee"], True),
        (None, ["Kee"], False),
        (None, [], False),
        (["Lee"], [], True),
        ([], None, False),
        ([], ["Lee"], False),
    ],
)
def test_subject_is_shared_by_its_own_list_else_the_tenants(
    as_kee: Caller, lee: Caller, own: list[str] | None, tenants: list[str] | None, seen: bool
) -> None:
    add(as_kee, share_with=own)
    if tenants is not None:
        services.set_memory_policy(author=as_kee, share_with=tenants, now=T0)
    if seen:
        assert envelope(lee).constraints.share_with == (own if own is not None else tenants)
        assert selectors.recall("x", caller=lee, subject_id=ALICE) == []
        assert get_subject(lee, OfSubject(subject_id=ALICE)).subject_id == ALICE
        return
    asking: list[Callable[[], object]] = [
        lambda: envelope(lee),
        lambda: selectors.recall("x", caller=lee, subject_id=ALICE),
        lambda: selectors.subject_of(ALICE, viewer=lee),
    ]
    for ask in asking:
        with refused("unknown_subject"):
            ask()


def test_sharing_is_changed_by_who_added_the_subject_or_administers(as_kee: Caller, lee: Caller, ada: Caller) -> None:
    add(as_kee)
    remember(as_kee)
    with refused("shared_by_another"), transaction.atomic():
        change(lee, share_with=["Lee"])
    change(lee, share_with=None, anonymize_dates=True)
    change(as_kee, share_with=["Kee", "Lee"])
    with refused("shared_by_another"), transaction.atomic():
        change(lee, share_with=None)
    change(ada, share_with=["Lee"])
    assert (
        len(selectors.recall(caller=lee, subject_id=ALICE)) == len(selectors.recall(caller=ada, subject_id=ALICE)) == 1
    )
    with refused("unknown_subject"):
        selectors.recall(caller=as_kee, subject_id=ALICE)


@pytest.mark.parametrize("closed_by", ["its own list", "the tenant's"])
def test_who_added_a_subject_can_share_it_with_itself_again(
    as_kee: Caller, tenant: Tenant, lee: Caller, closed_by: str
) -> None:
    make_caller(tenant, "Mia")
    add(as_kee)
    remember(as_kee)
    if closed_by == "its own list":
        change(as_kee, share_with=["Mia"])
    else:
        services.set_memory_policy(author=as_kee, share_with=["Mia"], now=T0)
    for ask in (envelope, remember):
        with refused("unknown_subject"), transaction.atomic():
            ask(as_kee)
    itself = OfSubject(subject_id=ALICE)
    assert get_subject(as_kee, itself).subject_id == ALICE
    with refused("unknown_subject"):
        get_subject(lee, itself)
    with refused("unknown_subject"), transaction.atomic():
        change(lee, share_with=["Lee"])
    change(as_kee, share_with=["Kee", "Mia"])
    assert facts(as_kee) == ["Loves fettuccini"]


def test_unknown_names_are_refused(as_kee: Caller, tenant: Tenant) -> None:
    make_caller(make_tenant("globex"), "Mia")
    make_principal(tenant, "Lee")
    add(as_kee)
    services.set_memory_policy(author=as_kee, share_with=["Kee", "Lee"], now=T0)
    for share in (
        lambda names: add(as_kee, BOB, share_with=names),
        lambda names: change(as_kee, share_with=names),
        lambda names: services.set_memory_policy(author=as_kee, share_with=names, now=T0),
    ):
        for nobody in ("Ke", "Mia"):
            with pytest.raises(UnknownPrincipal, match=nobody), transaction.atomic():
                share(["Kee", nobody, "Lee"])
    assert (Subject.objects.get().share_with, MemoryPolicy.objects.get().share_with) == (None, ["Kee", "Lee"])
    add(as_kee, BOB, share_with=["Lee"])


@pytest.mark.parametrize("speaks", [True, False])
def test_session_with_a_subject_no_longer_shared_looks_as_if_forgotten(
    as_kee: Caller, tenant: Tenant, lee: Caller, speaks: bool
) -> None:
    def known(who: Caller) -> list[Any]:
        begun = selectors.recent_sessions(principal_id=who.principal_id, now=T0)
        if speaks:
            talk(who, "Go on.", now=T0 + DAY)
        record(who, None, tone="dry", now=T0 + DAY)
        session = Session.objects.get(principal_id=who.principal_id, conversation_id="c")
        told = (session.title, session.tone, session.message_count, session.subject, session.started_at)
        return [begun, told, selectors.recent_sessions(principal_id=who.principal_id, now=T0 + DAY)]

    mia = make_caller(tenant, "Mia")
    for who, subject_id in ((lee, ALICE), (mia, BOB)):
        add(as_kee, subject_id)
        record(who, subject_id, title="of it")
        talk(who, "I have a dog.")
    services.set_memory_policy(author=as_kee, share_with=["Kee"], now=T0)
    services.forget(author=as_kee, subject_id=BOB, now=T0)
    assert known(lee) == known(mia)
    # What was said with the subject is about it still, and nothing that was said since.
    assert [hit.text for hit in selectors.recall("", caller=as_kee, subject_id=ALICE)] == ["I have a dog."]
    assert envelope(as_kee).recent_context.session_summary is None


# A subject that is not shared is refused in the same words, and by as many statements, as one that does not exist.


def subject_of(declared: Operation) -> str | None:
    """The input by which an operation names a subject."""
    return next((name for name in ("subject_id", "subject") if name in declared.input.model_fields), None)


def refusal(act: Callable[[], Any], code: str, name: object) -> tuple[int, str]:
    """The number of statements until the refusal, and its text without this name."""
    with CaptureQueriesContext(connection) as captured, refused(code) as caught, transaction.atomic():
        act()
    assert caught.value.extra == {}
    return len(captured), re.sub(rf"\b{name}\b", "…", caught.value.detail)


# All but the one that tells that an id is taken.
REFUSING = [one for one in all_operations() if one.app == "memory" and subject_of(one) and one.name != "add_subject"]


@pytest.mark.parametrize("closed_by", ["its own list", "the tenant's"])
@pytest.mark.parametrize("declared", REFUSING, ids=lambda declared: declared.name)
def test_subject_that_is_not_shared_is_refused_as_unknown(
    as_kee: Caller, lee: Caller, declared: Operation, closed_by: str
) -> None:
    if closed_by == "its own list":
        add(as_kee, share_with=["Kee"])
    else:
        add(as_kee)
        services.set_memory_policy(author=as_kee, share_with=["Kee"], now=T0)
    name = subject_of(declared)
    assert name is not None
    given = {each: value for each, value in GIVEN.items() if each in declared.input.model_fields}

    def answer(subject_id: str) -> tuple[int, str]:
        asked = given | {name: subject_id}
        with acting_as(lee):
            return refusal(
                lambda: declared.run(lee, declared.input.model_validate(asked)), "unknown_subject", subject_id
            )

    assert answer(ALICE) == answer(NOBODY)


def test_memory_of_a_subject_that_is_not_shared_is_refused_as_unknown(as_kee: Caller, lee: Caller) -> None:
    add(as_kee, share_with=["Kee"])
    record(as_kee)
    said, item = talk(as_kee, "t"), remember(as_kee).item
    acts: list[tuple[Callable[[int], object], int]] = [
        (lambda number: observe(lee, supersedes=f"observation:{number}"), said.pk),
        (lambda number: observe(lee, evidence=[f"observation:{number}"]), said.pk),
        (lambda number: revise(lee, "t", evidence_observation_ids=[number]), said.pk),
        (lambda number: memory_of(f"observation:{number}", viewer=lee, now=T0), said.pk),
        (lambda number: memory_of(f"item:{number}", viewer=lee, now=T0), item.pk),
    ]
    with acting_as(lee):
        for act, pk in acts:
            hidden, none = (refusal(partial(act, number), "unknown_memory", number) for number in (pk, 2**40))
            assert hidden == none


# Foreign keys are checked past row-level security, so services refuse the numbers of another tenant's rows.


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The numbers of one memory of each kind."""

    observation: int
    pattern: int
    item: int


def told(author: Caller) -> Rows:
    add(author)
    record(author)
    return Rows(observation=talk(author, "t").pk, pattern=revise(author, "t").pk, item=remember(author).item.pk)


DOORS: dict[str, Callable[[Caller, Rows], Any]] = {
    "supersede an observation": lambda kee, of: talk(kee, "so", supersedes=f"observation:{of.observation}"),
    "supersede an item": lambda kee, of: remember(kee, "Has moved", supersedes=of.item),
    "cite an observation": lambda kee, of: observe(kee, evidence=[f"observation:{of.observation}"]),
    "cite a pattern": lambda kee, of: observe(kee, evidence=[f"pattern:{of.pattern}"]),
    "cite an item": lambda kee, of: observe(kee, evidence=[f"item:{of.item}"]),
    "remember by an observation": lambda kee, of: remember(kee, "So", evidence=[f"observation:{of.observation}"]),
    "find in an observation": lambda kee, of: revise(kee, "t", evidence_observation_ids=[of.observation]),
    "read an observation": lambda kee, of: memory_of(f"observation:{of.observation}", viewer=kee, now=T0),
    "read a pattern": lambda kee, of: memory_of(f"pattern:{of.pattern}", viewer=kee, now=T0),
    "read an item": lambda kee, of: memory_of(f"item:{of.item}", viewer=kee, now=T0),
    "forget an item": lambda kee, of: services.forget(author=kee, subject_id=ALICE, item=of.item, now=T0),
}


@pytest.mark.parametrize("act", DOORS.values(), ids=DOORS)
def test_number_of_another_tenant_is_refused_as_unknown(db: None, act: Callable[[Caller, Rows], Any]) -> None:
    kee, stranger = make_caller(make_tenant("acme")), make_caller(make_tenant("globex"))
    with acting_as(stranger):
        theirs = told(stranger)
        remember(stranger, "Theirs")
    with acting_as(kee):
        own = told(kee)
        assert facts(kee) == ["Loves fettuccini"]

    def answer(rows: Rows) -> str:
        with acting_as(kee), refused("unknown_memory") as caught, transaction.atomic():
            act(kee, rows)
        return re.sub(rf"\b({rows.observation}|{rows.pattern}|{rows.item})\b", "n", caught.value.detail)

    assert answer(theirs) == answer(Rows(observation=2**40, pattern=2**40, item=2**40))
    with acting_as(kee):
        act(kee, own)
