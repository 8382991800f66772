"""Conversations, as they go on."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest, Least

from apps.memory import sql
from apps.memory.errors import ConversationFull
from apps.memory.models import MOST_TURNS, Session
from apps.memory.services.subjects import held_to_write, revised
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

    With a subject it is what envelopes of the subject call the recent context; what was said in it is recalled as about
    the subject from then on, and not else.

    :raises UnknownSubject: if there is none of this id, or it is not shared with the principal.
    :raises MemoryDisabled: if the subject of the conversation wants nothing remembered.
    """
    given = {"platform": platform, "title": title, "summary": summary, "topics": topics, "tone": tone}
    said = {name: list(value) if name == "topics" else value for name, value in given.items() if value is not None}
    session, _ = Session.objects.update_or_create(
        tenant_id=principal.tenant_id,
        principal_id=principal.principal_id,
        conversation_id=conversation_id,
        defaults={**said, "last_active_at": now},
        create_defaults={**said, "started_at": now, "last_active_at": now},
    )
    # The session is held by now, so that its subject is known; subjects are the last that anybody takes.
    concerned = {key for key in (subject_id, session.subject.key if session.subject else None) if key is not None}
    for key in sorted(concerned):
        subject = held_to_write(principal, key)
        since = None
        if key == subject_id and session.subject_id != subject.pk:
            since = session.started_at
            session.subject = subject
            session.save(update_fields=["subject"])
            if session.turns:
                sql.move_passages(session.place_of(0), session.place_of(session.turns - 1), scope=session.scope)
        revised(subject, now, since=since)
    return session


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The next turn of a conversation, and its place in the index."""

    session: Session
    place: int


def take_turn(*, principal: Caller, conversation_id: str, at: datetime) -> Turn:
    """Take the next turn of the principal's conversation, which begins with it if it is not known.

    Turns of a conversation are given one after the other: who takes one is waited for until it has committed.

    :raises ConversationFull: if there is none left.
    :raises UnknownSubject: if the conversation is with a subject that is no longer shared with the principal.
    :raises MemoryDisabled: if it is with a subject that wants nothing remembered.
    """
    session, _ = Session.objects.get_or_create(
        tenant_id=principal.tenant_id,
        principal_id=principal.principal_id,
        conversation_id=conversation_id,
        defaults={"started_at": at, "last_active_at": at},
    )
    taken = Session.objects.filter(pk=session.pk, turns__lt=MOST_TURNS).update(
        turns=F("turns") + 1,
        started_at=Least("started_at", at),
        last_active_at=Greatest("last_active_at", at),
    )
    if not taken:
        raise ConversationFull(f"The conversation {conversation_id[:60]!r} takes no more turns; begin another.")
    session.refresh_from_db(fields=["turns", "subject"])
    if session.subject is not None:
        revised(held_to_write(principal, session.subject.key), at)
    return Turn(session=session, place=session.place_of(session.turns - 1))
