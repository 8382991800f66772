"""The read models of chains and obligations, and the group that operations of several apps take."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import StringConstraints

from apps.core.schemas import Input, Output, Text
from apps.receipts.services import Group


class GroupInput(Input):
    """What a receipt belongs to. With a resource and a family it joins the digest of that thread."""

    resource_ref: Annotated[Text, StringConstraints(min_length=1, max_length=200)] | None = None
    """The thing it is about: `pr:135`, `execution:7`."""
    event_family: Annotated[Text, StringConstraints(min_length=1, max_length=100)] | None = None
    """The kind of events that belong together: `ci_updates`."""
    flush_class: Literal["normal", "immediate"] = "normal"
    """`immediate` flushes the thread at once."""
    summary_hint: Annotated[Text, StringConstraints(max_length=1000)] | None = None
    """A sentence that sums the thread up as of this receipt."""
    break_thread: bool = False
    """Begin a new thread with this receipt."""
    groupable: bool | None = None
    """False: an entry of its own, whatever else is given here."""

    def as_group(self) -> Group:
        return Group(**self.model_dump())


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
    """Retention has removed its text."""


class ChainOutput(Output):
    receipts: list[LinkOutput]
    """Oldest first; each names what it follows from."""
    truncated: bool
    """The chain has more receipts than an answer holds."""


class ObligationOutput(Output):
    """Something that one principal still owes another."""

    receipt_id: str
    event_type: str
    source_system: str
    title: str | None
    summary: str
    debtor: str
    creditor: str
    suggested_next_step: str | None
    opened_at: datetime


class ObligationsOutput(Output):
    """Open obligations, oldest first."""

    obligations: list[ObligationOutput]
    next: str | None
    """The cursor of the next page; null on the last."""
