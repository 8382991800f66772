"""The Plan as a document: frozen steps, the JSON that clients see, canonical bytes and their hash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

import rfc8785

from apps.plans.shapes import StepType

SCHEMA_VERSION: Final = "1.0"
SUBMITTED: Final = "submitted"
"""The `planner_version` of a plan that somebody else than the planner made."""
_SCHEMAS: Final = Path(__file__).parent / "schemas"


class PlanStatus(StrEnum):
    """Whether a plan can be carried out, or says what is missing."""

    READY = "ready"
    NEEDS_ESCALATION = "needs_escalation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One instruction. Fields that are None do not appear in the document."""

    step_id: str
    step_type: StepType
    depends_on: tuple[str, ...] = ()
    order_hint: tuple[str, ...] | None = None
    worker_id: str | None = None
    tool_name: str | None = None
    tool_uid: str | None = None
    params: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] | None = None
    estimated_runtime_seconds: float | None = None
    estimated_cost: float | None = None
    confidence: float | None = None
    critical: bool | None = None
    fallback_worker_ids: tuple[str, ...] | None = None
    alternatives: tuple[Mapping[str, Any], ...] | None = None
    wait_for_step_ids: tuple[str, ...] | None = None
    wait_for_receipts: tuple[str, ...] | None = None
    aggregate_step_ids: tuple[str, ...] | None = None
    synthesis_instructions: str | None = None
    executor: str | None = None
    report_summary: str | None = None
    decision_required: bool | None = None
    recommendation: str | None = None
    clause: int | None = None
    """The number of the part of the intent that asked for it; a step that only feeds another has none."""
    done: bool | None = None
    """It ran to its end under the plan that this one replaces, and is not run again."""

    def document(self) -> dict[str, Any]:
        """Return the step as JSON values."""
        return {name: _plain(value) for name in _STEP_NAMES if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A bundle of instructions with references: what to do, never what came of it."""

    plan_id: str
    delegate_id: str
    principal_ai: str
    intent: str
    created_at: str
    scope: str
    status: PlanStatus
    confidence: float
    steps: tuple[Step, ...]
    planner_version: str
    registry_epoch: int
    history_epoch: int = 0
    assumptions: tuple[str, ...] = ()
    references: Mapping[str, Any] = field(default_factory=dict)
    estimated_total_runtime_seconds: float = 0
    execution_cost_estimate: float = 0.0
    can_run_parallel: bool = False
    missing: tuple[Mapping[str, Any], ...] | None = None
    candidates: tuple[Mapping[str, Any], ...] | None = None
    partial_plan: Mapping[str, Any] | None = None
    constraints: Mapping[str, Any] | None = None
    delegation_path: tuple[str, ...] | None = None
    replaces: str | None = None
    revision: int | None = None
    excluded: tuple[Mapping[str, Any], ...] | None = None

    @property
    def is_submitted(self) -> bool:
        """Has somebody else than the planner made it?"""
        return self.planner_version == SUBMITTED

    def document(self) -> dict[str, Any]:
        """Return the plan as JSON values, without its hash."""
        told = ((name, getattr(self, name)) for name in _PLAN_NAMES)
        found: dict[str, Any] = {name: _plain(value) for name, value in told if value is not None}
        found["schema_version"] = SCHEMA_VERSION
        found["steps"] = [step.document() for step in self.steps]
        return found


_STEP_NAMES: Final = tuple(spec.name for spec in dataclasses.fields(Step))
_PLAN_NAMES: Final = tuple(spec.name for spec in dataclasses.fields(Plan) if spec.name != "steps")


def read(document: Mapping[str, Any]) -> Plan:
    """Return the plan that a document tells, which has been judged valid and names its planner, its epoch and how sure it is."""
    told = {name: document[name] for name in _PLAN_NAMES if name in document}
    steps = tuple(
        Step(**{name: step[name] for name in _STEP_NAMES if name in step} | {"step_type": StepType(step["step_type"])})
        for step in document["steps"]
    )
    return Plan(**told | {"status": PlanStatus(document["status"]), "steps": steps})


def canonical(document: Mapping[str, Any]) -> bytes:
    """Return the document's RFC 8785 bytes.

    :raises rfc8785.CanonicalizationError: if it holds what canonical JSON cannot (an integer beyond 2**53, NaN).
    """
    return rfc8785.dumps(dict(document))


def can_be_told(value: object) -> bool:
    """Has a JSON value a place in a plan: a canonical form, without integers that a double does not hold exactly?"""
    try:
        rfc8785.dumps(value)  # type: ignore[arg-type]  # a JSON value by contract
    except (rfc8785.CanonicalizationError, RecursionError):
        return False
    return True


def plan_hash(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical document, its own `plan_hash` left out."""
    body = {name: value for name, value in document.items() if name != "plan_hash"}
    return hashlib.sha256(canonical(body)).hexdigest()


@cache
def schema(version: str = SCHEMA_VERSION) -> dict[str, Any]:
    """Return the JSON Schema of the Plan in one version."""
    found: dict[str, Any] = json.loads((_SCHEMAS / f"plan-{version}.json").read_text(encoding="utf-8"))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.value if isinstance(value, Enum) else value
    if value is None or isinstance(value, (int, float)):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, (dict, Mapping)):  # to ask for a mapping alone takes longer
        return {str(name): _plain(item) for name, item in value.items()}
    return value
