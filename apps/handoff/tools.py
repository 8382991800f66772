"""Operations of handoff: the same inbox for agents that have no files."""

from typing import Annotated, Final

from django.utils import timezone
from pydantic import Field

from apps.core.errors import NotFound
from apps.core.operations import MissingScope, Reply, Route, operation
from apps.core.schemas import Input
from apps.handoff import services
from apps.handoff.cli import MAX_TOKENS
from apps.handoff.items import choose
from apps.handoff.services import HandoffItem, InheritedOutput, LeaveHandoff, LeftOutput, Line
from apps.principals import selectors as principals
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller

_BASE: Final = "/api/v1/handoffs"


class Inherit(Input):
    session: Line | None = None
    """Your session's name. What you are shown is yours then, and no other session is shown it. Left out, you only look:
    everything goes on waiting."""
    project: Line | None = None
    """Of this repository, and what belongs to none; left out, all."""
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = MAX_TOKENS
    """Most urgent first, until the next one does not fit; cautions come in any case."""
    receipt_ids: Annotated[list[Line], Field(max_length=500)] | None = None
    """Look among these only."""


@operation(
    title="Leave something for the next session",
    scope=Scope.INBOX,
    output=LeftOutput,
    routes=[Route("POST", _BASE, status=201, also=(200,))],
    idempotent=True,
    example={"session": "shop-3", "type": "learning", "body": "Tests need a running Redis."},
)
def leave_handoff(caller: Caller, given: LeaveHandoff) -> Reply:
    """Leave the next session what it would thank you for, at the end of yours; leave nothing otherwise.

    It is kept as a receipt, shown once by `inherit`. Leaving the same twice changes nothing. Leaving something for
    another principal needs the scope receipts:write.
    """
    now = timezone.now()
    recipient = caller.principal_id
    if given.recipient_ai not in {None, caller.name}:
        if not caller.may(Scope.RECEIPTS_WRITE):
            raise MissingScope("To leave something for another principal needs the scope receipts:write.")
        known = principals.principal_ids_named([str(given.recipient_ai)], tenant_id=caller.tenant_id)
        if given.recipient_ai not in known:
            raise NotFound(f"There is no recipient {given.recipient_ai!r}.", code="unknown_recipient")
        recipient = known[given.recipient_ai]
    left = services.leave(author=caller, recipient_id=recipient, note=given, now=now)
    return Reply(left, 200 if left.is_duplicate else 201)


@operation(
    title="Inherit what earlier sessions left",
    scope=Scope.INBOX,
    routes=[Route("POST", f"{_BASE}/inherit")],
    example={"session": "shop-3", "project": "shop"},
)
def inherit(caller: Caller, given: Inherit) -> InheritedOutput:
    """Begin a session with what earlier ones left for it, and with nothing else. Each item is shown to one session.

    Give your session's name to take what you are shown; without a name you only look. An empty list is a good answer.
    """
    if given.session is None:
        found = services.waiting(caller.principal_id, project=given.project, only=given.receipt_ids)
        shown, waiting = choose(found, max_tokens=given.max_tokens)
    else:
        shown, waiting = services.inherit(
            reader=caller,
            project=given.project,
            max_tokens=given.max_tokens,
            only=given.receipt_ids,
            now=timezone.now(),
        )
    return InheritedOutput(
        items=[HandoffItem.model_validate(one) for one in shown],
        waiting=len(waiting),
        waiting_tokens=sum(one.cost for one in waiting),
        tokens_estimate=sum(one.cost for one in shown),
    )
