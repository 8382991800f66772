"""A memory is read by its reference: where it is from, and how it came to be."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.core import erasure
from apps.core.ids import decode_position
from apps.memory import services
from apps.memory.envelopes import first_moment
from apps.memory.selectors import memory_of
from apps.memory.shapes import MemoryOutput
from apps.memory.tools.memories import ReadMemory, StoreMemory, memory_read, memory_store
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0, make_caller, make_token
from tests.memory.subjects import ALICE, add, change, refused, remember

DAY = timedelta(days=1)


def read(viewer: Caller, ref: str, **asked: Any) -> MemoryOutput:
    return memory_of(ref, viewer=viewer, **({"now": T0} | asked))


def revise(
    author: Caller, text: str, *, confidence: float = 0.5, found_in: Sequence[int] = (), now: datetime = T0
) -> str:
    return services.update_pattern(
        author=author,
        category="ci",
        pattern_name="mondays",
        pattern_text=text,
        confidence=confidence,
        evidence_observation_ids=found_in,
        now=now,
    ).ref


def test_a_belief_is_followed_over_http_from_a_hit_to_what_it_rests_on(db: None, tenant: Tenant) -> None:
    token = make_token(tenant)

    def call(method: str, path: str, given: dict[str, Any]) -> Any:
        query, body = ("", json.dumps(given)) if method == "POST" else (f"?{urlencode(given)}", "")
        answer = Client().generic(
            method,
            f"/api/v1/memory/{path}{query}",
            body,
            content_type="application/json",
            headers={"Authorization": f"Bearer {token}"},
        )
        assert answer.status_code in {200, 201}, answer.content
        return answer.json()

    def observe(**given: Any) -> str:
        return str(call("POST", "observations", given)["ref"])

    seen = observe(observation="Monday's build failed.", confidence=0.9, evidence=["task:task_7"], metadata={"run": 3})
    first = observe(observation="Builds fail on Mondays.", evidence=[seen])
    observe(observation="Builds fail on Mondays and Fridays.", evidence=[seen], supersedes=first)

    (hit,) = call("GET", "recall", {"q": "Fridays"})["hits"]
    belief = call("GET", "read", {"ref": hit["ref"]})
    assert (belief["text"], belief["author"], belief["evidence"]) == (hit["text"], "Kee", [seen])
    (before,) = belief["earlier"]
    assert (before["ref"], before["text"], before["evidence"]) == (first, "Builds fail on Mondays.", [seen])
    rests_on = call("GET", "read", {"ref": belief["evidence"][0]})
    assert (rests_on["text"], rests_on["confidence"], rests_on["metadata"]) == (
        "Monday's build failed.",
        0.9,
        {"run": 3},
    )
    older = call("GET", "read", {"ref": first})
    assert (older["superseded_by"], older["superseded_at"] is None) == (hit["ref"], False)


def test_a_pattern_shows_its_revisions_page_by_page(as_kee: Caller) -> None:
    seen = services.store_observation(author=as_kee, text="It failed.", now=T0)
    revise(as_kee, "Slow on Mondays.", confidence=0.2)
    revise(as_kee, "Slow on Mondays and Fridays.", now=T0 + DAY, found_in=[seen.pk])
    ref = revise(as_kee, "Slow on Fridays.", now=T0 + 2 * DAY, confidence=0.9)

    newest = read(as_kee, ref, limit=1)
    assert (newest.name, newest.domain, newest.revision, newest.confidence) == ("mondays", "ci", 3, 0.9)
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
        (2, "Slow on Mondays and Fridays.", 0.5, [seen.ref], T0 + DAY),
        (1, "Slow on Mondays.", 0.2, [], T0),
    ]


def test_a_concept_is_read_by_any_of_its_names_with_how_it_was_described_before(as_kee: Caller) -> None:
    tell = {"author": as_kee, "name": "PostgreSQL"}
    services.store_concept(**tell, description="A database.", metadata={"since": 1996}, now=T0)  # type: ignore[arg-type]
    services.store_concept(**tell, concept_type="database", aliases=["the elephant"], now=T0 + DAY)  # type: ignore[arg-type]
    services.store_concept(**tell, description="Where facts are kept.", now=T0 + 2 * DAY)  # type: ignore[arg-type]

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


def test_an_item_is_read_with_the_items_in_whose_place_it_stands(as_kee: Caller) -> None:
    add(as_kee)
    older = remember(as_kee, "Lives in Ghent", slot="home town", confidence=0.3).item
    newer = remember(as_kee, "Lives in Bruges", slot="home town", stated=True, source="session c-1", now=T0 + DAY).item

    found = read(as_kee, newer.ref, now=T0 + DAY)
    assert (found.text, found.subject_id, found.slot, found.stated) == ("Lives in Bruges", ALICE, "home town", True)
    assert (found.domain, found.source, found.valid_from, found.valid_to) == (
        "USER_FACT",
        "session c-1",
        T0 + DAY,
        None,
    )
    assert (older.ref, "Lives in Ghent") in [(one.ref, one.text) for one in found.earlier]
    before = read(as_kee, older.ref, now=T0 + DAY)
    assert (before.superseded_by, before.superseded_at) == (newer.ref, T0 + DAY)


@pytest.mark.parametrize("ref", ["python", "7", "item:SKU-7", "pattern:0", "task:task_7", "item-7", "observation:"])
def test_what_is_no_reference_to_a_memory_is_refused(as_kee: Caller, ref: str) -> None:
    with refused("malformed_memory_reference"):
        read(as_kee, ref)


@pytest.mark.parametrize("ref", ["observation:4711", "pattern:4711", "item:4711", "concept:nobody"])
def test_what_is_not_there_is_unknown(as_kee: Caller, ref: str) -> None:
    with refused("unknown_memory"):
        read(as_kee, ref)


def told_of_alice(author: Caller, **settled: Any) -> list[str]:
    """What was said with a subject in a conversation and remembered of it."""
    add(author, **settled)
    services.record_session(principal=author, conversation_id="c", subject_id=ALICE, now=T0)
    said = services.store_observation(author=author, text="Hello.", conversation_id="c", speaker="Alice", now=T0)
    return [said.ref, remember(author).item.ref]


def test_a_turn_says_where_and_by_whom_it_was_said(as_kee: Caller) -> None:
    turn = read(as_kee, told_of_alice(as_kee)[0])
    assert (turn.conversation_id, turn.speaker, turn.subject_id, turn.occurred_at) == ("c", "Alice", ALICE, T0)


def test_what_is_about_a_subject_is_read_as_far_as_it_has_settled(as_kee: Caller, tenant: Tenant) -> None:
    refs = told_of_alice(as_kee, delete_after_days=30)

    def unread(viewer: Caller, **asked: Any) -> None:
        for ref in refs:
            with acting_as(viewer), refused("unknown_memory"):
                read(viewer, ref, **asked)

    for ref in refs:
        read(as_kee, ref, now=T0 + 30 * DAY - timedelta(microseconds=1))
    unread(as_kee, now=T0 + 30 * DAY)
    change(as_kee, share_with=["Kee"])
    unread(make_caller(tenant, "Lee"))
    change(as_kee, memory_enabled=False)
    unread(as_kee)


def test_what_is_forgotten_is_read_by_nobody(as_kee: Caller) -> None:
    refs = told_of_alice(as_kee)
    services.forget(author=as_kee, subject_id=ALICE, now=T0)
    for ref in refs:
        with refused("unknown_memory"):
            read(as_kee, ref)


def test_what_stands_in_the_place_of_a_memory_is_named_until_it_is_forgotten(as_kee: Caller) -> None:
    add(as_kee)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)

    def say(text: str, **given: Any) -> str:
        return services.store_observation(author=as_kee, text=text, conversation_id="c", now=T0, **given).ref

    older = say("Alice lives in Ghent.")
    newer = say("Alice has moved to Bruges.", supersedes=older)
    item = remember(as_kee, "Alice has moved to Bruges.", evidence=[newer]).item
    assert read(as_kee, older).superseded_by == newer
    services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)
    # Of what is forgotten nobody tells the day.
    after = read(as_kee, older)
    assert (after.superseded_by, after.superseded_at) == (None, first_moment(T0))


@pytest.mark.parametrize("shared", [True, False])
def test_a_day_of_an_anonymized_subject_is_not_told_by_what_was_superseded(
    as_kee: Caller, tenant: Tenant, shared: bool
) -> None:
    """Though the conversation came to be with that subject only afterwards."""
    older = services.store_observation(author=as_kee, text="Somebody likes tea.", now=T0)
    services.record_session(principal=as_kee, conversation_id="c", now=T0)
    newer = services.store_observation(
        author=as_kee, text="Alice likes tea.", conversation_id="c", supersedes=older.ref, now=T0 + DAY
    )
    assert read(as_kee, older.ref).superseded_at == T0 + DAY
    add(as_kee, anonymize_dates=True, share_with=["Kee"])
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0 + DAY)
    viewer = as_kee if shared else make_caller(tenant, "Lee")
    with acting_as(viewer):
        found = read(viewer, older.ref, now=T0 + DAY)
    assert found.superseded_at == first_moment(T0)
    assert found.superseded_by == (newer.ref if shared else None)


def test_what_a_memory_stands_in_the_place_of_is_shown_as_far_as_its_subject_has_settled(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=30)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)

    def say(text: str, **given: Any) -> str:
        return services.store_observation(author=as_kee, text=text, conversation_id="c", **given).ref

    turn = say("Not in Ghent any more.", supersedes=say("Lives in Ghent.", now=T0), now=T0 + DAY)
    remember(as_kee, "Lives in Ghent", slot="home town")
    item = remember(as_kee, "Lives in Bruges", slot="home town", now=T0 + DAY).item.ref
    over = T0 + 30 * DAY
    for ref in (turn, item):
        assert read(as_kee, ref, now=over - timedelta(microseconds=1)).earlier != []
        assert [one.text for one in read(as_kee, ref, now=over).earlier if one.text.startswith("Lives in Ghent")] == []


def test_items_that_one_stands_for_are_read_page_by_page(as_kee: Caller) -> None:
    add(as_kee)
    for year in range(3):
        begin, end = T0 + year * DAY, T0 + (year + 1) * DAY
        remember(as_kee, f"Lived in town {year}", slot="home town", now=T0, valid_from=begin, valid_to=end)
    item = remember(as_kee, "Lived in Ghent all the time", slot="home town", valid_from=T0, now=T0 + DAY).item.ref
    whole = read(as_kee, item).earlier
    assert len(whole) == 3
    pages = [read(as_kee, item, limit=1)]
    while pages[-1].next is not None:
        pages.append(read(as_kee, item, limit=1, before=decode_position(pages[-1].next)))
    assert [one for page in pages for one in page.earlier] == whole


def test_how_a_memory_read_before_is_not_shown_once_it_is_forgotten(as_kee: Caller) -> None:
    revise(as_kee, "USER:eve")
    pattern = revise(as_kee, "Some are slow.", now=T0 + DAY)
    services.store_concept(author=as_kee, name="slow", description="USER:eve", now=T0)
    services.store_concept(author=as_kee, name="slow", description="Not fast.", now=T0 + DAY)
    for ref in (pattern, "concept:slow"):
        assert len(read(as_kee, ref).earlier) == 1
    with acting_as_system("test"), erasure.redacting():
        erasure.erase(as_kee.tenant_id, "USER:eve")
    for ref in (pattern, "concept:slow"):
        assert read(as_kee, ref).earlier == []


def test_a_concept_of_the_longest_name_is_read_by_its_reference_and_cited(as_kee: Caller) -> None:
    services.store_concept(author=as_kee, name="n" * 200, description="Long.", now=T0)
    ref = f"concept:{'n' * 200}"
    assert memory_read(as_kee, ReadMemory(ref=ref)).text == "Long."
    assert memory_store(as_kee, StoreMemory(observation="It is long.", evidence=[ref])).status == "stored"


def test_a_memory_takes_two_statements_and_one_more_for_what_superseded_it(as_kee: Caller) -> None:
    older = services.store_observation(author=as_kee, text="It fails.", now=T0)
    newer = services.store_observation(author=as_kee, text="It works.", supersedes=older.ref, now=T0)
    revise(as_kee, "It may fail.")
    pattern = revise(as_kee, "It fails.", now=T0 + DAY)
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
