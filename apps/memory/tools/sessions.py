"""Operations on an agent's own sessions: where one begins, and what it was about."""

from typing import Annotated

from django.utils import timezone
from pydantic import Field, StringConstraints

from apps.core.operations import Route, operation
from apps.core.schemas import Input, Name, Text
from apps.memory import services
from apps.memory.shapes import Conversation, Domain, Label, Start, SubjectId
from apps.principals.selectors import caller_or_named
from apps.principals.tenancy import Caller


class Bootstrap(Input):
    ai_name: Name | None = None
    """Your own name; left out, the token says it."""
    ai_platform: Annotated[Text, StringConstraints(max_length=50)] | None = None
    """Where you run."""


@operation(
    title="Start a session",
    scope="memory",
    routes=[Route("GET", "/api/v1/memory/bootstrap"), Route("POST", "/api/v1/memory/bootstrap")],
    idempotent=True,
)
def memory_bootstrap(caller: Caller, given: Bootstrap) -> Start:
    """Begin here: your recent sessions, your inbox's ten newest entries, and what you owe and await.

    Shown entries count as delivered, not as acked. Hand the `token` of an item to `ack_through` once you have dealt
    with the items shown; ack nothing that you have not dealt with. `inbox_more_waiting` receipts are not shown.
    """
    principal_id = caller_or_named(caller, given.ai_name)
    return services.bootstrap(
        principal_id=principal_id, tenant_id=caller.tenant_id, ai_name=caller.name, now=timezone.now()
    )


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


@operation(
    title="Record a session",
    scope="memory",
    routes=[Route("POST", "/api/v1/memory/sessions", status=201)],
    idempotent=True,
)
def record_session(caller: Caller, given: RecordSession) -> Conversation:
    """Note the conversation you are in, so that your next bootstrap shows what it was about."""
    return services.record_session(
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
