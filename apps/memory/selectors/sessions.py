"""Conversations, as a later one sees them."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import DurationField, Exists, ExpressionWrapper, F, OuterRef, Q, Value

from apps.memory.models import MemoryPolicy, Session
from apps.memory.selectors.subjects import dates_of


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
    kept = ExpressionWrapper(F("subject__delete_after_days") * Value(timedelta(days=1)), output_field=DurationField())
    is_kept = Q(subject__delete_after_days=None) | Q(last_active_at__gt=Value(now) - kept)
    withheld = MemoryPolicy.objects.filter(
        ~Q(share_with__contains=[OuterRef("principal__name")]), tenant=OuterRef("tenant"), share_with__isnull=False
    )
    is_shared = Q(subject__share_with__contains=[F("principal__name")]) | (
        Q(subject__share_with=None) & ~Exists(withheld)
    )
    shown = Q(subject=None) | Q(subject__memory_enabled=True) & is_kept & is_shared
    rows = Session.objects.filter(shown, principal_id=principal_id, is_forgotten=False)
    sessions = rows.select_related("subject").order_by("-last_active_at", "-id")[:limit]
    return [
        Conversation(
            conversation_id=session.conversation_id,
            platform=session.platform,
            title=session.title,
            summary=session.summary,
            topics=tuple(session.topics),
            tone=session.tone,
            updated_at=dates_of(session.subject)(session.last_active_at),
        )
        for session in sessions
    ]
