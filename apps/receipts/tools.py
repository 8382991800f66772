"""Operations on the chain of receipts and on open obligations."""

from typing import Annotated, Literal

from pydantic import StringConstraints

from apps.core.operations import Route, operation
from apps.core.schemas import Input, Paged
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller
from apps.receipts import selectors
from apps.receipts.shapes import ChainOutput, ObligationsOutput


class ReceiptChain(Input):
    receipt_id: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
    """Any receipt of the chain: its receipt id, or its uuid."""


@operation(
    title="Follow a receipt's chain",
    scope=[Scope.INBOX, Scope.RECEIPTS_WRITE],
    routes=[Route("GET", "/api/v1/receipts/{receipt_id}/chain")],
    read_only=True,
    example={"receipt_id": "rcpt_12"},
    after_refusal="The receipt is unknown, or not one that you may see.",
)
def get_receipt_chain(caller: Caller, given: ReceiptChain) -> ChainOutput:
    """The whole story around a receipt: what caused it, what followed, and what answers what."""
    links = selectors.chain_for(given.receipt_id, principal_id=caller.principal_id)
    return ChainOutput(receipts=links, truncated=len(links) >= selectors.CHAIN_LIMIT)


class Obligations(Paged):
    side: Literal["owed_by_me", "awaited"] = "owed_by_me"
    """What you owe, or what others owe you."""


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
    return selectors.obligations(
        owed_by=caller.principal_id if mine else None,
        awaited_by=None if mine else caller.principal_id,
        after=given.position or 0,
        limit=given.limit,
    )
