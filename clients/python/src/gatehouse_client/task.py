"""A run as its handler sees it, and the ways to end it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from gatehouse_client.client import Client
from gatehouse_client.errors import GatehouseError
from gatehouse_client.inputs import HeldLease, ProgressInput, SpendInput
from gatehouse_client.outputs import BudgetLeft, HeartbeatAnswer, LeasedTask

# A lease survives a few failed heartbeats.
_BEATS_PER_LEASE: Final = 4
_SOON: Final = 0.1
# A lease lasts a second at least; what is left of an unrenewed one shrinks.
_SHORTEST_INTERVAL: Final = 0.25
_LONGEST_MESSAGE: Final = 500
_ALL: Final = 100
_MOST_TOKENS: Final = 10**12
_MOST_COST_USD: Final = 10**6

Why = Literal["canceled", "lost", "drained"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The return value of a handler that gives more than the result itself."""

    content: Any = None
    summary: str | None = None
    """The text of the receipt in the requester's inbox."""
    pointer: str | None = None
    """The place of the result, instead of the content: s3:, https:, …"""
    channel: str | None = None
    checksum: str | None = None


class Failed(Exception):
    """Raise it in a handler: the run has failed, with a code and a message for the requester.

    An empty message becomes the class of the cause; one over 4,000 characters is cut.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool,
        retry_after: float | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after = retry_after
        self.details = details


class Stop(BaseException):
    """Raised in a handler that checks whether to go on, and must not. Its result is not wanted.

    It is no Exception, so that a handler that catches the faults of single items does not catch it.
    """

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why = why


class Task:
    """The task of a handler: its parameters, its progress and checkpoint, and its stop.

    Heartbeats are sent automatically. A long handler calls `check`, `wait`, `progress` or `save` now and then: each
    raises `Stop` when the task was canceled, its lease is lost, or the worker must end.
    """

    def __init__(self, lease: LeasedTask, client: Client, *, is_ending: Callable[[], bool]) -> None:
        """:param is_ending: whether the worker is ending."""
        self.lease = lease
        self.task_id = lease.task_id
        self.run_id = lease.run_id
        self.params = lease.params
        self.checkpoint = lease.checkpoint
        """The last checkpoint, of this run or an earlier one; None at first."""
        self.checkpoint_wanted = False
        """Whether the hub asks for a checkpoint."""
        self._client = client
        self._is_ending = is_ending
        self._is_to_drain = False
        self._why: Why | None = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._sequence = 0
        self._progress: ProgressInput | None = None
        self._spent: SpendInput = {"tokens": 0, "cost_usd": 0.0}
        self._spend_reported = self._spent
        self._may_spend = True
        self.budget_left: BudgetLeft | None = None
        """The rest of the budget as of the last heartbeat; None without a budget, or before the first."""
        self.due_at = 0.0
        """When the next heartbeat is due."""
        self._interval = _SHORTEST_INTERVAL
        self._renewed(lease.lease_ms)

    # For handlers

    @property
    def draining(self) -> bool:
        """Whether to finish soon, or `save` and `give_back`."""
        return self._is_to_drain or self._is_ending()

    def check(self) -> None:
        """:raises Stop: if there is a reason to."""
        self.wait(0)

    def wait(self, seconds: float) -> None:
        """Sleep.

        :raises Stop: as soon as there is a reason to.
        """
        if self._stopped.wait(seconds) and self._why is not None:
            raise Stop(self._why)

    def progress(self, percent: float | None = None, message: str | None = None) -> None:
        """Report progress, with the next heartbeat.

        :raises Stop: if there is a reason to.
        """
        if percent is not None and not 0 <= percent <= _ALL:
            raise ValueError(f"{percent} is no percentage.")
        self._progress = {"percent": percent, "message": None if message is None else message[:_LONGEST_MESSAGE]}
        self.check()

    def spend(self, *, tokens: int = 0, cost_usd: float = 0.0) -> None:
        """Add to the spend of this run, with the next heartbeat and before the outcome.

        If the budget is spent, the run is ordered to stop.
        """
        with self._lock:
            spent: SpendInput = {
                "tokens": self._spent["tokens"] + tokens,
                "cost_usd": self._spent["cost_usd"] + cost_usd,
            }
            if not (
                0 <= tokens <= spent["tokens"] <= _MOST_TOKENS and 0 <= cost_usd <= spent["cost_usd"] <= _MOST_COST_USD
            ):
                raise ValueError(f"A run can't have used {spent}.")
            self._spent = spent

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Save the state from which a next run continues. It is saved when this returns.

        :raises Stop: if there is a reason to.
        :raises GatehouseError: if the hub can't be reached.
        """
        while self._saving(checkpoint) == "retry":
            self.wait(_SOON)
        self.check()
        self.checkpoint, self.checkpoint_wanted = checkpoint, False

    def give_back(self) -> None:
        """End this run; the task continues elsewhere from its last checkpoint.

        :raises Stop: always.
        """
        raise Stop(self._why or "drained")

    # For the worker

    @property
    def is_lost(self) -> bool:
        return self._why == "lost"

    def stop(self, why: Why) -> None:
        # A lost lease overrides every order.
        if self._why is None or why == "lost":
            self._why = why
        self._stopped.set()

    def _saving(self, checkpoint: dict[str, Any]) -> str:
        beat = self.next_beat(checkpoint)
        try:
            (answer,) = self._client.heartbeat([beat])
        except GatehouseError:
            self.restore(beat)
            raise
        self.handle(answer, beat)
        return answer.status

    def next_beat(self, checkpoint: dict[str, Any] | None = None) -> HeldLease:
        with self._lock:
            progress, self._progress = self._progress, None
            self._sequence += 1
            return {
                "task_id": self.task_id,
                "lease_token": self.lease.lease_token,
                "progress": progress,
                "checkpoint": checkpoint,
                "spend": self._spent if self._has_spend_to_report() else None,
                "sequence": self._sequence,
            }

    def _has_spend_to_report(self) -> bool:
        return self._spent != self._spend_reported and self._may_spend

    def last_beat(self) -> HeldLease | None:
        """The heartbeat to send before the outcome, if there is spend to report."""
        return self.next_beat() if self._has_spend_to_report() else None

    def restore(self, beat: HeldLease) -> None:
        """A heartbeat may be lost: send its content with the next one."""
        with self._lock:
            self._progress = self._progress or beat["progress"]
        self.due_at = time.monotonic() + _SOON

    def handle(self, answer: HeartbeatAnswer, beat: HeldLease) -> None:
        """Handle the answer to a heartbeat."""
        # More spend of a run whose budget is spent would revoke its lease.
        self._may_spend = self._may_spend and answer.reason is None
        if answer.status == "lost":
            self.stop("lost")
        elif answer.status == "retry":
            self.restore(beat)
        else:
            # The lease of a run whose budget is spent is not renewed.
            self._renewed(answer.lease_ms if answer.reason is None else None)
            self.budget_left = answer.budget_left
            self._spend_reported = beat["spend"] or self._spend_reported
            self._obey(answer.order)

    def _obey(self, order: str) -> None:
        if order == "cancel":
            self.stop("canceled")
        elif order == "drain":
            self._is_to_drain = True
        elif order == "checkpoint":
            self.checkpoint_wanted = True

    def _renewed(self, lease_ms: int | None) -> None:
        if lease_ms is not None:
            self._interval = max(lease_ms / 1000 / _BEATS_PER_LEASE, _SHORTEST_INTERVAL)
        self.due_at = time.monotonic() + self._interval
