"""Questions about tasks."""

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.core.files.storage import storages
from django.db import connection

from apps.core.ids import format_ref
from apps.tasks import sql
from apps.tasks.errors import ArtifactsUnavailable, InvalidPointer, NotFinished, UnknownArtifact, UnknownTask
from apps.tasks.fences import task_of
from apps.tasks.models import FENCE_BITS, Artifact, HotTask, Run, Task, TaskType, TerminalRecord, run_key
from apps.tasks.pointers import ARTIFACT, INLINE, artifact_digest, scheme_of
from apps.tasks.states import Outcome, Status, open_status

# What is worth carrying in an answer; larger artifacts are fetched by their own route.
MAX_SHOWN_BYTES: Final = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """How far a task is."""

    task_id: str
    task_type: str
    status: Status
    complete: bool
    queue: str
    priority: int
    requester: str
    recipient: str
    run_id: int
    failures: int
    expiries: int
    percent: float | None
    message: str
    created_at: datetime
    next_run_at: datetime | None
    lease_expires_at: datetime | None
    finished_at: datetime | None
    reason: str | None
    error: dict[str, Any] | None
    result_pointer: str | None
    receipt_id: str
    terminal_receipt_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """How a task ended, and where its result is. `content` is there for inline results."""

    task_id: str
    status: Status
    result_channel: str | None
    result_pointer: str | None
    content: Any
    checksum: str | None
    size: int | None
    media_type: str | None
    summary: str
    error: dict[str, Any] | None
    finished_at: datetime
    fetched_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One point of a task's timeline."""

    at: datetime
    event: str
    run_id: int | None = None
    holder: str | None = None
    detail: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHealth:
    """Is work flowing?"""

    queue: str
    paused: bool
    queued: int
    scheduled: int
    leased: int
    expired: int
    oldest_wait_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArtifact:
    """What is known of an artifact without touching the storage."""

    tenant_id: int
    digest: str
    media_type: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a pointer points to."""

    content: bytes
    media_type: str
    checksum: str


def status(task_ref: str) -> TaskStatus:
    """:raises UnknownTask: if there is no such task.

    :raises Malformed: if the text is no reference to a task.
    """
    task = _task(task_ref)
    # In this order: what is not open any more has its record.
    hot = HotTask.objects.filter(task_id=task.pk).first()
    runs = list(_runs(task.pk))
    run = runs[-1] if runs else None
    return TaskStatus(
        task_id=str(task),
        task_type=task.task_type.name,
        queue=task.queue.name,
        priority=task.priority,
        requester=task.requester.name,
        recipient=task.recipient.name,
        percent=run.percent if run else None,
        message=run.message if run else "",
        created_at=task.created_at,
        receipt_id=task.receipt_id,
        **(_open(hot, run) if hot else _ended(TerminalRecord.objects.get(task_id=task.pk), runs)),
    )


def result(task_ref: str) -> TaskResult:
    """A finished task's result, less the content of an artifact.

    :raises UnknownTask: if there is no such task.
    :raises NotFinished: if it is still open.
    """
    task_id = task_of(task_ref)
    record = TerminalRecord.objects.filter(task_id=task_id).first()
    if record is None:
        raise NotFinished(f"{_task(task_ref)} is not finished.")
    return TaskResult(
        task_id=task_ref,
        status=Status(record.status),
        result_channel=record.result_channel,
        result_pointer=record.result_pointer,
        content=record.content,
        checksum=record.checksum,
        size=record.size,
        media_type=record.media_type,
        summary=record.summary,
        error=record.error,
        finished_at=record.finished_at,
        fetched_at=record.fetched_at,
    )


def timeline(task_ref: str) -> list[Event]:
    """What happened to a task, in order.

    :raises UnknownTask: if there is no such task.
    """
    return list(_events(_task(task_ref)))


def queue_health(*, tenant_id: int) -> list[QueueHealth]:
    """Every queue of the tenant, by name."""
    with connection.cursor() as cursor:
        cursor.execute(sql.QUEUE_HEALTH, {"tenant": tenant_id})
        rows = cursor.fetchall()
    return [QueueHealth(**dict(zip(QueueHealth.__dataclass_fields__, row, strict=True))) for row in rows]


def task_types(*, tenant_id: int) -> list[TaskType]:
    """Every type of the tenant with its queue, by name."""
    return list(TaskType.objects.filter(tenant_id=tenant_id).select_related("queue").order_by("name"))


def artifact(*, tenant_id: int, digest: str) -> StoredArtifact:
    """:raises UnknownArtifact: if the tenant has stored no such bytes."""
    found = Artifact.objects.filter(tenant_id=tenant_id, digest=digest).first()
    if found is None:
        raise UnknownArtifact("There is no such artifact.")
    return StoredArtifact(tenant_id=tenant_id, digest=digest, media_type=found.media_type, size=found.size)


def place_of(tenant_id: int, digest: str) -> str:
    """Where an artifact is in the storage."""
    return f"{tenant_id}/{digest[:2]}/{digest}"


def read(stored: StoredArtifact) -> bytes:
    """An artifact's bytes, checked against their digest. Waits for the storage, not for the database.

    :raises ArtifactsUnavailable: if the storage fails or holds something else.
    """
    try:
        with storages["artifacts"].open(place_of(stored.tenant_id, stored.digest)) as file:
            content: bytes = file.read()
    except OSError as exc:
        raise ArtifactsUnavailable("The storage of artifacts does not answer just now.") from exc
    if hashlib.sha256(content).hexdigest() != stored.digest:
        raise ArtifactsUnavailable("The storage of artifacts holds something else under this name.")
    return content


def open_pointer(pointer: str, *, tenant_id: int) -> Opened:
    """What an `inline:` or `artifact:` pointer of this tenant points to.

    :raises InvalidPointer: if it is of another kind, which this deployment does not read.
    :raises UnknownTask: if it is inline and there is no such task.
    :raises NotFinished: if it is inline and the task is open.
    :raises UnknownArtifact: if there is no such artifact.
    """
    match scheme_of(pointer):
        case "inline":
            task_id = task_of(pointer.removeprefix(f"{INLINE}:"))
            found = result(format_ref("task", task_id))
            if found.result_pointer != pointer:
                raise InvalidPointer("This task's result is not inline.")
            content = json.dumps(found.content, ensure_ascii=False, separators=(",", ":")).encode()
            return Opened(content=content, media_type="application/json", checksum=found.checksum or "")
        case "artifact":
            stored = artifact(tenant_id=tenant_id, digest=artifact_digest(pointer))
            return Opened(content=read(stored), media_type=stored.media_type, checksum=f"sha256:{stored.digest}")
        case scheme:
            raise InvalidPointer(f"{scheme}: pointers are not read here; {INLINE}: and {ARTIFACT}: are.")


def shown(content: bytes, media_type: str) -> Any:
    """Bytes as an answer can carry them: JSON as itself, text as text, else `{"base64": …}`; None if too many."""
    if len(content) > MAX_SHOWN_BYTES:
        return None
    try:
        if media_type.partition(";")[0].strip() == "application/json":
            return json.loads(content)
        if media_type.startswith("text/"):
            return content.decode()
    except ValueError:
        pass  # it is not what it says it is: shown as bytes
    return {"base64": base64.b64encode(content).decode()}


def _task(task_ref: str) -> Task:
    task = (
        Task.objects.select_related("task_type", "queue", "requester", "recipient").filter(pk=task_of(task_ref)).first()
    )
    if task is None:
        raise UnknownTask(f"There is no task {task_ref}.")
    return task


def _runs(task_id: int) -> Any:
    first = run_key(task_id, 0)
    return Run.objects.filter(pk__gte=first, pk__lt=first + 2**FENCE_BITS).select_related("holder").order_by("pk")


def _ended(record: TerminalRecord, runs: list[Run]) -> dict[str, Any]:
    return {
        "status": Status(record.status),
        "complete": True,
        "run_id": record.fence,
        "failures": sum(run.outcome == Outcome.FAILED for run in runs),
        "expiries": sum(run.outcome == Outcome.EXPIRED for run in runs),
        "next_run_at": None,
        "lease_expires_at": None,
        "finished_at": record.finished_at,
        "reason": record.reason,
        "error": record.error,
        "result_pointer": record.result_pointer,
        "terminal_receipt_id": record.receipt_id,
    }


def _open(hot: HotTask, run: Run | None) -> dict[str, Any]:
    return {
        "status": open_status(
            leased=hot.holder_id is not None,
            ready=hot.ready_at is not None,
            scheduled=hot.due_at is not None,
            flags=hot.flags,
        ),
        "complete": False,
        "run_id": hot.fence,
        "failures": hot.failures,
        "expiries": hot.expiries,
        "next_run_at": hot.due_at,
        "lease_expires_at": hot.lease_expires_at,
        "finished_at": None,
        "reason": None,
        "error": run.error if run else None,
        "result_pointer": None,
        "terminal_receipt_id": None,
    }


def _events(task: Task) -> Iterator[Event]:
    yield Event(at=task.created_at, event="queued", detail={"receipt_id": task.receipt_id, "queue": task.queue.name})
    for run in _runs(task.pk):
        yield Event(at=run.started_at, event="leased", run_id=run.fence, holder=run.holder.name)
        if run.progressed_at is not None:
            yield Event(
                at=run.progressed_at,
                event="progress",
                run_id=run.fence,
                detail={"percent": run.percent, "message": run.message, "checkpoint": run.checkpoint is not None},
            )
        if run.ended_at is not None:
            yield Event(
                at=run.ended_at,
                event=f"run_{run.outcome}",
                run_id=run.fence,
                detail=None if run.error is None else {"error": run.error},
            )
    record = TerminalRecord.objects.filter(task_id=task.pk).first()
    if record is not None:
        yield Event(
            at=record.finished_at,
            event=record.status,
            run_id=record.fence or None,
            detail={"receipt_id": record.receipt_id, "result_pointer": record.result_pointer, "reason": record.reason},
        )
        if record.fetched_at is not None:
            yield Event(at=record.fetched_at, event="fetched")
