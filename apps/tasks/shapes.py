"""What the verbs take and give, as code sees it; the interfaces have their own words for it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from apps.receipts.services import Group
from apps.tasks.states import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRequest:
    """What a requester asks for. `recipient` is who is told of the end; left out, the requester."""

    task_type: str
    params: dict[str, Any]
    recipient: str | None = None
    queue: str | None = None
    priority: int | None = None
    idempotency_key: str | None = None
    run_at: datetime | None = None
    caused_by: str | None = None
    group: Group | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTask:
    task_id: str
    status: Status
    is_duplicate: bool
    receipt_id: str
    poll_suggestion_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A lease: what to do, and the proof that one may."""

    task_id: int
    fence: int
    lease_token: str
    task_type: str
    params: dict[str, Any]
    checkpoint: Any
    lease_ms: int
    requester_id: int
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One lease's sign of life."""

    task_id: int
    lease_token: str
    percent: float | None = None
    message: str | None = None
    checkpoint: Any = None
    tokens: int = 0
    cost_usd: float = 0.0

    @property
    def says_something(self) -> bool:
        return self.percent is not None or self.message is not None or self.checkpoint is not None

    @property
    def spends(self) -> bool:
        return bool(self.tokens or self.cost_usd)

    @property
    def must_last(self) -> bool:
        """Whether its answer promises that something survives a crash."""
        return self.checkpoint is not None or self.spends


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatAnswer:
    """`lost` says why; `retry` means that somebody else is at the row just now."""

    task_id: int
    status: Literal["ok", "lost", "retry"]
    order: Literal["continue", "cancel"]
    lease_ms: int
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A result as it will be recorded: where it is and how to know it again."""

    channel: str | None = None
    pointer: str | None = None
    content: Any = None
    inline: bool = False
    checksum: str | None = None
    size: int | None = None
    media_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a run failed."""

    code: str
    message: str
    details: dict[str, Any] | None = None
    retryable: bool = False
    retry_after: float | None = None

    @property
    def error(self) -> dict[str, Any]:
        known = {"code": self.code, "message": self.message}
        return known if self.details is None else {**known, "details": self.details}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """That a task has reached its end, and the receipt that says so."""

    task_id: str
    status: Status
    receipt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a run that did not succeed."""

    task_id: str
    status: Status
    will_retry: bool
    retry_at: datetime | None
    receipt_id: str | None
