"""How an inbox buffers receipts: its policy, those of single sources, and a replay of its past."""

from datetime import timedelta
from typing import Annotated, Final

from django.utils import timezone
from pydantic import Field

from apps.core.operations import Route, operation
from apps.core.schemas import Input, Moment
from apps.digests import selectors, services
from apps.digests.models import THREAD_LIMIT
from apps.digests.shapes import PolicyOutput, ReplayOutput, Source
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller

WindowMs = Annotated[int, Field(ge=0, le=86_400_000)]
MaxItems = Annotated[int, Field(ge=1, le=THREAD_LIMIT)]


class GetPolicy(Input):
    source_system: Source | None = None
    """What holds for this source; left out, the inbox's own policy."""


class SetPolicy(Input):
    """Left out: stays as it is; of a source: as the inbox's own policy has it."""

    source_system: Source | None = None
    """For the receipts of this source alone."""
    enabled: bool | None = None
    """False: every receipt is an entry of its own."""
    window_ms: WindowMs | None = None
    """How long the first receipt of a burst waits for others."""
    max_items: MaxItems | None = None
    """How many waiting receipts end the wait."""
    max_thread_age_ms: Annotated[int, Field(ge=1000, le=2_592_000_000)] | None = None
    """After how long a thread gives way to a new one."""


class RemovePolicy(Input):
    source_system: Source


@operation(
    title="Inbox policy",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/inbox/policy")],
    read_only=True,
    example={},
)
def get_inbox_policy(caller: Caller, given: GetPolicy) -> PolicyOutput:
    """How your inbox groups receipts into digests, for all sources or for one."""
    return selectors.policy(caller.principal_id, given.source_system)


@operation(
    title="Change the inbox policy",
    keywords="mute snooze quiet batch notifications",
    scope=Scope.INBOX,
    routes=[Route("PUT", "/api/v1/inbox/policy")],
    idempotent=True,
    example={"window_ms": 60000},
)
def set_inbox_policy(caller: Caller, given: SetPolicy) -> PolicyOutput:
    """Change how your inbox groups receipts, for all sources or for one. Pending receipts keep their due time; disabling
    shows them.

    A longer window means fewer and larger digests; `replay_inbox_policy` says how many there would have been.
    """
    services.set_policy(
        tenant_id=caller.tenant_id,
        principal_id=caller.principal_id,
        changes=given.model_dump(exclude={"source_system"}),
        source_system=given.source_system,
        now=timezone.now(),
    )
    return selectors.policy(caller.principal_id, given.source_system)


@operation(
    title="Remove the policy of a source",
    scope=Scope.INBOX,
    routes=[Route("DELETE", "/api/v1/inbox/policy")],
    destructive=True,
    example={"source_system": "github"},
    after_refusal="get_inbox_policy shows what is set.",
)
def remove_inbox_policy(caller: Caller, given: RemovePolicy) -> PolicyOutput:
    """Return a source to your inbox's own policy. Its pending receipts are shown at once."""
    services.remove_source_policy(
        principal_id=caller.principal_id, source_system=given.source_system, now=timezone.now()
    )
    return selectors.policy(caller.principal_id, given.source_system)


_PAST: Final = timedelta(days=7)


class ReplayPolicy(Input):
    since: Moment | None = None
    """Look at what came since then; left out, in the last seven days."""
    window_ms: WindowMs | None = None
    """Another window; left out, the one that holds."""
    max_items: MaxItems | None = None
    """Another size; left out, the one that holds."""
    source_system: Source | None = None
    """Look at the receipts of this source only."""


@operation(
    title="Replay the past under another policy",
    scope=Scope.INBOX,
    routes=[Route("POST", "/api/v1/inbox/policy/replay")],
    read_only=True,
    example={"window_ms": 60000},
)
def replay_inbox_policy(caller: Caller, given: ReplayPolicy) -> ReplayOutput:
    """How many entries another window or size would have made of what came to your inbox. Changes nothing.

    Ask this before you change the policy: "with a window of 60 s these 770 receipts would have been 94 entries". Nobody
    acks in a replay, and what is pending at its end counts as shown.
    """
    return selectors.replay(
        caller.principal_id,
        since=given.since or timezone.now() - _PAST,
        window_ms=given.window_ms,
        max_items=given.max_items,
        source_system=given.source_system,
    )
