"""The data of requests and answers. Names are those of the API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, ClassVar, Literal, Required, Self, TypedDict, dataclass_transform, get_args

from gatehouse_client.errors import Refused


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Shape:
    """A frozen dataclass for the data of a request or an answer."""

    _kinds: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """The types of each member: its own, and those of a list or union."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        members = fields(cls)  # type: ignore[arg-type]  # it is a dataclass now
        cls._kinds = {one.name: (one.type, *get_args(one.type)) for one in members}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Read an answer. Unknown members are ignored."""
        kinds = cls._kinds
        return cls(**{name: _read(kinds[name], value) for name, value in document.items() if name in kinds})


def _read(kinds: tuple[Any, ...], value: Any) -> Any:
    if datetime in kinds and isinstance(value, str):
        return datetime.fromisoformat(value)
    inner = kinds[-1]
    if isinstance(value, list) and isinstance(inner, type) and issubclass(inner, Shape):
        return [inner.of(one) for one in value]
    return value


class Group(TypedDict, total=False):
    """Groups receipts about one thing into one digest."""

    resource_ref: str
    event_family: str
    flush_class: Literal["normal", "immediate"]
    summary_hint: str
    break_thread: bool
    groupable: bool


class Budget(TypedDict, total=False):
    """What a task may use up."""

    tokens: int
    cost_usd: float
    when_spent: Literal["fail", "cancel"]


class TaskOptions(TypedDict, total=False):
    recipient_ai: str
    queue: str
    priority: int
    idempotency_key: str
    run_at: str
    caused_by_receipt_id: str
    budget: Budget
    group: Group
    concurrency_key: str
    depends_on: list[str]
    on_dependency_failure: Literal["cancel", "fail"]


class NewTask(TaskOptions, total=False):
    """A task of a batch."""

    task_type: Required[str]
    params: dict[str, Any]


class LeaseSource(TypedDict, total=False):
    """Which tasks to lease."""

    task_types: Sequence[str]
    queues: Sequence[str]
    capabilities: Sequence[str]
    lease_seconds: int | None


class Rate(TypedDict):
    """A limit of leases per period."""

    leases: int
    per_seconds: float


class ResultOptions(TypedDict, total=False):
    """What stands beside a result: the text of its receipt, or a pointer in its place."""

    summary: str | None
    result_pointer: str | None
    result_channel: str | None
    checksum: str | None


class TypePolicy(TypedDict, total=False):
    queue: str
    title: str
    requires: list[str]
    priority: int
    max_attempts: int
    max_expiries: int
    lease_seconds: int
    max_lease_seconds: int
    heartbeat_seconds: int
    deadline_seconds: int
    retention_seconds: int
    stuck_after: int
    revoke_stuck: bool
    misfire: Literal["once", "all", "skip"]
    backoff: dict[str, float]
    concurrency: int
    rate: Rate
    strict: bool
    enabled: bool


class ScheduleOptions(TypedDict, total=False):
    """The times, by `cron` or `every_seconds`, and the recipient."""

    cron: str
    every_seconds: int
    timezone: str
    recipient_ai: str
    queue: str
    priority: int
    misfire: Literal["once", "all", "skip"]
    enabled: bool


class ReceiptOptions(TypedDict, total=False):
    title: str
    event_type: str
    metadata: dict[str, Any]
    group: Group
    receipt_id: str
    artifact_pointer: str
    artifact_location: str
    requires_action: bool
    suggested_next_step: str
    caused_by_receipt_id: str
    pairs_with: str
    surface: Literal["inbox", "ledger"]


class Queued(Shape):
    """A queued task; its end will be in the recipient's inbox."""

    task_id: str
    status: str
    is_duplicate: bool
    receipt_id: str


class TaskStatus(Shape):
    task_id: str
    task_type: str
    status: str
    complete: bool
    run_id: int
    failures: int
    expiries: int
    progress: dict[str, Any] | None
    created_at: datetime
    finished_at: datetime | None
    reason: str | None
    error: dict[str, Any] | None
    result_pointer: str | None
    receipt_id: str
    terminal_receipt_id: str | None
    spent: dict[str, Any]
    budget: dict[str, Any] | None


class TaskResult(Shape):
    """The outcome of a task; `content` is the result itself, if the hub can show it."""

    task_id: str
    status: str
    result_pointer: str | None
    content: Any
    checksum: str | None
    size: int | None
    media_type: str | None
    summary: str
    error: dict[str, Any] | None
    finished_at: datetime


class Lease(Shape):
    """The right to work on a task for `lease_ms` after the last heartbeat; the token proves it."""

    task_id: str
    run_id: int
    lease_token: str
    task_type: str
    params: dict[str, Any]
    checkpoint: Any
    """The checkpoint of the run before; None at first."""
    lease_ms: int


class Heartbeat(Shape):
    """A heartbeat for one lease. `tokens` and `cost_usd` are totals of the run, so repeating them counts once.

    `sequence` grows with each heartbeat of a run, so that a late one replaces nothing newer.
    """

    lease: Lease
    percent: float | None = None
    message: str | None = None
    checkpoint: dict[str, Any] | None = None
    tokens: int = 0
    cost_usd: float = 0.0
    sequence: int | None = None

    def as_member(self) -> dict[str, Any]:
        member: dict[str, Any] = {"task_id": self.lease.task_id, "lease_token": self.lease.lease_token}
        if self.sequence is not None:
            member["sequence"] = self.sequence
        if self.percent is not None or self.message is not None:
            member["progress"] = {"percent": self.percent, "message": self.message}
        if self.checkpoint is not None:
            member["checkpoint"] = self.checkpoint
        if self.tokens or self.cost_usd:
            member["spend"] = {"tokens": self.tokens, "cost_usd": self.cost_usd}
        return member


class HeartbeatAnswer(Shape):
    """`lost`: stop, the lease is over. `retry`: send it again at once. Else obey the order."""

    task_id: str
    status: Literal["ok", "lost", "retry"]
    order: str
    lease_ms: int
    reason: str | None = None
    budget_left: dict[str, Any] | None = None
    """The rest of the task's budgets; None is no limit."""


class Completion(Shape):
    """A completed run of a batch: its result, or a pointer to it."""

    lease: Lease
    result: Any = None
    summary: str | None = None
    result_pointer: str | None = None
    result_channel: str | None = None
    checksum: str | None = None

    def as_member(self) -> dict[str, Any]:
        member: dict[str, Any] = {
            "task_id": self.lease.task_id,
            "lease_token": self.lease.lease_token,
            "summary": self.summary,
            "result_pointer": self.result_pointer,
            "result_channel": self.result_channel,
            "checksum": self.checksum,
        }
        return member if self.result is None else {**member, "result": self.result}


class Failure(Shape):
    """A failed run of a batch."""

    lease: Lease
    code: str
    message: str
    retryable: bool
    retry_after: float | None = None
    details: dict[str, Any] | None = None

    def as_member(self) -> dict[str, Any]:
        return {
            "task_id": self.lease.task_id,
            "lease_token": self.lease.lease_token,
            "error": {"code": self.code, "message": self.message, "details": self.details},
            "retryable": self.retryable,
            "retry_after": self.retry_after,
        }


class Completed(Shape):
    task_id: str
    status: str
    receipt_id: str
    next: list[Lease] = field(default_factory=list)


class CompletedMany(Shape):
    results: list[Completed | Refused]
    """One for each completion, in their order."""
    next: list[Lease]


class Verdict(Shape):
    """The state of a task after a failed or released run."""

    task_id: str
    status: str
    will_retry: bool
    retry_at: datetime | None
    receipt_id: str | None


class DeadLetter(Shape):
    """A failed task, which can be retried."""

    task_id: str
    task_type: str
    queue: str
    reason: str
    error: dict[str, Any] | None
    summary: str
    runs: int
    created_at: datetime
    failed_at: datetime
    receipt_id: str
    retried_as: str | None
    """The task that retries this one."""


class DeadLetters(Shape):
    dead_letters: list[DeadLetter]
    next: str | None
    """The cursor of the next page; None on the last."""


class Schedule(Shape):
    name: str
    task_type: str
    params: dict[str, Any]
    recipient_ai: str
    queue: str | None
    priority: int | None
    cron: str | None
    every_seconds: int | None
    timezone: str
    misfire: str
    enabled: bool
    next_at: datetime | None
    last_at: datetime | None
    last_task_id: str | None
    last_refusal: str | None
    """Why the last task could not be queued; None if it was."""


class Schedules(Shape):
    schedules: list[Schedule]
    next: str | None
    """The cursor of the next page; None on the last."""


class TimelineEvent(Shape):
    at: datetime
    event: str
    run_id: int | None
    holder: str | None
    detail: dict[str, Any] | None


class Timeline(Shape):
    task_id: str
    events: list[TimelineEvent]
    next: str | None
    """The cursor of further runs; None on the last page, which also tells the end."""


class QueuePolicy(Shape):
    """The limits of a queue; None is no limit."""

    queue: str
    paused: bool
    concurrency: int | None
    rate: Rate | None
    fair: bool


class QueueFigures(Shape):
    """A queue now, and in the last five minutes."""

    queue: str
    paused: bool
    queued: int
    scheduled: int
    leased: int
    expired: int
    oldest_wait_seconds: float
    finished_per_minute: float
    failure_rate: float
    latency_p50_seconds: float | None
    """From the readiness of a task to its end; None if nothing ended."""
    latency_p95_seconds: float | None
    latency_p99_seconds: float | None
    expiries: int
    dead_letters: int


class Posted(Shape):
    receipt_id: str
    uuid: str
    entry: str | None = None
    """The entry that this post made visible, if any."""
    is_duplicate: bool = False
    """Whether the receipt existed already."""


class Entry(Shape):
    """An entry of the inbox: one receipt, or a digest of many."""

    ref: str
    token: str
    """For `ack`: it acks what its read has shown up to here, and nothing later."""
    kind: str
    sequence: int
    count: int
    title: str | None
    summary: str
    receipt_ids: list[str]
    source_systems: list[str]
    first_at: datetime
    last_at: datetime


class Inbox(Shape):
    as_of: int
    visible: int
    pending: int
    more_waiting: int
    entries: list[Entry] = field(default_factory=list)


class Acked(Shape):
    """What this call acked; zeros if all was acked before."""

    acked_entries: int
    acked_receipts: int
