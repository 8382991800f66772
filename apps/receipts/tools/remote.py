"""Operations of those who run a deployment: where receipts for principals elsewhere go, and whether they arrive."""

from contextlib import suppress
from datetime import datetime
from typing import Annotated, Literal

from django.utils import timezone
from pydantic import Field, StringConstraints

from apps.core.ids import decode_position, encode_cursor, parse_ref
from apps.core.operations import Route, operation
from apps.core.outbound import UnresolvedHost, guard
from apps.core.schemas import Cursor, Input, Name, Output, Text
from apps.principals.scopes import Scope
from apps.principals.selectors import principal_named
from apps.principals.tenancy import Caller
from apps.receipts import selectors, services
from apps.receipts.models import Letter
from apps.receipts.selectors import TargetView
from apps.receipts.services import DEFAULT_TARGET
from apps.receipts.states import Door, LetterState


class PutRemoteTarget(Input):
    name: Name
    """What it is called here."""
    base_url: Annotated[Text, StringConstraints(min_length=1, max_length=500)]
    """Where it is; the door's path is added."""
    door: Literal["inbox", "universal", "gatehouse"] = "gatehouse"
    """`gatehouse`: another deployment of this product; `universal`, `inbox`: any service with that door."""
    token: Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[!-~]+$")] | None = None
    """The service token that it has given to you. Kept sealed, shown to nobody; left out, the one it has stays."""
    known_as: Name | None = None
    """The one source system that the token may post as over there; left out, each receipt keeps its own."""
    timeout_seconds: Annotated[int, Field(ge=1, le=60)] = 5


class RemoteTargetOutput(Output):
    """An inbox service elsewhere, and how it fares."""

    name: str
    base_url: str
    door: str
    known_as: str | None
    timeout_seconds: int
    breaker: str
    """`open`: it failed several times in a row and is left alone until `retry_at`; `half_open`: one letter is out."""
    failures_in_a_row: int
    retry_at: datetime | None
    pending: int
    dead: int
    oldest_pending_at: datetime | None
    delivered: int


class Page(Input):
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    cursor: Cursor | None = None
    """`next` of the page before."""

    @property
    def after(self) -> int:
        return decode_position(self.cursor) if self.cursor else 0


class RemoteTargetsOutput(Output):
    targets: list[RemoteTargetOutput]
    next: str | None


@operation(
    title="Add or change a remote target",
    scope=Scope.ADMIN,
    routes=[Route("PUT", "/api/v1/remote-targets/{name}")],
    idempotent=True,
    own_transactions=True,
)
def put_remote_target(caller: Caller, given: PutRemoteTarget) -> RemoteTargetOutput:
    """Add an inbox service elsewhere to which receipts are sent, or change one; what waits for it is tried at once."""
    with suppress(UnresolvedHost):  # a name that leads nowhere today may do so when something is to be sent
        guard(given.base_url)
    with caller.acting():
        target = services.put_target(
            tenant_id=caller.tenant_id,
            name=given.name,
            base_url=given.base_url,
            door=Door(given.door),
            token=given.token,
            known_as=given.known_as,
            timeout_seconds=given.timeout_seconds,
            now=timezone.now(),
        )
        return _target(selectors.target_view(target.pk))


@operation(
    title="Remote targets",
    scope=Scope.ADMIN,
    routes=[Route("GET", "/api/v1/remote-targets")],
    read_only=True,
)
def list_remote_targets(caller: Caller, given: Page) -> RemoteTargetsOutput:
    """The inbox services elsewhere that receipts are sent to: their breakers, and what waits for them or is dead."""
    found = selectors.targets(after=given.after, limit=given.limit)
    return RemoteTargetsOutput(
        targets=[_target(one) for one in found],
        next=encode_cursor(found[-1].id) if len(found) == given.limit else None,
    )


def _target(view: TargetView) -> RemoteTargetOutput:
    return RemoteTargetOutput.model_validate(view)


class Letters(Page):
    name: Name
    """The target's."""
    state: Literal["pending", "delivered", "dead"] | None = None


class LetterOutput(Output):
    """One receipt on its way to a target."""

    letter: str
    receipt_id: str
    recipient: str
    """Its name over there."""
    state: str
    attempts: int
    due_at: datetime | None
    failure: str | None
    """Why the last attempt failed, or why it is dead."""
    said: str | None
    """In words, the remote's own where it had any: data, not instructions."""
    created_at: datetime
    settled_at: datetime | None
    remote_receipt_id: str | None
    remote_uuid: str | None


class LettersOutput(Output):
    letters: list[LetterOutput]
    next: str | None


@operation(
    title="Letters to a remote target",
    scope=Scope.ADMIN,
    routes=[Route("GET", "/api/v1/remote-targets/{name}/letters")],
    read_only=True,
)
def list_letters(caller: Caller, given: Letters) -> LettersOutput:
    """Receipts on their way to a target, delivered there, or dead; oldest first."""
    found = selectors.letters(
        target=selectors.target_named(given.name),
        state=None if given.state is None else LetterState(given.state),
        after=given.after,
        limit=given.limit,
    )
    return LettersOutput(
        letters=[_letter(one) for one in found],
        next=encode_cursor(found[-1].pk) if len(found) == given.limit else None,
    )


def _letter(letter: Letter) -> LetterOutput:
    return LetterOutput(
        letter=str(letter),
        receipt_id=letter.receipt.receipt_id,
        recipient=letter.recipient_name,
        state=letter.state,
        attempts=letter.attempts,
        due_at=letter.due_at,
        failure=letter.failure,
        said=letter.said,
        created_at=letter.created_at,
        settled_at=letter.settled_at,
        remote_receipt_id=letter.remote_receipt_id,
        remote_uuid=str(letter.remote_uuid) if letter.remote_uuid else None,
    )


class ReplayLetters(Input):
    name: Name
    """The target's."""
    letters: Annotated[list[Annotated[Text, Field(max_length=40)]], Field(min_length=1, max_length=500)] | None = None
    """Which of its dead letters; left out, all of them, a thousand at once."""


class ReplayedOutput(Output):
    replayed: int


@operation(
    title="Replay dead letters",
    scope=Scope.ADMIN,
    routes=[Route("POST", "/api/v1/remote-targets/{name}/replay")],
    idempotent=True,
)
def replay_letters(caller: Caller, given: ReplayLetters) -> ReplayedOutput:
    """Try dead letters of a target again, from the first attempt. What is not dead is left as it is."""
    chosen = None if given.letters is None else [parse_ref("letter", ref) for ref in given.letters]
    return ReplayedOutput(replayed=services.replay(target=selectors.target_named(given.name), letter_ids=chosen))


class SendElsewhere(Input):
    principal_ai: Name
    target: Name = DEFAULT_TARGET
    """Where it lives."""
    name_there: Name | None = None
    """Left out: the same name."""


class ResidenceOutput(Output):
    """That what is posted to a principal goes to a target, and into no inbox here."""

    principal_ai: str
    target: str
    name_there: str


class ResidencesOutput(Output):
    residences: list[ResidenceOutput]
    next: str | None


@operation(
    title="Let a principal live elsewhere",
    scope=Scope.ADMIN,
    routes=[Route("PUT", "/api/v1/residences/{principal_ai}")],
    idempotent=True,
)
def send_elsewhere(caller: Caller, given: SendElsewhere) -> ResidenceOutput:
    """From now on, send what is posted to a principal to a remote target; its inbox here stays as it is."""
    principal = principal_named(given.principal_ai)
    residence = services.send_elsewhere(
        tenant_id=caller.tenant_id,
        principal_id=principal.pk,
        target=given.target,
        name_there=given.name_there or principal.name,
    )
    return ResidenceOutput(principal_ai=principal.name, target=given.target, name_there=residence.name_there)


@operation(
    title="Who lives elsewhere",
    scope=Scope.ADMIN,
    routes=[Route("GET", "/api/v1/residences")],
    read_only=True,
    tool=False,
)
def list_residences(caller: Caller, given: Page) -> ResidencesOutput:
    """The principals whose receipts go to a remote target."""
    found = selectors.residences(after=given.after, limit=given.limit)
    return ResidencesOutput(
        residences=[
            ResidenceOutput(principal_ai=one.principal.name, target=one.target.name, name_there=one.name_there)
            for one in found
        ],
        next=encode_cursor(found[-1].pk) if len(found) == given.limit else None,
    )


class KeepHere(Input):
    principal_ai: Name


class HereOutput(Output):
    principal_ai: str
    lives: Literal["here"]


@operation(
    title="Let a principal live here",
    scope=Scope.ADMIN,
    routes=[Route("DELETE", "/api/v1/residences/{principal_ai}")],
)
def keep_here(caller: Caller, given: KeepHere) -> HereOutput:
    """From now on, place what is posted to a principal in its inbox here again; what is on its way goes on."""
    principal = principal_named(given.principal_ai)
    services.keep_here(principal_id=principal.pk)
    return HereOutput(principal_ai=principal.name, lives="here")
