"""Questions about executions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any, TypeVar

from django.db.models import Exists, OuterRef, QuerySet, Window
from django.db.models.functions import RowNumber

from apps.core.errors import FieldError
from apps.core.ids import parse_ref
from apps.executions import reports
from apps.executions.errors import AheadOfExecution, StepNotOpen, UnknownExecution, UnknownStep
from apps.executions.models import BegunJob, Execution, ExecutionStep
from apps.executions.reports import Line
from apps.executions.sql import GATEHOUSE_NOW
from apps.executions.states import Status, StepStatus, Strategy
from apps.plans import selectors as plans
from apps.plans.shapes import StepType
from apps.principals.models import TenantModel
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller
from apps.receipts import selectors as receipts
from apps.receipts.errors import UnknownReceipt
from apps.tasks.models import TerminalRecord
from apps.workers.models import Offer

M = TypeVar("M", bound=TenantModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One step as its owner sees it."""

    step_id: str
    step_type: str
    status: str
    worker_id: str | None
    tool_name: str | None
    depends_on: list[str]
    task_id: str | None
    receipt_id: str | None
    attempts: int
    cost: float
    envelope: dict[str, Any] | None
    started_at: datetime | None
    ended_at: datetime | None
    ended_nth: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An execution and what has come of it so far."""

    execution_id: str
    plan_id: str
    status: Status
    mode: str
    strategy: str
    intent: str
    summary: str
    results: list[dict[str, Any]]
    report: dict[str, Any] | None
    next_actions: list[str]
    steps: list[StepView]
    steps_complete: int
    steps_total: int
    total_cost: Decimal
    currency: str
    receipt_id: str
    terminal_receipt_id: str | None
    created_at: datetime
    ended_at: datetime | None
    lines: list[Line]

    @property
    def direct_results(self) -> list[dict[str, Any]]:
        """The results of steps that were called directly, each with what its tool answered, if it is small, and where it is."""
        return [
            {
                **(line.payload if isinstance(line.payload, dict) else {}),
                "step_id": line.step_id,
                "result_pointer": line.result_pointer,
            }
            for line in self.lines
            if line.step_type == StepType.CALL_WORKER and line.status == StepStatus.COMPLETE and not line.task_id
        ]

    @property
    def async_tasks(self) -> list[dict[str, Any]]:
        return [{"step_id": line.step_id, "task_id": line.task_id} for line in self.lines if line.task_id]

    @property
    def escalation(self) -> dict[str, Any] | None:
        """What a step of this execution asks somebody else to take on."""
        for line in self.lines:
            if line.escalation:
                return dict(line.escalation)
        return None


def execution_of(caller: Caller, ref: str) -> Execution:
    """:raises UnknownExecution: if the caller has none of this reference."""
    found = Execution.objects.of(caller.principal_id).filter(pk=parse_ref("exec", ref)).select_related("owner").first()
    if found is None:
        raise UnknownExecution(f"There is no execution {ref[:40]!r}.")
    return found


def report(caller: Caller, ref: str) -> Report:
    """The completion report, at any time.

    :raises UnknownExecution: if the caller has none of this reference.
    """
    return report_on(execution_of(caller, ref))


def report_of_plan(caller: Caller, plan_id: str) -> Report | None:
    """The report on a plan's execution; None if the caller has not begun to carry it out."""
    found = Execution.objects.of(caller.principal_id).filter(plan_id=plan_id).select_related("owner").first()
    return None if found is None else report_on(found)


def report_on(execution: Execution) -> Report:
    steps = list(execution.steps.order_by("position"))
    for step in steps:
        step.execution = execution
    lines = [step.line for step in steps]
    status = Status(execution.status)
    return Report(
        execution_id=execution.ref,
        plan_id=execution.plan_id,
        status=status,
        mode=execution.mode,
        strategy=execution.strategy,
        intent=execution.intent,
        summary=reports.summary(execution.intent, status, lines, halted_why=execution.halted_why),
        results=reports.results(lines),
        report=reports.final_report(lines),
        next_actions=reports.next_actions(
            execution.ref, status, lines, is_delegate=execution.owner.kind == Kind.DELEGATE
        ),
        steps=[_view(step) for step in steps],
        steps_complete=sum(step.status == StepStatus.COMPLETE for step in steps),
        steps_total=len(steps),
        total_cost=execution.total_cost,
        currency=execution.currency,
        receipt_id=execution.plan_receipt_id,
        terminal_receipt_id=execution.terminal_receipt_id,
        created_at=execution.created_at,
        ended_at=execution.ended_at,
        lines=lines,
    )


def _view(step: ExecutionStep) -> StepView:
    return StepView(
        step_id=step.step_id,
        step_type=step.step_type,
        status=step.status,
        worker_id=step.worker_id,
        tool_name=step.tool_name,
        depends_on=step.depends_on,
        task_id=step.task_ref,
        receipt_id=step.receipt_id,
        attempts=step.attempts,
        cost=float(step.cost),
        envelope=step.envelope,
        started_at=step.started_at,
        ended_at=step.ended_at,
        ended_nth=step.ended_nth,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is to be told of an execution to who follows it: steps that have ended, in turn, each with its number."""

    execution_id: str | None
    status: str
    steps: list[tuple[int, dict[str, Any]]]
    steps_complete: int
    steps_total: int


def told_of_plan(caller: Caller, plan_id: str, *, after: int) -> Told:
    """The steps of a plan's execution that ended after so many others.

    Of a progressive execution each step is told as it ends; of another all are, when it is over.

    :raises UnknownPlan: if the caller has no such plan.
    :raises AheadOfExecution: if fewer have ended.
    """
    execution = Execution.objects.of(caller.principal_id).filter(plan_id=plan_id).first()
    steps = [] if execution is None else list(execution.steps.order_by("position"))
    if execution is None:
        plans.plan_for(plan_id, caller=caller)
    ended = sorted([(step.ended_nth, step.line) for step in steps if step.ended_nth is not None], key=itemgetter(0))
    if after > len(ended):
        fault = f"is ahead of this execution, of which {len(ended)} steps have ended"
        raise AheadOfExecution(f"{after} {fault}.", errors=[FieldError("/after", fault)])
    is_told = execution is not None and (execution.is_final or execution.strategy == Strategy.PROGRESSIVE)
    return Told(
        execution_id=None if execution is None else execution.ref,
        status="not_started" if execution is None else execution.status,
        steps=[(nth, reports.result(line)) for nth, line in ended if is_told and nth > after],
        steps_complete=sum(step.status == StepStatus.COMPLETE for step in steps),
        steps_total=len(steps),
    )


def executions(caller: Caller, *, before: int | None = None, limit: int) -> list[Execution]:
    """What the caller may see, what it owns and what it asked for, newest first.

    :param before: the key of the last one of the page before.
    """
    found = Execution.objects.all() if before is None else Execution.objects.filter(pk__lt=before)
    # Apart, so that each is read by its own index.
    owned = found.filter(owner_id=caller.principal_id).order_by("-id")[:limit]
    asked_for = found.filter(requested_by_id=caller.principal_id).order_by("-id")[:limit]
    return list(owned.union(asked_for).order_by("-id")[:limit])


def due(*, limit: int) -> list[tuple[int, int]]:
    """Executions that can go on though perhaps nobody said so, as (tenant, execution). Tenants take turns, each with those
    that have waited longest.
    """
    ended = TerminalRecord.objects.filter(task_id=OuterRef("task_id"))
    steps = ExecutionStep.objects.filter(Exists(ended), status=StepStatus.QUEUED)
    by_task = Execution.objects.open().filter(pk__in=steps.values("execution_id"))
    by_clock = Execution.objects.open().filter(wake_at__lte=GATEHOUSE_NOW)
    found = _in_turn(by_clock, by="wake_at", limit=limit) + _in_turn(by_task, by="pk", limit=limit)
    found.sort(key=itemgetter(0))
    return list(dict.fromkeys((tenant_id, pk) for _, tenant_id, pk in found))[:limit]


def unwanted_jobs(*, limit: int) -> list[tuple[int, int]]:
    """Jobs whose workers are to be told now that nobody wants them any more, as (tenant, begun job). Tenants take turns."""
    unwanted = BegunJob.objects.unwanted().filter(next_at__lte=GATEHOUSE_NOW)
    return [(tenant_id, pk) for _, tenant_id, pk in _in_turn(unwanted, by="next_at", limit=limit)]


def _in_turn(found: QuerySet[M], *, by: str, limit: int) -> list[tuple[int, int, int]]:
    """Of each tenant the first, then of each the next, as (turn, tenant, row): one that has many keeps nobody waiting.

    :param by: the field that says which is first.
    """
    turn = Window(RowNumber(), partition_by="tenant_id", order_by=[by, "pk"])
    return list(found.annotate(turn=turn).order_by("turn", by, "pk").values_list("turn", "tenant_id", "pk")[:limit])


def execution_of_task(task_id: int) -> int | None:
    """The execution whose step waits for this task."""
    return (
        ExecutionStep.objects.filter(task_id=task_id, status=StepStatus.QUEUED)
        .values_list("execution_id", flat=True)
        .first()
    )


def missing_receipts(references: Sequence[str], *, recipient_id: int) -> list[str]:
    """Which of these receipts the principal has not received."""
    missing = []
    for reference in references:
        try:
            receipts.find_for(reference, principal_id=recipient_id)
        except UnknownReceipt:
            missing.append(reference)
    return missing


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    """A step's task that is over: how, and where its result is."""

    task_id: int
    result_pointer: str | None


def tasks_never_run(task_ids: Collection[int]) -> frozenset[int]:
    """Those of some tasks that have ended before anybody had begun them."""
    if not task_ids:
        return frozenset()
    ended = TerminalRecord.objects.filter(task_id__in=task_ids, fence=0)
    return frozenset(ended.values_list("task_id", flat=True))


def ended_tasks(execution_id: int) -> list[EndedTask]:
    """The tasks of this execution that are over while their steps still wait."""
    waiting = ExecutionStep.objects.filter(execution_id=execution_id, status=StepStatus.QUEUED).values("task_id")
    found = TerminalRecord.objects.filter(task_id__in=waiting).order_by("task_id")
    return [EndedTask(task_id=record.task_id, result_pointer=record.result_pointer) for record in found]


def refuse_unless_open(caller: Caller, ref: str, step_id: str) -> None:
    """Refuse early what would be refused under the lock anyway, before anything is stored for it.

    :raises UnknownExecution: if the caller has no such execution.
    :raises UnknownStep: if the plan has no such step.
    :raises StepNotOpen: if nothing was ever asked of the caller for this step.
    """
    asked = ExecutionStep.objects.select_related("execution")
    step = asked.filter(execution=execution_of(caller, ref), step_id=step_id).first()
    if step is None:
        raise UnknownStep(f"{ref} has no step {step_id[:100]!r}.")
    if step.receipt_id is None:
        raise StepNotOpen(step.in_words, step_status=step.status)


def only_tool_of(worker_id: str) -> str | None:
    """The tool that a call of this worker can only mean; None if it has several, or none."""
    names = Offer.objects.standing().filter(worker__worker_id=worker_id).values_list("name", flat=True)[:2]
    return names[0] if len(names) == 1 else None
