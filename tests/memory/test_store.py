"""What is written is kept, by whom and on what evidence; refusals change nothing."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

import pytest
from django.db import IntegrityError, connection, transaction
from pydantic import ValidationError

from apps.core import erasure
from apps.memory import services
from apps.memory.errors import AliasTaken
from apps.memory.models import ConceptName, Memory, Relationship, Revision, SearchTerm, Session
from apps.memory.selectors import concept_named, recent_sessions
from apps.memory.services import MOST_ALIASES
from apps.memory.tools.memories import RecallMemory
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import ALICE, add, change, concepts, observations, patterns, refused

DAY = timedelta(days=1)


def observe(author: Caller, text: str = "The build takes nine minutes.", **given: object) -> Memory:
    return services.store_observation(author=author, text=text, now=T0, **given)  # type: ignore[arg-type]


def test_an_observation_says_who_made_it_and_on_what_evidence(as_kee: Caller) -> None:
    stored = observe(as_kee, domain="ci", confidence=0.5, evidence=["task:task_7"], metadata={"run": 3})

    stored.refresh_from_db()
    assert (stored.author.name, stored.domain, stored.confidence) == ("Kee", "ci", 0.5)
    assert (stored.evidence, stored.metadata, stored.occurred_at) == (["task:task_7"], {"run": 3}, T0)
    assert SearchTerm.objects.filter(memory=stored, frequency__gt=0).count() == 4


def test_the_database_refuses_to_rewrite_an_observation(as_kee: Caller) -> None:
    stored = observe(as_kee)
    with pytest.raises(IntegrityError, match="immutable"), transaction.atomic():
        observations().filter(pk=stored.pk).update(text="Never mind.")


def test_a_newer_statement_stands_in_the_place_of_the_older_once(as_kee: Caller) -> None:
    older = observe(as_kee)
    newer = observe(as_kee, "The build takes two minutes.", supersedes=older.ref)
    older.refresh_from_db()
    assert (older.superseded_by, older.superseded_at) == (newer, T0)

    with refused("already_superseded"), transaction.atomic():
        observe(as_kee, "The build takes an hour.", supersedes=older.ref)
    assert Memory.objects.count() == 2


@pytest.mark.parametrize(
    ("ref", "code"), [("observation:999999", "unknown_memory"), ("x", "malformed_memory_reference")]
)
def test_what_is_not_there_can_not_be_superseded(as_kee: Caller, ref: str, code: str) -> None:
    with refused(code), transaction.atomic():
        observe(as_kee, supersedes=ref)
    assert not observations().exists()


def test_another_tenants_observation_is_unknown(db: None) -> None:
    kee, stranger = make_caller(make_tenant("acme")), make_caller(make_tenant("globex"))
    with acting_as(stranger):
        theirs = observe(stranger)
    with acting_as(kee), refused("unknown_memory"):
        observe(kee, supersedes=theirs.ref)


def test_a_concept_is_one_under_all_its_names(as_kee: Caller) -> None:
    services.store_concept(author=as_kee, name="Python", concept_type="language", aliases=["py"], now=T0)
    services.store_concept(author=as_kee, name="  PYTHON ", description="A language.", aliases=["CPython"], now=T0)
    again = services.store_concept(author=as_kee, name="py", metadata={"since": 1991}, now=T0)

    assert Memory.objects.count() == 1
    assert (again.name, again.domain, again.aliases) == ("Python", "language", ["py", "CPython"])
    assert (again.text, again.metadata, again.ref) == ("A language.", {"since": 1991}, "concept:python")
    assert concept_named("cpython") == again


def test_an_alias_stands_for_one_concept_only(as_kee: Caller) -> None:
    services.store_concept(author=as_kee, name="Python", aliases=["py"], now=T0)
    services.store_concept(author=as_kee, name="Pyramid", now=T0)
    with refused("alias_taken"), transaction.atomic():
        services.store_concept(author=as_kee, name="Pyramid", aliases=["PY"], now=T0)
    assert concepts().get(key="pyramid").aliases == []


@pytest.mark.parametrize("name", [" ", "\ufdfa" * 12, "x" * 201])
def test_what_is_no_name_in_the_form_that_names_are_compared_by_is_refused(as_kee: Caller, name: str) -> None:
    relate = partial(services.add_relationship, author=as_kee, rel_type="is", now=T0)
    for told in (
        partial(services.store_concept, author=as_kee, name=name, now=T0),
        partial(services.store_concept, author=as_kee, name="Ada", aliases=[name], now=T0),
        partial(relate, from_concept=name, to_concept="Ada"),
        partial(relate, from_concept="Ada", to_concept=name),
    ):
        with refused("unusable_name"):
            told()
    assert not concepts().exists()


def test_relating_unknown_concepts_creates_them_bare_and_saying_it_again_revises(as_kee: Caller) -> None:
    for description in ("first", "second"):
        services.add_relationship(
            author=as_kee,
            from_concept="code-analyzer",
            to_concept="code_analysis",
            rel_type="provides",
            description=description,
            now=T0,
        )
    assert [(str(r), r.description) for r in Relationship.objects.all()] == [
        ("code-analyzer provides code_analysis", "second")
    ]
    assert set(concepts().values_list("domain", flat=True)) == {""}


def test_a_pattern_keeps_its_revisions(as_kee: Caller) -> None:
    seen = observe(as_kee)
    _, pattern = [
        services.update_pattern(
            author=as_kee,
            category="ci",
            pattern_name="builds",
            pattern_text=text,
            confidence=confidence,
            evidence_observation_ids=[seen.pk],
            now=T0,
        )
        for text, confidence in (("Builds are slow.", 0.6), ("Builds are slow on Mondays.", 0.9))
    ]
    assert (pattern.revision, pattern.text, pattern.evidence) == (2, "Builds are slow on Mondays.", [seen.ref])
    assert list(Revision.objects.order_by("number").values_list("number", "text", "confidence")) == [
        (1, "Builds are slow.", 0.6),
    ]


def test_a_pattern_rests_on_observations_that_exist(as_kee: Caller) -> None:
    with refused("unknown_memory"), transaction.atomic():
        services.update_pattern(
            author=as_kee,
            category="ci",
            pattern_name="builds",
            pattern_text="…",
            confidence=1,
            evidence_observation_ids=[999_999],
            now=T0,
        )
    assert not patterns().exists()


def test_nothing_rests_on_what_was_forgotten_or_stands_in_its_place(as_kee: Caller) -> None:
    gone = observe(as_kee)
    with acting_as_system("a test"), erasure.redacting():
        services.forget_memories([gone.pk])
    pattern = partial(
        services.update_pattern, author=as_kee, category="ci", pattern_name="builds", pattern_text="…", confidence=1
    )
    for write in (
        partial(pattern, evidence_observation_ids=[gone.pk], now=T0),
        partial(observe, as_kee, evidence=[gone.ref]),
        partial(observe, as_kee, supersedes=gone.ref),
    ):
        with refused("unknown_memory"), transaction.atomic():
            write()
    assert not patterns().exists()
    assert not Memory.objects.exists()


def test_a_session_is_recorded_once_per_conversation(as_kee: Caller) -> None:
    services.record_session(principal=as_kee, conversation_id="c-1", title="Build times", topics=["ci"], now=T0)
    services.record_session(principal=as_kee, conversation_id="c-1", summary="They went down.", now=T0)
    assert Session.objects.count() == 1
    (session,) = recent_sessions(principal_id=as_kee.principal_id, now=T0)
    assert (session.title, session.topics, session.summary) == ("Build times", ["ci"], "They went down.")


def test_a_conversation_with_a_subject_is_shown_for_as_long_as_the_subject_has_settled(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, summary="Tea.", now=T0)
    services.record_session(principal=as_kee, conversation_id="d", summary="Nobody's.", now=T0)

    def shown(now: datetime) -> list[str]:
        return sorted(one.conversation_id for one in recent_sessions(principal_id=as_kee.principal_id, now=now))

    assert shown(T0 + 2 * DAY - timedelta(microseconds=1)) == ["c", "d"]
    assert shown(T0 + 2 * DAY) == ["d"]
    change(as_kee, memory_enabled=False)
    assert shown(T0) == ["d"]


def test_a_concept_has_so_many_aliases_and_no_more(as_kee: Caller) -> None:
    aliases = [f"alias {number}" for number in range(MOST_ALIASES)]
    services.store_concept(author=as_kee, name="x", aliases=aliases, now=T0)
    with refused("too_many_aliases"), transaction.atomic():
        services.store_concept(author=as_kee, name="x", aliases=["one more"], now=T0)
    services.store_concept(author=as_kee, name="x", aliases=aliases[:3], now=T0)
    assert len(concepts().get().aliases) == MOST_ALIASES


@pytest.mark.parametrize("filters", [{".".join("a" * 5_000): 1}, {str(number): 1 for number in range(51)}])
def test_filters_of_any_size_are_not_read(filters: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        RecallMemory(filters=filters)


def test_rival_writers_of_one_concept_or_pattern_all_succeed(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    barrier, done = threading.Barrier(4), []

    def write(number: int) -> None:
        try:
            barrier.wait()
            with acting_as(kee):
                services.store_concept(author=kee, name="Python", aliases=[f"py{number}"], now=T0)
                services.update_pattern(
                    author=kee, category="c", pattern_name="p", pattern_text=f"{number}", confidence=1, now=T0
                )
            done.append(number)
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(done) == [0, 1, 2, 3]
    with acting_as(kee):
        assert sorted(concepts().get().aliases) == ["py0", "py1", "py2", "py3"]
        assert patterns().get().revision == 4
        assert Revision.objects.filter(number__gte=1).count() == 3


def meet(*writes: Callable[[Caller], object]) -> tuple[Caller, list[object]]:
    """What became of each write: its result, or what it raised. All start at the same moment, each for itself."""
    kee = make_caller(make_tenant("acme"))
    barrier = threading.Barrier(len(writes))
    outcomes: list[object] = [None] * len(writes)

    def run(index: int, write: Callable[[Caller], object]) -> None:
        try:
            with acting_as(kee):
                barrier.wait(timeout=20)
                outcomes[index] = write(kee)
        except Exception as exc:  # noqa: BLE001  # the outcome is what the test asks for
            outcomes[index] = exc
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(writes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return kee, outcomes


def naming(name: str, *aliases: str) -> Callable[[Caller], Memory]:
    return lambda author: services.store_concept(author=author, name=name, aliases=aliases, now=T0)


def relating(first: str, second: str) -> Callable[[Caller], Relationship]:
    return lambda author: services.add_relationship(
        author=author, from_concept=first, to_concept=second, rel_type="knows", now=T0
    )


def test_of_rivals_for_one_alias_one_wins(transactional_db: None) -> None:
    kee, outcomes = meet(*(naming(f"language {number}", "snake") for number in range(6)))
    assert [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)] == [AliasTaken] * 5
    with acting_as(kee):
        assert concepts().get().aliases == ["snake"]
        assert concept_named("Snake") == concepts().get()


def test_rivals_that_name_each_others_concepts_do_not_wait_for_each_other(transactional_db: None) -> None:
    kee, outcomes = meet(naming("a", "b", "c"), naming("b", "c", "a"), naming("c", "a", "b"))
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    with acting_as(kee):
        assert Memory.objects.count() == 1
        assert set(ConceptName.objects.values_list("key", flat=True)) == {"a", "b", "c"}


@pytest.mark.parametrize("known", [True, False])
def test_relating_two_concepts_both_ways_at_once_succeeds(transactional_db: None, known: bool) -> None:
    kee = make_caller(make_tenant("acme"))
    if known:
        with acting_as(kee):
            for name in ("a", "b"):
                naming(name)(kee)
    _, outcomes = meet(*[relating("a", "b"), relating("b", "a")] * 3)
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    with acting_as(kee):
        assert sorted(map(str, Relationship.objects.all())) == ["a knows b", "b knows a"]
        assert concepts().count() == 2


def test_a_concept_may_be_related_to_itself_and_under_two_of_its_names(as_kee: Caller) -> None:
    naming("Python", "py")(as_kee)
    assert {str(relating("py", "Python")(as_kee)), str(relating("x", "X")(as_kee))} == {
        "Python knows Python",
        "x knows x",
    }
