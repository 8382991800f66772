"""The conversation that an agent is in."""

from datetime import datetime
from typing import Annotated

from django.utils import timezone
from pydantic import Field, StringConstraints

from apps.core.operations import Route, operation
from apps.core.schemas import Input, Output, Text
from apps.memory import selectors, services
from apps.memory.tools.shapes import Domain, Label, SubjectId
from apps.principals.tenancy import Caller


class RecordSession(Input):
    conversation_id: Label
    """The conversation's own id; recording it again revises what is known of it."""
    subject_id: SubjectId | None = None
    """Whom the conversation is with, as `add_subject` named it; envelopes show the last one."""
    ai_platform: Annotated[Text, StringConstraints(max_length=50)] | None = None
    title: Annotated[Text, StringConstraints(max_length=200)] | None = None
    summary: Annotated[Text, StringConstraints(max_length=65_536)] | None = None
    """What a later session should know of this one."""
    topics: Annotated[list[Domain], Field(max_length=50)] | None = None
    tone: Annotated[Text, StringConstraints(max_length=100)] | None = None


class Conversation(Output):
    conversation_id: str
    platform: str
    title: str
    summary: str
    topics: list[str]
    tone: str
    updated_at: datetime


@operation(
    title="Record a session",
    scope="memory",
    routes=[Route("POST", "/api/v1/memory/sessions", status=201)],
    idempotent=True,
)
def record_session(caller: Caller, given: RecordSession) -> Conversation:
    """Note the conversation you are in, so that your next bootstrap shows what it was about."""
    session = services.record_session(
        principal=caller,
        conversation_id=given.conversation_id,
        subject_id=given.subject_id,
        platform=given.ai_platform,
        title=given.title,
        summary=given.summary,
        topics=given.topics,
        tone=given.tone,
        now=timezone.now(),
    )
    return Conversation(
        conversation_id=session.conversation_id,
        platform=session.platform,
        title=session.title,
        summary=session.summary,
        topics=session.topics,
        tone=session.tone,
        updated_at=selectors.dates_of(session.subject)(session.last_active_at),
    )
