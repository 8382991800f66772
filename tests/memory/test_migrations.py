"""Migrations that move data move it on tables that hold some: nothing is lost that the older form had a place for."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from apps.memory import services
from apps.memory.models import Passage, Session
from apps.memory.selectors import recall
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import ALICE, add, remember
from tests.memory.test_scale import write_everything
from tests.memory.test_store import observe

# The rows that recall goes by, as they say the same whatever their keys are.
_INDEX = {
    "passages": """
        select scope, domain, length, words::text, id & 1048575 as turn, observation_id, pattern_id, concept_id, item_id
        from memory_passage order by observation_id, pattern_id, concept_id, item_id""",
    "postings": """
        select g.scope, g.term, g.frequency, g.length, g.of_context, g.superseded, p.observation_id, p.pattern_id, p.concept_id, p.item_id
        from memory_posting g join memory_passage p on p.id = g.passage_id
        order by g.term, p.observation_id, p.pattern_id, p.concept_id, p.item_id""",
    "tallies": """
        select tenant_id, scope, sum(observations), sum(patterns), sum(concepts), sum(passages), sum(words)
        from memory_tally group by 1, 2 having sum(passages) <> 0 order by 1, 2""",
}


@pytest.fixture
def migrated(transactional_db: None) -> Iterator[None]:
    yield
    call_command("migrate", verbosity=0)


def index() -> dict[str, list[Any]]:
    found = {}
    with connection.cursor() as cursor:
        cursor.execute("set role none")
        for name, statement in _INDEX.items():
            cursor.execute(statement)
            found[name] = cursor.fetchall()
        cursor.execute("set role gatehouse_app")
    return found


def fill(slug: str) -> Caller:
    """A tenant with everything that can be found: single memories, turns with somebody and with nobody, items."""
    kee = make_caller(make_tenant(slug))
    with acting_as(kee):
        write_everything(kee)
        observe(kee, "Walruses were counted.", metadata={"by": {"ship": "Fram"}, "years": [1893, 1894]})
        services.store_concept(author=kee, name="Fram", metadata={"masts": 3.0}, now=T0)
        add(kee)
        remember(kee, "Lives in Paris", slot="home")
        remember(kee, "Lives in Berlin", slot="home")
        services.record_session(principal=kee, conversation_id="with", subject_id=ALICE, now=T0)
        for conversation_id in ("with", "without"):
            for text in ("A walrus is near.", "How near?"):
                services.store_observation(
                    author=kee, text=text, conversation_id=conversation_id, speaker="Tom", occurred_at=T0, now=T0
                )
    return kee


def test_items_and_what_was_said_with_subjects_become_findable_within_them(migrated: None) -> None:
    kee, lee = fill("acme"), fill("globex")
    before = index()

    call_command("migrate", "memory", "0004", verbosity=0)
    call_command("migrate", "memory", verbosity=0)

    assert index() == before
    for caller in (kee, lee):
        with acting_as(caller):
            assert len(recall("walrus near", caller=caller, subject_id=ALICE)) == 2
            (hit,) = recall("berlin", caller=caller, subject_id=ALICE)
            assert hit.text == "Lives in Berlin"
            assert len(recall("walrus", caller=caller, filters={"by.ship": "Fram"})) == 1
            assert len(recall(caller=caller, filters={"masts": 3})) == 1
            observe(caller, "Written since.")
            assert recall("since", caller=caller)


def test_memories_of_before_there_were_turns_have_places_next_to_nobodys(migrated: None) -> None:
    kee = fill("acme")
    with acting_as(kee):
        walrus = [hit.ref for hit in recall("beast", caller=kee)]
        single = len(recall("walrus sleep", caller=kee))
        # What the first form has no place for: subjects, and who observed within what.
        services.forget(author=kee, subject_id=ALICE, now=T0)

    call_command("migrate", "memory", "0001", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("set role none")
        cursor.execute("select count(*), bool_or(id & 1048575 <> 524288) from memory_passage")
        (passages, elsewhere) = cursor.fetchone()
        cursor.execute("set role gatehouse_app")
    assert passages > 0
    assert elsewhere
    call_command("migrate", verbosity=0)

    with connection.cursor() as cursor:
        cursor.execute("set role none")
        cursor.execute("select count(*), bool_and(id & 524288 <> 0), bool_and(words <> '') from memory_passage")
        assert cursor.fetchone() == (passages, True, True)
        cursor.execute("set role gatehouse_app")
    with acting_as(kee):
        assert [hit.ref for hit in recall("beast", caller=kee)] == walrus
        assert len(recall("walrus sleep", caller=kee)) <= single
        observe(kee, "Written since.")
        assert [hit.text for hit in recall("since", caller=kee)] == ["Written since."]
        services.store_observation(author=kee, text="A turn.", conversation_id="new", now=T0)
        assert recall("turn", caller=kee)


def test_conversations_of_before_they_shared_a_sequence_with_notes_keep_their_places(migrated: None) -> None:
    kee = fill("acme")
    call_command("migrate", "memory", "0021", verbosity=0)
    with acting_as(kee):
        for number in range(300):
            services.record_session(principal=kee, conversation_id=f"{number}", now=T0)
        services.store_observation(author=kee, text="Before.", conversation_id="0", now=T0)
        places, sessions = (
            set(Passage.objects.values_list("pk", flat=True)),
            set(Session.objects.values_list("pk", flat=True)),
        )
    assert max(sessions) << 20 > max(places)

    call_command("migrate", "memory", verbosity=0)

    with acting_as(kee):
        assert set(Passage.objects.values_list("pk", flat=True)) == places
        assert set(Session.objects.values_list("pk", flat=True)) == sessions
        observe(kee, "A note.")
        services.store_observation(author=kee, text="Since.", conversation_id="new", now=T0)
        observe(kee, "Another.")
        services.store_observation(author=kee, text="Goes on.", conversation_id="0", now=T0)
        said = list(Passage.objects.order_by("pk").values_list("observation__text", flat=True))
        assert said[-3:] == ["A note.", "Since.", "Another."]
        assert said.index("Goes on.") == said.index("Before.") + 1
        assert Session.objects.get(conversation_id="new").pk > max(sessions)
