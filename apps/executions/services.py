"""Commands of executions: start, advance, submit a result, decide, cancel, replan.

Locks are taken in the order execution, steps, then what lies below. No transaction is open during a call of a worker.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import Any, Final, Literal, Self

import structlog
from django.db import IntegrityError, transaction

from apps.core import notifications, strict_json
from apps.core.errors import Conflict, DomainError, Forbidden, Invalid, NotFound, Unavailable
from apps.core.ids import parse_ref, random_id
from apps.core.lexical import words
from apps.core.sql import GATEHOUSE_NOW, database_now, retried, violated_constraint
from apps.digests import services as digests
from apps.executions import calls, reports, routing, selectors
from apps.executions.calls import Called, Target
from apps.executions.errors import (
    NEEDS_ESCALATION,
    OUTCOME_UNKNOWN,
    CallCanceled,
    UnusableAnswer,
    WorkerAway,
    WorkerCallFailed,
    WorkerRefused,
    WorkerUnavailable,
)
from apps.executions.models import Execution, ExecutionStep
from apps.executions.routing import Moves, next_moves
from apps.executions.states import MONEY, SETTLED, Mode, Status, StepStatus, Strategy
from apps.executions.wakeups import execution_topic, wake_after_commit
from apps.memory import services as memory
from apps.plans import selectors as plans
from apps.plans import services as planning
from apps.plans.models import Plan
from apps.plans.shapes import WORKER_STEPS, Budget, StepType, tighter
from apps.principals.models import Principal
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_in, on_behalf_of
from apps.receipts.models import Surface
from apps.receipts.services import ObligationDraft, Poster, ReceiptDraft
from apps.tasks.models import FinishedTask
from apps.tasks.services import queueing
from apps.tasks.services.running import cancel_many
from apps.tasks.shapes import QueueTask
from apps.tasks.states import Status as TaskStatus
from apps.workers import selectors as workers
from apps.workers import services as registry
from apps.workers.models import UnknownWorker, WorkerRateLimited

_STEP_FIELDS: Final = [
    "status", "attempts", "call_expires_at", "repeatable", "away_looks", "retry_at", "task_id", "receipt_id", "envelope",
    "cost", "started_at", "ended_at",
]  # fmt: skip


@dataclass(slots=True)
class UnitOfWork:
    """The execution and its steps, locked in this order until the transaction ends. `now` is the database's clock."""

    execution: Execution
    steps: list[ExecutionStep]
    now: datetime
    owner: Caller
    claims: list[tuple[ExecutionStep, Target]] = field(default_factory=list)
    """The worker steps claimed in this transaction, to be carried out after the commit."""
    charges: dict[int, Decimal] = field(default_factory=dict)
    """The charges of this transaction for calls, by the steps' keys."""
    caller_id: int | None = None
    """The principal whose own call this is, who needs no notification of an end that it causes."""
    newly_halted: bool = False
    _changed: dict[int, ExecutionStep] = field(default_factory=dict)
    _drafts: list[ReceiptDraft] = field(default_factory=list)

    @classmethod
    def of(cls, execution_id: int, *, skip_locked: bool = False, caller: Caller | None = None) -> Self | None:
        """Lock and read; None if there is no such execution, or with `skip_locked` if it is locked."""
        execution = (
            Execution.objects.select_for_update(no_key=True, of=("self",), skip_locked=skip_locked)
            .select_related("owner__tenant", "owner__parent", "requested_by")
            .filter(pk=execution_id)
            .first()
        )
        if execution is None:
            return None
        steps = list(execution.steps.select_for_update(no_key=True).order_by("position"))
        for step in steps:
            step.execution = execution
        caller_id = None if caller is None else caller.principal_id
        return cls(execution, steps, database_now(), on_behalf_of(execution.owner), caller_id=caller_id)

    def step(self, step_id: str) -> ExecutionStep:
        """:raises NotFound: if the plan has no step of this id (`unknown_step`)."""
        for step in self.steps:
            if step.step_id == step_id:
                return step
        raise NotFound(f"{self.execution} has no step {step_id[:100]!r}.", code="unknown_step")

    def readable(self, step: ExecutionStep, name: str) -> str | None:
        """A text of the step's definition for readers, with its references replaced."""
        text = step.definition.get(name)
        return None if text is None else routing.readable(text, envelopes=self.envelopes)

    @property
    def envelopes(self) -> dict[str, dict[str, object]]:
        """The envelopes of complete steps."""
        return {step.step_id: step.envelope for step in self.in_state(StepStatus.COMPLETE) if step.envelope}

    def in_state(self, *statuses: StepStatus) -> list[ExecutionStep]:
        return [step for step in self.steps if step.status in statuses]

    @property
    def expired_claims(self) -> list[ExecutionStep]:
        """Steps whose claims were not renewed in time: their processes are gone."""
        return [
            step
            for step in self.in_state(StepStatus.CALLING)
            if step.call_expires_at is not None and step.call_expires_at <= self.now
        ]

    def touch(self, step: ExecutionStep) -> None:
        """Have the step written back."""
        self._changed[step.pk] = step

    def settle(self, step: ExecutionStep, status: StepStatus) -> None:
        step.move_to(status)
        step.ended_at = self.now
        step.retry_at = None
        self.touch(step)

    def unclaim(self, step: ExecutionStep) -> None:
        """Refund a claim of this transaction, which has called no tool."""
        if any(claimed is step for claimed, _ in self.claims):
            self.claims = [claim for claim in self.claims if claim[0] is not step]
            step.attempts -= 1
            if step.attempts == 0:
                step.started_at = None
            self.refund(step, self.charges.pop(step.pk, Decimal(0)))

    def refund(self, step: ExecutionStep, cost: Decimal) -> None:
        """Undo the charge for a call that certainly did not run."""
        step.cost -= cost
        self.execution.total_cost -= cost
        self.touch(step)

    def halt(self, status: Status, why: str = "") -> None:
        """Begin nothing more. The first reason stands, except that a cancel replaces it."""
        if self.execution.halted_as is None or status == Status.CANCELED != self.execution.halted_as:
            self.execution.halted_as = status
            self.execution.halted_why = why
            self.execution.halted_by_id = self.caller_id
            self.newly_halted = True

    def add_receipt(self, draft: ReceiptDraft) -> str:
        """Have a receipt posted at the end; returns its future id.

        Changes of tasks come first: nobody waits for a task while holding an inbox lock.
        """
        receipt_id = random_id("rcpt")
        self._drafts.append(replace(draft, receipt_id=receipt_id))
        return receipt_id

    def post(self) -> None:
        """Post the receipts of this transaction; after this no task may be changed."""
        drafts, self._drafts = self._drafts, []
        if not drafts:
            return
        for answer in digests.post_many(poster=Poster.of(self.owner), drafts=drafts, now=self.now):
            if isinstance(answer, DomainError):
                raise answer

    def save(self) -> None:
        """Post the remaining receipts, write the changes, and notify followers."""
        self.post()
        if self._changed:
            ExecutionStep.objects.bulk_update(self._changed.values(), _STEP_FIELDS)
        self.execution.save()
        progressive = self.execution.strategy == Strategy.PROGRESSIVE
        if self.execution.is_final or any(
            step.is_asked or (progressive and step.status in SETTLED) for step in self._changed.values()
        ):
            topic = execution_topic(self.execution.tenant_id, self.execution.plan_id)
            transaction.on_commit(partial(notifications.notify, topic), robust=True)


# The receipts of an execution: requests to its principal, their completion, and the end.

SOURCE: Final = "executions"
_EVENTS: Final = {
    Status.COMPLETE: "plan_complete",
    Status.PARTIAL: "plan_complete",
    Status.FAILED: "plan_failed",
    Status.BUDGET_EXCEEDED: "plan_failed",
    Status.CANCELED: "plan_canceled",
}
_TITLE: Final = 200


def request_result(work: UnitOfWork, step: ExecutionStep) -> str:
    """Ask the owner to combine results."""
    execution = work.execution
    wanted = step.definition.get("aggregate_step_ids") or step.depends_on
    instructions = work.readable(step, "synthesis_instructions")
    return _add(
        work,
        "aggregate_requested",
        step=step,
        title=f"Combine the results: {execution.intent}",
        summary=instructions or "Combine the results of the plan's steps.",
        metadata={
            "synthesis_instructions": instructions,
            "results": reports.results_for_receipt(work.steps, wanted),
        },
        suggested_next_step=f'submit_step_result(execution_id="{execution.ref}", step_id="{step.step_id}", result={{…}}, summary=…)',
        owed=True,
    )


def request_decision(work: UnitOfWork, step: ExecutionStep) -> str:
    """Ask the owner to decide."""
    execution = work.execution
    return _add(
        work,
        "escalation",
        step=step,
        title=f"Decide: {execution.intent}",
        summary=work.readable(step, "report_summary") or "The plan needs a decision.",
        metadata={
            "decision_required": True,
            "recommendation": work.readable(step, "recommendation"),
            "results": reports.results_for_receipt(work.steps),
        },
        suggested_next_step=f'decide_step(execution_id="{execution.ref}", step_id="{step.step_id}", decision="accept" | "reject"), by call_tool',
        owed=True,
    )


def report_upward(work: UnitOfWork, step: ExecutionStep) -> str | None:
    """Report to the principal that asked the owner, else to the owner's parent; None if there is neither."""
    execution = work.execution
    asker = execution.requested_by
    superior: Principal | None = execution.owner.parent if asker == execution.owner else asker
    if superior is None:
        return None
    lost = work.in_state(StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELED)
    summary = None if lost else work.readable(step, "report_summary")
    status = Status.PARTIAL if lost else Status.COMPLETE
    return _add(
        work,
        "escalation",
        step=step,
        title=f"Report: {execution.intent}",
        summary=summary or reports.summary(execution.intent, status, work.steps),
        metadata={
            "decision_required": False,
            "recommendation": work.readable(step, "recommendation"),
            "original_receipt": execution.plan_receipt_id,
        },
        recipient_id=superior.pk,
        dedupe_key=f"escalation:report:{execution.plan_receipt_id}:{step.step_id}",
    )


def raise_alarm(work: UnitOfWork, step: ExecutionStep) -> str:
    """Tell the owner at once that a critical step failed."""
    error = step.error or {}
    return _add(
        work,
        "escalation",
        step=step,
        key="failed",
        title=f"Failed: {work.execution.intent}",
        summary=f"{step.step_id} failed: {error.get('message', 'no reason given')}",
        metadata={"error": error},
    )


def close_obligation(work: UnitOfWork, step: ExecutionStep, *, event_type: str, summary: str) -> None:
    """Close the obligation of the step's receipt: it was fulfilled, or is not wanted any more."""
    if step.receipt_id is None:
        return
    _add(
        work,
        event_type,
        step=step,
        title=None,
        summary=summary,
        metadata={"status": step.status},
        caused_by=step.receipt_id,
        pairs_with=step.receipt_id,
        surface=Surface.LEDGER,
    )


def announce_end(work: UnitOfWork, status: Status) -> str:
    """Close the plan's obligation with a receipt for the principal that asked for the plan.

    The receipt of a complete plan goes to the ledger, unless its answer was asked for; of any other end to the inbox. Of any other end an escalation
    tells the owner too, or the owner's parent if the owner asked itself. A principal whose own call caused the end gets
    nothing in its inbox.
    """
    execution = work.execution
    causes = {work.caller_id, execution.halted_by_id}
    title = f"Plan {status}: {execution.intent}"
    summary = reports.summary(execution.intent, status, work.steps, halted_why=execution.halted_why)
    metadata = {
        "status": status,
        "steps_complete": len(work.in_state(StepStatus.COMPLETE)),
        "steps_total": len(work.steps),
        "total_cost": float(execution.total_cost),
        "currency": "USD",
    }
    asked_itself = execution.requested_by_id == execution.owner_id
    other_id = execution.owner.parent_id if asked_itself else execution.owner_id
    if status != Status.COMPLETE and other_id is not None and other_id not in causes:
        _add(
            work,
            "escalation",
            key="end",
            title=title,
            summary=summary,
            metadata={**metadata, "decision_required": False, "original_receipt": execution.plan_receipt_id},
            recipient_id=other_id,
            dedupe_key=f"escalation:{_EVENTS[status]}:{execution.plan_receipt_id}",
        )
    is_news = execution.answers_inbox or (status != Status.COMPLETE and execution.requested_by_id not in causes)
    return _add(
        work,
        _EVENTS[status],
        key="end",
        title=title,
        summary=summary,
        metadata=metadata,
        pairs_with=execution.plan_receipt_id,
        artifact_pointer=execution.ref,
        artifact_location=SOURCE,
        recipient_id=execution.requested_by_id,
        surface=Surface.INBOX if is_news else Surface.LEDGER,
    )


def _add(
    work: UnitOfWork,
    event_type: str,
    *,
    step: ExecutionStep | None = None,
    key: str = "",
    title: str | None,
    metadata: dict[str, Any],
    owed: bool = False,
    **draft: Any,
) -> str:
    """Add a receipt to the unit of work; returns its future id.

    :param draft: further members of the receipt. Without them the owner gets it in its inbox, caused by the plan's receipt.
    """
    execution = work.execution
    names = {"execution_id": execution.ref, "plan_id": execution.plan_id}
    if step is not None:
        names["step_id"] = step.step_id
        key = f"{step.step_id}:{key}" if key else step.step_id
    obligation = ObligationDraft(debtor_id=execution.owner_id, creditor_id=execution.requested_by_id) if owed else None
    members: dict[str, Any] = {
        "recipient_id": execution.owner_id,
        "dedupe_key": f"{SOURCE}:{event_type}:{execution.ref}.{key}:v1",
        "caused_by": execution.plan_receipt_id,
        **draft,
    }
    return work.add_receipt(
        ReceiptDraft(
            source_system=SOURCE,
            event_type=event_type,
            title=None if title is None else title[:_TITLE],
            metadata={**names, **metadata},
            requires_action=owed,
            obligation=obligation,
            **members,
        )
    )


# How a step begins, succeeds and fails, and how an execution ends.
#
# Worker steps are only claimed here; they are called after the commit.

CLAIM: Final = timedelta(seconds=10)
"""How long a claim lasts without renewal; a crash delays a step by no more."""
MAX_CLAIMS: Final = 8
RECEIPTS_EVERY: Final = timedelta(seconds=2)


def begin(work: UnitOfWork, step: ExecutionStep) -> None:
    """Begin one step."""
    if step.started_at is None:
        step.started_at = work.now
    match step.step_type:
        case StepType.WAIT_FOR:
            wait_for_receipts(work, step)
        case StepType.AGGREGATE:
            _aggregate(work, step)
        case StepType.ESCALATE:
            _escalate(work, step)
        case _:
            claim(work, step)
    work.touch(step)


def claim(work: UnitOfWork, step: ExecutionStep) -> None:
    """Claim a worker step for this process, if the budget covers it. If its worker is away, the step waits a while."""
    try:
        target = calls.target_of(worker_id=step.worker_id or "", tool_name=step.tool_name or "", tool_uid=step.tool_uid)
    except DomainError as exc:
        if isinstance(exc, WorkerUnavailable) and exc.may_come_back:
            step.away_looks += 1
            if step.away_looks <= calls.AWAY_LOOKS:
                if step.status != StepStatus.PENDING:
                    step.move_to(StepStatus.PENDING)
                step.retry_at = work.now + calls.LOOK_AGAIN
                return
        fail(work, step, code=exc.code, message=exc.detail, retryable=isinstance(exc, Unavailable))
        return
    if not _charge(work, step, target):
        return
    step.repeatable = target.repeatable or as_task(work, step, target)
    step.attempts += 1
    step.retry_at, step.away_looks = None, 0
    step.move_to(StepStatus.CALLING)
    step.call_expires_at = work.now + CLAIM
    work.claims.append((step, target))


def as_task(work: UnitOfWork, step: ExecutionStep, target: calls.Target) -> bool:
    """Whether the step becomes a task. `auto` follows the worker's declared runtime for steps that the plan calls directly."""
    mode = Mode(work.execution.mode)
    if mode == Mode.ASYNC_ONLY or step.step_type == StepType.QUEUE_EXECUTION:
        return True
    return mode == Mode.AUTO and target.runtime == "long"


def take_calls(work: UnitOfWork) -> None:
    """Count the claimed direct calls against the workers' rate limits; those over a limit wait.

    In the order of the workers' ids, to avoid deadlocks. The call of a task is counted by its run.
    """
    for step, target in sorted(work.claims, key=lambda claimed: claimed[1].worker_id):
        if as_task(work, step, target):
            continue
        try:
            registry.take_call(worker_id=target.worker_id)
        except WorkerRateLimited as full:
            work.unclaim(step)
            step.move_to(StepStatus.PENDING)
            step.retry_at = work.now + timedelta(seconds=full.retry_after)


def _charge(work: UnitOfWork, step: ExecutionStep, target: calls.Target) -> bool:
    """Charge a step to the budget before its first call, so that steps at once can't exceed the budget together.

    The charge is the plan's estimate, or the worker's present price if that is higher.
    """
    if step.cost:
        return True
    estimate = Decimal(str(step.definition.get("estimated_cost") or 0))
    cost = max(target.cost, estimate).quantize(MONEY)
    why = work.execution.over_budget(cost)
    if why is None:
        step.cost += cost
        work.execution.total_cost += cost
        work.charges[step.pk] = cost
        return True
    work.halt(Status.BUDGET_EXCEEDED, why)
    if not step.attempts:
        step.started_at = None
    return False


def reclaim(work: UnitOfWork, step: ExecutionStep) -> None:
    """Take over a lost claim, unless the tool may have run and must not run twice."""
    work.touch(step)
    if not step.repeatable:
        _fail_as_unknown(work, step)
    elif step.attempts >= MAX_CLAIMS:
        fail(work, step, code="claims_exhausted", message="Every process that tried is gone.", retryable=True)
    else:
        claim(work, step)


def give_up(work: UnitOfWork, step: ExecutionStep) -> None:
    """Settle a lost claim that is not wanted any more."""
    if step.repeatable:
        work.settle(step, StepStatus.CANCELED)
    else:
        _fail_as_unknown(work, step)


def _fail_as_unknown(work: UnitOfWork, step: ExecutionStep) -> None:
    message = f"The process that called {step.tool_name} is gone, and the tool may not be run twice."
    fail(work, step, code=OUTCOME_UNKNOWN, message=message, retryable=False)


def wait_for_receipts(work: UnitOfWork, step: ExecutionStep) -> None:
    """Complete a wait step whose receipts have arrived; else it waits."""
    wanted = step.definition.get("wait_for_receipts") or []
    if not selectors.missing_receipts(wanted, recipient_id=work.execution.owner_id):
        succeed(work, step, result=None)
    elif step.status != StepStatus.AWAITING:
        step.move_to(StepStatus.AWAITING)


def _aggregate(work: UnitOfWork, step: ExecutionStep) -> None:
    if step.definition.get("executor") == "self" or work.execution.owner.kind == Kind.DELEGATE:
        wanted = step.definition.get("aggregate_step_ids") or step.depends_on
        succeed(work, step, result={"results": reports.results_for_receipt(work.steps, wanted)})
        return
    step.receipt_id = request_result(work, step)
    step.move_to(StepStatus.AWAITING)


def _escalate(work: UnitOfWork, step: ExecutionStep) -> None:
    if step.definition.get("decision_required"):
        step.receipt_id = request_decision(work, step)
        step.move_to(StepStatus.AWAITING)
        return
    step.receipt_id = report_upward(work, step)
    succeed(work, step, result={**report_of(work, step), "decision_required": False})


def report_of(work: UnitOfWork, step: ExecutionStep) -> dict[str, Any]:
    """The report of an escalate step."""
    return {name: work.readable(step, name) for name in ("report_summary", "recommendation")}


def succeed(
    work: UnitOfWork,
    step: ExecutionStep,
    *,
    result: Any,
    result_pointer: str | None = None,
    summary: str | None = None,
    run_id: str | None = None,
) -> None:
    """Complete the step with its result, or fail it if the result asks that somebody else does the work."""
    asked = reports.escalated(result) if step.step_type in WORKER_STEPS else None
    if asked is not None:
        message = asked["message"]
        fail(work, step, code=NEEDS_ESCALATION, message=message, retryable=False, run_id=run_id, escalation=asked)
        return
    step.envelope = reports.complete(
        step, result=result, result_pointer=result_pointer, ended_at=work.now, run_id=run_id, summary=summary
    )
    work.settle(step, StepStatus.COMPLETE)


def fail(
    work: UnitOfWork,
    step: ExecutionStep,
    *,
    code: str,
    message: str,
    retryable: bool,
    run_id: str | None = None,
    escalation: Mapping[str, Any] | None = None,
) -> None:
    """Fail the step. `routing` decides what that means for the others.

    :param escalation: the work that its worker asks somebody else to do.
    """
    error = {"code": code, "message": message[:2_000], "retryable": retryable}
    asked = {} if escalation is None else {"escalation": dict(escalation)}
    step.envelope = reports.ended(step, "failed", work.now, run_id, error=error, **asked)
    work.settle(step, StepStatus.FAILED)
    if step.critical and work.execution.strategy == Strategy.ESCALATE:
        raise_alarm(work, step)


def let_go(work: UnitOfWork) -> None:
    """After a halt: withdraw requests, give up lost claims, and after a cancel also take back calls and tasks."""
    for step in work.in_state(StepStatus.AWAITING):
        work.settle(step, StepStatus.CANCELED)
        if step.step_type in {StepType.AGGREGATE, StepType.ESCALATE}:
            summary = f"{step.step_id} is no longer wanted."
            close_obligation(work, step, event_type=f"{step.step_type}_canceled", summary=summary)
    if work.newly_halted:
        work.newly_halted = False
        if work.execution.halted_as == Status.CANCELED or work.execution.strategy == Strategy.ESCALATE:
            for step in work.in_state(StepStatus.CALLING):
                # The process that calls has lost its claim by this, and its result is dropped.
                work.unclaim(step)
                work.settle(step, StepStatus.CANCELED)
            _cancel_tasks(work)
    for step in work.expired_claims:
        give_up(work, step)


def _cancel_tasks(work: UnitOfWork) -> None:
    """Cancel the execution's tasks. A leased task ends when its worker stops; its step waits for that."""
    steps = {step.task_id: step for step in work.in_state(StepStatus.QUEUED) if step.task_id is not None}
    ended = cancel_many(caller=work.owner, task_ids=steps)
    canceled = [steps[task_id] for task_id, status in ended.items() if status == TaskStatus.CANCELED]
    never_run = FinishedTask.objects.filter(
        task_id__in=[step.task_id for step in canceled if step.cost], fencing_token=0
    )
    refunded = frozenset(never_run.values_list("task_id", flat=True))
    for step in canceled:
        if step.task_id in refunded:
            work.refund(step, step.cost)
        work.settle(step, StepStatus.CANCELED)


def finish(work: UnitOfWork, status: Status) -> None:
    """Write the end: the status, the closing receipt, the outcome for the planner, the trace in memory."""
    execution = work.execution
    execution.move_to(status)
    execution.ended_at = work.now
    execution.wake_at = None
    execution.terminal_receipt_id = announce_end(work, status)
    work.post()
    ran = {step.step_id for step in work.in_state(StepStatus.COMPLETE) if step.step_type in WORKER_STEPS}
    planning.record_outcome(plan_id=execution.plan_id, completed=ran)
    text, metadata = reports.trace(
        plan_id=execution.plan_id,
        intent=execution.intent,
        steps=work.steps,
        status=status,
        started_at=execution.created_at,
        ended_at=work.now,
    )
    memory.store_observation(
        author=work.owner,
        text=text,
        domain=memory.TRACE,
        confidence=1.0,
        evidence=[f"plan:{execution.plan_id}", f"exec:{execution.ref}"],
        metadata=metadata,
        now=work.now,
    )
    for step in work.in_state(StepStatus.COMPLETE):
        if asked := step.promotion_recommendation:
            step.envelope = {**step.outcome, "promotion_recommendation": {**asked, **_promoted(work, step, asked)}}
            work.touch(step)


def _promoted(work: UnitOfWork, step: ExecutionStep, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Promote what a step recommends, if the owner's policy allows it; returns the verdict."""
    promotion = memory.promote(
        delegate=work.owner,
        text=asked["observation"],
        domain=asked["domain"],
        confidence=asked["confidence"],
        evidence=[f"plan:{work.execution.plan_id}", f"exec:{work.execution.ref}", f"step:{step.step_id}"],
        now=work.now,
    )
    return {
        "promote": promotion.ref is None and promotion.verdict != memory.Verdict.KNOWN_ALREADY,
        "verdict": promotion.verdict,
        "reason": promotion.reason,
        "promoted_as": promotion.ref,
    }


# Jobs inside workers: a call answers `{job_id, estimated_duration_seconds}`, and two tools of the same worker give the
# job's status and result. This module recognises such answers, and follows jobs to their ends.
#
# The two tools take nothing but a `job_id`, and their names differ in one word, `status` and `result`: `get_job_status`,
# `get_job_result`. Of several pairs the one is used that shares most words with the called tool.

_COMPLETE: Final = frozenset({"complete", "completed", "done", "finished", "succeeded", "success"})
_FAILED: Final = frozenset({"failed", "failure", "error", "canceled", "cancelled", "aborted"})
_MAX_JOB_ID: Final = 1_000
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 10.0
_POLLS_AN_ESTIMATE: Final = 20
_LOOK_SECONDS: Final = 0.2
_POLL: Final = timedelta(seconds=30)
# A worker that restarts is waited for this long; then the task's own retries follow the same job.
_AWAY: Final = timedelta(seconds=60)
# How much longer than estimated a job may take.
_GENEROSITY: Final = 4
_LEAST: Final = timedelta(minutes=10)
_MOST: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A worker's job as a task's checkpoint holds it: enough for any process to follow it."""

    job_id: str
    estimate: float
    began_at: datetime
    status_tool: str
    result_tool: str
    cancel_tool: str | None = None

    def checkpoint(self) -> dict[str, Any]:
        return {"job": {**asdict(self), "began_at": self.began_at.isoformat()}}

    @property
    def allowed(self) -> timedelta:
        return min(max(_GENEROSITY * timedelta(seconds=self.estimate), _LEAST), _MOST)


LOST: Final = {"job": None}
"""The checkpoint of a task whose job the worker does not know any more: the next run starts another."""


def kept_job(checkpoint: Any) -> Job | None:
    """The job that an earlier run of a task has started, or None."""
    kept = checkpoint.get("job") if isinstance(checkpoint, Mapping) else None
    return None if kept is None else Job(**{**kept, "began_at": datetime.fromisoformat(kept["began_at"])})


def begun(target: Target, payload: Mapping[str, Any]) -> Job | None:
    """The job that an answer names, or None if the answer is the result itself. Needs an acting transaction."""
    job_id, estimate = payload.get("job_id"), payload.get("estimated_duration_seconds")
    if not isinstance(job_id, str) or not 0 < len(job_id) <= _MAX_JOB_ID:
        return None
    if isinstance(estimate, bool) or not isinstance(estimate, int | float) or not 0 <= estimate < math.inf:
        return None
    try:
        tools = workers.manifest_of(target.worker_id).tools
    except UnknownWorker:  # it was removed after the call
        return None
    pair = followers(target.tool_name, tools)
    if pair is None:
        return None
    return Job(
        job_id=job_id,
        estimate=min(float(estimate), _MOST.total_seconds()),
        began_at=database_now(),
        status_tool=pair[0],
        result_tool=pair[1],
        cancel_tool=canceler(pair[0], tools),
    )


def followers(tool_name: str, tools: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """The tools that give the status and the result of a job that another tool of the worker starts."""
    able = [tool["name"] for tool in tools if _takes_a_job(tool["input_schema"]) and tool["name"] != tool_name]
    results = {_without(name, "result"): name for name in sorted(able) if "result" in words(name)}
    pairs = [
        (name, results[rest])
        for name in sorted(able)
        if "status" in words(name) and (rest := _without(name, "status")) in results
    ]
    own = set(words(tool_name))
    return max(pairs, key=lambda pair: len(own.intersection(words(pair[0]))), default=None)


def canceler(status_tool: str, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """The tool that cancels the jobs of a status tool, or None."""
    able = [tool["name"] for tool in tools if _takes_a_job(tool["input_schema"]) and "cancel" in words(tool["name"])]
    rest = set(_without(status_tool, "status")) - {"get"}
    return max(sorted(able), key=lambda name: len(rest.intersection(words(name))), default=None)


def _takes_a_job(schema: Mapping[str, Any]) -> bool:
    return "job_id" in schema.get("properties", {}) and set(schema.get("required", ())) <= {"job_id"}


def _without(name: str, word: str) -> tuple[str, ...]:
    return tuple(other for other in words(name) if other != word)


def follow(
    job: Job,
    *,
    status: Target,
    result: Target,
    age: timedelta,
    patience: timedelta,
    on_progress: Callable[[float, str], None],
    canceled: Callable[[], bool],
) -> Called | None:
    """Poll until the job is over; None if it still runs when patience ends. Touches no database.

    :param status: the tool that gives the job's status; `result` gives its result.
    :param age: how long the job has run.
    :raises CallCanceled: if the asker no longer wants it.
    :raises WorkerRefused: if the job failed, or its result is refused (`job_failed`), or an answer is unusable.
    :raises WorkerAway: if the worker does not know the job (`job_lost`), the job takes far too long (`job_overdue`), or
        the worker does not answer for longer than a restart takes.
    """
    began = time.monotonic() - age.total_seconds()
    until = time.monotonic() + patience.total_seconds()
    pause = _FIRST_PAUSE
    while not _is_complete(job, _asked(job, status, _POLL, canceled).payload, on_progress):
        if time.monotonic() - began > job.allowed.total_seconds():
            detail = f"{job.job_id[:200]} still runs after {job.allowed}."
            raise WorkerAway(detail, code="job_overdue", retryable=False)
        if time.monotonic() >= until:
            return None
        _wait(pause, canceled)
        pause = pause_after(pause, estimate=job.estimate, age=time.monotonic() - began)
    try:
        called = _asked(job, result, result.deadline, canceled)
    except WorkerAway as refusal:
        if refusal.code != "job_lost":
            raise
        # The worker refuses the result of a job that it knows, or does not know it.
        _asked(job, status, _POLL, canceled)
        detail = f"The worker does not give the result of {job.job_id[:200]}: {refusal.detail}"
        raise WorkerRefused(detail, code="job_failed") from refusal
    return replace(called, seconds=time.monotonic() - began)


def pause_after(pause: float, *, estimate: float, age: float) -> float:
    """The seconds until the next poll: a twentieth of the job's estimate, or of its age where that is longer."""
    return min(2 * pause, max(_FIRST_PAUSE, max(estimate, age) / _POLLS_AN_ESTIMATE), _LONGEST_PAUSE)


def _is_complete(job: Job, answer: Mapping[str, Any], on_progress: Callable[[float, str], None]) -> bool:
    status = str(answer.get("status", "")).casefold()
    message = next((text for key in ("message", "error") if isinstance(text := answer.get(key), str)), "")
    if status in _FAILED:
        detail = f"{job.job_id[:200]} has {status}: {message[:1000] or 'the worker does not say why.'}"
        raise WorkerRefused(detail, code="job_failed")
    percent = answer.get("progress")
    if isinstance(percent, int | float) and math.isfinite(percent):
        on_progress(max(0.0, min(float(percent), 100.0)), message)
    return status in _COMPLETE


def _asked(job: Job, target: Target, deadline: timedelta, canceled: Callable[[], bool]) -> Called:
    """Ask about the job, also across a restart of the worker."""
    away_until = time.monotonic() + _AWAY.total_seconds()
    while True:
        try:
            return calls.call(target=target, params={"job_id": job.job_id}, deadline=deadline, canceled=canceled)
        except UnusableAnswer:
            raise
        except WorkerRefused as refusal:
            if refusal.code != "worker_refused":
                raise
            detail = f"The worker does not know the job that it began: {refusal.detail}"
            raise WorkerAway(detail, code="job_lost") from refusal
        except WorkerCallFailed as failure:
            if not failure.retryable or time.monotonic() > away_until:
                raise
        _wait(1.0, canceled)


def _wait(seconds: float, canceled: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if canceled():
            raise CallCanceled("The job is not wanted any more.")
        time.sleep(min(left, _LOOK_SECONDS))


# The engine: look under the lock, release it, call workers, write the outcomes, look again.
#
# Every decision is made from rows, so any process may take the next look.

logger = structlog.get_logger(__name__)

_AT_ONCE: Final = 8
_RENEW_SECONDS: Final = 2.0
_TRIES: Final = 3
_WAKE_AGAIN: Final = timedelta(seconds=5)
_RETRY_AFTER: Final = timedelta(seconds=1)


def advance(*, tenant_id: int, execution_id: int, patience: timedelta | None = None, skip_locked: bool = False) -> None:
    """Continue an execution as far as it goes now. Safe to lose, repeat or overlap.

    :param patience: begin no more calls of workers after this long, leave them to a worker process; None: call all.
    :param skip_locked: leave an execution that is locked to whoever has it.
    """
    until = None if patience is None else monotonic() + patience.total_seconds()
    while True:
        may_call = until is None or monotonic() < until
        results = _results_of_ended_tasks(tenant_id, execution_id)

        def forward() -> list[Claim]:
            with _acting(tenant_id):
                return look(execution_id, may_call=may_call, results=results, skip_locked=skip_locked)  # noqa: B023  # called here

        claims = retried(forward)
        if not claims:
            return
        _carry_out(claims)


def _acting(tenant_id: int) -> AbstractContextManager[None]:
    return acting_in(tenant_id, "execution")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A worker step, as it was claimed, that this process and no other carries out now."""

    step: ExecutionStep
    owner: Caller
    target: calls.Target
    cost: Decimal
    """What this claim has charged; nothing, if an earlier claim of the step did."""
    envelopes: Mapping[str, Mapping[str, Any]]
    as_task: bool
    lost: threading.Event = field(default_factory=threading.Event)

    @property
    def tenant_id(self) -> int:
        return self.step.tenant_id

    @property
    def fencing_token(self) -> int:
        return self.step.attempts

    @property
    def cause(self) -> str:
        return self.step.execution.plan_receipt_id


def _results_of_ended_tasks(tenant_id: int, execution_id: int) -> dict[int, Any]:
    """The results of the execution's ended tasks, read before any row is locked.

    A result that can never be read is None. A result that the storage does not deliver now is missing.
    """
    with _acting(tenant_id):
        ended = selectors.ended_tasks(execution_id)
    found: dict[int, Any] = {}
    for task_id, pointer in ended:
        if pointer is None:
            continue
        try:
            found[task_id] = calls.kept(tenant_id=tenant_id, pointer=pointer)
        except Unavailable as exc:
            logger.warning("executions.result_unavailable", task_id=task_id, reason=exc.detail)
        except DomainError:
            found[task_id] = None
    return found


def look(
    execution_id: int,
    *,
    may_call: bool,
    results: Mapping[int, Any] = MappingProxyType({}),
    skip_locked: bool = False,
) -> list[Claim]:
    """Do all that needs no worker, and claim the steps that do. Needs an acting transaction.

    :param results: as of :func:`go_forward`.
    """
    work = UnitOfWork.of(execution_id, skip_locked=skip_locked)
    if work is None or work.execution.is_final:
        return []
    go_forward(work, may_call=may_call, results=results)
    return [
        Claim(
            step=step,
            owner=work.owner,
            target=target,
            cost=work.charges.get(step.pk, Decimal(0)),
            envelopes=work.envelopes,
            as_task=as_task(work, step, target),
        )
        for step, target in work.claims
    ]


def go_forward(work: UnitOfWork, *, may_call: bool, results: Mapping[int, Any] = MappingProxyType({})) -> None:
    """Take in what happened, begin and skip steps until nothing moves, and save. Ends the unit of work.

    :param results: the results of ended tasks. A step whose task's result is missing waits for the next look, unless
        the task's record holds the result.
    """
    if work.execution.status == Status.QUEUED:
        work.execution.move_to(Status.EXECUTING)
    by_task = {step.task_id: step for step in work.in_state(StepStatus.QUEUED) if step.task_id is not None}
    for record in FinishedTask.objects.filter(task_id__in=sorted(by_task)):
        if record.task_id in results or record.content is not None or record.result_pointer is None:
            _take_in(work, by_task[record.task_id], record, results.get(record.task_id, record.content))
    for step in work.in_state(StepStatus.AWAITING):
        if step.step_type == StepType.WAIT_FOR:
            wait_for_receipts(work, step)
            work.touch(step)
    held_back = _go_on(work, may_call=may_call)
    take_calls(work)
    _plan_next_look(work, held_back=held_back)
    work.save()


def _take_in(work: UnitOfWork, step: ExecutionStep, record: FinishedTask, result: Any) -> None:
    """Settle a step whose task has ended."""
    run_id = f"run_{record.fencing_token}"
    if not record.fencing_token:
        work.refund(step, step.cost)
    if record.status == TaskStatus.SUCCEEDED:
        pointer, summary = record.result_pointer, record.summary
        succeed(work, step, result=result, result_pointer=pointer, summary=summary, run_id=run_id)
    elif record.status == TaskStatus.CANCELED:
        work.settle(step, StepStatus.CANCELED)
        if work.execution.halted_as is None:
            work.halt(Status.CANCELED, f"The task of {step.step_id} was canceled.")
    else:
        error = record.error or {}
        code, message = error.get("code", "task_failed"), error.get("message", record.summary)
        fail(work, step, code=code, message=message, retryable=False, run_id=run_id)


def _go_on(work: UnitOfWork, *, may_call: bool) -> bool:
    """Take over lost claims, begin and skip until nothing moves; returns whether steps were left to another process.

    After a halt, lost claims are settled by :func:`let_go`.
    """
    expired = [] if work.execution.halted_as is not None else work.expired_claims
    for step in expired if may_call else ():
        if work.execution.halted_as is None:
            reclaim(work, step)
    held_back = bool(expired) and not may_call
    while True:
        moves = _moves(work)
        for step_id in moves.skip:
            work.settle(work.step(step_id), StepStatus.SKIPPED)
        ready = [work.step(step_id) for step_id in moves.begin]
        in_time = [
            step
            for step in ready
            if step.step_type not in WORKER_STEPS or step.retry_at is None or step.retry_at <= work.now
        ]
        mine = [step for step in in_time if may_call or step.step_type not in WORKER_STEPS]
        held_back = held_back or len(mine) < len(in_time)
        for step in mine:
            if work.execution.halted_as is None:
                begin(work, step)
        if moves.verdict is not None:
            finish(work, moves.verdict)
            return False
        if not (mine or moves.skip):
            return held_back


def _moves(work: UnitOfWork) -> Moves:
    strategy = Strategy(work.execution.strategy)
    halted_as = None if work.execution.halted_as is None else Status(work.execution.halted_as)
    moves = next_moves(work.steps, strategy=strategy, halted_as=halted_as)
    if moves.halt_as is None:
        return moves
    work.halt(moves.halt_as)
    let_go(work)
    return next_moves(work.steps, strategy=strategy, halted_as=moves.halt_as)


def _plan_next_look(work: UnitOfWork, *, held_back: bool) -> None:
    """Set when a tick must look, and wake another process if it should continue now."""
    execution = work.execution
    if execution.is_final:
        return
    awaiting = work.in_state(StepStatus.AWAITING)
    deciding = any(step.step_type == StepType.ESCALATE for step in awaiting)
    execution.move_to(Status.NEEDS_ESCALATION if deciding else Status.EXECUTING)
    moments = [step.call_expires_at for step in work.in_state(StepStatus.CALLING)]
    moments += [step.retry_at for step in work.in_state(StepStatus.PENDING)]
    if any(step.step_type == StepType.WAIT_FOR for step in awaiting):
        moments.append(work.now + RECEIPTS_EVERY)
    if held_back:
        moments.append(work.now + _WAKE_AGAIN)
        wake_after_commit(execution)
    execution.wake_at = min((moment for moment in moments if moment is not None), default=None)


def _carry_out(claims: list[Claim]) -> None:
    """Carry out claimed steps, direct calls at the same time, and write each outcome as it comes."""
    direct: deque[tuple[Claim, Mapping[str, Any]]] = deque()
    renewed_at = monotonic()
    for number, claim in enumerate(claims, 1):
        try:
            params = _resolved(claim)
            calls.check_params(claim.target, params)
        except DomainError as exc:
            retried(partial(_write_failure, claim, exc, reached=False))
        else:
            if claim.as_task:
                retried(partial(_queue, claim, params))
            else:
                direct.append((claim, params))
        renewed_at = _renew_in_time([*claims[number:], *(one for one, _ in direct)], renewed_at)
    if direct:
        _call_all(direct, renewed_at)


def _renew_in_time(claims: list[Claim], renewed_at: float) -> float:
    """Renew the claims, unless that was done a moment ago; returns when it was done last."""
    if monotonic() < renewed_at + _RENEW_SECONDS:
        return renewed_at
    for claim in claims:
        _renew(claim)
    return monotonic()


def _resolved(claim: Claim) -> Mapping[str, Any]:
    """The step's parameters with the results of earlier steps.

    :raises UnresolvedReference: if a reference leads nowhere.
    """

    def payload_of(step_id: str) -> Any:
        pointer = claim.envelopes[step_id].get("result_pointer")
        return None if pointer is None else calls.kept(tenant_id=claim.tenant_id, pointer=pointer)

    params = claim.step.definition.get("params") or {}
    found: dict[str, Any] = routing.resolve(params, envelopes=claim.envelopes, payload_of=payload_of)
    return calls.with_cause(claim.target, found, claim.cause)


def _call_all(waiting: deque[tuple[Claim, Mapping[str, Any]]], renewed_at: float) -> None:
    """Make direct calls in threads, which only talk to workers. This thread renews the claims and uses the database.

    A call starts right after a check of its claim, so a call whose claim was lost is not made. Only the instant between
    the two is not covered.
    """
    running: dict[Future[calls.Called | DomainError], Claim] = {}
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(waiting)), thread_name_prefix="call") as pool:
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                claim, params = waiting.popleft()
                if _renew(claim):
                    running[pool.submit(copy_context().run, _call, claim, params)] = claim
            done, _ = wait(running, timeout=_RENEW_SECONDS, return_when=FIRST_COMPLETED)
            # The last round is for those that still run.
            for future in [*done, None]:
                if future is not None:
                    _write(running.pop(future), future.result())
                renewed_at = _renew_in_time([*running.values(), *(claim for claim, _ in waiting)], renewed_at)


def _call(claim: Claim, params: Mapping[str, Any]) -> calls.Called | DomainError:
    deadline = min(claim.target.deadline, calls.DIRECT)
    try:
        return calls.call(target=claim.target, params=params, deadline=deadline, canceled=claim.lost.is_set)
    except DomainError as refusal:
        return refusal


def _renew(claim: Claim) -> bool:
    """Renew the claim; returns whether it still stands. The call of a lost claim is given up."""
    held = ExecutionStep.objects.filter(pk=claim.step.pk, attempts=claim.fencing_token, status=StepStatus.CALLING)
    with _acting(claim.tenant_id):
        if held.update(call_expires_at=GATEHOUSE_NOW + CLAIM):
            return True
    claim.lost.set()
    return False


def _queue(claim: Claim, params: Mapping[str, Any]) -> None:
    """Turn a claimed step into a task; by the idempotency key a second attempt finds the first task."""
    try:
        with _holding(claim) as held:
            if held is None:
                return
            work, step = held
            request = QueueTask(
                task_type=calls.TASK_TYPE,
                params={"worker_id": step.worker_id, "tool_name": step.tool_name, "params": dict(params)},
                recipient_ai=work.execution.owner.name,
                idempotency_key=f"{work.execution.ref}:{step.step_id}",
                caused_by_receipt_id=claim.cause,
                group=calls.group_of(work.execution),
            )
            task = queueing.queue(requester=work.owner, request=request)
            step.task_id = parse_ref("task", task.task_id)
            step.move_to(StepStatus.QUEUED)
            step.envelope = reports.queued(step, at=work.now)
    except DomainError as refusal:
        retried(partial(_write_failure, claim, refusal, reached=False))


def _write(claim: Claim, outcome: calls.Called | DomainError) -> None:
    """Write the outcome of a direct call."""
    if isinstance(outcome, DomainError):
        retried(partial(_write_failure, claim, outcome))
        return
    try:
        pointer = calls.keep(caller=claim.owner, value=outcome.payload, files=outcome.files)
    except DomainError as refusal:
        fits = not outcome.files and strict_json.size(outcome.payload) <= reports.MAX_PAYLOAD_BYTES
        if claim.target.repeatable or not fits or not isinstance(refusal, Unavailable):
            retried(partial(_write_failure, claim, refusal))
            return
        # The tool may not run again, and the envelope holds it all.
        pointer = None
    retried(partial(_write_result, claim, outcome, pointer))


def _write_result(claim: Claim, outcome: calls.Called, pointer: str | None) -> None:
    """Write a result if the claim still stands."""
    with _holding(claim) as held:
        if held is None:
            return
        work, step = held
        calls.record(claim.target, outcome)
        succeed(work, step, result=outcome.payload, result_pointer=pointer, summary=outcome.summary)


def _write_failure(claim: Claim, refusal: DomainError, *, reached: bool = True) -> None:
    """Write a failed call: again later, or as the step's failure.

    :param reached: whether the tool may have run; a failed call says so itself.
    """
    with _holding(claim) as held:
        if held is None:
            return
        work, step = held
        calls.record(claim.target, refusal)
        if isinstance(refusal, WorkerCallFailed):
            reached, retryable, tries = refusal.reached, refusal.retryable, _TRIES
        else:
            # An outage on this side, of the artifacts' storage, is worth more tries than a worker that does not answer.
            retryable, tries = isinstance(refusal, Unavailable), MAX_CLAIMS
        if not reached:
            work.refund(step, claim.cost)
        if retryable and claim.fencing_token < tries and (claim.target.repeatable or not reached):
            step.move_to(StepStatus.PENDING)
            step.retry_at = work.now + _RETRY_AFTER * 2 ** (step.attempts - 1)
        else:
            fail(work, step, code=refusal.code, message=refusal.detail, retryable=retryable)


@contextmanager
def _holding(claim: Claim) -> Iterator[tuple[UnitOfWork, ExecutionStep] | None]:
    """The locked execution and step of a claim that still stands; None if it was taken over or canceled."""
    with _acting(claim.tenant_id):
        work = UnitOfWork.of(claim.step.execution_id)
        step = None if work is None else next(found for found in work.steps if found.pk == claim.step.pk)
        if work is None or step is None or step.status != StepStatus.CALLING or step.attempts != claim.fencing_token:
            yield None
            return
        yield work, step
        work.touch(step)
        work.save()


# Commands of principals to an execution: start, submit a result, decide, cancel, plan again.

Decision = Literal["accept", "reject"]


@transaction.atomic
def start(
    *,
    caller: Caller,
    plan_id: str,
    mode: Mode,
    budget: Budget,
    now: datetime,
    strategy: Strategy = Strategy.SEQUENTIAL,
    answers_inbox: bool = False,
) -> Execution:
    """Start the execution of a plan, or return the execution that it already has. The caller or a tick continues it.

    The plan's own bounds hold too, where the budget is not tighter. A plan is executed once, so a repeated request does
    nothing twice. The owner is the caller; but a plan that one DeleGate asks of another is owned by the other, which has
    its own inbox.

    :param answers_inbox: its end comes to the caller's inbox, even if it is complete.
    :raises NotFound: if the caller has no such plan (`unknown_plan`).
    :raises Conflict: if the plan is no executable plan (`plan_refused`), if its execution has another mode, strategy or
        budget (`already_executed`), or if it was replaced, waited too long, or was forgotten (`plan_abandoned`).
    :raises Forbidden: if one of its workers has left the pool of the DeleGate that it was made for (`outside_pool`).
    """
    plan = plans.plan_for(plan_id, caller=caller)
    if not plan.is_ready and not plan.is_forgotten:
        detail = f"{plan_id} is {plan.status}, and only a plan that is ready is carried out. {plan.next_step}"
        raise Conflict(detail, code="plan_refused", plan_status=str(plan.status))
    bounds = (plan.document.get("constraints") or {}).get("budget", {})
    most = _money(tighter(budget.max_total_cost, bounds.get("max_total_cost")))
    per_step = _money(tighter(budget.max_cost_per_step, bounds.get("max_cost_per_step")))
    if plan.is_forgotten or not planning.take_up(plan_id=plan_id):
        return _existing(plan_id, mode, strategy, most, per_step)
    to_do = {step["worker_id"] for step in plan.document["steps"] if step.get("worker_id") and not step.get("done")}
    outside = plans.outside_pool(to_do, tenant_id=caller.tenant_id, delegate=plan.delegate.name)
    if outside:
        names = ", ".join(outside)
        detail = f"Not in the pool of {plan.delegate} any more: {names}. Ask for another plan."
        raise Forbidden(detail, code="outside_pool")
    try:
        with transaction.atomic():
            execution = Execution.objects.create(
                tenant_id=caller.tenant_id,
                plan_id=plan.plan_id,
                plan_receipt_id=plan.receipt_id,
                intent=plan.document["intent"],
                owner_id=plan.delegate_id if caller.kind == Kind.DELEGATE else caller.principal_id,
                requested_by_id=caller.principal_id,
                mode=mode,
                strategy=strategy,
                max_total_cost=most,
                max_cost_per_step=per_step,
                answers_inbox=answers_inbox,
                created_at=now,
                wake_at=now,
            )
    except IntegrityError as exc:
        if violated_constraint(exc) != "executions_execution_once_per_plan":
            raise
        return _existing(plan_id, mode, strategy, most, per_step)
    _add_steps(execution, plan.document)
    return execution


def _money(amount: float | None) -> Decimal | None:
    return None if amount is None else Decimal(str(amount)).quantize(MONEY)


def _existing(plan_id: str, *terms: object) -> Execution:
    found = Execution.objects.filter(plan_id=plan_id).first()
    if found is None:
        detail = f"{plan_id} was replaced, forgotten, or waited too long; it is not executed any more."
        raise Conflict(detail, code="plan_abandoned")
    if terms != (found.mode, found.strategy, found.max_total_cost, found.max_cost_per_step):
        detail = f"{plan_id} is executed by {found} with another mode, strategy or budget."
        raise Conflict(detail, code="already_executed", execution_id=found.ref)
    return found


def _add_steps(execution: Execution, document: Mapping[str, Any]) -> None:
    before, critical = plans.order_of(document)
    rows = [
        ExecutionStep(
            tenant_id=execution.tenant_id,
            execution=execution,
            position=position,
            step_id=definition["step_id"],
            step_type=definition["step_type"],
            definition=definition,
            depends_on=before[definition["step_id"]],
            critical=definition["step_id"] in critical,
        )
        for position, definition in enumerate(document["steps"])
    ]
    if document.get("replaces"):
        _take_over(rows, _results_before(document["replaces"]))
    ExecutionStep.objects.bulk_create(rows)


def _take_over(rows: Sequence[ExecutionStep], before: Mapping[str, ExecutionStep]) -> None:
    """Give steps that completed under the replaced plan their results; they are neither run nor charged again."""
    for row in rows:
        if not row.definition.get("done"):
            continue
        ran = before.get(row.step_id)
        if ran is None:
            detail = f"{row.step_id} is marked as done, and no execution has its result."
            raise Invalid(detail, code="not_executable")
        row.status, row.envelope, row.task_id = ran.status, ran.envelope, ran.task_id
        row.started_at, row.ended_at = ran.started_at, ran.ended_at


def _results_before(plan_id: str | None) -> dict[str, ExecutionStep]:
    """The complete steps of a plan, or of the latest executed plan that it replaced, by id."""
    while plan_id is not None:
        execution = Execution.objects.filter(plan_id=plan_id).first()
        if execution is not None:
            return {step.step_id: step for step in execution.steps.filter(status=StepStatus.COMPLETE)}
        plan_id = plans.plan(plan_id).document.get("replaces")
    return {}


@transaction.atomic
def submit_step_result(
    *, caller: Caller, execution_ref: str, step_id: str, result: Any, result_pointer: str | None = None, summary: str
) -> Execution:
    """Submit the result of an aggregate step. This closes the obligation, and the execution continues.

    :param result_pointer: where the result is; None: it is stored as an artifact once it is accepted.
    :raises NotFound: if the caller has no such execution, or the plan no such step.
    :raises Conflict: if the step is no aggregate or does not wait (`step_not_open`), or another result was submitted
        before (`other_result`). The same result again changes nothing.
    """

    pointer = result_pointer or calls.pointer_to(result)

    def same(step: ExecutionStep) -> bool:
        return step.result_pointer == pointer

    with _open_step(caller, execution_ref, step_id, StepType.AGGREGATE, same) as found:
        if found is not None:
            work, step = found
            if result_pointer is None:
                calls.keep(caller=caller, value=result)
            succeed(work, step, result=result, result_pointer=pointer, summary=summary)
            close_obligation(work, step, event_type="aggregate_complete", summary=summary)
    return selectors.execution_of(caller, execution_ref)


@transaction.atomic
def decide_step(*, caller: Caller, execution_ref: str, step_id: str, decision: Decision, note: str | None) -> Execution:
    """Answer an escalation that asked for a decision. Accepting completes the step, rejecting fails it.

    :raises NotFound: if the caller has no such execution, or the plan no such step.
    :raises Conflict: if the step asks for no decision or does not wait (`step_not_open`), or was decided otherwise
        before (`other_result`). The same decision again changes nothing.
    """

    def same(step: ExecutionStep) -> bool:
        return (step.status == StepStatus.COMPLETE) == (decision == "accept")

    with _open_step(caller, execution_ref, step_id, StepType.ESCALATE, same) as found:
        if found is not None:
            work, step = found
            if decision == "accept":
                decided = {"decision_required": True, "decision": decision, "note": note}
                succeed(work, step, result={**report_of(work, step), **decided})
            else:
                fail(work, step, code="rejected", message=note or "The recommendation was rejected.", retryable=False)
                work.halt(Status.FAILED, f"{step.step_id} was rejected{f': {note}' if note else '.'}")
            summary = note or f"Decided: {decision}."
            close_obligation(work, step, event_type="escalation_decided", summary=summary)
    return selectors.execution_of(caller, execution_ref)


@contextmanager
def _open_step(
    caller: Caller,
    execution_ref: str,
    step_id: str,
    step_type: StepType,
    is_repetition: Callable[[ExecutionStep], bool],
) -> Iterator[tuple[UnitOfWork, ExecutionStep] | None]:
    """The waiting step under its locks, then the execution continues; None for a repeated answer."""
    execution = selectors.execution_of(caller, execution_ref)
    work = UnitOfWork.of(execution.pk, caller=caller)
    if work is None:
        yield None
        return
    step = work.step(step_id)
    # An escalate step that asks for no decision is only a report.
    is_asked = step.step_type == step_type and (
        step_type == StepType.AGGREGATE or bool(step.definition.get("decision_required"))
    )
    if is_asked and step.status in {StepStatus.COMPLETE, StepStatus.FAILED} and step.receipt_id:
        if not is_repetition(step):
            detail = f"{step_id} of {execution} was answered before, with something else."
            raise Conflict(detail, code="other_result")
        yield None
        return
    if not is_asked or step.status != StepStatus.AWAITING:
        raise Conflict(step.state_text, code="step_not_open", step_status=step.status)
    yield work, step
    work.touch(step)
    go_forward(work, may_call=False)


@transaction.atomic
def cancel(*, caller: Caller, execution_ref: str, reason: str | None) -> Execution:
    """Stop an execution: nothing more begins, open tasks are canceled, obligations are closed.

    A leased task ends when its worker stops; the execution ends after it.

    :raises NotFound: if the caller has no such execution.
    :raises Conflict: if it has ended otherwise (`execution_ended`); canceling twice changes nothing.
    """
    execution = selectors.execution_of(caller, execution_ref)
    work = UnitOfWork.of(execution.pk, caller=caller)
    if work is not None and work.execution.status != Status.CANCELED:
        if work.execution.is_final:
            status = work.execution.status
            raise Conflict(f"{execution} is over: {status}.", code="execution_ended", execution_status=status)
        work.halt(Status.CANCELED, reason or "Canceled by its owner.")
        go_forward(work, may_call=False)
    return selectors.execution_of(caller, execution_ref)


@transaction.atomic
def replan(
    *,
    caller: Caller,
    plan_id: str,
    failed_step: str,
    reason: str,
    now: datetime,
    max_total_cost: float | None = None,
) -> Plan:
    """Make the plan that replaces a failed one: completed steps keep their results. A waiting execution ends as canceled.

    :param reason: why the step failed; if empty, the error of the execution's step.
    :param max_total_cost: what the steps that are left may cost; None: what is left of the plan's and the execution's bound.
    :raises NotFound: if the caller has no such plan (`unknown_plan`), or it has no such step (`unknown_step`).
    :raises Invalid: if the step runs no tool (`step_without_tool`).
    :raises Conflict: if the step is complete (`step_done`), a worker still has a step of it (`still_at_work`), or the plan
        has been replaced before (`plan_replaced`).
    """
    plans.plan_for(plan_id, caller=caller)
    # This waits for a concurrent start of the plan, and then sees its execution.
    was_waiting = planning.take_up(plan_id=plan_id)
    execution = selectors.execution_of_plan(caller, plan_id)
    work = None if execution is None else UnitOfWork.of(execution.pk, caller=caller)
    ran: dict[str, Any] = {"budget": Budget(max_total_cost=max_total_cost)}
    if work is not None:
        if any(work.in_state(StepStatus.CALLING, StepStatus.QUEUED)):
            detail = f"A worker still has a step of {execution}; cancel it, or wait for its end."
            raise Conflict(detail, code="still_at_work")
        if not work.execution.is_final:
            work.halt(Status.CANCELED, f"Planned again: {failed_step} failed.")
            go_forward(work, may_call=False)
        failed = next((step for step in work.steps if step.step_id == failed_step), None)
        error = (failed and failed.error) or {}
        reason = reason or error.get("message", "") or "no reason given"
        most, per_step = work.execution.max_total_cost, work.execution.max_cost_per_step
        if max_total_cost is None and most is not None:
            max_total_cost = float(max(most - work.execution.total_cost, Decimal()))
        max_cost_per_step = None if per_step is None else float(per_step)
        ran = {
            "budget": Budget(max_total_cost=max_total_cost, max_cost_per_step=max_cost_per_step),
            "done": [step.step_id for step in work.in_state(StepStatus.COMPLETE) if step.step_type in WORKER_STEPS],
            "caused_by": work.execution.terminal_receipt_id,
        }
    return planning.replan(
        caller=caller,
        plan_id=plan_id,
        failed_step=failed_step,
        reason=reason,
        was_waiting=was_waiting,
        now=now,
        **ran,
    )
