"""A run as its handler sees it, and the ways in which a handler ends."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from gatehouse_client.client import Client
from gatehouse_client.errors import GatehouseError
from gatehouse_client.shapes import Beat, BeatAnswer, Lease

# So that a lease survives a few heartbeats that do not get through.
_BEATS_PER_LEASE: Final = 4
_SOON: Final = 0.1
# A lease lasts a second at least; of one that is not renewed any more ever less is left.
_SHORTEST_INTERVAL: Final = 0.25
_LONGEST_MESSAGE: Final = 500
_ALL: Final = 100
_MOST_TOKENS: Final = 10**12
_MOST_COST_USD: Final = 10**6

Why = Literal["canceled", "lost", "drained"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a handler returns if there is more to say than the result itself."""

    content: Any = None
    summary: str | None = None
    """What the requester reads in its inbox."""
    pointer: str | None = None
    """Where the result is, instead of the content: s3:, https:, …"""
    channel: str | None = None
    checksum: str | None = None


class Failed(Exception):
    """Raise it in a handler: this run has failed, with a code and a sentence for whoever asked: without a sentence, the
    class of what it came from; over 4,000 characters, cut."""

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
    """Raised in a handler that asks whether to go on, and is not to. Nothing that it could still return is wanted.

    No Exception, so that a handler which survives the faults of single items does not survive this.
    """

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why = why


class Task:
    """What there is to do, how to tell how far it is, and how to hear that it is to stop.

    Heartbeats go out by themselves. A handler that takes longer than a moment calls `check`, `wait`, `progress` or
    `save` now and then: each raises `Stop` when the task was canceled, its lease is lost, or the worker must end.
    """

    def __init__(self, lease: Lease, client: Client, *, is_ending: Callable[[], bool]) -> None:
        """:param is_ending: whether its worker is."""
        self.lease = lease
        self.task_id = lease.task_id
        self.run_id = lease.run_id
        self.params = lease.params
        self.checkpoint = lease.checkpoint
        """What was saved last, by this run or one before it; None at first."""
        self.checkpoint_wanted = False
        """Whether the hub asks for a checkpoint."""
        self._client = client
        self._is_ending = is_ending
        self._is_to_drain = False
        self._why: Why | None = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._sequence = 0
        self._progress: tuple[float | None, str | None] = (None, None)
        self._spent: tuple[int, float] = (0, 0.0)
        self._spend_heard: tuple[int, float] = (0, 0.0)
        self._may_spend = True
        self.budget_left: dict[str, Any] | None = None
        """What the last heartbeat heard is left to spend; None where nothing bounds it, or before the first."""
        self.due_at = 0.0
        """When the next heartbeat is due."""
        self._interval = _SHORTEST_INTERVAL
        self._renewed(lease.lease_ms)

    # For handlers

    @property
    def draining(self) -> bool:
        """Whether there is little time left: finish soon, or `save` and `give_back`."""
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
        """Say how far it is; goes out with the next heartbeat.

        :raises Stop: if there is a reason to.
        """
        if percent is not None and not 0 <= percent <= _ALL:
            raise ValueError(f"{percent} is no percentage.")
        self._progress = (percent, None if message is None else message[:_LONGEST_MESSAGE])
        self.check()

    def spend(self, *, tokens: int = 0, cost_usd: float = 0.0) -> None:
        """Add to what this run has used; goes out with the next heartbeat, and before the end is told.

        Where nothing is left of a budget, the run is told to stop.
        """
        with self._lock:
            spent = (self._spent[0] + tokens, self._spent[1] + cost_usd)
            if not (tokens >= 0 and spent[0] <= _MOST_TOKENS and cost_usd >= 0 and spent[1] <= _MOST_COST_USD):
                raise ValueError(f"A run can't have used {spent}.")
            self._spent = spent

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Save from where the next run shall go on, should there be one; it is safe once this returns.

        :raises Stop: if there is a reason to.
        :raises GatehouseError: if the hub can't be told.
        """
        while self._saving(checkpoint) == "retry":
            self.wait(_SOON)
        self.check()
        self.checkpoint, self.checkpoint_wanted = checkpoint, False

    def give_back(self) -> None:
        """End this run here; the task goes on elsewhere, from what was saved last.

        :raises Stop: always.
        """
        raise Stop(self._why or "drained")

    # For the worker

    @property
    def is_lost(self) -> bool:
        return self._why == "lost"

    def stop(self, why: Why) -> None:
        # A lost lease is lost whatever was ordered before.
        if self._why is None or why == "lost":
            self._why = why
        self._stopped.set()

    def _saving(self, checkpoint: dict[str, Any]) -> str:
        beat = self.next_beat(checkpoint)
        try:
            (answer,) = self._client.heartbeat([beat])
        except GatehouseError:
            self.unsaid(beat)
            raise
        self.heard(answer, beat)
        return answer.status

    def next_beat(self, checkpoint: dict[str, Any] | None = None) -> Beat:
        with self._lock:
            (percent, message), (tokens, cost) = self._progress, self._spent if self._has_spend_to_tell() else (0, 0.0)
            self._progress = (None, None)
            self._sequence += 1
            return Beat(
                lease=self.lease,
                percent=percent,
                message=message,
                checkpoint=checkpoint,
                tokens=tokens,
                cost_usd=cost,
                sequence=self._sequence,
            )

    def _has_spend_to_tell(self) -> bool:
        return self._spent != self._spend_heard and self._may_spend

    def last_beat(self) -> Beat | None:
        """What is to be told before the end is, if anything is."""
        return self.next_beat() if self._has_spend_to_tell() else None

    def unsaid(self, beat: Beat) -> None:
        """It is not known to have been heard: what it told goes with the next one."""
        with self._lock:
            if self._progress == (None, None):
                self._progress = (beat.percent, beat.message)
        self.due_at = time.monotonic() + _SOON

    def heard(self, answer: BeatAnswer, beat: Beat) -> None:
        """Take in what the hub answered."""
        # Of a run that knows that its budget is spent nothing more is taken: it would be revoked.
        self._may_spend = self._may_spend and answer.reason is None
        if answer.status == "lost":
            self.stop("lost")
        elif answer.status == "retry":
            self.unsaid(beat)
        else:
            # Where a budget is spent the lease is not renewed: to ask more often makes it no longer.
            self._renewed(answer.lease_ms if answer.reason is None else None)
            self.budget_left = answer.budget_left
            if beat.tokens or beat.cost_usd:
                self._spend_heard = (beat.tokens, beat.cost_usd)
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
