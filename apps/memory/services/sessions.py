"""Conversations, as they go on."""

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from apps.memory.models import Session
from apps.principals.tenancy import Caller


@transaction.atomic
def record_session(
    *,
    principal: Caller,
    conversation_id: str,
    now: datetime,
    platform: str | None = None,
    title: str | None = None,
    summary: str | None = None,
    topics: Sequence[str] | None = None,
    tone: str | None = None,
) -> Session:
    """Note a conversation, or what has become of it; what is not given stays as it was."""
    given = {"platform": platform, "title": title, "summary": summary, "topics": topics, "tone": tone}
    said = {name: list(value) if name == "topics" else value for name, value in given.items() if value is not None}
    session, _ = Session.objects.update_or_create(
        tenant_id=principal.tenant_id,
        principal_id=principal.principal_id,
        conversation_id=conversation_id,
        defaults={**said, "last_active_at": now},
        create_defaults={**said, "started_at": now, "last_active_at": now},
    )
    return session
