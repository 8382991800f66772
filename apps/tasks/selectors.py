"""Questions about tasks."""

import base64
import hashlib
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.core.files.storage import storages
from django.db import connection
from django.db.models import Exists, F, Lookup, Max, OuterRef, Q, QuerySet, Subquery, TextField, Value
from django.db.models.functions import Cast, Concat

from apps.core.charts import Period
from apps.core.errors import Conflict, NotFound, Unavailable
from apps.core.ids import format_ref
from apps.core.sql import database_now, execute, fetch
from apps.principals.models import Tenant
from apps.tasks import sql
from apps.tasks.lease_tokens import task_of
from apps.tasks.models import (
    RETRY_PREFIX,
    Artifact,
    Budget,
    Dependency,
    FinishedTask,
    IdempotencyKey,
    LiveTask,
    Queue,
    Run,
    Task,
    TaskType,
    retry_key,
    run_key,
)
from apps.tasks.results import (
    ARTIFACT,
    INLINE,
    InvalidPointer,
    UnknownArtifact,
    UnreadableResult,
    artifact_digest,
    inline_bytes,
    scheme_of,
)
from apps.tasks.shapes import (
    POLL_SECONDS,
    BudgetOutput,
    Progress,
    QueueFigures,
    QueueHealth,
    Spent,
    TaskResult,
    TaskStatus,
    TaskSummary,
    TimelineEvent,
)
from apps.tasks.states import BUDGET_SPENT, CANCEL_REQUESTED, FENCING_TOKEN_BITS, TERMINAL, Outcome, Status

# What is worth carrying in an answer; larger artifacts are fetched by their own route.
MAX_SHOWN_BYTES: Final = 1_048_576

PACE_WINDOW: Final = timedelta(minutes=5)
# Of all queues together.
ENDS_LOOKED_AT: Final = 10_000
TASKS_LOOKED_AT: Final = 5_000
NAMED_LOOKED_AT: Final = 200_000
_SUMMARY: Final = tuple(name for name in TaskSummary.model_fields if name != "task_id")


_TYPE_FIELDS: Final = [field.attname for field in TaskType._meta.concrete_fields]  # noqa: SLF001  # public, by name alone
_QUEUE_FIELDS: Final = [field.attname for field in Queue._meta.concrete_fields]  # noqa: SLF001  # as above
_SCHEMA: Final = _TYPE_FIELDS.index("params_schema")
# Indexes: tasks_tasktype_name_once, the queue's key.
_TYPES_NAMED: Final = f"""
select k.xmin || ':' || q.xmin, {", ".join(f"k.{name}" for name in _TYPE_FIELDS)},
       {", ".join(f"q.{name}" for name in _QUEUE_FIELDS)}
from tasks_tasktype k join tasks_queue q on q.id = k.queue_id
where k.tenant_id = %s and k.name = any(%s::text[])
"""  # noqa: S608  # names of columns


def types_named(*, tenant_id: int, names: Collection[str]) -> dict[str, TaskType]:
    """The tenant's types with these names, each with its queue."""
    found = {}
    for version, *row in fetch(_TYPES_NAMED, [tenant_id, list(names)], hot=True):
        values = row[: len(_TYPE_FIELDS)]
        values[_SCHEMA] = json.loads(values[_SCHEMA])
        task_type = TaskType.from_db(connection.alias, _TYPE_FIELDS, values)
        task_type.version = version
        task_type.queue = Queue.from_db(connection.alias, _QUEUE_FIELDS, row[len(_TYPE_FIELDS) :])
        found[task_type.name] = task_type
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Some runs of a task's timeline, with the task's beginning and end on the first and last page."""

    events: list[TimelineEvent]
    following: int | None
    """The run after which the next part begins; None: this is the last."""


def waits_for(task_id: int) -> list[int]:
    """The tasks that must end before an open one is ready."""
    awaited = Dependency.objects.filter(task_id=task_id).order_by("on_task_id")
    return list(awaited.values_list("on_task_id", flat=True))


def status(task_ref: str) -> TaskStatus:
    """:raises NotFound: `unknown_task` if there is no such task.

    :raises Malformed: if the text is no reference to a task.
    """
    task = _task(task_ref)
    standing = standings([task.pk])[task.pk]
    live, end, run, runs = standing.live, standing.end, standing.run, list(_runs(task.pk))
    return TaskStatus(
        task_id=str(task),
        task_type=task.task_type.name,
        status=standing.status,
        complete=end is not None,
        queue=task.queue.name,
        priority=task.priority,
        requested_by=task.requester.name,
        recipient_ai=task.recipient.name,
        run_id=standing.fencing_token,
        failures=live.failures if live else sum(run.outcome == Outcome.FAILED for run in runs),
        expiries=live.expiries if live else sum(run.outcome == Outcome.EXPIRED for run in runs),
        progress=Progress(percent=run.percent, message=run.message)
        if run is not None and (run.percent is not None or run.message)
        else None,
        created_at=task.created_at,
        waits_for=[format_ref("task", pk) for pk in waits_for(task.pk)] if live and live.open_dependencies else [],
        next_run_at=live and live.due_at,
        lease_expires_at=live and live.lease_expires_at,
        finished_at=end and end.finished_at,
        reason=end and end.reason,
        error=end.error if end else run and run.error,
        result_pointer=end and end.result_pointer,
        receipt_id=task.receipt_id,
        terminal_receipt_id=end and end.receipt_id,
        spent=Spent(
            tokens=sum(run.spent_tokens for run in runs), cost_usd=float(sum(run.spent_cost_usd for run in runs))
        ),
        budget=_budget(task.pk),
        poll_suggestion_seconds=POLL_SECONDS if live else None,
    )


_HELD: Final = Q(holder__isnull=False)
_STATUS_OF_LIVE: Final = {
    Status.LEASED: _HELD & Q(stopping=0),
    Status.CANCELING: _HELD & ~Q(stopping=0),
    Status.QUEUED: Q(holder=None, ready_at__isnull=False),
    Status.SCHEDULED: Q(holder=None, ready_at=None, due_at__isnull=False),
    Status.WAITING: Q(holder=None, ready_at=None, due_at=None),
}


@dataclass(slots=True)
class Standing:
    """What became of a task so far: its live row or its end, and its last run."""

    live: LiveTask | None = None
    end: FinishedTask | None = None
    run: Run | None = None

    @property
    def status(self) -> Status:
        if self.end is not None:
            return Status(self.end.status)
        return (self.live or LiveTask()).status

    @property
    def fencing_token(self) -> int:
        """The number of its last run."""
        return int(getattr(self.end or self.live, "fencing_token", 0))


def standings(task_ids: Collection[int]) -> dict[int, Standing]:
    """Of each of these tasks."""
    found = {pk: Standing() for pk in task_ids}
    for live in LiveTask.objects.filter(task_id__in=task_ids):
        found[live.task_id].live = live
    for end in FinishedTask.objects.filter(task_id__in=task_ids):
        found[end.task_id].live, found[end.task_id].end = None, end
    last = [run_key(pk, standing.fencing_token) for pk, standing in found.items()]
    for run in Run.objects.filter(pk__in=last).select_related("holder"):
        found[run.pk >> FENCING_TOKEN_BITS].run = run
    return found


class _AnyOf(Lookup):
    """As `in`, with one parameter for thousands of keys."""

    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        key, given = self.process_lhs(compiler, connection)
        return f"{key} = any(%s)", [*given, self.rhs]


def found(
    tasks: QuerySet[Task],
    *,
    status: str = "",
    within: timedelta | None = None,
    **parties: Collection[int],
) -> QuerySet[Task]:
    """The tasks of a status, that ended lately, and whose `queue`, `task_type` or `requester` is one of these.

    `open` is every status but the final ones, `overdue` a lease that has expired, `dead` a failure nobody has retried.
    Of ended tasks, it looks at those that ended last, of succeeded ones at the newest. Where only names narrow the
    search, it looks at the newest tasks; of open tasks, so it does for a requester alone.
    """
    named = {f"{name}__in": keys for name, keys in parties.items()}
    tasks = tasks.filter(**named)
    if within is not None or status in {"dead", *TERMINAL}:
        # Looked up before: the planner expects so many of a tenant's tasks that it would read them all.
        ended = rows(status=status, within=within).values_list("task_id", flat=True)
        if status == Status.SUCCEEDED and within is None:
            # No index has them by their end: who sees few of them would read the ends of all tenants.
            newest = _newest()
            ended = ended.filter(task_id__range=(newest - NAMED_LOOKED_AT, newest)).order_by("-task_id")
        ended = ended[:TASKS_LOOKED_AT]
        tasks = tasks.filter(_AnyOf(F("pk"), list(ended)))
        if status == "dead":
            key = Concat(Value(f"{RETRY_PREFIX}task_"), OuterRef("pk"), output_field=TextField())
            retried = IdempotencyKey.objects.filter(tenant=OuterRef("tenant"), principal=OuterRef("requester"), key=key)
            tasks = tasks.exclude(Exists(retried))
        return tasks
    if status:
        in_row = {name: keys for name, keys in named.items() if name != "requester__in"}
        tasks = tasks.filter(pk__in=rows(status=status).filter(**in_row).values("task_id"))
    if named if not status else "requester" in parties:
        tasks = tasks.filter(pk__gt=_newest() - NAMED_LOOKED_AT)
    return tasks


def _newest() -> int:
    """Asked tenant by tenant: who sees a tenant without tasks would look for one among all. Index: tasks_task_newest."""
    of_one = Task.objects.filter(tenant=OuterRef("pk")).order_by("-pk").values("pk")[:1]
    return Tenant.objects.aggregate(newest=Max(Subquery(of_one)))["newest"] or 0


def rows(*, status: str = "", within: timedelta | None = None) -> QuerySet[Any]:
    """The rows of open tasks, or of ended ones, that :func:`found` looks at. Counting them is cheaper than tasks."""
    if within is None and status not in {"dead", *TERMINAL}:
        stopping = F("flags").bitand(CANCEL_REQUESTED | BUDGET_SPENT)
        return LiveTask.objects.annotate(stopping=stopping).filter(_of_live(status))
    ended = FinishedTask.objects.order_by("-finished_at")
    if within is not None:
        ended = ended.filter(finished_at__gt=database_now() - within)
    return ended.filter(status=Status.FAILED if status == "dead" else status) if status else ended


def _of_live(status: str) -> Q:
    if status == "overdue":
        return _HELD & Q(lease_expires_at__lte=database_now())
    return Q() if status == "open" else _STATUS_OF_LIVE[Status(status)]


def saying(tasks: QuerySet[Task], words: Collection[str]) -> QuerySet[Task]:
    """Of the newest tasks, those with all these words in their params, summary and error."""
    newest = tasks.order_by("-pk").values("pk")[:TASKS_LOOKED_AT]
    told = FinishedTask.objects.filter(task_id=OuterRef("pk")).values(
        told=Concat("summary", Value(" "), Cast("error", TextField()), output_field=TextField())
    )
    text = Concat(Cast("params", TextField()), Value(" "), Subquery(told), output_field=TextField())
    found = tasks.filter(pk__in=newest).annotate(text=text)
    for word in words:
        found = found.filter(text__icontains=word)
    return found


def result(task_ref: str) -> TaskResult:
    """A finished task's result without the content of an artifact.

    :raises NotFound: `unknown_task` if there is no such task.
    :raises Conflict: `not_finished` if it is still open.
    """
    standing = standings([_task(task_ref).pk]).popitem()[1]
    if (record := standing.end) is None:
        raise Conflict(f"{task_ref} is {standing.status}.", task_status=standing.status, code="not_finished")
    shown = {name: getattr(record, name) for name in TaskResult.model_fields if name not in {"task_id", "complete"}}
    return TaskResult(task_id=task_ref, **shown)


def timeline(task_ref: str, *, after: int = 0, limit: int = 20) -> Story:
    """What happened to a task, in order: `limit` runs after a given one, each with all its events.

    :raises NotFound: `unknown_task` if there is no such task.
    """
    task = _task(task_ref)
    return story(task, standings([task.pk])[task.pk], after=after, limit=limit)


def story(task: Task, standing: Standing, *, after: int = 0, limit: int = 20) -> Story:
    """As :func:`timeline`, of a task that was looked up before, with what became of it."""
    runs = list(_runs(task.pk).filter(pk__gt=run_key(task.pk, min(after, 2**FENCING_TOKEN_BITS - 1)))[: limit + 1])
    shown, more = runs[:limit], len(runs) > limit
    live = standing.live
    events = [] if after else [_queued(task)]
    for run in shown:
        held = live if live is not None and live.fencing_token == run.fencing_token else None
        events += sorted(_of_run(run, held), key=lambda event: event.at)
    if more:
        return Story(events=events, following=shown[-1].fencing_token)
    return Story(events=events if standing.end is None else [*events, *_ending(standing.end)], following=None)


_HEALTH: Final = ("queue_id", *QueueHealth.model_fields)
_PACE: Final = [name for name in QueueFigures.model_fields if name not in {*_HEALTH, "dead_letters"}]


def queue_health(*, tenant_id: int | None, up_to: int | None = None) -> dict[int, QueueHealth]:
    """The queues of a tenant by their keys, sorted by name; without a tenant, all visible queues.

    :param up_to: how far what is queued or waits is counted; None: to the end.
    """
    given = {"tenant": tenant_id, "up_to": up_to}
    rows = [dict(zip(_HEALTH, row, strict=True)) for row in fetch(sql.QUEUE_HEALTH, given)]
    return {row.pop("queue_id"): QueueHealth(**row | {"rate": json.loads(row["rate"] or "null")}) for row in rows}


def queue_figures(*, tenant_id: int | None, up_to: int | None = None) -> dict[int, QueueFigures]:
    """Health, statistics and dead letters of every queue, as :func:`queue_health`; with `up_to`, no dead letters."""
    healths = queue_health(tenant_id=tenant_id, up_to=up_to)
    given = {"tenant": tenant_id, "since": database_now() - PACE_WINDOW, "limit": ENDS_LOOKED_AT}
    paces = {pk: dict(zip(_PACE, row, strict=True)) for pk, *row in fetch(sql.PACE, given, hot=True)}
    dead = {} if up_to is not None else dict(fetch(sql.DEAD_LETTERS, given))
    return {
        pk: QueueFigures(**health.model_dump(), **paces.get(pk, {}), dead_letters=dead.get(pk, 0))
        for pk, health in healths.items()
    }


# The last minute is in the history when the next tick has come after its ends are settled.
_IN_HISTORY_WITHIN: Final = timedelta(seconds=40)


def history(*, step: timedelta, steps: int, queue_id: int | None = None) -> list[Period]:
    """The last steps, of one queue or of all visible ones, up to the last minute that is in the history."""
    until = (database_now() - _IN_HISTORY_WITHIN).replace(second=0, microsecond=0)
    since = until - steps * step
    periods = [Period(at=since + n * step) for n in range(steps)]
    by_start = {period.at: period for period in periods}
    given: dict[str, Any] = {"since": since, "step": step, "queue": queue_id}
    for at, queue, ended, failed, queued in fetch(sql.HISTORY, given):
        if (period := by_start.get(at)) is not None:
            period.ended += ended
            period.failed += failed
            period.queued[queue] = period.queued.get(queue, 0) + queued
    return periods


def task_types(*, tenant_id: int) -> list[TaskType]:
    """Every type of the tenant with its queue, by name."""
    return list(TaskType.objects.filter(tenant_id=tenant_id).select_related("queue").order_by("name"))


def tasks_of(
    *, principal_id: int, before: int | None, limit: int, status: str | None, since: datetime | None, **fitting: Any
) -> tuple[list[TaskSummary], int | None]:
    """The tasks of which a principal is the requester or recipient and which fit, newest first, and where the next page
    begins.

    A page looks at a bounded number of the tenant's tasks. It may be short or empty although another follows.
    """
    kind = "failed" if status == Status.FAILED else "all" if status is None or status in TERMINAL else "open"
    given = {
        "principal": principal_id,
        "before": 2**63 - 1 if before is None else before,
        "looked_at": TASKS_LOOKED_AT,
        "limit": limit + 1,
        "status": status,
        "since": since,
        **fitting,
    }
    execute(sql.IN_ORDER)
    rows = fetch(sql.LISTED[kind], given)
    tasks = [
        TaskSummary(task_id=format_ref("task", pk), **dict(zip(_SUMMARY, rest, strict=True)))
        for pk, *rest in rows[:limit]
    ]
    if len(rows) > limit:
        return tasks, rows[limit - 1][0]
    ((looked_at, last, asked_at),) = fetch(sql.LOOKED_AT[kind], given)
    is_over = looked_at < TASKS_LOOKED_AT or (since is not None and asked_at < since)
    return tasks, None if is_over else last


def retried_as(task_id: int) -> int | None:
    """The task that retries this dead letter."""
    requester = Task.objects.filter(pk=task_id).values("requester_id")
    used = IdempotencyKey.objects.filter(principal_id__in=requester, key=retry_key(task_id))
    return used.values_list("task_id", flat=True).first()


def artifact(*, tenant_id: int, digest: str) -> Artifact:
    """:raises UnknownArtifact: if the tenant has stored no such bytes."""
    found = Artifact.objects.filter(tenant_id=tenant_id, digest=digest).first()
    if found is None:
        raise UnknownArtifact("There is no such artifact.")
    return found


def place_of(tenant_id: int, digest: str) -> str:
    """Where an artifact is in the storage."""
    return f"{tenant_id}/{digest[:2]}/{digest}"


def read(stored: Artifact) -> bytes:
    """An artifact's bytes, checked against their digest. Waits for the storage, not for the database.

    :raises Unavailable: `artifacts_unavailable` if the storage fails or holds something else.
    """
    with _opened(stored) as file:
        content: bytes = file.read()
    if hashlib.sha256(content).hexdigest() != stored.digest:
        raise Unavailable(
            "The storage of artifacts holds something else under this name.", code="artifacts_unavailable"
        )
    return content


@contextmanager
def _opened(stored: Artifact) -> Iterator[Any]:
    try:
        with storages["artifacts"].open(place_of(stored.tenant_id, stored.digest)) as file:
            yield file
    except OSError as exc:
        raise Unavailable("The storage of artifacts does not answer just now.", code="artifacts_unavailable") from exc


def located(found: TaskResult, *, tenant_id: int) -> bytes | Artifact:
    """Where :func:`read_part` reads a result: its bytes, or its artifact.

    :raises UnreadableResult: if there is none, or it is where this deployment does not read.
    :raises UnknownArtifact: if the artifact is gone.
    """
    pointer = found.result_pointer or ""
    match scheme_of(pointer) if pointer else "":
        case "inline":
            return inline_bytes(found.content)
        case "artifact":
            return artifact(tenant_id=tenant_id, digest=artifact_digest(pointer))
        case _:
            raise UnreadableResult("This deployment does not read what this result's pointer points to.")


def read_part(place: bytes | Artifact, *, offset: int, limit: int) -> bytes:
    """A part of a result's bytes. Waits for a disk, not for the database.

    :raises Unavailable: `artifacts_unavailable` if the storage fails.
    """
    if isinstance(place, bytes):
        return place[offset : offset + limit]
    with _opened(place) as file:
        file.seek(offset)
        part: bytes = file.read(limit)
        return part


def content_of(stored: Artifact) -> Any:
    """An artifact as JSON shows it: JSON as itself, text as text, else `{"base64": …}`; None over 1 MiB.

    :raises Unavailable: `artifacts_unavailable` if the storage fails.
    """
    if stored.size > MAX_SHOWN_BYTES:
        return None
    content = read(stored)
    try:
        if stored.media_type.partition(";")[0].strip() == "application/json":
            return json.loads(content)
        if stored.media_type.startswith("text/"):
            return content.decode()
    except ValueError:
        pass  # it is not what it says it is: shown as bytes
    return {"base64": base64.b64encode(content).decode()}


def open_pointer(pointer: str, *, tenant_id: int) -> bytes:
    """The bytes that an `inline:` or `artifact:` pointer of this tenant points to.

    :raises InvalidPointer: if it is of another kind, which this deployment does not read.
    :raises NotFound: `unknown_task` if it is inline and there is no such task.
    :raises Conflict: `not_finished` if it is inline and the task is open.
    :raises UnknownArtifact: if there is no such artifact.
    """
    match scheme_of(pointer):
        case "inline":
            task_id = task_of(pointer.removeprefix(f"{INLINE}:"))
            found = result(format_ref("task", task_id))
            if found.result_pointer != pointer:
                raise InvalidPointer("This task's result is not inline.")
            return inline_bytes(found.content)
        case "artifact":
            return read(artifact(tenant_id=tenant_id, digest=artifact_digest(pointer)))
        case scheme:
            raise InvalidPointer(f"{scheme}: pointers are not read here; {INLINE}: and {ARTIFACT}: are.")


def _task(task_ref: str) -> Task:
    task = (
        Task.objects.select_related("task_type", "queue", "requester", "recipient").filter(pk=task_of(task_ref)).first()
    )
    if task is None:
        raise NotFound(f"There is no task {task_ref}.", code="unknown_task")
    return task


def _budget(task_id: int) -> BudgetOutput | None:
    budget = Budget.objects.filter(task_id=task_id).first()
    if budget is None:
        return None
    return BudgetOutput(
        tokens=budget.max_tokens,
        cost_usd=None if budget.max_cost_usd is None else float(budget.max_cost_usd),
        spent=Spent(tokens=budget.spent_tokens, cost_usd=float(budget.spent_cost_usd)),
        spent_at=budget.spent_at,
    )


def _runs(task_id: int) -> Any:
    first = run_key(task_id, 0)
    return (
        Run.objects.filter(pk__gte=first, pk__lt=first + 2**FENCING_TOKEN_BITS).select_related("holder").order_by("pk")
    )


def _queued(task: Task) -> TimelineEvent:
    return TimelineEvent(
        at=task.created_at,
        event="queued",
        detail={
            "receipt_id": task.receipt_id,
            "caused_by": task.caused_by,
            "queue": task.queue.name,
            "requested_by": task.requester.name,
            "run_at": None if task.run_at is None else task.run_at.isoformat(),
        },
    )


def _of_run(run: Run, held: LiveTask | None) -> Iterator[TimelineEvent]:
    """The events of a run. Of its heartbeats only the last one is known, while the lease lasts."""
    told, where = partial(TimelineEvent, run_id=run.fencing_token), {"host": run.host} if run.host else None
    yield told(at=run.started_at, event="leased", holder=run.holder.name, detail=where)
    if run.progressed_at is not None:
        detail = {
            "percent": run.percent,
            "message": run.message,
            "checkpoint": run.checkpoint is not None,
            "spent": {"tokens": run.spent_tokens, "cost_usd": float(run.spent_cost_usd)},
        }
        yield told(at=run.progressed_at, event="progress", detail=detail)
    if held is not None and held.lease_expires_at is not None:
        renewed_at = held.lease_expires_at - timedelta(seconds=held.lease_seconds)
        if renewed_at > run.started_at:
            yield told(at=renewed_at, event="heartbeat", holder=run.holder.name)
    if run.ended_at is not None:
        yield told(at=run.ended_at, event=f"run_{run.outcome}", detail=run.error and {"error": run.error})


def _ending(record: FinishedTask) -> Iterator[TimelineEvent]:
    yield TimelineEvent(
        at=record.finished_at,
        event=record.status,
        run_id=record.fencing_token or None,
        detail={"receipt_id": record.receipt_id, "result_pointer": record.result_pointer, "reason": record.reason},
    )
    if record.fetched_at is not None:
        yield TimelineEvent(at=record.fetched_at, event="fetched")
