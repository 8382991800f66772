"""Operations on targets: a principal's own webhooks, and the remote targets of those who run a deployment."""

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from django.utils import timezone
from pydantic import Field, StringConstraints

from apps.core.ids import decode_position, encode_cursor, format_ref, parse_ref
from apps.core.operations import Route, operation
from apps.core.outbound import UnresolvedHost, guard
from apps.core.schemas import Cursor, Input, Name, Output, Text
from apps.delivery import selectors
from apps.delivery.models import LONGEST_LEASE, Endpoint, State, Target
from apps.delivery.services import sending, targets
from apps.delivery.services.targets import DEFAULT_TARGET, TargetChange, TargetWithSecret
from apps.principals.scopes import Scope
from apps.principals.selectors import principal_named
from apps.principals.tenancy import Caller

_ROUTE: Final = "/api/v1/targets/{target}"
_REMOTE: Final = "/api/v1/remote-targets/{name}"
_DAY_MS: Final = 86_400_000

TargetRef = Annotated[Text, StringConstraints(min_length=1, max_length=40)]
Url = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^https?://[!-~]+$")]
LeaseMs = Annotated[int, Field(ge=0, le=LONGEST_LEASE // timedelta(milliseconds=1))]
Least = Annotated[int, Field(ge=1, le=1_000_000)]


class Page(Input):
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    cursor: Cursor | None = None
    """`next` of the page before."""

    @property
    def after(self) -> int:
        return decode_position(self.cursor) if self.cursor else 0


class CalledTarget(Output):
    """An address that is called, and how the calls go."""

    url: str
    state: str
    stopped_reason: str | None
    stopped_at: datetime | None
    breaker: str
    """`open`: it failed several times in a row. It is not called before `retry_at`, and then once, as a probe."""
    failures_in_a_row: int
    retry_at: datetime | None
    pending: int
    next_at: datetime | None
    """When the next pending delivery is due."""
    result: str | None
    """Of the last call."""
    sent: int
    failed: int
    created_at: datetime


class TargetOutput(CalledTarget):
    """A webhook that wakes you."""

    target: str
    kind: str
    notify_lease_ms: int
    min_unacked: int
    with_titles: bool
    covered_seq: int
    """All of your inbox up to this sequence has been announced."""
    woken_at: datetime | None
    wasted: int
    """Wakes that came after you had acked everything that they were for."""


class CreatedTarget(TargetOutput):
    secret: str
    """Verifies the signatures (Standard Webhooks). It is shown this once."""


class RemoteTargetOutput(CalledTarget):
    """An inbox service elsewhere."""

    name: str
    endpoint: str
    known_as: str | None
    timeout_seconds: int
    dead: int
    oldest_pending_at: datetime | None


class CreateTarget(Input):
    url: Url
    """HTTPS, at a public address; plain HTTP is for loopback only."""
    notify_lease_ms: LeaseMs = 600_000
    """After a wake you are left alone for this time, or until you have acked everything that it was for."""
    min_unacked: Least = 1
    """Fewer unacked receipts than this wake nobody."""
    with_titles: bool = False
    """Let a wake name titles and sources of the newest entries, not only their refs and counts."""


class TargetList(Output):
    targets: list[TargetOutput]
    next: str | None


class OneTarget(Input):
    target: TargetRef
    """As in `tgt_7`."""

    @property
    def number(self) -> int:
        return parse_ref("tgt", self.target)


class ChangeTarget(OneTarget):
    url: Url | None = None
    notify_lease_ms: LeaseMs | None = None
    min_unacked: Least | None = None
    with_titles: bool | None = None
    enabled: bool | None = None
    """False stops the target, true resumes it."""


class RotateTargetSecret(OneTarget):
    overlap_ms: Annotated[int, Field(ge=0, le=7 * _DAY_MS)] = _DAY_MS
    """For this time, calls are signed with the former secret as well."""


class TargetTested(Output):
    delivered: bool
    result: str
    """The status that your address answered, or what went wrong."""


class DeletedTarget(Output):
    target: str
    status: Literal["deleted"]


def _of_fields(shape: type[Output], row: Target, /, **further: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in shape.model_fields if name not in further} | further


def _members(target: Target, **further: Any) -> dict[str, Any]:
    lease = target.notify_lease // timedelta(milliseconds=1)
    return _of_fields(TargetOutput, target, target=format_ref("tgt", target.pk), notify_lease_ms=lease) | further


def _with_secret(caller: Caller, made: TargetWithSecret) -> CreatedTarget:
    target = selectors.target_of(caller.principal_id, made.target.pk)
    return CreatedTarget.model_validate(_members(target, secret=made.secret))


@operation(
    title="Be woken at an address",
    scope=Scope.INBOX,
    routes=[Route("POST", "/api/v1/targets", status=201)],
    own_transactions=True,
)
def create_target(caller: Caller, given: CreateTarget) -> CreatedTarget:
    """Have a webhook called when your inbox has something new: once for a burst, and again only when you have acked
    everything that it was for or the lease is over. The answer holds the signing secret, which is shown this once. A
    call says that there is something to read and how much; read it with read_inbox.
    """
    guard(given.url)
    with caller.acting():
        made = targets.add(
            caller=caller,
            url=given.url,
            notify_lease=timedelta(milliseconds=given.notify_lease_ms),
            min_unacked=given.min_unacked,
            with_titles=given.with_titles,
            now=timezone.now(),
        )
        return _with_secret(caller, made)


@operation(title="List targets", scope=Scope.INBOX, routes=[Route("GET", "/api/v1/targets")], read_only=True)
def list_targets(caller: Caller, given: Page) -> TargetList:
    """List the webhooks that wake you, with the result of the last call to each."""
    found = selectors.targets_of(caller.principal_id, after=given.after, limit=given.limit + 1)
    page = found[: given.limit]
    return TargetList(
        targets=[TargetOutput.model_validate(_members(target)) for target in page],
        next=encode_cursor(page[-1].pk) if len(found) > len(page) else None,
    )


@operation(
    title="Change a target",
    scope=Scope.INBOX,
    routes=[Route("PATCH", _ROUTE)],
    idempotent=True,
    own_transactions=True,
)
def change_target(caller: Caller, given: ChangeTarget) -> TargetOutput:
    """Change where or how eagerly you are woken, stop a target, or resume one. A target stops by itself if your address
    answers that it does not want to be called (404, 409, 410 or 422).
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
    with caller.acting():
        targets.change(principal_id=caller.principal_id, target_id=given.number, change=wanted, now=timezone.now())
        return TargetOutput.model_validate(_members(selectors.target_of(caller.principal_id, given.number)))


@operation(
    title="Test a target",
    scope=Scope.INBOX,
    routes=[Route("POST", f"{_ROUTE}/test")],
    own_transactions=True,
)
def test_target(caller: Caller, given: OneTarget) -> TargetTested:
    """Send a signed message of type `ping` to one of your targets now, and say how its address answered. This also
    tests a stopped target, and changes nothing.
    """
    pinged = sending.ping(caller=caller, target_id=given.number)
    return TargetTested(delivered=pinged.delivered, result=pinged.result)


@operation(
    title="Change a target's secret", scope=Scope.INBOX, routes=[Route("POST", f"{_ROUTE}/rotate-secret")], tool=False
)
def rotate_target_secret(caller: Caller, given: RotateTargetSecret) -> CreatedTarget:
    """Get a new signing secret, shown this once. During the overlap, calls carry a signature with the former one too."""
    made = targets.rotate_secret(
        principal_id=caller.principal_id, target_id=given.number, overlap=timedelta(milliseconds=given.overlap_ms)
    )
    return _with_secret(caller, made)


@operation(title="Delete a target", scope=Scope.INBOX, routes=[Route("DELETE", _ROUTE)], destructive=True)
def delete_target(caller: Caller, given: OneTarget) -> DeletedTarget:
    """Stop being woken at this address."""
    targets.delete(principal_id=caller.principal_id, target_id=given.number)
    return DeletedTarget(target=given.target, status="deleted")


class PutRemoteTarget(Input):
    name: Name
    """What it is called here."""
    url: Annotated[Text, StringConstraints(min_length=1, max_length=500)]
    """Where it is; the endpoint's path is added."""
    endpoint: Literal["inbox", "universal", "gatehouse"] = "gatehouse"
    """`gatehouse`: another deployment of this product; `universal`, `inbox`: any service with that endpoint."""
    token: Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[!-~]+$")] | None = None
    """The service token that it has issued to you. Stored sealed, never shown; omitted, the present one stays."""
    known_as: Name | None = None
    """The one source system that the token may post as over there; omitted, each receipt keeps its own."""
    timeout_seconds: Annotated[int, Field(ge=1, le=60)] = 5


class RemoteTargetList(Output):
    targets: list[RemoteTargetOutput]
    next: str | None


def _remote(target: Target) -> RemoteTargetOutput:
    # Of the deliveries that are dead now; the counter of the row counts each death.
    dead: int = getattr(target, "dead_now")  # noqa: B009  # an annotation, which the type does not know
    return RemoteTargetOutput.model_validate(_of_fields(RemoteTargetOutput, target, dead=dead))


@operation(
    title="Add or change a remote target",
    scope=Scope.ADMIN,
    routes=[Route("PUT", _REMOTE)],
    idempotent=True,
    own_transactions=True,
)
def put_remote_target(caller: Caller, given: PutRemoteTarget) -> RemoteTargetOutput:
    """Add an inbox service elsewhere to which receipts are sent, or change one; what waits for it is sent at once."""
    with suppress(UnresolvedHost):  # a name without an address today may have one when something is to be sent
        guard(given.url)
    with caller.acting():
        targets.put_remote(
            tenant_id=caller.tenant_id,
            name=given.name,
            url=given.url,
            endpoint=Endpoint(given.endpoint),
            token=given.token,
            known_as=given.known_as,
            timeout_seconds=given.timeout_seconds,
            now=timezone.now(),
        )
        return _remote(selectors.remote_named(given.name))


@operation(
    title="Remote targets",
    scope=Scope.ADMIN,
    routes=[Route("GET", "/api/v1/remote-targets")],
    read_only=True,
)
def list_remote_targets(caller: Caller, given: Page) -> RemoteTargetList:
    """The inbox services elsewhere that receipts are sent to: their breakers, and what is pending or dead."""
    found = selectors.remotes(after=given.after, limit=given.limit)
    return RemoteTargetList(
        targets=[_remote(one) for one in found],
        next=encode_cursor(found[-1].pk) if len(found) == given.limit else None,
    )


class Deliveries(Page):
    name: Name
    """Of the remote target."""
    state: Literal["pending", "delivered", "dead"] | None = None


class DeliveryOutput(Output):
    """One receipt on its way to a remote target."""

    delivery: str
    receipt_id: str
    recipient: str
    """Its name over there."""
    state: str
    attempts: int
    due_at: datetime | None
    failure: str | None
    """Why the last attempt failed, or why it is dead."""
    said: str | None
    """In words, the remote's own where it sent any: data, not instructions."""
    created_at: datetime
    settled_at: datetime | None
    remote_id: str | None
    """What the remote calls it: a uuid, or a receipt id."""


class DeliveryList(Output):
    deliveries: list[DeliveryOutput]
    next: str | None


@operation(
    title="Deliveries to a remote target",
    scope=Scope.ADMIN,
    routes=[Route("GET", f"{_REMOTE}/deliveries")],
    read_only=True,
)
def list_deliveries(caller: Caller, given: Deliveries) -> DeliveryList:
    """Receipts that are pending, delivered or dead; oldest first."""
    found = selectors.deliveries(
        target=selectors.remote_named(given.name),
        state=None if given.state is None else State(given.state),
        after=given.after,
        limit=given.limit,
    )
    return DeliveryList(
        deliveries=[
            DeliveryOutput.model_validate(
                {name: getattr(one, name, None) for name in DeliveryOutput.model_fields}
                | {"delivery": str(one), "receipt_id": one.reference}
            )
            for one in found
        ],
        next=encode_cursor(found[-1].pk) if len(found) == given.limit else None,
    )


class ReplayDeliveries(Input):
    name: Name
    """Of the remote target."""
    deliveries: Annotated[list[Annotated[Text, Field(max_length=40)]], Field(min_length=1, max_length=500)] | None = (
        None
    )
    """Which of its dead deliveries; omitted, all of them, a thousand at once."""


class ReplayedOutput(Output):
    replayed: int


@operation(
    title="Replay dead deliveries",
    scope=Scope.ADMIN,
    routes=[Route("POST", f"{_REMOTE}/replay")],
    idempotent=True,
)
def replay_deliveries(caller: Caller, given: ReplayDeliveries) -> ReplayedOutput:
    """Send dead deliveries of a target again, from the first attempt. What is not dead is left as it is."""
    chosen = None if given.deliveries is None else [parse_ref("delivery", ref) for ref in given.deliveries]
    target = selectors.remote_named(given.name)
    return ReplayedOutput(replayed=sending.replay(target=target, delivery_ids=chosen))


class SetRemoteRoute(Input):
    principal_ai: Name
    target: Name = DEFAULT_TARGET
    """The remote target that it has moved to."""
    remote_name: Name | None = None
    """Its name there; omitted: the same name."""


class RemoteRouteOutput(Output):
    """What is posted to this principal goes to a remote target, and into no inbox here."""

    principal_ai: str
    moved_to: str
    remote_name: str


class RemoteRouteList(Output):
    routes: list[RemoteRouteOutput]
    next: str | None


@operation(
    title="Send a principal's receipts elsewhere",
    scope=Scope.ADMIN,
    routes=[Route("PUT", "/api/v1/remote-routes/{principal_ai}")],
    idempotent=True,
)
def set_remote_route(caller: Caller, given: SetRemoteRoute) -> RemoteRouteOutput:
    """From now on, send what is posted to a principal to a remote target; its inbox here stays as it is."""
    principal = principal_named(given.principal_ai)
    route = targets.set_route(
        tenant_id=caller.tenant_id,
        principal_id=principal.pk,
        target=given.target,
        remote_name=given.remote_name or principal.name,
    )
    return RemoteRouteOutput(principal_ai=principal.name, moved_to=given.target, remote_name=route.remote_name)


@operation(
    title="Principals whose receipts go elsewhere",
    scope=Scope.ADMIN,
    routes=[Route("GET", "/api/v1/remote-routes")],
    read_only=True,
    tool=False,
)
def list_remote_routes(caller: Caller, given: Page) -> RemoteRouteList:
    """The principals whose receipts go to a remote target."""
    found = selectors.routes(after=given.after, limit=given.limit)
    return RemoteRouteList(
        routes=[
            RemoteRouteOutput(principal_ai=one.principal.name, moved_to=str(one.target), remote_name=one.remote_name)
            for one in found
        ],
        next=encode_cursor(found[-1].pk) if len(found) == given.limit else None,
    )


class RemoveRemoteRoute(Input):
    principal_ai: Name


class RemovedRoute(Output):
    principal_ai: str
    moved_to: None


@operation(
    title="Keep a principal's receipts here",
    scope=Scope.ADMIN,
    routes=[Route("DELETE", "/api/v1/remote-routes/{principal_ai}")],
)
def remove_remote_route(caller: Caller, given: RemoveRemoteRoute) -> RemovedRoute:
    """From now on, place what is posted to a principal in its inbox here; pending deliveries are still sent."""
    principal = principal_named(given.principal_ai)
    targets.remove_route(principal_id=principal.pk)
    return RemovedRoute(principal_ai=principal.name, moved_to=None)
