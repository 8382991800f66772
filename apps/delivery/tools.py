"""Operations on targets: a principal's own webhooks, and the remote targets of those who run a deployment."""

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from django.utils import timezone
from pydantic import AliasPath, Field, StringConstraints

from apps.core.ids import parse_ref
from apps.core.operations import Route, operation
from apps.core.outbound import UnresolvedHost, guard
from apps.core.schemas import Input, Name, Output, Paged, Text
from apps.delivery import selectors, services
from apps.delivery.models import LONGEST_LEASE, Endpoint
from apps.delivery.services import DEFAULT_TARGET, TargetWithSecret
from apps.principals.scopes import Scope
from apps.principals.selectors import principal_named
from apps.principals.tenancy import Caller

_ROUTE: Final = "/api/v1/targets/{target}"
_REMOTE: Final = "/api/v1/remote-targets/{name}"
_ROUTES: Final = "/api/v1/remote-routes"
_DAY_MS: Final = 86_400_000
_MILLISECOND: Final = timedelta(milliseconds=1)

Url = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^https?://[!-~]+$")]
LeaseMs = Annotated[int, Field(ge=0, le=LONGEST_LEASE // _MILLISECOND)]
Least = Annotated[int, Field(ge=1, le=1_000_000)]


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

    target: str = Field(validation_alias="ref")
    kind: str
    notify_lease_ms: int
    min_unacked: int
    covered_seq: int
    """All of your inbox up to this sequence has been announced."""
    woken_at: datetime | None
    wasted: int
    """Wakes that came after you had acked everything that they were for."""


class CreatedTarget(TargetOutput):
    secret: str = Field(validation_alias="new_secret")
    """Verifies the signatures (Standard Webhooks). It is shown this once."""


class RemoteTargetOutput(CalledTarget):
    """An inbox service elsewhere."""

    name: str
    endpoint: str
    known_as: str | None
    timeout_seconds: int
    dead: int = Field(validation_alias="dead_now")
    oldest_pending_at: datetime | None


class CreateTarget(Input):
    url: Url
    """HTTPS, at a public address; plain HTTP is for loopback only."""
    notify_lease_ms: LeaseMs = 600_000
    """After a wake you are left alone for this time, or until you have acked everything that it was for."""
    min_unacked: Least = 1
    """Fewer unacked receipts than this wake nobody."""


class TargetList(Output):
    targets: list[TargetOutput]
    next: str | None


class OneTarget(Input):
    target: Annotated[Text, StringConstraints(min_length=1, max_length=40)]
    """As in `tgt_7`."""

    @property
    def number(self) -> int:
        return parse_ref("tgt", self.target)


class ChangeTarget(OneTarget):
    url: Url | None = None
    notify_lease_ms: LeaseMs | None = None
    min_unacked: Least | None = None
    enabled: bool | None = None
    """False stops the target, true resumes it."""


class RotateTargetSecret(OneTarget):
    overlap_ms: Annotated[int, Field(ge=0, le=7 * _DAY_MS)] = _DAY_MS
    """For this time, calls are signed with the former secret as well."""


class DeletedTarget(Output):
    target: str
    status: Literal["deleted"]


def _shown(caller: Caller, made: TargetWithSecret) -> CreatedTarget:
    target: Any = selectors.target_of(caller.principal_id, made.target.pk)
    target.new_secret = made.secret
    return CreatedTarget.model_validate(target)


@operation(
    title="Be woken at an address",
    keywords="notify webhook push subscribe callback",
    scope=Scope.INBOX,
    routes=[Route("POST", "/api/v1/targets", status=201)],
    own_transactions=True,
    example={"url": "https://agent.example.com/wake"},
    after_refusal="The address must be reachable from this hub by HTTPS, and not private.",
)
def set_target(caller: Caller, given: CreateTarget) -> CreatedTarget:
    """Have a webhook called when your inbox has something new: once for a burst, and again only when you have acked
    everything that it was for or the lease is over. The answer holds the signing secret, which is shown this once. A
    call says that there is something to read and how much; read it with read_inbox.
    """
    guard(given.url)
    with caller.acting():
        made = services.add(
            caller=caller,
            url=given.url,
            notify_lease=given.notify_lease_ms * _MILLISECOND,
            min_unacked=given.min_unacked,
            now=timezone.now(),
        )
        return _shown(caller, made)


@operation(
    title="List targets",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/targets")],
    read_only=True,
    example={},
)
def list_targets(caller: Caller, given: Paged) -> TargetList:
    """List the webhooks that wake you, with the result of the last call to each."""
    found, following = given.of(selectors.with_deliveries().filter(principal_id=caller.principal_id))
    return TargetList(targets=[TargetOutput.model_validate(one) for one in found], next=following)


@operation(
    title="Change a target",
    scope=Scope.INBOX,
    routes=[Route("PATCH", _ROUTE)],
    idempotent=True,
    own_transactions=True,
    example={"target": "tgt_1", "enabled": True},
    after_refusal="list_targets shows your targets.",
)
def change_target(caller: Caller, given: ChangeTarget) -> TargetOutput:
    """Change where or how eagerly you are woken, stop a target, or resume one. A target stops by itself if your address
    answers that it does not want to be called (404, 409, 410 or 422).
    """
    if given.url is not None:
        guard(given.url)
    changes = given.model_dump(include={"url", "min_unacked"}, exclude_none=True)
    if given.notify_lease_ms is not None:
        changes["notify_lease"] = given.notify_lease_ms * _MILLISECOND
    with caller.acting():
        services.change(
            principal_id=caller.principal_id,
            target_id=given.number,
            changes=changes,
            enabled=given.enabled,
            now=timezone.now(),
        )
        return TargetOutput.model_validate(selectors.target_of(caller.principal_id, given.number))


@operation(
    title="Change a target's secret", scope=Scope.INBOX, routes=[Route("POST", f"{_ROUTE}/rotate-secret")], tool=False
)
def rotate_target_secret(caller: Caller, given: RotateTargetSecret) -> CreatedTarget:
    """Get a new signing secret, shown this once. During the overlap, calls carry a signature with the former one too."""
    made = services.rotate_secret(
        principal_id=caller.principal_id, target_id=given.number, overlap=given.overlap_ms * _MILLISECOND
    )
    return _shown(caller, made)


@operation(
    title="Delete a target",
    keywords="webhook unsubscribe",
    scope=Scope.INBOX,
    routes=[Route("DELETE", _ROUTE)],
    destructive=True,
    example={"target": "tgt_1"},
    after_refusal="list_targets shows your targets.",
)
def delete_target(caller: Caller, given: OneTarget) -> DeletedTarget:
    """Stop being woken at this address."""
    services.delete(principal_id=caller.principal_id, target_id=given.number)
    return DeletedTarget(target=given.target, status="deleted")


class OneRemote(Input):
    name: Name
    """What the remote target is called here."""


class PutRemoteTarget(OneRemote):
    url: Annotated[Text, StringConstraints(min_length=1, max_length=500)]
    """Where it is; the endpoint's path is added."""
    endpoint: Literal["inbox", "universal", "gatehouse"] = "gatehouse"
    """`gatehouse`: another deployment of this product; `universal`, `inbox`: any service with that endpoint."""
    token: Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[!-~]+$")] | None = None
    """The service token that it has issued to you. Stored sealed, never shown; omitted, the present one stays."""
    known_as: Name | None = None
    """The one source system that the token may post as over there; omitted, each receipt keeps its own."""
    timeout_seconds: Annotated[int, Field(ge=1, le=60)] = 5


@operation(
    title="Add or change a remote target",
    scope=Scope.ADMIN,
    routes=[Route("PUT", _REMOTE)],
    idempotent=True,
    own_transactions=True,
    example={"name": "branch", "url": "https://hub.example.com"},
)
def put_remote_target(caller: Caller, given: PutRemoteTarget) -> RemoteTargetOutput:
    """Add an inbox service elsewhere to which receipts are sent, or change one; what waits for it is sent at once."""
    with suppress(UnresolvedHost):  # a name without an address today may have one when something is to be sent
        guard(given.url)
    with caller.acting():
        services.put_remote(
            tenant_id=caller.tenant_id,
            now=timezone.now(),
            **{**given.model_dump(), "endpoint": Endpoint(given.endpoint)},
        )
        return RemoteTargetOutput.model_validate(selectors.remote_named(given.name))


class OnePrincipal(Input):
    recipient_ai: Name


class SetRemoteRoute(OnePrincipal):
    target: Name = DEFAULT_TARGET
    """The remote target that it has moved to."""
    remote_name: Name | None = None
    """Its name there; omitted: the same name."""


class RemoteRouteOutput(Output):
    """What is posted to this principal goes to a remote target, and into no inbox here."""

    recipient_ai: str = Field(validation_alias=AliasPath("principal", "name"))
    moved_to: str = Field(validation_alias=AliasPath("target", "name"))
    remote_name: str


@operation(
    title="Send a principal's receipts elsewhere",
    scope=Scope.ADMIN,
    routes=[Route("PUT", f"{_ROUTES}/{{recipient_ai}}")],
    idempotent=True,
    example={"recipient_ai": "Kee", "target": "branch"},
    after_refusal="put_remote_target adds a target; the console lists them.",
)
def set_remote_route(caller: Caller, given: SetRemoteRoute) -> RemoteRouteOutput:
    """From now on, send what is posted to a principal to a remote target; its inbox here stays as it is."""
    principal = principal_named(given.recipient_ai)
    route = services.set_route(
        tenant_id=caller.tenant_id,
        principal_id=principal.pk,
        target=given.target,
        remote_name=given.remote_name or principal.name,
    )
    return RemoteRouteOutput.model_validate(route)


class RemovedRoute(Output):
    recipient_ai: str
    moved_to: None


@operation(
    title="Keep a principal's receipts here",
    scope=Scope.ADMIN,
    routes=[Route("DELETE", f"{_ROUTES}/{{recipient_ai}}")],
    example={"recipient_ai": "Kee"},
    after_refusal="The principal has no route.",
)
def remove_remote_route(caller: Caller, given: OnePrincipal) -> RemovedRoute:
    """From now on, place what is posted to a principal in its inbox here; pending deliveries are still sent."""
    principal = principal_named(given.recipient_ai)
    services.remove_route(principal_id=principal.pk)
    return RemovedRoute(recipient_ai=principal.name, moved_to=None)
