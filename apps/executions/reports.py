"""The outcomes of steps and executions: ResultEnvelopes, summaries, next actions, results in a receipt, the trace for memory."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from apps.core import strict_json
from apps.executions.models import ExecutionStep
from apps.executions.shapes import StepResult
from apps.executions.states import Status, StepStatus
from apps.plans.shapes import WORKER_STEPS, StepType

MAX_PAYLOAD_BYTES: Final = 65_536
"""A larger payload stays behind its pointer."""
_FINDINGS: Final = 12
_FINDING_TEXT: Final = 500
_FINDING_NAME: Final = 100
# Limits of a promotion recommendation, and its default confidence.
_CONFIDENCE: Final = 0.8
_DOMAIN: Final = 100
_LEARNED: Final = 2_000
# Limits of an escalation: an intent as a plan takes it, and a name.
_ESCALATED_INTENT: Final = 20_000
_NAME: Final = 100


def queued(step: ExecutionStep, *, at: datetime) -> dict[str, Any]:
    """The envelope of a step that became a task."""
    times = {"queued_at": at.isoformat(), "started_at": None, "completed_at": None, "duration_seconds": None}
    return {**_head(step, "async_queued"), "provenance": times}


def complete(
    step: ExecutionStep,
    *,
    result: Any,
    result_pointer: str | None,
    ended_at: datetime,
    run_id: str | None = None,
    summary: str | None = None,
) -> dict[str, Any]:
    """The envelope of a step that has a result. A large result with a pointer is left out."""
    carried = result_pointer is None or len(json.dumps(result, ensure_ascii=False).encode()) <= MAX_PAYLOAD_BYTES
    return ended(
        step,
        "complete",
        ended_at,
        run_id,
        payload=result if carried else None,
        key_findings=key_findings(result),
        promotion_recommendation=recommended(result),
        result_pointer=result_pointer,
        summary=summary,
    )


def ended(
    step: ExecutionStep, status: str, ended_at: datetime, run_id: str | None = None, **members: Any
) -> dict[str, Any]:
    """The envelope of a step that has ended.

    :param members: those that it has beside, or in the place of, those of each envelope.
    """
    started_at = step.started_at or ended_at
    provenance = {
        "started_at": started_at.isoformat(),
        "completed_at": ended_at.isoformat(),
        "duration_seconds": round((ended_at - started_at).total_seconds(), 3),
        "run_id": run_id,
    }
    return {**_head(step, status), **members, "provenance": provenance}


def key_findings(payload: Any) -> dict[str, Any]:
    """The part of a result that fits into a report: its plain values, and the lengths of its lists."""
    if not isinstance(payload, Mapping):
        return {}
    found: dict[str, Any] = {}
    for name, value in payload.items():
        if len(name) > _FINDING_NAME:
            continue
        if isinstance(value, list):
            found[f"{name}_count"] = len(value)
        elif isinstance(value, str):
            found[name] = value[:_FINDING_TEXT]
        elif value is None or isinstance(value, bool | int | float):
            found[name] = value
        if len(found) >= _FINDINGS:
            break
    return found


def recommended(result: Any) -> dict[str, Any] | None:
    """The `promotion_recommendation` of a result: knowledge to store; None if it is missing or malformed."""
    asked = result.get("promotion_recommendation") if isinstance(result, Mapping) else None
    if not isinstance(asked, Mapping) or asked.get("promote") is not True:
        return None
    domain, reasoning = _text(asked, "domain"), _text(asked, "reasoning")
    learned = _text(asked, "observation") or reasoning
    confidence = asked.get("confidence", _CONFIDENCE)
    if not domain or not learned or type(confidence) not in {int, float} or not 0 <= confidence <= 1:
        return None
    return {
        "promote": True,
        "domain": domain[:_DOMAIN],
        "observation": learned[:_LEARNED],
        "reasoning": reasoning[:_LEARNED],
        "confidence": float(confidence),
    }


def escalated(result: Any) -> dict[str, Any] | None:
    """The escalation of a result with the status `needs_escalation`; None for any other result."""
    if not isinstance(result, Mapping) or result.get("status") != "needs_escalation":
        return None
    asked = result.get("escalation")
    if not isinstance(asked, Mapping) or not 0 < len(_text(asked, "intent")) <= _ESCALATED_INTENT:
        return None
    return {
        "message": (_text(result, "message") or _text(asked, "intent"))[:_LEARNED],
        "intent": _text(asked, "intent"),
        "suggested_delegate": _text(asked, "suggested_delegate")[:_NAME] or None,
    }


def _text(members: Mapping[str, Any], name: str) -> str:
    text = members.get(name)
    return text.strip() if isinstance(text, str) else ""


def _head(step: ExecutionStep, status: str) -> dict[str, Any]:
    return {
        "plan_id": step.execution.plan_id,
        "step_id": step.step_id,
        "worker_id": step.worker_id,
        "tool_name": step.tool_name,
        "status": status,
        "payload": None,
        "async_task_id": step.task_ref,
        "result_pointer": None,
        "error": None,
    }


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
    for step in (step for step in steps if step.is_asked):
        named = f'execution_id="{ref}", step_id="{step.step_id}"'
        route = f"over REST POST /api/v1/executions/{ref}/steps/{step.step_id}"
        if step.step_type == StepType.AGGREGATE:
            call = f"submit_step_result({named}, result={{…}}, summary=…)"
            found.append(f"Combine the results and hand them in: {call}, {route}/result.")
        else:
            found.append(f'Decide: decide_step({named}, decision="accept" | "reject"), by call_tool, {route}/decide.')
    if status in {Status.COMPLETE, Status.PARTIAL}:
        found += [_reading(step) for step in steps if step.result_pointer][:5]
        found += _promotions(steps, is_delegate=is_delegate)
    if status in {Status.PARTIAL, Status.FAILED, Status.BUDGET_EXCEEDED}:
        found += _replannings(status, steps)
    return found


def _reading(step: ExecutionStep) -> str:
    if step.task_ref:
        route = f"GET /api/v1/tasks/{step.task_ref}/result"
        return f'Read {step.step_id} with fetch_task_result(task_id="{step.task_ref}"), over REST {route}.'
    if str(step.result_pointer).startswith("artifact:"):
        call = f'read_artifact(digest="{step.result_pointer}"), by call_tool'
        return f"Read {step.step_id} with {call}, over REST GET /api/v1/artifacts/{{digest}}."
    return f"Read {step.step_id} behind {step.result_pointer}."


def _replannings(status: Status, steps: Steps) -> list[str]:
    """Ask for what a worker says another can do, else plan again without the failed step."""
    failed = [step for step in steps if step.status == StepStatus.FAILED and step.step_type in WORKER_STEPS]
    escalated = [
        f"Ask {step.escalation['suggested_delegate'] or 'somebody else'} for what {step.step_id} can't do:"
        f" carry_out_request(intent={json.dumps(step.escalation['intent'], ensure_ascii=False)})."
        for step in failed
        if step.escalation
    ]
    if escalated or status == Status.PARTIAL:
        return escalated
    advice = "Plan again, without what failed or with another budget"
    calls = [
        f': replan_plan(plan_id="{step.outcome["plan_id"]}", failed_step="{step.step_id}"), by call_tool'
        for step in failed[:1]
    ]
    return [f"{advice}{call}." for call in calls or [""]]


def _promotions(steps: Steps, *, is_delegate: bool) -> list[str]:
    asked = [(step.step_id, step.promotion_recommendation or {}) for step in steps]
    left = [(step_id, one) for step_id, one in asked if one.get("promote")]
    if is_delegate:
        return [
            f"Recommend in your report what {step_id} recommends: {one.get('reason') or 'it is not promoted yet.'}"
            for step_id, one in left
        ] or ["Promote what was learned with memory_promote, by call_tool, or recommend it in your report."]
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
