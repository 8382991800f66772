"""Forgetting on request."""

from django.utils import timezone

from apps.core.operations import Route, operation
from apps.core.schemas import Input, Output
from apps.memory import services
from apps.memory.tools.items import ItemRef, number_of
from apps.memory.tools.shapes import SubjectId
from apps.principals.tenancy import Caller


class Forget(Input):
    subject_id: SubjectId
    item: ItemRef | None = None
    """Only this item (`item:12`), with all that said the same and what it had superseded."""


class ForgottenOutput(Output):
    status: str
    erased: dict[str, int]
    """From how many things of each place it was taken."""
    remaining: dict[str, int]
    """Where it stands still: ids and names that were chosen with it in them."""
    receipt_id: str
    """The receipt that proves it. It holds numbers and a keyed digest, nothing of what was forgotten."""
    proof: str
    """The keyed digest by which this deployment refuses a repetition."""


@operation(
    title="Forget a subject or an item",
    scope="memory",
    routes=[Route("POST", "/api/v1/memory/forget"), Route("DELETE", "/api/v1/subjects/{subject_id}")],
    destructive=True,
)
def forget(caller: Caller, given: Forget) -> ForgottenOutput:
    """Forget a subject with everything that names it, or one item of it, for good and everywhere; a receipt proves it.

    Repetitions of what was remembered are refused from then on.
    """
    done = services.forget(
        author=caller,
        subject_id=given.subject_id,
        item=None if given.item is None else number_of(given.item),
        now=timezone.now(),
    )
    return ForgottenOutput(
        status="forgotten",
        erased=done.erased,
        remaining=done.remaining,
        receipt_id=done.receipt_id,
        proof=done.proof,
    )
