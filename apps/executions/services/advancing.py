"""The engine: look under the lock, release it, call workers, write the outcomes, look again.

Every decision is made from rows, so any process may take the next look.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

import structlog

from apps.core import strict_json
from apps.core.errors import DomainError, Unavailable
from apps.core.ids import parse_ref
from apps.core.sql import GATEHOUSE_NOW, retried
from apps.executions import calls, reports, routing, selectors
from apps.executions.errors import WorkerCallFailed
from apps.executions.models import ExecutionStep
from apps.executions.routing import Moves, next_moves
from apps.executions.services.steps import (
    CLAIM,
    MAX_CLAIMS,
    RECEIPTS_EVERY,
    as_task,
    begin,
    fail,
    finish,
    let_go,
    reclaim,
    succeed,
    take_calls,
    wait_for_receipts,
)
from apps.executions.services.work import UnitOfWork
from apps.executions.states import Status, StepStatus, Strategy
from apps.executions.wakeups import wake_after_commit
from apps.plans.shapes import WORKER_STEPS, StepType
from apps.principals.tenancy import Caller, acting_in
from apps.tasks.models import FinishedTask
from apps.tasks.services import queueing
from apps.tasks.shapes import QueueTask
from apps.tasks.states import Status as TaskStatus

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
