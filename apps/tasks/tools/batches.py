"""AsyncGate's verbs for many tasks at once: one transaction, and an answer or a named refusal for each."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from pydantic import Field

from apps.core.errors import DomainError
from apps.core.operations import Route, operation
from apps.core.schemas import Input, Output
from apps.principals.tenancy import Caller
from apps.tasks import services
from apps.tasks.services import Completion, QueuedTask, Verdict
from apps.tasks.tools.verbs import (
    QUEUE,
    WORK,
    FailTask,
    LeasedTask,
    LeasesNext,
    QueueTask,
    ReleaseTask,
    TaskCompletion,
    completion_of,
    failed_run_of,
    leased,
    released_of,
    request_of,
)

_LARGE_BODY = 8 * 1024 * 1024


class Fault(Output):
    pointer: str
    message: str


class Verdictable(Output):
    """What became of one of many. Of a refused one `code` and `detail` say why, as an error of the single verb would."""

    status: str
    """The task's; `refused` where nothing was done."""
    code: str | None = None
    detail: str | None = None
    reason: str | None = None
    """Of a lost lease: how it was lost."""
    errors: list[Fault] = Field(default_factory=list)


class QueueTasks(Input):
    tasks: Annotated[list[QueueTask], Field(min_length=1, max_length=1000)]


class QueuedOne(Verdictable):
    task_id: str | None = None
    is_duplicate: bool = False
    receipt_id: str | None = None
    existing_task_id: str | None = None
    """The task that the idempotency key stands for already."""


class QueuedTasks(Output):
    results: list[QueuedOne]
    """One per task, in the order given."""


@operation(
    title="Queue many tasks",
    scope=QUEUE,
    routes=[Route("POST", "/api/v1/tasks/batch", max_body=_LARGE_BODY)],
)
def queue_tasks(caller: Caller, given: QueueTasks) -> QueuedTasks:
    """Hand over up to 1,000 tasks at once, as queue_task does one: each is answered or refused by itself. Give each an
    idempotency_key when you may have to ask twice."""
    answers = services.queue_many(requester=caller, requests=[request_of(one) for one in given.tasks])
    return QueuedTasks(results=[_queued(answer) for answer in answers])


def _queued(answer: QueuedTask | DomainError) -> QueuedOne:
    if isinstance(answer, DomainError):
        return QueuedOne(**_refused(answer).model_dump(), existing_task_id=answer.extra.get("existing_task_id"))
    return QueuedOne(
        status=answer.status,
        task_id=answer.task_id,
        is_duplicate=answer.is_duplicate,
        receipt_id=answer.receipt_id,
    )


class CompleteTasks(LeasesNext):
    completions: Annotated[list[TaskCompletion], Field(min_length=1, max_length=500)]


class EndedOne(Verdictable):
    task_id: str
    receipt_id: str | None = None


class CompletedTasks(Output):
    results: list[EndedOne]
    """One per completion, in the order given."""
    next: list[LeasedTask]


@operation(
    title="Complete many tasks",
    scope=WORK,
    routes=[Route("POST", "/api/v1/tasks/complete", max_body=_LARGE_BODY)],
    idempotent=True,
    own_transactions=True,
)
def complete_tasks(caller: Caller, given: CompleteTasks) -> CompletedTasks:
    """End several tasks that you hold, as complete_task does one, and lease others in the same answer. A lost lease
    among them is refused by itself and hinders none of the others. Safe to repeat."""
    prepared = [_prepared(caller, one) for one in given.completions]
    ready = [one for one in prepared if isinstance(one, Completion)]
    with caller.acting():
        completed = services.complete_many(worker=caller, completions=ready, lease_next=given.wanted())
    answers = iter(completed.answers)
    results = [one if isinstance(one, DomainError) else next(answers) for one in prepared]
    return CompletedTasks(
        results=[
            EndedOne(**_refused(answer).model_dump(), task_id=one.task_id)
            if isinstance(answer, DomainError)
            else EndedOne(**asdict(answer))
            for one, answer in zip(given.completions, results, strict=True)
        ],
        next=[leased(grant) for grant in completed.following],
    )


def _prepared(caller: Caller, given: TaskCompletion) -> Completion | DomainError:
    try:
        return completion_of(caller, given)
    except DomainError as refusal:
        return refusal


class FailTasks(Input):
    failures: Annotated[list[FailTask], Field(min_length=1, max_length=500)]


class RunEnded(EndedOne):
    will_retry: bool = False
    retry_at: datetime | None = None


class RunsEnded(Output):
    results: list[RunEnded]
    """One per run, in the order given."""


@operation(
    title="Fail many tasks",
    scope=WORK,
    routes=[Route("POST", "/api/v1/tasks/fail", max_body=_LARGE_BODY)],
    idempotent=True,
)
def fail_tasks(caller: Caller, given: FailTasks) -> RunsEnded:
    """Say of several tasks that you hold that this run has failed, as fail_task does of one. A lost lease among them is
    refused by itself and hinders none of the others. Safe to repeat."""
    answers = services.fail_many(worker=caller, failures=[failed_run_of(one) for one in given.failures])
    return RunsEnded(results=_runs_ended([one.task_id for one in given.failures], answers))


class ReleaseTasks(Input):
    releases: Annotated[list[ReleaseTask], Field(min_length=1, max_length=500)]


@operation(
    title="Release many tasks",
    scope=WORK,
    routes=[Route("POST", "/api/v1/tasks/release")],
    idempotent=True,
)
def release_tasks(caller: Caller, given: ReleaseTasks) -> RunsEnded:
    """Give several tasks back untouched, as when you are to drain or stop: no attempt is counted. A lost lease among
    them is refused by itself and hinders none of the others. Safe to repeat."""
    answers = services.release_many(worker=caller, releases=[released_of(one) for one in given.releases])
    return RunsEnded(results=_runs_ended([one.task_id for one in given.releases], answers))


def _runs_ended(task_ids: Sequence[str], answers: Sequence[Verdict | DomainError]) -> list[RunEnded]:
    return [
        RunEnded(**_refused(answer).model_dump(), task_id=task_id)
        if isinstance(answer, DomainError)
        else RunEnded(**asdict(answer))
        for task_id, answer in zip(task_ids, answers, strict=True)
    ]


def _refused(refusal: DomainError) -> Verdictable:
    return Verdictable(
        status="refused",
        code=refusal.code,
        detail=refusal.detail,
        reason=refusal.extra.get("reason"),
        errors=[Fault(pointer=error.pointer, message=error.message) for error in refusal.errors],
    )
