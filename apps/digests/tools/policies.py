"""How an inbox gathers: its policy, those of single sources, and what another one would have made of its past."""

from datetime import datetime, timedelta
from typing import Annotated, Final

from django.utils import timezone
from pydantic import Field

from apps.core.operations import Route, operation
from apps.core.schemas import Input, Moment, Output
from apps.digests import selectors, services
from apps.digests.gathering import THREAD_LIMIT, Policy
from apps.digests.services import PolicyChange
from apps.digests.tools.shapes import Source
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller

WindowMs = Annotated[int, Field(ge=0, le=86_400_000)]
MaxItems = Annotated[int, Field(ge=1, le=THREAD_LIMIT)]


class SourcePolicyOutput(Output):
    """How the receipts of one source are gathered."""

    source_system: str
    enabled: bool
    window_ms: int
    max_items: int
    max_thread_age_ms: int


class PolicyOutput(Output):
    """How receipts with a group are gathered."""

    source_system: str | None
    """The source that was asked about; null: what holds where a source has nothing of its own."""
    enabled: bool
    window_ms: int
    max_items: int
    max_thread_age_ms: int
    sources: list[SourcePolicyOutput]
    """The sources that have a policy of their own."""


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
)
def get_inbox_policy(caller: Caller, given: GetPolicy) -> PolicyOutput:
    """How your inbox gathers receipts that belong together, by itself or for one source."""
    return _policy(caller, given.source_system)


@operation(
    title="Change the inbox policy",
    scope=Scope.INBOX,
    routes=[Route("PUT", "/api/v1/inbox/policy")],
    idempotent=True,
)
def set_inbox_policy(caller: Caller, given: SetPolicy) -> PolicyOutput:
    """Change how your inbox gathers, for all sources or for one. What waits keeps its due time; switching off shows it.

    A longer window means fewer and larger digests; `replay_inbox_policy` says how many there would have been.
    """
    services.set_policy(
        tenant_id=caller.tenant_id,
        principal_id=caller.principal_id,
        change=PolicyChange(
            enabled=given.enabled,
            window=_duration(given.window_ms),
            max_items=given.max_items,
            max_thread_age=_duration(given.max_thread_age_ms),
        ),
        source_system=given.source_system,
        now=timezone.now(),
    )
    return _policy(caller, given.source_system)


@operation(
    title="Remove the policy of a source",
    scope=Scope.INBOX,
    routes=[Route("DELETE", "/api/v1/inbox/policy")],
    destructive=True,
)
def remove_inbox_policy(caller: Caller, given: RemovePolicy) -> PolicyOutput:
    """Have a source gathered as your inbox gathers all others. What waits of it is shown at once."""
    services.remove_source_policy(
        principal_id=caller.principal_id, source_system=given.source_system, now=timezone.now()
    )
    return _policy(caller, given.source_system)


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


class ReplayOutput(Output):
    """What came, and how many entries it makes under either policy. Groups are those that it would get today."""

    receipts: int
    gathered: int
    """How many of the receipts have a group; each of the others is an entry under any policy."""
    entries_then: int
    """With the policies that your inbox has."""
    entries_now: int
    """With the window and size that you ask about, for every source."""
    wakes_saved: int
    """How many entries fewer; below zero, how many more."""
    since: datetime
    """The receipts are all that came since then."""
    truncated: bool
    """More receipts came than are looked at, so `since` is later than you asked."""


@operation(
    title="Replay the past under another policy",
    scope=Scope.INBOX,
    routes=[Route("POST", "/api/v1/inbox/policy/replay")],
    read_only=True,
)
def replay_inbox_policy(caller: Caller, given: ReplayPolicy) -> ReplayOutput:
    """How many entries another window or size would have made of what came to your inbox. Changes nothing.

    Ask this before you change the policy: "with a window of 60 s these 770 receipts would have been 94 entries". Nobody
    acks in a replay, and what still waits at its end counts as published.
    """
    replay = selectors.replay(
        caller.principal_id,
        since=given.since or timezone.now() - _PAST,
        window=_duration(given.window_ms),
        max_items=given.max_items,
        source_system=given.source_system,
    )
    return ReplayOutput(
        receipts=replay.receipts,
        gathered=replay.gathered,
        entries_then=replay.entries_then,
        entries_now=replay.entries_now,
        wakes_saved=replay.wakes_saved,
        since=replay.since,
        truncated=replay.truncated,
    )


def _duration(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def _policy(caller: Caller, source_system: str | None) -> PolicyOutput:
    held = selectors.policies(caller.principal_id)
    return PolicyOutput(
        source_system=source_system,
        **_parts(held.default if source_system is None else held.of(source_system)),
        sources=[
            SourcePolicyOutput(source_system=source, **_parts(policy)) for source, policy in held.of_sources.items()
        ],
    )


def _parts(policy: Policy) -> dict[str, int]:
    return {
        "enabled": policy.enabled,
        "window_ms": policy.window // timedelta(milliseconds=1),
        "max_items": policy.max_items,
        "max_thread_age_ms": policy.max_thread_age // timedelta(milliseconds=1),
    }
