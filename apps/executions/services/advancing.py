"""The engine: look under the lock, let go of it, call out, write down what came of it, look again.

Everything it decides is decided from rows, so any process may take the next look, and two looks at once are one.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

import structlog

from apps.core.errors import DomainError, Unavailable
from apps.core.ids import parse_ref
from apps.core.retries import retried
from apps.executions import calls, following, references, selectors, sql
from apps.executions.envelopes import queued
from apps.executions.errors import BUDGET_EXCEEDED, OUTCOME_UNKNOWN, WorkerCallFailed
from apps.executions.models import Execution, ExecutionStep
from apps.executions.routing import Moves, next_moves
from apps.executions.services import ending
from apps.executions.services.beginning import (
    CLAIM,
    MAX_CLAIMS,
    RECEIPTS_EVERY,
    as_task,
    begin,
    fail,
    look_again,
    reclaim,
    succeed,
    take_calls,
)
from apps.executions.services.rounds import Round, send_on_commit
from apps.executions.signals import execution_can_go_on
from apps.executions.states import SETTLED, Status, StepStatus, Strategy
from apps.plans.shapes import WORKER_STEPS, StepType
from apps.principals.tenancy import Caller, acting_in
from apps.tasks import services as tasks
from apps.tasks.models import TerminalRecord
from apps.tasks.services import QueueRequest
from apps.tasks.states import Status as TaskStatus

logger = structlog.get_logger(__name__)

_AT_ONCE: Final = 8
_RENEW_SECONDS: Final = 2.0
_TRIES: Final = 3
_NUDGE_AGAIN: Final = timedelta(seconds=5)
_RETRY_AFTER: Final = timedelta(seconds=1)


def advance(*, tenant_id: int, execution_id: int, patience: timedelta | None = None, skip_locked: bool = False) -> None:
    """Carry an execution as far as it will go now. Safe to lose, repeat or overlap.

    :param patience: begin no more calls of workers after this long, leave them to a worker process; None: call all.
    :param skip_locked: leave an execution that somebody else has at hand to them.
    """
    until = None if patience is None else monotonic() + patience.total_seconds()
    while True:
        may_call = until is None or monotonic() < until
        claimed = _look(tenant_id, execution_id, may_call=may_call, skip_locked=skip_locked)
        if not claimed:
            return
        _carry_out(claimed)


def _acting(tenant_id: int) -> AbstractContextManager[None]:
    return acting_in(tenant_id, "execution")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A worker step that this process, and no other, is to carry out now."""

    tenant_id: int
    execution_id: int
    step_pk: int
    fence: int
    owner: Caller
    cause: str
    target: calls.Target
    cost: Decimal
    """What was charged for this call."""
    params: Mapping[str, Any]
    envelopes: Mapping[str, Mapping[str, Any]]
    as_task: bool
    lost: threading.Event = field(default_factory=threading.Event)


def _results_of_ended_tasks(tenant_id: int, execution_id: int) -> dict[int, Any]:
    """What the execution's tasks have found, read before any row is locked.

    None for what can never be read here; nothing for what the storage does not give out just now.
    """
    with _acting(tenant_id):
        ended = selectors.ended_tasks(execution_id)
    found: dict[int, Any] = {}
    for task in ended:
        if task.result_pointer is None:
            continue
        try:
            found[task.task_id] = calls.kept(tenant_id=tenant_id, pointer=task.result_pointer)
        except Unavailable as exc:
            logger.warning("executions.result_unavailable", task_id=task.task_id, reason=exc.detail)
        except DomainError:
            found[task.task_id] = None
    return found


def _look(tenant_id: int, execution_id: int, *, may_call: bool, skip_locked: bool) -> list[Claimed]:
    results = _results_of_ended_tasks(tenant_id, execution_id)

    def forward() -> list[Claimed]:
        with _acting(tenant_id):
            return step_forward(execution_id, may_call=may_call, results=results, skip_locked=skip_locked)

    return retried(forward)


def step_forward(
    execution_id: int,
    *,
    may_call: bool,
    results: Mapping[int, Any] = MappingProxyType({}),
    skip_locked: bool = False,
) -> list[Claimed]:
    """Do all that needs no worker, and claim what needs one. Needs an acting transaction.

    :param results: what ended tasks have found, by task; a step whose task's result is missing waits for the next
        look, unless the record itself carries it.
    """
    work = Round.of(execution_id, skip_locked=skip_locked)
    if work is None or work.execution.is_final:
        return []
    go_forward(work, may_call=may_call, results=results)
    return [_claimed(work, *claim) for claim in work.claims]


def go_forward(work: Round, *, may_call: bool, results: Mapping[int, Any] = MappingProxyType({})) -> None:
    """As :func:`step_forward`, within a round that is under way, which ends with this."""
    if work.execution.status == Status.QUEUED:
        work.execution.move_to(Status.EXECUTING)
    _take_in(work, results)
    held_back = _go_on(work, may_call=may_call)
    take_calls(work)
    _plan_next_look(work, held_back=held_back)
    work.save()


def _take_in(work: Round, results: Mapping[int, Any]) -> None:
    """What happened since the last look: tasks ended, receipts came, processes died."""
    by_task = {step.task_id: step for step in work.in_state(StepStatus.QUEUED) if step.task_id is not None}
    for record in TerminalRecord.objects.filter(task_id__in=sorted(by_task)):
        if record.task_id not in results and record.content is None and record.result_pointer is not None:
            continue
        _take_in_task(work, by_task[record.task_id], record, results.get(record.task_id, record.content))
    for step in work.in_state(StepStatus.AWAITING):
        if step.step_type == StepType.WAIT_FOR:
            look_again(work, step)


def _take_in_task(work: Round, step: ExecutionStep, record: TerminalRecord, result: Any) -> None:
    run_id = f"run_{record.fence}"
    if not record.fence:
        work.give_back(step, step.cost)
    if record.status == TaskStatus.SUCCEEDED:
        succeed(
            work,
            step,
            result=result,
            result_pointer=record.result_pointer,
            summary=record.summary,
            run_id=run_id,
        )
    elif record.status == TaskStatus.CANCELED:
        work.settle(step, StepStatus.CANCELED)
        if work.execution.halted_as is None:
            work.halt(Status.CANCELED, f"The task of {step.step_id} was canceled.")
    else:
        error = record.error or {}
        if error.get("code") == BUDGET_EXCEEDED:
            work.halt(Status.BUDGET_EXCEEDED, error.get("message", record.summary))
        fail(
            work,
            step,
            code=error.get("code", "task_failed"),
            message=error.get("message", record.summary),
            retryable=False,
            run_id=run_id,
        )


def _go_on(work: Round, *, may_call: bool) -> bool:
    """Begin and skip until nothing moves; says whether worker steps were left to another process."""
    held_back = _take_over(work, may_call=may_call)
    while True:
        moves = _moves(work)
        for step_id in moves.skip:
            work.settle(work.step(step_id), StepStatus.SKIPPED)
        ready = [work.step(step_id) for step_id in moves.begin]
        mine = [step for step in ready if _may_begin(work, step, may_call=may_call)]
        held_back = held_back or any(step not in mine and not _too_early(work, step) for step in ready)
        for step in mine:
            if work.execution.halted_as is None:
                begin(work, step)
        if moves.verdict is not None:
            ending.finish(work, moves.verdict)
            return False
        if not (mine or moves.skip):
            return held_back


def _take_over(work: Round, *, may_call: bool) -> bool:
    """Calls whose process is gone are made again, here or by the process that is nudged; says whether any is left.

    After a halt none is: what is left of them then is settled by letting go.
    """
    expired = work.expired_claims
    for step in expired if may_call else ():
        if work.execution.halted_as is None:
            reclaim(work, step)
    return bool(expired) and not may_call and work.execution.halted_as is None


def _moves(work: Round) -> Moves:
    strategy = Strategy(work.execution.strategy)
    halted_as = None if work.execution.halted_as is None else Status(work.execution.halted_as)
    moves = next_moves(work.standings, strategy=strategy, halted_as=halted_as)
    if moves.halt_as is None:
        return moves
    work.halt(moves.halt_as)
    ending.let_go(work)
    return next_moves(work.standings, strategy=strategy, halted_as=moves.halt_as)


def _may_begin(work: Round, step: ExecutionStep, *, may_call: bool) -> bool:
    return step.step_type not in WORKER_STEPS or (may_call and not _too_early(work, step))


def _too_early(work: Round, step: ExecutionStep) -> bool:
    return step.retry_at is not None and step.retry_at > work.now


def _plan_next_look(work: Round, *, held_back: bool) -> None:
    """Set when a tick must look by itself, and nudge where another process should go on now."""
    execution = work.execution
    if execution.is_final:
        return
    deciding = any(step.step_type == StepType.ESCALATE and step.status == StepStatus.AWAITING for step in work.steps)
    execution.move_to(Status.NEEDS_ESCALATION if deciding else Status.EXECUTING)
    moments = [step.call_expires_at for step in work.in_state(StepStatus.CALLING)]
    moments += [step.retry_at for step in work.in_state(StepStatus.PENDING)]
    if any(step.step_type == StepType.WAIT_FOR for step in work.in_state(StepStatus.AWAITING)):
        moments.append(work.now + RECEIPTS_EVERY)
    if held_back:
        moments.append(work.now + _NUDGE_AGAIN)
        send_on_commit(execution_can_go_on, execution)
    execution.wake_at = min((moment for moment in moments if moment is not None), default=None)


def _claimed(work: Round, step: ExecutionStep, target: calls.Target) -> Claimed:
    return Claimed(
        tenant_id=work.execution.tenant_id,
        execution_id=work.execution.pk,
        step_pk=step.pk,
        fence=step.attempts,
        owner=work.owner,
        cause=work.execution.plan_receipt_id,
        target=target,
        cost=work.charges.get(step.pk, Decimal(0)),
        params=step.definition.get("params") or {},
        envelopes={other.step_id: other.envelope for other in work.in_state(StepStatus.COMPLETE) if other.envelope},
        as_task=as_task(work, step, target),
    )


def _carry_out(claimed: list[Claimed]) -> None:
    """Carry out claimed steps, direct calls all at once, and write each outcome as it comes."""
    direct: list[tuple[Claimed, Mapping[str, Any]]] = []
    for claim in claimed:
        try:
            params = _resolved(claim)
            calls.check_params(claim.target, params)
        except DomainError as exc:
            retried(partial(_write_failure, claim, exc, reached=False))
            continue
        if claim.as_task:
            retried(partial(_queue, claim, params))
        else:
            direct.append((claim, params))
    if direct:
        _call_all(direct)


def _resolved(claim: Claimed) -> Mapping[str, Any]:
    """The step's parameters with what earlier steps have found.

    :raises UnresolvedReference: if a reference leads nowhere.
    """

    def payload_of(step_id: str) -> Any:
        pointer = claim.envelopes[step_id].get("result_pointer")
        return None if pointer is None else calls.kept(tenant_id=claim.tenant_id, pointer=pointer)

    found: dict[str, Any] = references.resolve(claim.params, envelopes=claim.envelopes, payload_of=payload_of)
    return calls.with_cause(claim.target, found, claim.cause)


def _call_all(direct: list[tuple[Claimed, Mapping[str, Any]]]) -> None:
    """The threads only talk to workers; this one keeps the claims alive and owns the database connection.

    A call gets a thread right after a look at its claim, so that one that has waited, and has lost its claim meanwhile, is
    not made. Between that look and the call is an instant that nobody watches.
    """
    waiting = deque(direct)
    running: dict[Future[calls.Called | DomainError], Claimed] = {}
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(direct)), thread_name_prefix="call") as pool:
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                claim, params = waiting.popleft()
                if _renew(claim):
                    running[pool.submit(_call, claim, params)] = claim
            done, _ = wait(running, timeout=_RENEW_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                _write(running.pop(future), future.result())
            for claim in [*running.values(), *(claim for claim, _ in waiting)]:
                _renew(claim)


def _call(claim: Claimed, params: Mapping[str, Any]) -> calls.Called | DomainError:
    deadline = min(claim.target.deadline, calls.DIRECT)
    try:
        return calls.call(target=claim.target, params=params, deadline=deadline, canceled=claim.lost.is_set)
    except DomainError as refusal:
        return refusal


def _renew(claim: Claimed) -> bool:
    """Keep the claim, or have the call given up: unless it may begin a job, which is canceled by its id.

    :return: whether the claim still stands.
    """
    with _acting(claim.tenant_id):
        if sql.renew_claim(step_id=claim.step_pk, fence=claim.fence, period=CLAIM):
            return True
        if not following.begins_jobs(claim.target):
            claim.lost.set()
    return False


def _queue(claim: Claimed, params: Mapping[str, Any]) -> None:
    """Turn a claimed step into a task; the key makes a second attempt find the first one's task."""
    try:
        with _holding(claim) as held:
            if held is None:
                return
            work, step = held
            task = tasks.queue(requester=work.owner, request=_request(work.execution, step, params))
            step.task_id = parse_ref("task", task.task_id)
            step.move_to(StepStatus.QUEUED)
            step.envelope = queued(step.origin, task_id=task.task_id, at=work.now)
    except DomainError as refusal:
        retried(partial(_write_failure, claim, refusal, reached=False))


def _request(execution: Execution, step: ExecutionStep, params: Mapping[str, Any]) -> QueueRequest:
    return QueueRequest(
        task_type=calls.TASK_TYPE,
        params={"worker_id": step.worker_id, "tool_name": step.tool_name, "params": dict(params)},
        recipient=execution.owner.name,
        idempotency_key=f"{execution.ref}:{step.step_id}",
        caused_by=execution.plan_receipt_id,
        group=calls.group_of(execution),
    )


def _write(claim: Claimed, outcome: calls.Called | DomainError) -> None:
    """Write what came of a direct call, if the claim still stands; else a job that it has begun is to be canceled."""
    if isinstance(outcome, DomainError):
        retried(partial(_write_failure, claim, outcome))
        return
    try:
        pointer = calls.keep(caller=claim.owner, value=outcome.payload)
    except DomainError as refusal:
        retried(partial(_write_failure, claim, refusal))
        return
    retried(partial(_write_result, claim, outcome, pointer))


def _write_result(claim: Claimed, outcome: calls.Called, pointer: str) -> None:
    with _holding(claim) as held:
        if held is None:
            if not _goes_on(claim, outcome.payload):
                following.begin(claim.target, outcome.payload, task_id=None)
            return
        work, step = held
        calls.record(claim.target, outcome)
        succeed(work, step, result=outcome.payload, result_pointer=pointer, summary=outcome.summary)


def _goes_on(claim: Claimed, payload: Mapping[str, Any]) -> bool:
    """Whether a step whose claim was lost is at work still, or has ended with this very job: then another process has it."""
    step = ExecutionStep.objects.select_related("execution").filter(pk=claim.step_pk).first()
    if step is None or step.execution.halted_as is not None:
        return False
    if step.status != StepStatus.COMPLETE:
        return step.status not in SETTLED
    found = (step.envelope or {}).get("payload")
    return isinstance(found, Mapping) and found.get("job_id") == payload.get("job_id")


def _write_failure(claim: Claimed, refusal: DomainError, *, reached: bool = True) -> None:
    """:param reached: whether the tool may have run; a failed call knows better by itself."""
    with _holding(claim) as held:
        if held is None:
            return
        work, step = held
        calls.record(claim.target, refusal)
        if isinstance(refusal, WorkerCallFailed):
            reached = refusal.reached
        if not reached:
            work.give_back(step, claim.cost)
        if _again(claim, refusal, reached=reached):
            step.move_to(StepStatus.PENDING)
            step.retry_at = work.now + _RETRY_AFTER * 2 ** (step.attempts - 1)
        elif _outcome_unknown(claim, refusal):
            message = f"{refusal.detail} It may have done its work, and may not be run twice."
            fail(work, step, code=OUTCOME_UNKNOWN, message=message, retryable=False)
        else:
            retryable = refusal.retryable if isinstance(refusal, WorkerCallFailed) else isinstance(refusal, Unavailable)
            fail(work, step, code=refusal.code, message=refusal.detail, retryable=retryable)


def _outcome_unknown(claim: Claimed, refusal: DomainError) -> bool:
    """Whether the tool was reached, did not say how it went, and must not be asked again."""
    if not isinstance(refusal, WorkerCallFailed) or claim.target.repeatable:
        return False
    return refusal.reached and refusal.retryable


def _again(claim: Claimed, outcome: DomainError, *, reached: bool) -> bool:
    if isinstance(outcome, WorkerCallFailed):
        may_pass, most = outcome.retryable, _TRIES
    else:
        # An outage on this side, of the artifacts' storage: worth more patience than a worker that does not answer.
        may_pass, most = isinstance(outcome, Unavailable), MAX_CLAIMS
    return may_pass and claim.fence < most and (claim.target.repeatable or not reached)


@contextmanager
def _holding(claim: Claimed) -> Iterator[tuple[Round, ExecutionStep] | None]:
    """The locked execution and step of a claim that still stands; None if it was taken over or canceled."""
    with _acting(claim.tenant_id):
        work = Round.of(claim.execution_id)
        step = None if work is None else next(found for found in work.steps if found.pk == claim.step_pk)
        if work is None or step is None or step.status != StepStatus.CALLING or step.attempts != claim.fence:
            yield None
            return
        yield work, step
        work.touch(step)
        work.save()
