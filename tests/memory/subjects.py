"""Subjects and what is remembered of them, by the product's services."""

from datetime import datetime
from typing import Any

from apps.memory import services
from apps.memory.envelopes import Envelope
from apps.memory.models import Subject
from apps.memory.services import ItemDraft, Remembered, SubjectChange
from apps.principals.tenancy import Caller
from tests.factories import T0

ALICE = "USER:alice"


def add(author: Caller, subject_id: str = ALICE, *, now: datetime = T0, **given: Any) -> Subject:
    preferences = given.pop("preferences", None)
    change = SubjectChange(given=given, preferences=preferences)
    return services.add_subject(author=author, subject_id=subject_id, change=change, now=now)


def change(author: Caller, subject_id: str = ALICE, *, now: datetime = T0, **given: Any) -> Subject:
    preferences = given.pop("preferences", None)
    return services.update_subject(
        author=author, subject_id=subject_id, change=SubjectChange(given=given, preferences=preferences), now=now
    )


def remember(
    author: Caller, text: str = "Loves fettuccini", subject_id: str = ALICE, *, now: datetime = T0, **given: Any
) -> Remembered:
    draft = ItemDraft(subject_id=subject_id, text=text, **given)
    return services.remember(author=author, draft=draft, now=now)


def envelope(viewer: Caller, subject_id: str = ALICE, *, now: datetime = T0) -> Envelope:
    return services.get_memory_envelope(viewer=viewer, subject_id=subject_id, now=now)


def facts(viewer: Caller, subject_id: str = ALICE, *, now: datetime = T0) -> list[str]:
    """The facts that an envelope shows at this moment."""
    return [one.fact for one in envelope(viewer, subject_id, now=now).relational.memorable_facts]
