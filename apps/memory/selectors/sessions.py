"""Conversations, as a later one sees them."""

from dataclasses import dataclass
from datetime import datetime

from apps.memory import sql
from apps.memory.envelopes import first_moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A session as a later one sees it."""

    conversation_id: str
    platform: str
    title: str
    summary: str
    topics: tuple[str, ...]
    tone: str
    updated_at: datetime


def recent_sessions(*, principal_id: int, now: datetime, limit: int = 10) -> list[Conversation]:
    """A principal's latest conversations, newest first; those with subjects as far as they have settled that.

    A subject that is no longer shared with the principal has none, as one that was forgotten.
    """
    return [
        Conversation(
            conversation_id=conversation_id,
            platform=platform,
            title=title,
            summary=summary,
            topics=tuple(topics),
            tone=tone,
            updated_at=first_moment(last_active_at) if is_by_month else last_active_at,
        )
        for conversation_id, platform, title, summary, topics, tone, last_active_at, is_by_month in sql.recent(
            principal_id=principal_id, now=now, limit=limit
        )
    ]
