"""Clocks of writers differ: whose is behind leaves no moment before the one that it follows."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from apps.memory import services
from apps.memory.models import Memory, Revision, Session
from apps.memory.selectors import recall
from apps.memory.states import Kind
from apps.principals.tenancy import Caller
from tests.factories import T0
from tests.memory.subjects import ALICE, add, concepts, facts, patterns, remember

BEHIND = T0 - timedelta(minutes=5)


def test_an_item_is_superseded_when_it_was_recorded_and_no_sooner(as_kee: Caller) -> None:
    add(as_kee)
    older = remember(as_kee, "Lives in Berlin", slot="home").item
    newer = remember(as_kee, "Lives in Paris", slot="home", valid_from=older.valid_from, now=BEHIND).item
    older.refresh_from_db()
    assert (older.superseded_at, older.superseded_by, newer.recorded_at) == (T0, newer, BEHIND)
    assert facts(as_kee) == ["Lives in Paris"]


def test_a_statement_is_superseded_when_it_was_recorded_and_no_sooner(as_kee: Caller) -> None:
    older = services.store_observation(author=as_kee, text="It is green.", now=T0)
    services.store_observation(author=as_kee, text="It is red.", supersedes=older.ref, now=BEHIND)
    older.refresh_from_db()
    assert older.superseded_at == T0
    assert [hit.text for hit in recall("green red", caller=as_kee)] == ["It is red."]


@pytest.mark.parametrize("kind", [Kind.ITEM, Kind.OBSERVATION])
def test_the_database_refuses_what_was_superseded_before_it_was_known(as_kee: Caller, kind: Kind) -> None:
    add(as_kee)
    newer = remember(as_kee, "Lives in Paris").item.pk
    older = remember(as_kee, "Has a zebra").item.pk
    if kind == Kind.OBSERVATION:
        newer, older = (services.store_observation(author=as_kee, text=text, now=T0).pk for text in ("newer", "older"))
    with pytest.raises(IntegrityError, match="known_before_superseded"), transaction.atomic():
        Memory.objects.filter(pk=older).update(superseded_at=BEHIND, superseded_by=newer)


def test_no_revision_of_a_pattern_is_older_than_the_one_before_it(as_kee: Caller) -> None:
    for text, now in (("once", T0), ("twice", BEHIND), ("often", T0 + timedelta(days=1))):
        services.update_pattern(author=as_kee, category="c", pattern_name="n", pattern_text=text, confidence=1, now=now)
    recorded = Revision.objects.order_by("number").values_list("recorded_at", "superseded_at")
    assert list(recorded) == [(T0, T0), (T0, T0 + timedelta(days=1))]
    (hit,) = recall("", caller=as_kee, as_of=T0 + timedelta(hours=1))
    assert (hit.text, patterns().get().revised_at) == ("n: twice", T0 + timedelta(days=1))


def test_a_concept_is_described_otherwise_from_when_it_was_last_and_no_sooner(as_kee: Caller) -> None:
    for description, now in (("A cat.", T0), ("A dog.", BEHIND)):
        services.store_concept(author=as_kee, name="Tom", description=description, now=now)
    told = concepts().get()
    assert (told.text, told.revised_at) == ("A dog.", T0)


def test_a_conversation_is_noted_as_active_no_sooner_than_it_was(as_kee: Caller) -> None:
    add(as_kee)
    services.record_session(principal=as_kee, conversation_id="c", now=T0)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, title="Zebras", now=BEHIND)
    noted = Session.objects.get()
    assert (noted.title, noted.started_at, noted.last_active_at) == ("Zebras", T0, T0)
