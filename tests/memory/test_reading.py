"""Reading a memory by its reference: provenance, earlier readings, and the rules of its subject."""

from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.ids import decode_position
from apps.memory import services
from apps.memory.envelopes import first_moment
from apps.memory.selectors import memory_of, recall
from apps.memory.shapes import MemoryOutput
from apps.memory.tools import ReadMemory, StoreMemory, memory_read, memory_store
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_caller, refused
from tests.memory.subjects import ALICE, DAY, TICK, add, change, observe, record, remember, revise, talk


def read(viewer: Caller, ref: str, **asked: Any) -> MemoryOutput:
    return memory_of(ref, viewer=viewer, **({"now": T0} | asked))


def test_hit_is_followed_to_its_evidence_and_what_it_supersedes(as_kee: Caller) -> None:
    seen = observe(as_kee, "Monday's build failed.", confidence=0.9, evidence=["task:task_7"], metadata={"run": 3})
    first = observe(as_kee, "Builds fail on Mondays.", evidence=[seen.ref])
    observe(as_kee, "Builds fail on Mondays and Fridays.", evidence=[seen.ref], supersedes=first.ref, now=T0 + DAY)
    (hit,) = recall("Fridays", caller=as_kee)
    belief = read(as_kee, hit.ref)
    assert (belief.text, belief.author, belief.evidence) == (hit.text, "Kee", [seen.ref])
    (before,) = belief.earlier
    assert (before.ref, before.text, before.evidence) == (first.ref, "Builds fail on Mondays.", [seen.ref])
    rests_on = read(as_kee, belief.evidence[0])
    assert (rests_on.confidence, rests_on.evidence, rests_on.metadata) == (0.9, ["task:task_7"], {"run": 3})
    older = read(as_kee, first.ref)
    assert (older.superseded_by, older.superseded_at) == (hit.ref, T0 + DAY)


def test_pattern_shows_its_revisions_page_by_page(as_kee: Caller) -> None:
    seen = observe(as_kee, "It failed.")
    revise(as_kee, "Slow on Mondays.", confidence=0.2)
    revise(as_kee, "Slow on Mondays and Fridays.", now=T0 + DAY, evidence_observation_ids=[seen.pk])
    ref = revise(as_kee, "Slow on Fridays.", now=T0 + 2 * DAY, confidence=0.9).ref

    newest = read(as_kee, ref, limit=1)
    assert (newest.name, newest.domain, newest.revision, newest.confidence) == ("builds", "ci", 3, 0.9)
    assert (newest.recorded_at, newest.revised_at) == (T0, T0 + 2 * DAY)
    pages = [newest]
    while pages[-1].next is not None:
        pages.append(read(as_kee, ref, before=decode_position(pages[-1].next), limit=1))
    told = [
        (one.revision, one.text, one.confidence, one.evidence, one.recorded_at)
        for page in pages
        for one in page.earlier
    ]
    assert told == [
        (2, "Slow on Mondays and Fridays.", 0.8, [seen.ref], T0 + DAY),
        (1, "Slow on Mondays.", 0.2, [], T0),
    ]


def test_concept_is_read_by_any_name_with_earlier_readings(as_kee: Caller) -> None:
    describe = partial(services.store_concept, author=as_kee, name="PostgreSQL")
    describe(description="A database.", metadata={"since": 1996}, now=T0)
    describe(concept_type="database", aliases=["the elephant"], now=T0 + DAY)
    describe(description="Where facts are kept.", now=T0 + 2 * DAY)

    found = read(as_kee, "concept:The  Elephant")
    assert (found.ref, found.name, found.aliases) == ("concept:postgresql", "PostgreSQL", ["the elephant"])
    assert (found.text, found.domain, found.metadata) == ("Where facts are kept.", "database", {"since": 1996})
    assert [(one.text, one.domain, one.aliases, one.recorded_at) for one in found.earlier] == [
        ("A database.", "database", ["the elephant"], T0 + DAY),
        ("A database.", "", [], T0),
    ]
    first = read(as_kee, found.ref, limit=1)
    rest = read(as_kee, found.ref, before=decode_position(first.next or ""), limit=1)
    assert [*first.earlier, *rest.earlier] == found.earlier


def test_item_is_read_with_the_items_it_supersedes(as_kee: Caller) -> None:
    add(as_kee)
    older = remember(as_kee, "Lives in Ghent", slot="home town").item
    newer = remember(as_kee, "Lives in Bruges", slot="home town", stated=True, source="session c-1", now=T0 + DAY).item
    found = read(as_kee, newer.ref, now=T0 + DAY)
    assert (found.text, found.subject_id, found.domain) == ("Lives in Bruges", ALICE, "USER_FACT")
    assert (found.slot, found.stated, found.source, found.valid_from) == ("home town", True, "session c-1", T0 + DAY)
    assert (older.ref, "Lives in Ghent") in [(one.ref, one.text) for one in found.earlier]
    assert read(as_kee, older.ref, now=T0 + DAY).superseded_by == newer.ref


@pytest.mark.parametrize(
    ("ref", "code"),
    [
        *((ref, "malformed_memory_reference") for ref in ("python", "7", "item:SKU-7", "pattern:0", "task:task_7")),
        *((ref, "unknown_memory") for ref in ("observation:4711", "pattern:4711", "item:4711", "concept:nobody")),
    ],
)
def test_bad_references_are_refused(as_kee: Caller, ref: str, code: str) -> None:
    with refused(code):
        read(as_kee, ref)


def test_memories_of_a_subject_are_read_by_its_rules(as_kee: Caller, tenant: Tenant) -> None:
    add(as_kee, delete_after_days=30)
    record(as_kee)
    refs = [talk(as_kee, "Hello.", speaker="Alice").ref, remember(as_kee).item.ref]
    message = read(as_kee, refs[0])
    assert (message.conversation_id, message.speaker, message.subject_id, message.occurred_at) == (
        "c",
        "Alice",
        ALICE,
        T0,
    )

    def unread(viewer: Caller, **asked: Any) -> None:
        for ref in refs:
            with acting_as(viewer), refused("unknown_memory"):
                read(viewer, ref, **asked)

    for ref in refs:
        read(as_kee, ref, now=T0 + 30 * DAY - TICK)
    unread(as_kee, now=T0 + 30 * DAY)
    change(as_kee, share_with=["Kee"])
    unread(make_caller(tenant, "Lee"))
    change(as_kee, memory_enabled=False)
    unread(as_kee)


def test_superseding_memory_is_named_until_it_is_forgotten(as_kee: Caller) -> None:
    add(as_kee)
    record(as_kee)
    older = talk(as_kee, "Alice lives in Ghent.").ref
    newer = talk(as_kee, "Alice has moved to Bruges.", supersedes=older).ref
    item = remember(as_kee, "Alice has moved to Bruges.", evidence=[newer]).item
    assert read(as_kee, older).superseded_by == newer
    services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)
    after = read(as_kee, older)
    assert (after.superseded_by, after.superseded_at) == (None, first_moment(T0))


@pytest.mark.parametrize("shared", [True, False])
def test_superseded_memory_tells_no_day_of_an_anonymized_subject(as_kee: Caller, tenant: Tenant, shared: bool) -> None:
    older = observe(as_kee, "Somebody likes tea.")
    newer = talk(as_kee, "Alice likes tea.", supersedes=older.ref, now=T0 + DAY)
    assert read(as_kee, older.ref).superseded_at == T0 + DAY
    add(as_kee, anonymize_dates=True, share_with=["Kee"])
    # The conversation gets its subject only now.
    record(as_kee, now=T0 + DAY)
    viewer = as_kee if shared else make_caller(tenant, "Lee")
    with acting_as(viewer):
        found = read(viewer, older.ref, now=T0 + DAY)
    assert found.superseded_at == first_moment(T0)
    assert found.superseded_by == (newer.ref if shared else None)


def test_superseded_memories_are_shown_by_the_rules_of_the_subject(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=30)
    record(as_kee)
    message = talk(as_kee, "Not in Ghent any more.", supersedes=talk(as_kee, "Lives in Ghent.").ref, now=T0 + DAY).ref
    remember(as_kee, "Lives in Ghent", slot="home town")
    item = remember(as_kee, "Lives in Bruges", slot="home town", now=T0 + DAY).item.ref
    over = T0 + 30 * DAY
    for ref in (message, item):
        assert read(as_kee, ref, now=over - TICK).earlier != []
        assert [one.text for one in read(as_kee, ref, now=over).earlier if one.text.startswith("Lives in Ghent")] == []


def test_concept_of_the_longest_name_is_read_and_cited(as_kee: Caller) -> None:
    services.store_concept(author=as_kee, name="n" * 200, description="Long.", now=T0)
    ref = f"concept:{'n' * 200}"
    assert memory_read(as_kee, ReadMemory(ref=ref)).text == "Long."
    assert memory_store(as_kee, StoreMemory(observation="It is long.", evidence=[ref])).status == "stored"


def test_reading_takes_two_statements_or_three_if_superseded(as_kee: Caller) -> None:
    older = observe(as_kee, "It fails.")
    newer = observe(as_kee, "It works.", supersedes=older.ref)
    revise(as_kee, "It may fail.")
    pattern = revise(as_kee, "It fails.", now=T0 + DAY).ref
    services.store_concept(author=as_kee, name="python", now=T0)
    add(as_kee)
    item = remember(as_kee).item.ref

    def statements(ref: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            read(as_kee, ref)
        return len(captured)

    assert {ref: statements(ref) for ref in (newer.ref, pattern, "concept:python", item)} == dict.fromkeys(
        (newer.ref, pattern, "concept:python", item), 2
    )
    assert statements(older.ref) == 3
