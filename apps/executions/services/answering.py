"""What principals say to an execution: a result that they owe, a decision, or that it should stop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from django.db import transaction

from apps.executions import selectors
from apps.executions.errors import OtherResult, StepNotOpen
from apps.executions.models import Execution, ExecutionStep
from apps.executions.services import announcing
from apps.executions.services.advancing import go_forward
from apps.executions.services.beginning import fail, succeed
from apps.executions.services.rounds import Round
from apps.executions.states import Status, StepStatus
from apps.plans.shapes import StepType
from apps.principals.tenancy import Caller

Decision = Literal["accept", "reject"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """A result handed in: the value if it was given, always where it is, and what it says in short."""

    result: Any
    result_pointer: str
    summary: str


@transaction.atomic
def submit_step_result(*, caller: Caller, execution_ref: str, step_id: str, handed: Handed) -> Execution:
    """Hand in the result of an aggregate. This closes the obligation and lets the execution go on.

    :raises UnknownExecution: if the caller has no such execution.
    :raises UnknownStep: if the plan has no such step.
    :raises StepNotOpen: if the step is no aggregate, or not (any more) waiting for its result.
    :raises OtherResult: if another result was handed in before; the same one again changes nothing.
    """
    with _open_step(caller, execution_ref, step_id, StepType.AGGREGATE, _same(handed)) as found:
        if found is not None:
            work, step = found
            succeed(work, step, result=handed.result, result_pointer=handed.result_pointer, summary=handed.summary)
            announcing.close_obligation(work, step, event_type="aggregate_complete", summary=handed.summary)
    return selectors.execution_of(caller, execution_ref)


@transaction.atomic
def decide_step(*, caller: Caller, execution_ref: str, step_id: str, decision: Decision, note: str | None) -> Execution:
    """Answer an escalation that asked for a decision. Accepting completes the step, rejecting fails it.

    :raises UnknownExecution: if the caller has no such execution.
    :raises UnknownStep: if the plan has no such step.
    :raises StepNotOpen: if the step asks for no decision, or not any more.
    :raises OtherResult: if it was decided otherwise before; the same decision again changes nothing.
    """
    with _open_step(caller, execution_ref, step_id, StepType.ESCALATE, _decided(decision)) as found:
        if found is not None:
            work, step = found
            if decision == "accept":
                succeed(work, step, result=_report(work, step, decision, note))
            else:
                fail(work, step, code="rejected", message=note or "The recommendation was rejected.", retryable=False)
                work.halt(Status.FAILED, f"{step.step_id} was rejected{f': {note}' if note else '.'}")
            announcing.close_obligation(
                work, step, event_type="escalation_decided", summary=note or f"Decided: {decision}."
            )
    return selectors.execution_of(caller, execution_ref)


@transaction.atomic
def cancel(*, caller: Caller, execution_ref: str, reason: str | None) -> Execution:
    """Stop an execution: what has not begun never will, open tasks are canceled, nobody owes anything any more.

    A task that is being worked on ends when its worker obeys; the execution ends after it.

    :raises UnknownExecution: if the caller has no such execution.
    :raises ExecutionEnded: if it ended otherwise; canceling twice changes nothing.
    """
    execution = selectors.execution_of(caller, execution_ref)
    work = Round.of(execution.pk, caller=caller)
    if work is not None and work.execution.status != Status.CANCELED:
        work.execution.refuse_if_ended()
        work.halt(Status.CANCELED, reason or "Canceled by its owner.")
        go_forward(work, may_call=False)
    return selectors.execution_of(caller, execution_ref)


@contextmanager
def _open_step(
    caller: Caller,
    execution_ref: str,
    step_id: str,
    step_type: StepType,
    is_repetition: Callable[[ExecutionStep], bool],
) -> Iterator[tuple[Round, ExecutionStep] | None]:
    """The waiting step under its locks, then the execution goes on; None for a repetition of what was said before."""
    execution = selectors.execution_of(caller, execution_ref)
    work = Round.of(execution.pk, caller=caller)
    if work is None:
        yield None
        return
    step = work.step(step_id)
    is_asked = step.step_type == step_type and _asks(step)
    if is_asked and step.status in {StepStatus.COMPLETE, StepStatus.FAILED} and step.receipt_id:
        if not is_repetition(step):
            raise OtherResult(f"{step_id} of {execution} was answered before, with something else.")
        yield None
        return
    if not is_asked or step.status != StepStatus.AWAITING:
        raise StepNotOpen(step.in_words, step_status=step.status)
    yield work, step
    work.touch(step)
    go_forward(work, may_call=False)


def _asks(step: ExecutionStep) -> bool:
    """Whether it is its principal who ends the step: a report is told upward, and asks for no decision."""
    return step.step_type == StepType.AGGREGATE or bool(step.definition.get("decision_required"))


def _same(handed: Handed) -> Callable[[ExecutionStep], bool]:
    return lambda step: (step.envelope or {}).get("result_pointer") == handed.result_pointer


def _decided(decision: Decision) -> Callable[[ExecutionStep], bool]:
    return lambda step: (step.status == StepStatus.COMPLETE) == (decision == "accept")


def _report(work: Round, step: ExecutionStep, decision: Decision, note: str | None) -> dict[str, Any]:
    return {
        "report_summary": work.words(step, "report_summary"),
        "recommendation": work.words(step, "recommendation"),
        "decision_required": True,
        "decision": decision,
        "note": note,
    }
