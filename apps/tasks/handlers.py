"""How other apps declare what Celery executes::

    @handler(RegisterTaskType(name="thumbnail", params_schema={…}, queue="execute", lease_seconds=15))
    def thumbnail(context: Context, params: dict[str, Any]) -> Result:
        …

A handler runs outside any transaction, possibly twice (`context.task_id` is the same both times), on behalf of
whoever asked for the task: `with context.caller.acting(): …`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from apps.principals.tenancy import Caller
from apps.tasks.shapes import RegisterTaskType

Params = dict[str, Any]
Alias = Callable[[str, Params], Params | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handler:
    declared: RegisterTaskType
    run: "Run"
    alias: Alias | None


_handlers: Final[dict[str, _Handler]] = {}


def declaration(task_type: str) -> RegisterTaskType | None:
    """What a type's handler declares; None if the type has no handler here."""
    return _handlers[task_type].declared if task_type in _handlers else None


def names() -> list[str]:
    """The names of the task types that have handlers."""
    return sorted(_handlers)


def unalias(task_type: str, params: Params) -> tuple[str, Params]:
    """The type and params that a request means: its own, unless a handler reads its type as an alias."""
    if task_type in _handlers:
        return task_type, params
    for name, found in _handlers.items():
        if found.alias is not None and (meant := found.alias(task_type, params)) is not None:
            return name, meant
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


def handler(declared: RegisterTaskType, *, alias: Alias | None = None) -> Callable[[R], R]:
    """Declare a function as the handler of a task type, with the type's schema and policy.

    :param alias: reads another type name as this one: its params as this type's, or None if it is not meant.
    """

    def declare(function: R) -> R:
        if declared.name in _handlers:
            raise ValueError(f"The task type {declared.name!r} has two handlers.")
        _handlers[declared.name] = _Handler(declared=declared, run=function, alias=alias)
        return function

    return declare


def handler_of(task_type: str) -> Run:
    """:raises KeyError: if no handler is declared for the type."""
    return _handlers[task_type].run
