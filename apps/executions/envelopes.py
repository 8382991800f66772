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
    carried = result_pointer is None or len(json.dumps(result, ensure_ascii=False)) <= MAX_PAYLOAD_BYTES
    return {
        **_head(origin, "complete"),
        "payload": result if carried else None,
        "key_findings": key_findings(result),
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
) -> dict[str, Any]:
    """The envelope of a step that has none and won't have one."""
    return {
        **_head(origin, "failed"),
        "async_task_id": task_id,
        "provenance": _provenance(started_at, ended_at, run_id),
        "error": {"code": code, "message": message[:2_000], "retryable": retryable},
    }


def key_findings(payload: Any) -> dict[str, Any]:
    """What of a result fits into a report: its plain values, and how many items its lists hold."""
    if not isinstance(payload, Mapping):
        return {}
    found: dict[str, Any] = {}
    for name, value in payload.items():
        if isinstance(value, list):
            found[f"{name}_count"] = len(value)
        elif isinstance(value, str):
            found[name] = value[:_FINDING_TEXT]
        elif value is None or isinstance(value, bool | int | float):
            found[name] = value
        if len(found) >= _FINDINGS:
            break
    return found


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
