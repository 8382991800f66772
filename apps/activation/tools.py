"""Operations on targets: each principal sees and changes its own."""

from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from django.utils import timezone
from pydantic import Field, StringConstraints

from apps.activation import selectors, services
from apps.activation.models import LONGEST_LEASE, Target
from apps.activation.services import TargetChange
from apps.core.ids import decode_position, encode_cursor, format_ref, parse_ref
from apps.core.operations import Route, operation
from apps.core.outbound import guard
from apps.core.schemas import Cursor, Input, Output, Text
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller

_REF: Final = "tgt"
_ROUTE: Final = "/api/v1/targets/{target}"
_DAY_MS: Final = 86_400_000

TargetRef = Annotated[Text, StringConstraints(min_length=1, max_length=40)]
Url = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^https?://[!-~]+$")]
LeaseMs = Annotated[int, Field(ge=0, le=LONGEST_LEASE // timedelta(milliseconds=1))]
Least = Annotated[int, Field(ge=1, le=1_000_000)]


class TargetOutput(Output):
    """Where you are woken, and how that goes."""

    target: str
    kind: str
    url: str
    notify_lease_ms: int
    min_unacked: int
    with_titles: bool
    state: str
    stopped_reason: str | None
    stopped_at: datetime | None
    created_at: datetime
    covered_seq: int
    """All up to this sequence of your inbox has been announced."""
    woken_at: datetime | None
    next_at: datetime
    """Not called before this moment."""
    attempts: int
    """Failures since the last wake."""
    result: str | None
    """Of the last call."""
    sent: int
    failed: int
    wasted: int
    """Wakes that came after you had acked all that they were for."""


class CreatedTarget(TargetOutput):
    secret: str
    """Verifies the signatures (Standard Webhooks). It is shown this once."""


class CreateTarget(Input):
    url: Url
    """HTTPS, at a public address; plain HTTP is for loopback only."""
    notify_lease_ms: LeaseMs = 600_000
    """After a wake you are left alone for so long, or until you have acked all that it was for."""
    min_unacked: Least = 1
    """Fewer unacked receipts than this wake nobody."""
    with_titles: bool = False
    """Let a wake name titles and sources of the newest entries, not only their refs and counts."""


class ListTargets(Input):
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    cursor: Cursor | None = None


class TargetList(Output):
    targets: list[TargetOutput]
    next: str | None


class OneTarget(Input):
    target: TargetRef
    """As in `tgt_7`."""


class ChangeTarget(OneTarget):
    url: Url | None = None
    notify_lease_ms: LeaseMs | None = None
    min_unacked: Least | None = None
    with_titles: bool | None = None
    enabled: bool | None = None
    """False stops the target, true resumes it."""


class RotateTargetSecret(OneTarget):
    overlap_ms: Annotated[int, Field(ge=0, le=7 * _DAY_MS)] = _DAY_MS
    """For so long calls are signed with the former secret as well."""


class TargetTested(Output):
    delivered: bool
    result: str
    """The status that your address answered, or what went wrong."""


class DeletedTarget(Output):
    target: str
    status: Literal["deleted"]


def _number(ref: str) -> int:
    return parse_ref(_REF, ref)


def _members(target: Target) -> dict[str, object]:
    return {
        **{name: getattr(target, name) for name in _OF_TARGET},
        **{name: getattr(target.dispatch, name) for name in _OF_DISPATCH},
        "target": format_ref(_REF, target.pk),
        "notify_lease_ms": target.notify_lease // timedelta(milliseconds=1),
    }


_OF_TARGET: Final = ("kind", "url", "min_unacked", "with_titles", "state", "stopped_reason", "stopped_at", "created_at")
_OF_DISPATCH: Final = ("covered_seq", "woken_at", "next_at", "attempts", "result", "sent", "failed", "wasted")


def _shown(target: Target) -> TargetOutput:
    return TargetOutput.model_validate(_members(target))


def _with_secret(created: services.TargetWithSecret) -> CreatedTarget:
    return CreatedTarget.model_validate({**_members(created.target), "secret": created.secret})


@operation(
    title="Be woken at an address",
    scope=Scope.INBOX,
    routes=[Route("POST", "/api/v1/targets", status=201)],
    own_transactions=True,
)
def create_target(caller: Caller, given: CreateTarget) -> CreatedTarget:
    """Have a webhook called whenever your inbox has something new: once for a burst, not again before you have acked
    what it was for or the lease is over. The answer holds the signing secret, which is shown this once. A call says
    that there is something to read and how much; read it with read_inbox.
    """
    guard(given.url)
    with caller.acting():
        created = services.add(
            caller=caller,
            url=given.url,
            notify_lease=timedelta(milliseconds=given.notify_lease_ms),
            min_unacked=given.min_unacked,
            with_titles=given.with_titles,
            now=timezone.now(),
        )
        return _with_secret(created)


@operation(title="List targets", scope=Scope.INBOX, routes=[Route("GET", "/api/v1/targets")], read_only=True)
def list_targets(caller: Caller, given: ListTargets) -> TargetList:
    """List the addresses at which you are woken, with what became of the last call to each."""
    after = decode_position(given.cursor) if given.cursor else 0
    found = selectors.targets(caller.principal_id, after=after, limit=given.limit + 1)
    page = found[: given.limit]
    return TargetList(
        targets=[_shown(target) for target in page],
        next=encode_cursor(page[-1].pk) if len(found) > len(page) else None,
    )


@operation(title="Look at a target", scope=Scope.INBOX, routes=[Route("GET", _ROUTE)], read_only=True, tool=False)
def get_target(caller: Caller, given: OneTarget) -> TargetOutput:
    """One of the addresses at which you are woken."""
    return _shown(selectors.target(caller.principal_id, _number(given.target)))


@operation(
    title="Change a target",
    scope=Scope.INBOX,
    routes=[Route("PATCH", _ROUTE)],
    idempotent=True,
    own_transactions=True,
)
def change_target(caller: Caller, given: ChangeTarget) -> TargetOutput:
    """Change where or how eagerly you are woken, stop a target, or resume one that stopped because your address
    answered that it does not want to be called (404, 409, 410 or 422).
    """
    if given.url is not None:
        guard(given.url)
    lease = given.notify_lease_ms
    wanted = TargetChange(
        url=given.url,
        notify_lease=None if lease is None else timedelta(milliseconds=lease),
        min_unacked=given.min_unacked,
        with_titles=given.with_titles,
        enabled=given.enabled,
    )
    target_id = _number(given.target)
    with caller.acting():
        services.change(principal_id=caller.principal_id, target_id=target_id, change=wanted, now=timezone.now())
        return _shown(selectors.target(caller.principal_id, target_id))


@operation(
    title="Test a target",
    scope=Scope.INBOX,
    routes=[Route("POST", f"{_ROUTE}/test")],
    own_transactions=True,
)
def test_target(caller: Caller, given: OneTarget) -> TargetTested:
    """Send a signed message of type `ping` to one of your targets now, and say how its address took it. Tests also a
    target that is stopped, and changes nothing.
    """
    pinged = services.ping(caller=caller, target_id=_number(given.target))
    return TargetTested(delivered=pinged.delivered, result=pinged.result)


@operation(
    title="Change a target's secret", scope=Scope.INBOX, routes=[Route("POST", f"{_ROUTE}/rotate-secret")], tool=False
)
def rotate_target_secret(caller: Caller, given: RotateTargetSecret) -> CreatedTarget:
    """Get a new signing secret, shown this once. For the overlap calls carry a signature with the former one, too."""
    return _with_secret(
        services.rotate_secret(
            principal_id=caller.principal_id,
            target_id=_number(given.target),
            overlap=timedelta(milliseconds=given.overlap_ms),
        )
    )


@operation(title="Delete a target", scope=Scope.INBOX, routes=[Route("DELETE", _ROUTE)], destructive=True)
def delete_target(caller: Caller, given: OneTarget) -> DeletedTarget:
    """Be woken at this address no more."""
    services.delete(principal_id=caller.principal_id, target_id=_number(given.target))
    return DeletedTarget(target=given.target, status="deleted")
