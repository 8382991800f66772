"""Observations, patterns, concepts, relationships and sessions: what is stored, what is refused, and bootstrap."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from pydantic import ValidationError

from apps.core.schemas import Input
from apps.digests import selectors as digests
from apps.memory import selectors, services, tools
from apps.memory.models import ConceptName, Memory, Relationship, Revision, SearchTerm, Session
from apps.memory.references import AliasTaken
from apps.memory.selectors import concept_named, recall, recent_sessions
from apps.memory.services import MOST_ALIASES
from apps.memory.shapes import RememberFact
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from tests.digests.makers import post, post_grouped
from tests.factories import T0, make_caller, refused
from tests.memory.subjects import ALICE, DAY, TICK, add, change, concepts, observe, patterns, record, remember, revise
from tests.waiters import acting, at_once

BEHIND = T0 - timedelta(minutes=5)


def concept(author: Caller, name: str = "Python", *, now: datetime = T0, **given: Any) -> Memory:
    return services.store_concept(author=author, name=name, now=now, **given)


def relate(author: Caller, source: str, rel_type: str, target: str, description: str | None = None) -> Relationship:
    return services.add_relationship(
        author=author, from_concept=source, to_concept=target, rel_type=rel_type, description=description, now=T0
    )


# Observations and patterns.


def test_observation_has_author_evidence_and_search_terms(as_kee: Caller) -> None:
    stored = observe(as_kee, domain="ci", confidence=0.5, evidence=["task:task_7"], metadata={"run": 3})
    stored.refresh_from_db()
    assert (stored.author.name, stored.domain, stored.confidence) == ("Kee", "ci", 0.5)
    assert (stored.evidence, stored.metadata, stored.occurred_at) == (["task:task_7"], {"run": 3}, T0)
    assert SearchTerm.objects.filter(memory=stored, frequency__gt=0).count() == 4


def test_newer_observation_supersedes_the_older_once(as_kee: Caller) -> None:
    older = observe(as_kee, "It is green.")
    newer = observe(as_kee, "It is red.", supersedes=older.ref, now=BEHIND)
    older.refresh_from_db()
    # The clock of the second writer is behind.
    assert (older.superseded_by, older.superseded_at) == (newer, T0)
    assert [hit.text for hit in recall("green red", caller=as_kee)] == ["It is red."]
    for ref, code in (
        (older.ref, "already_superseded"),
        ("observation:999999", "unknown_memory"),
        ("x", "malformed_memory_reference"),
    ):
        with refused(code), transaction.atomic():
            observe(as_kee, supersedes=ref)
    assert Memory.objects.count() == 2


def test_pattern_keeps_its_revisions_in_order(as_kee: Caller) -> None:
    seen = observe(as_kee)
    for text, confidence, now in (("once", 0.6, T0), ("twice", 0.7, BEHIND), ("often", 0.9, T0 + DAY)):
        revise(as_kee, text, confidence=confidence, evidence_observation_ids=[seen.pk], now=now)
    pattern = patterns().get()
    assert (pattern.revision, pattern.text, pattern.evidence) == (3, "often", [seen.ref])
    kept = Revision.objects.order_by("number").values_list(
        "number", "text", "confidence", "recorded_at", "superseded_at"
    )
    assert list(kept) == [(1, "once", 0.6, T0, T0), (2, "twice", 0.7, T0, T0 + DAY)]
    (hit,) = recall("once twice often", caller=as_kee, as_of=T0 + timedelta(hours=1))
    assert (hit.text, pattern.revised_at) == ("builds: twice", T0 + DAY)


def test_text_that_expands_when_folded_is_found_by_its_beginning(as_kee: Caller) -> None:
    # Each of these characters becomes six letters.
    text = " ".join(f"{number:04d} " + "\u3316" * 110 for number in range(560))
    observe(as_kee, text)
    assert [hit.text for hit in recall("0007", caller=as_kee)] == [text]


@pytest.mark.parametrize(
    ("declared", "given", "message"),
    [
        (tools.RecallMemory, {"filters": {".".join("a" * 5_000): 1}}, "200"),
        (tools.RecallMemory, {"filters": {str(number): 1 for number in range(51)}}, "50"),
        *(
            (RememberFact, {"subject_id": ALICE, "fact": fact}, "visible|pattern")
            for fact in ("\u200b", "\u2060 \u00ad", "\u3164", "\u2800", " \t")
        ),
        *(
            (tools.OfSubject, {"subject_id": subject_id}, "a kind in capitals, a colon and a name")
            for subject_id in ("user:a", "USER", "USER:", "USER:a.", "USER:a b", "USER:a,b")
        ),
    ],
)
def test_malformed_input_is_refused(declared: type[Input], given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        declared.model_validate(given)


# Concepts.


def test_concept_is_one_under_all_its_names(as_kee: Caller) -> None:
    concept(as_kee, concept_type="language", aliases=["py"])
    concept(as_kee, "  PYTHON ", description="A language.", aliases=["CPython"])
    again = concept(as_kee, "py", metadata={"since": 1991}, now=BEHIND)
    assert Memory.objects.count() == 1
    assert (again.name, again.domain, again.aliases) == ("Python", "language", ["py", "CPython"])
    assert (again.text, again.metadata, again.ref) == ("A language.", {"since": 1991}, "concept:python")
    assert (concept_named("cpython"), again.revised_at) == (again, T0)


def test_alias_names_one_concept_only(as_kee: Caller) -> None:
    concept(as_kee, aliases=["py"])
    concept(as_kee, "Pyramid")
    with refused("alias_taken"), transaction.atomic():
        concept(as_kee, "Pyramid", aliases=["PY"])
    assert concepts().get(key="pyramid").aliases == []


def test_concept_has_a_limited_number_of_aliases(as_kee: Caller) -> None:
    aliases = [f"alias {number}" for number in range(MOST_ALIASES)]
    concept(as_kee, "x", aliases=aliases)
    with refused("too_many_aliases"), transaction.atomic():
        concept(as_kee, "x", aliases=["one more"])
    concept(as_kee, "x", aliases=aliases[:3])
    assert len(concepts().get().aliases) == MOST_ALIASES


@pytest.mark.parametrize("name", [" ", "\ufdfa" * 12, "x" * 201])
def test_name_without_a_usable_normalized_form_is_refused(as_kee: Caller, name: str) -> None:
    for told in (
        partial(concept, as_kee, name),
        partial(concept, as_kee, "Ada", aliases=[name]),
        partial(relate, as_kee, name, "is", "Ada"),
        partial(relate, as_kee, "Ada", "is", name),
    ):
        with refused("unusable_name"):
            told()
    assert not concepts().exists()


# Relationships.


def test_relationship_creates_concepts_and_is_revised(as_kee: Caller) -> None:
    for description in ("first", "second"):
        relate(as_kee, "code-analyzer", "provides", "code_analysis", description)
    found = [(str(one), one.description) for one in Relationship.objects.all()]
    assert found == [("code-analyzer provides code_analysis", "second")]
    concept(as_kee, aliases=["py"])
    itself = {str(relate(as_kee, "py", "is", "Python")), str(relate(as_kee, "x", "is", "X"))}
    assert itself == {"Python is Python", "x is x"}


def told(viewer: Caller, **narrowed: Any) -> list[str]:
    found, _ = selectors.relationships(tenant_id=viewer.tenant_id, **narrowed)
    return [f"{one.from_concept} {one.rel_type} {one.to_concept}" for one in found]


def test_relationships_are_found_by_names_and_types_in_few_statements(as_kee: Caller) -> None:
    concept(as_kee, "PostgreSQL", aliases=["the elephant"])
    relate(as_kee, "build", "uses", "PostgreSQL")
    relate(as_kee, "PostgreSQL", "runs_on", "Linux")
    relate(as_kee, "build", "runs_on", "Linux")
    asked: list[tuple[dict[str, str], list[str], int]] = [
        ({}, ["build runs_on Linux", "PostgreSQL runs_on Linux", "build uses PostgreSQL"], 1),
        ({"to_concept": "The  Elephant"}, ["build uses PostgreSQL"], 2),
        ({"from_concept": "the elephant"}, ["PostgreSQL runs_on Linux"], 2),
        ({"rel_type": "runs_on"}, ["build runs_on Linux", "PostgreSQL runs_on Linux"], 1),
        ({"from_concept": "build", "to_concept": "linux", "rel_type": "runs_on"}, ["build runs_on Linux"], 2),
        ({"from_concept": "build", "rel_type": "knows"}, [], 2),
    ]
    for narrowed, found, statements in asked:
        with CaptureQueriesContext(connection) as captured:
            assert told(as_kee, **narrowed) == found
        assert len(captured) == statements
    with refused("unknown_memory"):
        told(as_kee, from_concept="nowhere")


def test_relationships_are_read_page_by_page(as_kee: Caller) -> None:
    for number in range(5):
        relate(as_kee, "build", "uses", f"part {number}", f"It needs {number}.")
    page = tools.list_memory_relationships(as_kee, tools.ListRelationships(limit=2))
    pages = [page.relationships]
    while page.next:
        page = tools.list_memory_relationships(as_kee, tools.ListRelationships(limit=2, cursor=page.next))
        pages.append(page.relationships)
    assert [[one.to_concept[5:] for one in each] for each in pages] == [["4", "3"], ["2", "1"], ["0"]]
    last = pages[-1][0]
    assert (last.from_concept, last.description, last.author) == ("build", "It needs 0.", "Kee")
    with refused("bad_cursor"):
        tools.list_memory_relationships(as_kee, tools.ListRelationships(cursor="nonsense"))


# Rivals.


def test_rival_writers_of_one_concept_and_pattern_all_succeed(transactional_db: None, kee: Caller) -> None:

    def write(number: int) -> Callable[[], object]:
        def act() -> None:
            concept(kee, aliases=[f"py{number}"])
            revise(kee, f"{number}")

        return acting(kee, act)

    assert at_once(*map(write, range(4))) == [None] * 4
    with acting_as(kee):
        assert sorted(concepts().get().aliases) == ["py0", "py1", "py2", "py3"]
        assert (patterns().get().revision, Revision.objects.filter(number__gte=1).count()) == (4, 3)


def test_of_rivals_for_one_alias_one_wins(transactional_db: None, kee: Caller) -> None:
    rivals = [acting(kee, partial(concept, kee, f"language {number}", aliases=["snake"])) for number in range(6)]
    failures = [type(outcome) for outcome in at_once(*rivals) if isinstance(outcome, Exception)]
    assert failures == [AliasTaken] * 5
    with acting_as(kee):
        assert concepts().get().aliases == ["snake"]
        assert concept_named("Snake") == concepts().get()


@pytest.mark.parametrize("known", [True, False])
def test_rivals_that_name_the_same_concepts_do_not_deadlock(transactional_db: None, known: bool, kee: Caller) -> None:
    if known:
        with acting_as(kee):
            concept(kee, "x")
            concept(kee, "y")
    named = [acting(kee, partial(concept, kee, each[0], aliases=list(each[1:]))) for each in ("abc", "bca", "cab")]
    related = [acting(kee, partial(relate, kee, *ends)) for ends in (("x", "knows", "y"), ("y", "knows", "x"))]
    assert not [outcome for outcome in at_once(*named, *related * 3) if isinstance(outcome, Exception)]
    with acting_as(kee):
        assert sorted(map(str, Relationship.objects.all())) == ["x knows y", "y knows x"]
        assert set(ConceptName.objects.values_list("key", flat=True)) == {"a", "b", "c", "x", "y"}
        assert concepts().count() == 3


# Sessions and bootstrap.


def test_session_is_one_per_conversation_and_never_active_earlier(as_kee: Caller) -> None:
    add(as_kee)
    record(as_kee, None, title="Build times", topics=["ci"])
    record(as_kee, summary="They went down.", now=BEHIND)
    session = Session.objects.get()
    assert (session.title, session.topics, session.summary) == ("Build times", ["ci"], "They went down.")
    assert (session.started_at, session.last_active_at) == (T0, T0)


def test_recent_sessions_follow_the_rules_of_their_subjects(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    record(as_kee, summary="Tea.")
    record(as_kee, None, conversation_id="d")

    def shown(now: datetime) -> list[str]:
        return sorted(one.conversation_id for one in recent_sessions(principal_id=as_kee.principal_id, now=now))

    assert shown(T0 + 2 * DAY - TICK) == ["c", "d"]
    assert shown(T0 + 2 * DAY) == ["d"]
    change(as_kee, memory_enabled=False)
    assert shown(T0) == ["d"]


def test_first_bootstrap_is_empty_and_names_the_receipt_form(tenant: Tenant, as_kee: Caller) -> None:
    found = tools.memory_bootstrap(as_kee, tools.Bootstrap(ai_name="Kee", ai_platform="Claude"))
    assert (found.status, found.ai_name, found.connected_services) == ("initialized", "Kee", ["asyncgate"])
    assert (found.inbox_unread_count, found.inbox_items, found.inbox_more_waiting) == (0, [], 0)
    assert (found.sessions, found.observations_count, found.owed_by_me, found.awaited) == ([], 0, [], [])
    assert "task_complete" in found.receipt_config.event_types
    make_caller(tenant, "Hexy")
    for name in ("Hexy", "Nobody"):
        with refused("unknown_principal"):
            tools.memory_bootstrap(as_kee, tools.Bootstrap(ai_name=name))


def test_bootstrap_shows_ten_newest_entries_and_counts_the_rest(as_kee: Caller, hexy: Caller) -> None:
    posted = [post(as_kee) for _ in range(11)]
    owed = post(as_kee, poster=hexy, requires_action=True)
    awaited = post(hexy, poster=as_kee, requires_action=True)
    for _ in range(3):
        post_grouped(as_kee)
    observe(as_kee)
    add(as_kee)
    remember(as_kee)
    record(as_kee, title="Yesterday")
    found = tools.memory_bootstrap(as_kee, tools.Bootstrap())
    assert (found.inbox_unread_count, found.inbox_pending_count, found.inbox_more_waiting) == (15, 3, 5)
    newest = [owed.receipt_id, *(one.receipt_id for one in reversed(posted[2:]))]
    assert [item.receipt_id for item in found.inbox_items] == newest
    assert all((item.token or "").startswith(f"{item.ref}@12~") for item in found.inbox_items)
    assert (found.observations_count, found.sessions[0].title) == (1, "Yesterday")
    owing = [[one.receipt_id for one in part] for part in (found.owed_by_me, found.awaited)]
    assert owing == [[owed.receipt_id], [awaited.receipt_id]]
    shown = {view.receipt_id for view in digests.inbox_receipts(as_kee.principal_id, limit=50) if view.delivered_at}
    assert shown == set(newest)


def test_twenty_first_bootstraps_at_once_all_answer(transactional_db: None, kee: Caller) -> None:
    begin = partial(services.bootstrap, principal_id=kee.principal_id, tenant_id=kee.tenant_id, ai_name="Kee", now=T0)
    starts = at_once(*[acting(kee, begin)] * 20)
    assert [getattr(one, "inbox_unread_count", one) for one in starts] == [0] * 20
