"""What operations of several apps take and give about facts."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import StringConstraints

from apps.core.schemas import Input, Output, Text
from apps.receipts.services import Group


class GroupInput(Input):
    """What a receipt belongs to. With a resource and a family it is gathered into that thread's digest."""

    resource_ref: Annotated[Text, StringConstraints(min_length=1, max_length=200)] | None = None
    """The thing it is about: `pr:135`, `execution:7`."""
    event_family: Annotated[Text, StringConstraints(min_length=1, max_length=100)] | None = None
    """The kind of events that belong together: `ci_updates`."""
    flush_class: Literal["normal", "immediate"] = "normal"
    """`immediate` publishes the thread's digest at once."""
    summary_hint: Annotated[Text, StringConstraints(max_length=1000)] | None = None
    """A sentence that sums the thread up as of this receipt."""
    break_thread: bool = False
    """Begin a new thread with this receipt."""
    groupable: bool | None = None
    """False: an entry of its own, whatever else is said here."""

    def as_said(self) -> Group:
        return Group(**self.model_dump())


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
