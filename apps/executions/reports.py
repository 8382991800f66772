"""The reports of an execution: the summary, the next actions, the results in a receipt, and the trace for memory."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from apps.core import strict_json
from apps.executions.models import ExecutionStep
from apps.executions.shapes import StepResult
from apps.executions.states import ACTIVE, Status, StepStatus
from apps.plans.shapes import WORKER_STEPS, StepType

Steps = Sequence[ExecutionStep]

_SUMMARY: Final = 2_000
_INTENT: Final = 200
_ERROR: Final = 200
_MOST_BYTES: Final = 40 * 1024
"""Of results in a receipt, whose metadata hold other members too."""


def summary(intent: str, status: Status, steps: Steps, *, halted_why: str = "") -> str:
    """One paragraph: why it was halted, else the principal's synthesis, else the outcomes of the worker steps."""
    if halted_why:
        return halted_why[:_SUMMARY]
    for types in ({StepType.AGGREGATE}, WORKER_STEPS):
        outcomes = [
            f"{step.step_id} failed: {outcome(step)}" if step.error else outcome(step)
            for step in steps
            if step.step_type in types
        ]
        if text := " ".join(filter(None, outcomes)):
            return text[:_SUMMARY]
    return f"{intent[:_INTENT]}: {status}."


def outcome(step: ExecutionStep) -> str:
    """Why a step failed, else its summary; empty if it has neither."""
    if step.error:
        return str(step.error["message"])
    found = step.outcome.get("summary") or step.key_findings.get("summary")
    if not isinstance(found, str) or not found:
        return ""
    text = found.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def waits_for(steps: Steps, *, owner: str) -> list[str]:
    """What an execution waits for now: a sentence for each step that is active or put off."""
    return [
        f"{step.step_id} waits for {_awaited(step, owner)}."
        for step in steps
        if step.status in ACTIVE or step.is_put_off
    ]


def _awaited(step: ExecutionStep, owner: str) -> str:
    if step.is_put_off:
        return f"{step.worker_id}, to be called at {step.retry_at:%Y-%m-%d %H:%M:%S} UTC"
    if step.status == StepStatus.CALLING:
        return f"{step.worker_id}, which is being called"
    if step.status == StepStatus.QUEUED:
        return f"{step.task_ref}, a task for {step.worker_id}"
    if step.step_type == StepType.AGGREGATE:
        return f"its owner, {owner}, to combine the results and hand them in"
    if step.step_type == StepType.ESCALATE:
        return f"its owner, {owner}, to decide"
    return f"receipts: {', '.join(step.definition.get('wait_for_receipts') or ())}"


def results(steps: Steps, wanted: Sequence[str] | None = None) -> list[StepResult]:
    """The results of the wanted steps, or of all steps that have one."""
    return [
        StepResult.model_validate(step)
        for step in steps
        if (step.step_type in {*WORKER_STEPS, StepType.AGGREGATE} if wanted is None else step.step_id in wanted)
    ]


def results_for_receipt(steps: Steps, wanted: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Results within the size of a receipt. If they are too large together, findings stay in the execution's report,
    and so do the last results.
    """
    found = [result.model_dump() for result in results(steps, wanted)]
    if strict_json.size(found) <= _MOST_BYTES:
        return found
    kept: list[dict[str, Any]] = []
    room = _MOST_BYTES
    for one in found:
        error = one["error"] and {**one["error"], "message": one["error"]["message"][:_ERROR]}
        short = {**one, "key_findings": {}, "promotion_recommendation": None, "error": error}
        room -= strict_json.size([short])
        if room < 0:
            break
        kept.append(short)
    return kept


def final_report(steps: Steps) -> dict[str, Any] | None:
    """The report of the last complete escalate step; None before it."""
    for step in reversed(steps):
        if step.step_type == StepType.ESCALATE and step.status == StepStatus.COMPLETE:
            return dict(step.outcome.get("payload") or {})
    return None


def next_actions(ref: str, status: Status, steps: Steps, *, is_delegate: bool) -> list[str]:
    """What the owner may do now.

    :param is_delegate: the owner is a DeleGate, whose knowledge is promoted by its promotion policy alone.
    """
    found: list[str] = []
    for step in steps:
        if step.is_asked and step.step_type == StepType.AGGREGATE:
            found.append(f"Combine the results and hand them in: submit_step_result({ref}, {step.step_id}).")
        elif step.is_asked:
            found.append(f"Decide: decide_step({ref}, {step.step_id}).")
    if status in {Status.COMPLETE, Status.PARTIAL}:
        found += [f"Read {step.step_id} behind {step.result_pointer}." for step in steps if step.result_pointer][:5]
        found += _promotions(steps, is_delegate=is_delegate)
    if status in {Status.PARTIAL, Status.FAILED, Status.BUDGET_EXCEEDED}:
        found += _replannings(status, steps)
    return found


def _replannings(status: Status, steps: Steps) -> list[str]:
    """Plan again with the DeleGate that a worker suggests, else without the failed step."""
    failed = [step for step in steps if step.status == StepStatus.FAILED and step.step_type in WORKER_STEPS]
    calls = {step.step_id: f"replan_plan({step.outcome['plan_id']}, {step.step_id})" for step in failed}
    escalated = [
        f"Plan again, with {step.escalation['suggested_delegate'] or 'somebody else'} in its place: {calls[step.step_id]}."
        for step in failed
        if step.escalation
    ]
    if escalated or status == Status.PARTIAL:
        return escalated
    advice = "Plan again, without what failed or with another budget"
    return [f"{advice}: {calls[step.step_id]}." for step in failed[:1]] or [f"{advice}."]


def _promotions(steps: Steps, *, is_delegate: bool) -> list[str]:
    asked = [(step.step_id, step.promotion_recommendation or {}) for step in steps]
    left = [(step_id, one) for step_id, one in asked if one.get("promote")]
    if is_delegate:
        return [
            f"Recommend in your report what {step_id} recommends: {one.get('reason') or 'it is not promoted yet.'}"
            for step_id, one in left
        ] or ["Promote what was learned with memory_promote, or recommend it in your report."]
    return [f"Decide whether to store what {step_id} recommends with memory_store." for step_id, _ in left] or [
        "Store what was learned with memory_store."
    ]


def trace(
    *, plan_id: str, intent: str, steps: Steps, status: Status, started_at: datetime, ended_at: datetime
) -> tuple[str, dict[str, Any]]:
    """The observation that an execution leaves in memory: its text and its metadata."""
    worked = [step for step in steps if step.step_type in WORKER_STEPS]
    duration = round((ended_at - started_at).total_seconds(), 3)
    path = " → ".join(f"{one.worker_id} ({one.step_id}, {'async' if one.task_id else 'direct'})" for one in worked)
    done = sum(step.status == StepStatus.COMPLETE for step in steps)
    ended = "Completed" if status == Status.COMPLETE else f"Ended {status}"
    return (
        f"Delegated {intent[:_INTENT]!r} → {path or 'nobody'}. {ended} in {duration:g} s.",
        {
            "plan_id": plan_id,
            "intent": intent[:_SUMMARY],
            "workers_used": list(dict.fromkeys(step.worker_id for step in worked if step.worker_id)),
            "steps_count": len(steps),
            "total_duration_seconds": duration,
            "success_rate": round(done / len(steps), 4) if steps else 0.0,
            "result_pointers": [step.result_pointer for step in worked if step.task_id and step.result_pointer],
        },
    )
