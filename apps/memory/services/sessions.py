"""Conversations, as they go on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Q

from apps.core.ids import random_id
from apps.memory import selectors, sql
from apps.memory.errors import ConversationFull
from apps.memory.models import MOST_TURNS, Session, Subject
from apps.memory.services.subjects import holding, revised, to_be_written
from apps.principals.tenancy import Caller


@transaction.atomic
def record_session(
    *,
    principal: Caller,
    conversation_id: str,
    now: datetime,
    subject_id: str | None = None,
    platform: str | None = None,
    title: str | None = None,
    summary: str | None = None,
    topics: Sequence[str] | None = None,
    tone: str | None = None,
) -> Session:
    """Note a conversation, or what has become of it; what is not given stays as it was.

    No note makes it older than it was: by a clock that is behind, it was last active when it was before.

    With a subject it is what envelopes of the subject call the recent context; what was said in it is recalled as about
    the subject from then on, and not else.

    A conversation with a subject that is no longer shared with the principal is over, as if the subject had been
    forgotten: another begins under its id.

    :raises UnknownSubject: if there is none of this id, or it is not shared with the principal.
    :raises MemoryDisabled: if the subject of the conversation wants nothing remembered.
    """
    session = _held_to_name(subject_id, principal, conversation_id, now)
    # The session is held by now, so that its subject is known; subjects are the last that anybody takes.
    subjects = _concerned(session, principal, subject_id)
    session = _unless_over(session, subjects, principal=principal, now=now)
    given = {"platform": platform, "title": title, "summary": summary, "topics": topics, "tone": tone}
    since = None
    if subject_id is not None:
        named = next((subject for subject in subjects if subject.key == subject_id), None)
        subject = to_be_written(named, subject_id)
        if session.subject_id != subject.pk:
            since, session.subject = session.started_at, subject
            if session.turns:
                sql.move_passages(session.place_of(0), session.place_of(session.turns - 1), scope=subject.pk)
    for name, value in given.items():
        if value is not None:
            setattr(session, name, list(value) if name == "topics" else value)
    session.last_active_at = max(session.last_active_at, now)
    session.save()
    for subject in subjects:
        revised(subject, now, since=since)
    return session


def _held(principal: Caller, conversation_id: str, at: datetime) -> Session:
    """The principal's conversation of this id, which begins if it is not known; nobody else changes it meanwhile."""
    session, _ = Session.objects.select_for_update(of=("self",)).get_or_create(
        tenant_id=principal.tenant_id,
        principal_id=principal.principal_id,
        conversation_id=conversation_id,
        defaults={"started_at": at, "last_active_at": at},
    )
    return session


def _held_to_name(subject_id: str | None, principal: Caller, conversation_id: str, at: datetime) -> Session:
    """The conversation, held, unless the subject that it is to have is unknown: then nothing is waited for."""
    if subject_id is not None:
        selectors.subject_of(subject_id, viewer=principal)
    return _held(principal, conversation_id, at)


def _concerned(session: Session, principal: Caller, subject_id: str | None = None) -> list[Subject]:
    """The subject of a conversation, and the one that it is to have, held, as far as they are shared with the principal."""
    if session.subject_id is None and subject_id is None:
        return []
    return list(holding(selectors.known_to(principal).filter(Q(pk=session.subject_id) | Q(key=subject_id))))


def _unless_over(session: Session, subjects: Iterable[Subject], *, principal: Caller, now: datetime) -> Session:
    """The conversation, or another in its place if it is with a subject that is not among these.

    :raises MemoryDisabled: if the subject wants nothing remembered.
    """
    if session.subject_id is None:
        return session
    subject = next((subject for subject in subjects if subject.pk == session.subject_id), None)
    if subject is not None:
        # Held by now, and as it is.
        session.subject = to_be_written(subject, subject.key)
        return session
    conversation_id, session.conversation_id = session.conversation_id, random_id("over")
    session.save(update_fields=["conversation_id"])
    return _held(principal, conversation_id, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The next turn of a conversation, and its place in the index."""

    session: Session
    place: int
    subject: Subject | None
    """With whom it is said, held."""


def take_turn(*, principal: Caller, conversation_id: str, at: datetime, now: datetime) -> Turn:
    """Take the next turn of the principal's conversation, which begins with it if it is not known, or is over.

    :param at: when it was said.

    Turns of a conversation are given one after the other: who takes one is waited for until it has committed.

    :raises ConversationFull: if there is none left.
    :raises MemoryDisabled: if it is with a subject that wants nothing remembered.
    """
    session = _held(principal, conversation_id, at)
    subjects = _concerned(session, principal)
    session = _unless_over(session, subjects, principal=principal, now=at)
    if session.turns >= MOST_TURNS:
        raise ConversationFull(f"The conversation {conversation_id[:60]!r} takes no more turns; begin another.")
    session.turns += 1
    session.started_at, session.last_active_at = min(session.started_at, at), max(session.last_active_at, at)
    session.save(update_fields=["turns", "started_at", "last_active_at"])
    for subject in subjects:
        revised(subject, now, since=at)
    whom = next((subject for subject in subjects if subject.pk == session.subject_id), None)
    return Turn(session=session, place=session.place_of(session.turns - 1), subject=whom)
