"""Operations on facts: the chain, and what is owed."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from apps.core.ids import decode_position, encode_cursor
from apps.core.operations import Route, operation
from apps.core.schemas import Cursor, Input, Output
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller
from apps.receipts import selectors
from apps.receipts.selectors import CHAIN_LIMIT, Link
from apps.receipts.shapes import ObligationOutput


class ReceiptChain(Input):
    receipt_id: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
    """Any receipt of the chain: its receipt id, or its uuid."""


class LinkOutput(Output):
    """One receipt of the chain that concerns you: as poster or recipient, as debtor or creditor."""

    receipt_id: str
    uuid: str
    event_type: str
    source_system: str
    recipient_ai: str
    title: str | None
    surface: str
    requires_action: bool
    created_at: datetime
    caused_by_receipt_id: str | None
    pairs_with: str | None
    obligation: Literal["open", "closed"] | None
    pruned: bool
    """It was kept its time; what it said is gone."""


class ChainOutput(Output):
    receipts: list[LinkOutput]
    """Oldest first; each names what it follows from."""
    truncated: bool
    """The chain has more receipts than an answer holds."""


@operation(
    title="Follow a receipt's chain",
    scope=[Scope.INBOX, Scope.RECEIPTS_WRITE],
    routes=[Route("GET", "/api/v1/receipts/{receipt_id}/chain")],
    read_only=True,
)
def get_receipt_chain(caller: Caller, given: ReceiptChain) -> ChainOutput:
    """The whole story around a receipt: what caused it, what followed, and what answers what."""
    links = selectors.chain_for(given.receipt_id, principal_id=caller.principal_id)
    return ChainOutput(receipts=[_link(link) for link in links], truncated=len(links) >= CHAIN_LIMIT)


def _link(link: Link) -> LinkOutput:
    states: dict[bool | None, Literal["open", "closed"] | None] = {None: None, True: "open", False: "closed"}
    return LinkOutput(
        receipt_id=link.receipt_id,
        uuid=str(link.uuid),
        event_type=link.event_type,
        source_system=link.source_system,
        recipient_ai=link.recipient,
        title=link.title,
        surface=link.surface,
        requires_action=link.requires_action,
        created_at=link.created_at,
        caused_by_receipt_id=link.caused_by,
        pairs_with=link.pairs_with,
        obligation=states[link.obligation_open],
        pruned=link.pruned,
    )


class Obligations(Input):
    side: Literal["owed_by_me", "awaited"] = "owed_by_me"
    """What you owe, or what others owe you."""
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    cursor: Cursor | None = None
    """`next` of the page before."""


class ObligationsOutput(Output):
    """Open obligations, oldest first."""

    obligations: list[ObligationOutput]
    next: str | None


@operation(
    title="Open obligations",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/obligations")],
    read_only=True,
    tool=False,
)
def list_obligations(caller: Caller, given: Obligations) -> ObligationsOutput:
    """What you owe and nobody has answered yet, or what you wait for."""
    mine = given.side == "owed_by_me"
    owed = selectors.obligations(
        owed_by=caller.principal_id if mine else None,
        awaited_by=None if mine else caller.principal_id,
        after=decode_position(given.cursor) if given.cursor else 0,
        limit=given.limit,
    )
    return ObligationsOutput(
        obligations=[ObligationOutput.model_validate(one) for one in owed],
        next=encode_cursor(owed[-1].id) if len(owed) == given.limit else None,
    )
