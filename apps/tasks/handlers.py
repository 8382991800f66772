"""How other apps declare what Celery executes::

    @handler(task_type="thumbnail", params_schema={…}, lease=timedelta(seconds=15))
    def thumbnail(context: Context, params: dict[str, Any]) -> Result:
        …

A handler runs outside any transaction, possibly twice (`context.task_id` is the same both times), on behalf of
whoever asked for the task: `with context.caller.acting(): …`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from apps.principals.tenancy import Caller

Params = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a handler declares about its type."""

    task_type: str
    params_schema: Mapping[str, Any]
    queue: str
    title: str
    lease_seconds: int
    max_attempts: int
    max_expiries: int
    backoff_seconds: float
    backoff_cap_seconds: float
    run: "Run" = field(repr=False)
    alias: Callable[[str, Params], Params | None] | None = field(default=None, repr=False)
    """Reads another type name as this one: its params as this type's, or None if it is not meant."""


_policies: Final[dict[str, Policy]] = {}


def policy_of(task_type: str) -> Policy | None:
    """What a type's handler declares; None if the type has no handler here."""
    return _policies.get(task_type)


def names() -> list[str]:
    """The names of the task types that have handlers."""
    return sorted(_policies)


def unalias(task_type: str, params: Params) -> tuple[str, Params]:
    """The type and params that a request means: its own, unless a handler reads its type as an alias."""
    if task_type in _policies:
        return task_type, params
    for policy in _policies.values():
        if policy.alias is not None and (meant := policy.alias(task_type, params)) is not None:
            return policy.task_type, meant
    return task_type, params


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run. One that can't be recorded fails the run as `unrecordable_result`."""

    pointer: str | None = None
    summary: str | None = None


class Failed(Exception):
    """Raised by a handler: this run has failed, with a code and a message for the requester. Long texts are
    cut.
    """

    def __init__(self, code: str, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable


class Postponed(Exception):
    """Raised by a handler that can't begin yet and has done nothing. The task waits `retry_after`; no attempt
    is counted.
    """

    def __init__(self, retry_after: timedelta) -> None:
        super().__init__(f"not for {retry_after}")
        self.retry_after = retry_after


class Canceled(Exception):
    """Raised by a handler that stops because `context.cancelled` is set, and by `heartbeat` when the lease is
    lost.
    """


class Context(Protocol):
    """What a handler knows of its run, and how it reports. Heartbeats are sent by a thread."""

    task_id: str
    run_id: int
    caller: Caller
    """Who asked for the task."""
    checkpoint: dict[str, Any] | None
    """What the run before this one has saved; None at first."""

    @property
    def cancelled(self) -> bool:
        """Whether to stop: the task was canceled, or the lease is lost."""

    def progress(self, percent: float, message: str = "") -> None:
        """Report progress with the next heartbeat.

        :raises ValueError: if that is no percentage.
        """

    def heartbeat(
        self, *, progress: float | None = None, message: str | None = None, checkpoint: dict[str, Any] | None = None
    ) -> None:
        """Send a heartbeat now; a checkpoint is saved when this returns.

        :raises Canceled: if the lease is lost, or runs out before the heartbeat gets through. What was canceled otherwise
            is saved all the same, and `cancelled`.
        :raises ValueError: if the progress is no percentage.
        :raises UnstorableJSON: if the checkpoint can't be saved.
        """


Run = Callable[[Context, Params], Result]
R = TypeVar("R", bound=Run)


def handler(
    *,
    task_type: str,
    params_schema: Mapping[str, Any],
    queue: str = "execute",
    title: str = "",
    lease: timedelta = timedelta(seconds=15),
    max_attempts: int = 3,
    max_expiries: int = 5,
    backoff: timedelta = timedelta(seconds=2),
    backoff_cap: timedelta = timedelta(minutes=5),
    alias: Callable[[str, Params], Params | None] | None = None,
) -> Callable[[R], R]:
    """Declare a function as the handler of a task type, with the type's schema and policy."""

    def declare(function: R) -> R:
        if task_type in _policies:
            raise ValueError(f"The task type {task_type!r} has two handlers.")
        _policies[task_type] = Policy(
            task_type=task_type,
            params_schema=params_schema,
            queue=queue,
            title=title or task_type.replace("_", " ").capitalize(),
            lease_seconds=round(lease.total_seconds()),
            max_attempts=max_attempts,
            max_expiries=max_expiries,
            backoff_seconds=backoff.total_seconds(),
            backoff_cap_seconds=backoff_cap.total_seconds(),
            run=function,
            alias=alias,
        )
        return function

    return declare


def handler_of(task_type: str) -> Run:
    """:raises KeyError: if no handler is declared for the type."""
    return _policies[task_type].run
