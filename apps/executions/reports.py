"""What an execution tells its owner: the completion report, the trace for memory, the hand-over. All from rows."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from apps.core import strict_json
from apps.executions.states import IN_THE_AIR, Status, StepStatus
from apps.plans.shapes import WORKER_STEPS, StepType

_SUMMARY: Final = 2_000
_INTENT: Final = 200
_ERROR: Final = 200
_MOST_TOLD: Final = 40 * 1024
"""Bytes of results in a receipt, whose metadata have room for more beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One step as a report sees it."""

    step_id: str
    step_type: StepType
    status: StepStatus
    worker_id: str | None
    tool_name: str | None
    task_id: str | None
    definition: dict[str, Any]
    envelope: dict[str, Any] | None
    retry_at: datetime | None = None

    @property
    def is_put_off(self) -> bool:
        """May it begin, only later: when its worker is back, has room, or is asked once more?"""
        return self.status == StepStatus.PENDING and self.retry_at is not None

    @property
    def escalation(self) -> dict[str, Any] | None:
        """What its worker asks somebody else to take on."""
        return (self.envelope or {}).get("escalation")

    @property
    def is_asked(self) -> bool:
        """Does it wait for its owner's answer?"""
        return self.status == StepStatus.AWAITING and self.step_type in {StepType.AGGREGATE, StepType.ESCALATE}

    @property
    def error(self) -> dict[str, Any] | None:
        return (self.envelope or {}).get("error")

    @property
    def payload(self) -> Any:
        return (self.envelope or {}).get("payload")

    @property
    def findings(self) -> dict[str, Any]:
        return dict((self.envelope or {}).get("key_findings") or {})

    @property
    def result_pointer(self) -> str | None:
        return (self.envelope or {}).get("result_pointer")


def summary(intent: str, status: Status, lines: Sequence[Line], *, halted_why: str = "") -> str:
    """One paragraph: the principal's own synthesis where there is one, else what the steps say of themselves."""
    if halted_why:
        return halted_why[:_SUMMARY]
    told = _told(lines, {StepType.AGGREGATE}) or _told(lines, WORKER_STEPS)
    return told[:_SUMMARY] or f"{intent[:_INTENT]}: {status}."


def _told(lines: Sequence[Line], step_types: Collection[StepType]) -> str:
    return " ".join(part for line in lines if line.step_type in step_types if (part := _said(line)))


def _said(line: Line) -> str:
    return f"{line.step_id} failed: {outcome(line)}" if line.error else outcome(line)


def outcome(line: Line) -> str:
    """What a step says of itself: why it failed, else its summary; nothing where it has neither."""
    if line.error:
        return str(line.error["message"])
    found = (line.envelope or {}).get("summary") or line.findings.get("summary")
    return _sentence(found) if isinstance(found, str) and found else ""


def waits_for(lines: Sequence[Line], *, owner: str) -> list[str]:
    """What an execution waits for at the moment, a sentence for each step that is in the air or put off."""
    return [
        f"{line.step_id} waits for {_awaited(line, owner)}."
        for line in lines
        if line.status in IN_THE_AIR or line.is_put_off
    ]


def _awaited(line: Line, owner: str) -> str:
    if line.is_put_off:
        return f"{line.worker_id}, to be called at {line.retry_at:%Y-%m-%d %H:%M:%S} UTC"
    if line.status == StepStatus.CALLING:
        return f"{line.worker_id}, which is being called"
    if line.status == StepStatus.QUEUED:
        return f"{line.task_id}, a task for {line.worker_id}"
    if line.step_type == StepType.AGGREGATE:
        return f"its owner, {owner}, to combine the results and hand them in"
    if line.step_type == StepType.ESCALATE:
        return f"its owner, {owner}, to decide"
    return f"receipts: {', '.join(line.definition.get('wait_for_receipts') or ())}"


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def results(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """One line per step that bears a result."""
    return [result(line) for line in lines if line.step_type in WORKER_STEPS or line.step_type == StepType.AGGREGATE]


def result(line: Line) -> dict[str, Any]:
    """What one step came to."""
    return {
        "step_id": line.step_id,
        "worker_id": line.worker_id,
        "tool_name": line.tool_name,
        "status": line.status,
        "key_findings": line.findings,
        "result_pointer": line.result_pointer,
        "task_id": line.task_id,
        "error": (line.envelope or {}).get("error"),
        "promotion_recommendation": (line.envelope or {}).get("promotion_recommendation"),
    }


def next_actions(ref: str, status: Status, lines: Sequence[Line], *, is_delegate: bool) -> list[str]:
    """What the owner may do now.

    :param is_delegate: whether the owner is a DeleGate: what it learns becomes knowledge by its promotion policy alone.
    """
    found: list[str] = []
    for line in lines:
        if line.status == StepStatus.AWAITING and line.step_type == StepType.AGGREGATE:
            found.append(f"Combine the results and hand them in: submit_step_result({ref}, {line.step_id}).")
        if line.status == StepStatus.AWAITING and line.step_type == StepType.ESCALATE:
            found.append(f"Decide: decide_step({ref}, {line.step_id}).")
    if status in {Status.COMPLETE, Status.PARTIAL}:
        found += [f"Read {line.step_id} behind {line.result_pointer}." for line in lines if line.result_pointer][:5]
        found += _what_was_learned(lines, is_delegate=is_delegate)
    if status in {Status.PARTIAL, Status.FAILED, Status.BUDGET_EXCEEDED}:
        found += _how_to_plan_again(status, lines)
    return found


def _how_to_plan_again(status: Status, lines: Sequence[Line]) -> list[str]:
    """With whom a worker has named in its place, else without what failed. Of a partial one the rest is not said to have to be."""
    failed = [line for line in lines if line.status == StepStatus.FAILED and line.step_type in WORKER_STEPS]
    handed_on = [
        f"Plan again, with {line.escalation['suggested_delegate'] or 'somebody else'} in its place: {_replan(line)}."
        for line in failed
        if line.escalation
    ]
    if handed_on or status == Status.PARTIAL:
        return handed_on
    advice = "Plan again, without what failed or with another budget"
    return [f"{advice}: {_replan(line)}." for line in failed[:1]] or [f"{advice}."]


def _replan(line: Line) -> str:
    return f"replan_plan({(line.envelope or {})['plan_id']}, {line.step_id})"


def _what_was_learned(lines: Sequence[Line], *, is_delegate: bool) -> list[str]:
    asked = [(line.step_id, (line.envelope or {}).get("promotion_recommendation") or {}) for line in lines]
    open_still = [(step_id, one) for step_id, one in asked if one.get("promote")]
    if is_delegate:
        return [
            f"Recommend in your report what {step_id} recommends: {one.get('reason') or 'it is not promoted yet.'}"
            for step_id, one in open_still
        ] or ["Promote what was learned with memory_promote, or recommend it in your report."]
    return [
        f"Decide whether what {step_id} recommends is to be known; memory_store makes it so."
        for step_id, _ in open_still
    ] or ["Store what was learned with memory_store."]


def final_report(lines: Sequence[Line]) -> dict[str, Any] | None:
    """What the last escalate reports; None before it has."""
    for line in reversed(lines):
        if line.step_type == StepType.ESCALATE and line.status == StepStatus.COMPLETE:
            return dict(line.payload or {})
    return None


def within_a_receipt(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results as a receipt may tell of them: where they are too large together, what was found stays in the execution's report,
    and so do the last ones of very many.
    """
    if strict_json.size(found) <= _MOST_TOLD:
        return found
    kept: list[dict[str, Any]] = []
    room = _MOST_TOLD
    for one in map(_in_short, found):
        room -= strict_json.size([one])
        if room < 0:
            break
        kept.append(one)
    return kept


def _in_short(one: dict[str, Any]) -> dict[str, Any]:
    error = one.get("error")
    short = {**one, "key_findings": {}, "promotion_recommendation": None}
    return short if error is None else {**short, "error": {**error, "message": error["message"][:_ERROR]}}


def handed_over(lines: Sequence[Line], wanted: Sequence[str]) -> list[dict[str, Any]]:
    """What a principal needs to combine results: where each one is, and the gist of it."""
    return [
        {
            "step_id": line.step_id,
            "worker_id": line.worker_id,
            "tool_name": line.tool_name,
            "status": line.status,
            "task_id": line.task_id,
            "result_pointer": line.result_pointer,
            "key_findings": line.findings,
            "promotion_recommendation": (line.envelope or {}).get("promotion_recommendation"),
        }
        for line in lines
        if line.step_id in wanted
    ]


def trace(
    *, plan_id: str, intent: str, lines: Sequence[Line], status: Status, started_at: datetime, ended_at: datetime
) -> tuple[str, dict[str, Any]]:
    """The one observation that an execution leaves in memory: its sentence and its metadata."""
    worked = [line for line in lines if line.step_type in WORKER_STEPS]
    duration = round((ended_at - started_at).total_seconds(), 3)
    path = " → ".join(f"{line.worker_id} ({line.step_id}, {'async' if line.task_id else 'direct'})" for line in worked)
    done = sum(line.status == StepStatus.COMPLETE for line in lines)
    ended = "Completed" if status == Status.COMPLETE else f"Ended {status}"
    return (
        f"Delegated {intent[:_INTENT]!r} → {path or 'nobody'}. {ended} in {duration:g} s.",
        {
            "plan_id": plan_id,
            "intent": intent[:_SUMMARY],
            "workers_used": list(dict.fromkeys(line.worker_id for line in worked if line.worker_id)),
            "steps_count": len(lines),
            "total_duration_seconds": duration,
            "success_rate": round(done / len(lines), 4) if lines else 0.0,
            "result_pointers": [line.result_pointer for line in worked if line.task_id and line.result_pointer],
        },
    )
