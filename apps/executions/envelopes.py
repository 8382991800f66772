"""ResultEnvelopes: the outcome of a step, in the one shape that every tier reads."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from apps.executions.models import ExecutionStep

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
_INTENT: Final = 20_000
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
    return {
        **_head(step, "complete"),
        "payload": result if carried else None,
        "key_findings": key_findings(result),
        "promotion_recommendation": recommended(result),
        "result_pointer": result_pointer,
        "summary": summary,
        "provenance": _provenance(step, ended_at, run_id),
    }


def failed(
    step: ExecutionStep,
    *,
    code: str,
    message: str,
    retryable: bool,
    ended_at: datetime,
    run_id: str | None = None,
    escalation: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The envelope of a step that will have no result.

    :param escalation: the work that its worker asks somebody else to do.
    """
    return {
        **_head(step, "failed"),
        "provenance": _provenance(step, ended_at, run_id),
        "error": {"code": code, "message": message[:2_000], "retryable": retryable},
        **({} if escalation is None else {"escalation": dict(escalation)}),
    }


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
    if not isinstance(asked, Mapping) or not 0 < len(_text(asked, "intent")) <= _INTENT:
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


def _provenance(step: ExecutionStep, ended_at: datetime, run_id: str | None) -> dict[str, Any]:
    started_at = step.started_at or ended_at
    return {
        "started_at": started_at.isoformat(),
        "completed_at": ended_at.isoformat(),
        "duration_seconds": round((ended_at - started_at).total_seconds(), 3),
        "run_id": run_id,
    }
