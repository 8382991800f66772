"""ResultEnvelopes: what came of a step, in the one shape that every tier reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

MAX_PAYLOAD_BYTES: Final = 65_536
"""What is larger stays behind its pointer; the envelope then holds no payload."""
_FINDINGS: Final = 12
_FINDING_TEXT: Final = 500
_FINDING_NAME: Final = 100
# Of what is recommended for promotion: how sure, where nothing is said; the longest domain and text.
_CONFIDENCE: Final = 0.8
_DOMAIN: Final = 100
_LEARNED: Final = 2_000
# Of an escalation: the longest intent, as a plan takes it, and the longest name.
_INTENT: Final = 20_000
_NAME: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which step of which plan an envelope belongs to."""

    plan_id: str
    step_id: str
    worker_id: str | None
    tool_name: str | None


def queued(origin: Origin, *, task_id: str, at: datetime) -> dict[str, Any]:
    """The envelope of a step that became a task."""
    return {
        **_head(origin, "async_queued"),
        "async_task_id": task_id,
        "provenance": {"queued_at": at.isoformat(), "started_at": None, "completed_at": None, "duration_seconds": None},
    }


def complete(
    origin: Origin,
    *,
    result: Any,
    result_pointer: str | None,
    started_at: datetime,
    ended_at: datetime,
    task_id: str | None = None,
    run_id: str | None = None,
    summary: str | None = None,
) -> dict[str, Any]:
    """The envelope of a step that has a result: the result itself where it is small or nothing else leads to it."""
    carried = result_pointer is None or len(json.dumps(result, ensure_ascii=False).encode()) <= MAX_PAYLOAD_BYTES
    return {
        **_head(origin, "complete"),
        "payload": result if carried else None,
        "key_findings": key_findings(result),
        "promotion_recommendation": recommended(result),
        "async_task_id": task_id,
        "result_pointer": result_pointer,
        "summary": summary,
        "provenance": _provenance(started_at, ended_at, run_id),
    }


def failed(
    origin: Origin,
    *,
    code: str,
    message: str,
    retryable: bool,
    started_at: datetime,
    ended_at: datetime,
    task_id: str | None = None,
    run_id: str | None = None,
    escalation: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The envelope of a step that has none and won't have one.

    :param escalation: what its worker asks to be taken on by somebody else.
    """
    return {
        **_head(origin, "failed"),
        "async_task_id": task_id,
        "provenance": _provenance(started_at, ended_at, run_id),
        "error": {"code": code, "message": message[:2_000], "retryable": retryable},
        **({} if escalation is None else {"escalation": dict(escalation)}),
    }


def key_findings(payload: Any) -> dict[str, Any]:
    """What of a result fits into a report: its plain values, and how many items its lists hold; none with names too long for it."""
    if not isinstance(payload, Mapping):
        return {}
    found: dict[str, Any] = {}
    told = ((name, value) for name, value in payload.items() if len(name) <= _FINDING_NAME)
    for name, value in told:
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
    """What a result says should be known: `promotion_recommendation`, where it is of its form."""
    asked = result.get("promotion_recommendation") if isinstance(result, Mapping) else None
    if not isinstance(asked, Mapping) or asked.get("promote") is not True:
        return None
    domain, reasoning = _said(asked, "domain"), _said(asked, "reasoning")
    learned = _said(asked, "observation") or reasoning
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
    """What a result with the status `needs_escalation` asks somebody else to take on, where it is of its form."""
    if not isinstance(result, Mapping) or result.get("status") != "needs_escalation":
        return None
    asked = result.get("escalation")
    if not isinstance(asked, Mapping) or not 0 < len(_said(asked, "intent")) <= _INTENT:
        return None
    return {
        "message": (_said(result, "message") or _said(asked, "intent"))[:_LEARNED],
        "intent": _said(asked, "intent"),
        "suggested_delegate": _said(asked, "suggested_delegate")[:_NAME] or None,
    }


def _said(asked: Mapping[str, Any], name: str) -> str:
    said = asked.get(name)
    return said.strip() if isinstance(said, str) else ""


def _head(origin: Origin, status: str) -> dict[str, Any]:
    return {
        "plan_id": origin.plan_id,
        "step_id": origin.step_id,
        "worker_id": origin.worker_id,
        "tool_name": origin.tool_name,
        "status": status,
        "payload": None,
        "async_task_id": None,
        "result_pointer": None,
        "error": None,
    }


def _provenance(started_at: datetime, ended_at: datetime, run_id: str | None) -> dict[str, Any]:
    return {
        "started_at": started_at.isoformat(),
        "completed_at": ended_at.isoformat(),
        "duration_seconds": round((ended_at - started_at).total_seconds(), 3),
        "run_id": run_id,
    }
