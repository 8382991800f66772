"""Where a session begins."""

from datetime import datetime
from typing import Annotated

from django.utils import timezone
from pydantic import StringConstraints

from apps.core.operations import Route, operation
from apps.core.schemas import Input, Name, Output, Text
from apps.digests.shapes import EntryOutput
from apps.memory import receipt_rules, services
from apps.memory.tools.sessions import Conversation
from apps.principals.selectors import caller_or_named
from apps.principals.tenancy import Caller
from apps.receipts.shapes import ObligationOutput


class Bootstrap(Input):
    ai_name: Name | None = None
    """Your own name; left out, the token says it."""
    ai_platform: Annotated[Text, StringConstraints(max_length=50)] | None = None
    """Where you run."""


class InboxItem(Output):
    """An entry of the inbox; `receipt_id` is its newest receipt's."""

    receipt_id: str
    source_system: str
    title: str | None
    summary: str
    created_at: datetime
    ref: str
    token: str | None
    kind: str
    count: int
    receipt_ids: list[str]


class ReceiptConfig(Output):
    """The form of receipts."""

    schema_version: str
    event_types: list[str]
    required_fields: list[str]
    dedupe_key_format: str


class Start(Output):
    """Everything to begin a session with."""

    status: str
    ai_name: str
    sessions: list[Conversation]
    observations_count: int
    """Of what is about no subject, as are the next two."""
    patterns_count: int
    concepts_count: int
    inbox_unread_count: int
    inbox_pending_count: int
    inbox_items: list[InboxItem]
    inbox_more_waiting: int
    owed_by_me: list[ObligationOutput]
    awaited: list[ObligationOutput]
    handoffs_waiting: int
    receipt_config: ReceiptConfig
    connected_services: list[str]


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
    found = services.bootstrap(principal_id=principal_id, tenant_id=caller.tenant_id, now=timezone.now())
    return Start(
        status="initialized",
        ai_name=caller.name,
        sessions=[Conversation.model_validate(session) for session in found.sessions],
        observations_count=found.holdings.observations,
        patterns_count=found.holdings.patterns,
        concepts_count=found.holdings.concepts,
        inbox_unread_count=found.inbox.unread,
        inbox_pending_count=found.inbox.pending,
        inbox_items=[_item(entry) for entry in found.inbox.entries],
        inbox_more_waiting=found.inbox.more_waiting,
        owed_by_me=[ObligationOutput.model_validate(owed) for owed in found.owed_by_me],
        awaited=[ObligationOutput.model_validate(owed) for owed in found.awaited],
        handoffs_waiting=found.handoffs_waiting,
        receipt_config=ReceiptConfig(
            schema_version=receipt_rules.SCHEMA_VERSION,
            event_types=list(receipt_rules.EVENT_TYPES),
            required_fields=list(receipt_rules.REQUIRED_FIELDS),
            dedupe_key_format=receipt_rules.DEDUPE_KEY_FORMAT,
        ),
        connected_services=found.services,
    )


def _item(entry: EntryOutput) -> InboxItem:
    return InboxItem(
        receipt_id=entry.receipt_ids[-1] if entry.receipt_ids else "",
        source_system=entry.source_systems[0],
        title=entry.title,
        summary=entry.summary,
        created_at=entry.last_at,
        ref=entry.ref,
        token=entry.token,
        kind=entry.kind,
        count=entry.count,
        receipt_ids=entry.receipt_ids,
    )
