"""The Plan as a document: its shape, the JSON that clients see, its canonical bytes and their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import rfc8785
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

from apps.plans.shapes import WORKER_STEPS, Money, PlanConstraints, StepType

SUBMITTED: Final = "submitted"
"""The `proposer` of a plan that its principal made."""

T = TypeVar("T")


class PlanStatus(StrEnum):
    """Whether a plan can be carried out, and what it needs where it can't."""

    READY = "ready"
    NEEDS_CONFIRMATION = "needs_confirmation"
    NEEDS_INPUT = "needs_input"
    NEEDS_ESCALATION = "needs_escalation"


WHOLE: Final = frozenset({PlanStatus.READY, PlanStatus.NEEDS_CONFIRMATION})
"""The statuses of plans that have all their steps. The others have a `partial_plan` and one step, which escalates."""


def _moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("has no offset from UTC")
    return text


def _distinct(ids: Sequence[str]) -> Sequence[str]:
    if len(set(ids)) < len(ids):
        raise ValueError("names one of them twice")
    return ids


# The members are strict: a text is no number. Only lists and enumerations are read from their JSON form.
List = Annotated[tuple[T, ...], Field(strict=False)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$")]
PrincipalName = Annotated[str, StringConstraints(min_length=1, max_length=100)]
StepId = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
StepIds = Annotated[List[StepId], Field(max_length=256), AfterValidator(_distinct)]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
ToolUid = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Short = Annotated[str, StringConstraints(max_length=100)]
Sentence = Annotated[str, StringConstraints(max_length=2000)]
Prose = Annotated[str, StringConstraints(max_length=20_000)]
Share = Annotated[float, Field(ge=0, le=1)]
ReceiptId = Annotated[str, StringConstraints(min_length=1, max_length=100)]
Told = Annotated[List[dict[str, Any]], Field(max_length=300)]


class Member(BaseModel):
    """A part of a document. Members without a value are left out of it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def document(self) -> dict[str, Any]:
        """The member as JSON values."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)


class Step(Member):
    """One instruction."""

    step_id: StepId
    step_type: Annotated[StepType, Field(strict=False)]
    depends_on: StepIds = ()
    worker_id: Name | None = None
    tool_name: ToolName | None = None
    tool_uid: ToolUid | None = None
    params: dict[str, Any] | None = None
    provenance: dict[str, dict[str, Any]] | None = None
    """By param where its value is from: `source` (see `proposals.Evidence`), and its `key`, `text`, `step_id` or `path`."""
    estimated_runtime_seconds: Annotated[float, Field(ge=0, le=1e9)] | None = None
    estimated_cost: Money | None = None
    confidence: Share | None = None
    critical: bool | None = None
    alternatives: Told | None = None
    """Tools that might have stood here: tool_name, tool_uid, score."""
    missing_params: List[str] | None = None
    """Required params that nothing gives a value, in a plan that is not whole."""
    wait_for_step_ids: Annotated[StepIds, Field(min_length=1)] | None = None
    wait_for_receipts: Annotated[List[ReceiptId], Field(max_length=256), AfterValidator(_distinct)] | None = None
    aggregate_step_ids: Annotated[StepIds, Field(min_length=1)] | None = None
    synthesis_instructions: Prose | None = None
    executor: Literal["principal", "self"] | None = None
    report_summary: Prose | None = None
    decision_required: bool | None = None
    recommendation: Prose | None = None
    expected_output_schema_ref: Annotated[str, StringConstraints(max_length=500)] | None = None
    clause: Annotated[int, Field(ge=0)] | None = None
    """The number of the part of the intent that asked for it; a step that only feeds another has none."""
    done: bool | None = None
    """It ran to its end under the plan that this one replaces, and is not run again."""

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        needs = {
            StepType.WAIT_FOR: () if self.wait_for_receipts else ("wait_for_step_ids",),
            StepType.AGGREGATE: ("aggregate_step_ids", "synthesis_instructions"),
            StepType.ESCALATE: ("report_summary", "decision_required"),
        }
        for name in needs.get(self.step_type, ("tool_name", "params")):
            if getattr(self, name) is None:
                raise PydanticCustomError(
                    "missing_member", "A step of type {type} has {name}", {"type": str(self.step_type), "name": name}
                )
        return self

    @property
    def runs_tool(self) -> bool:
        return self.step_type in WORKER_STEPS

    @property
    def is_to_do(self) -> bool:
        """Does it run a tool, and has it not done so under an earlier plan?"""
        return self.runs_tool and not self.done


def parents_of(steps: Sequence[Step]) -> dict[str, frozenset[str]]:
    """The ids of the steps that come before each one: those that it depends on, waits for or aggregates.

    An escalate that names none reports on the whole plan, so it comes after all that are listed before it.
    """
    found = dict[str, frozenset[str]]()
    for number, step in enumerate(steps):
        named = (*step.depends_on, *(step.wait_for_step_ids or ()), *(step.aggregate_step_ids or ()))
        if step.step_type == StepType.ESCALATE and not named:
            named = tuple(earlier.step_id for earlier in steps[:number])
        found[step.step_id] = frozenset(named)
    return found


def critical_steps(steps: Sequence[Step]) -> frozenset[str]:
    """The steps whose failure fails the plan: those that declare it, else those that a later step depends on."""
    needed = {name for step in steps for name in (*step.depends_on, *(step.wait_for_step_ids or ()))}
    return frozenset(
        step.step_id for step in steps if (step.step_id in needed if step.critical is None else step.critical)
    )


class ModelUse(Member):
    """What asking a language model took."""

    model_config = ConfigDict(from_attributes=True)

    model: Short
    calls: Annotated[int, Field(ge=0)] = 0
    """0: the answer was remembered."""
    input_tokens: Annotated[int, Field(ge=0)] = 0
    output_tokens: Annotated[int, Field(ge=0)] = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    cost: Annotated[float, Field(ge=0)] | None = None
    """In USD. None: no prices are set."""
    failure: Sentence | None = None
    """Why nothing of its answer was used."""


class Plan(Member):
    """A bundle of instructions with references: what to do, never what came of it."""

    plan_id: Name
    delegate_id: PrincipalName
    principal_ai: PrincipalName
    intent: Annotated[str, StringConstraints(min_length=1, max_length=20_000)]
    created_at: Annotated[str, AfterValidator(_moment)]
    scope: Annotated[str, StringConstraints(max_length=200)]
    status: Annotated[PlanStatus, Field(strict=False)] = PlanStatus.READY
    confidence: Share = 0.0
    steps: Annotated[List[Step], Field(min_length=1, max_length=256)]
    proposer: Annotated[str, StringConstraints(max_length=50)] | None = None
    """Who found the tools and values: `local`, `model` or `submitted`."""
    proposer_reason: Sentence | None = None
    """Why this proposer was used."""
    model_use: ModelUse | None = None
    assumptions: Annotated[List[Sentence], Field(max_length=100)] = ()
    references: dict[str, Any] | None = None
    """`inputs`, which the context named (memory_ids, receipt_ids, concept_names), and `expected_outputs`."""
    estimated_total_runtime_seconds: Annotated[float, Field(ge=0, le=1e12)] | None = None
    execution_cost_estimate: Annotated[float, Field(ge=0, le=1e9)] | None = None
    can_run_parallel: bool | None = None
    unsure: Told | None = None
    """What to look at before `confirm_plan`: detail, step_id, and the param; without one, the choice of the tool is meant."""
    questions: Told | None = None
    """What `answer_plan` answers: question_id, text, step_id and tool_name, choices, the schema of the answer, and the param;
    without one, the answer is the name of a tool.
    """
    missing: Told | None = None
    """Why there is no plan: kind (see `proposals.Lack`), detail, the clause and the tool_name that it is about."""
    partial_plan: dict[str, Any] | None = None
    """What there is of a plan that can't be carried out."""
    settled_tools: dict[Annotated[str, StringConstraints(pattern=r"^[0-9]{1,3}$")], ToolUid] | None = None
    """The tools of parts of the intent that answers have named, by the number of the part."""
    constraints: PlanConstraints | None = None
    delegation_path: Annotated[List[Short], Field(max_length=32)] | None = None
    """The keys of the DeleGates that the request came through."""
    replaces: Name | None = None
    """The plan that this one takes the place of."""
    excluded: Told | None = None
    """What failed before, and is not used again: worker_id, tool_name, reason."""
    plan_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None
    # These are told beside a plan, and stand in none.
    next_step: str | None = None
    receipt_id: Short | None = None
    receipt_uuid: Short | None = None


def partial_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """What there is of a plan: itself if it is whole, else its partial plan."""
    if document.get("status", PlanStatus.READY) in WHOLE:
        return document
    return document.get("partial_plan") or {"steps": ()}


def next_step(document: Mapping[str, Any]) -> str:
    """What to do next with a plan, in one plain sentence that names the tool and the route."""
    plan_id, status = document["plan_id"], document.get("status", PlanStatus.READY)
    route = f"over REST POST /api/v1/plans/{plan_id}"
    if status == PlanStatus.READY:
        return f'Carry it out with execute_delegation_plan(plan_id="{plan_id}"), over REST POST /api/v1/executions.'
    if status == PlanStatus.NEEDS_CONFIRMATION:
        first, more = _first(document.get("unsure"), "detail", "It rests on a guess.")
        return f'{first}{more} Is it right? Then confirm_plan(plan_id="{plan_id}"), {route}/confirm.'
    if status == PlanStatus.NEEDS_INPUT:
        first, more = _first(document.get("questions"), "text", "Something is missing.")
        asked = document["questions"][0]["question_id"] if document.get("questions") else "question-1"
        return (
            f'{first}{more} Tell it with answer_plan(plan_id="{plan_id}", answers={{"{asked}": …}}), by call_tool,'
            f" {route}/answer."
        )
    steps = document.get("steps")
    return steps[0]["recommendation"] if steps else "It was forgotten on request: ask for another plan."


def _first(told: Sequence[Mapping[str, Any]] | None, name: str, otherwise: str) -> tuple[str, str]:
    if not told:
        return otherwise, ""
    return told[0][name], f" (And {len(told) - 1} more.)" if len(told) > 1 else ""


def canonical(document: Mapping[str, Any]) -> bytes:
    """The document's RFC 8785 bytes.

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
    """The SHA-256 of the canonical document, its own `plan_hash` left out."""
    body = {name: value for name, value in document.items() if name != "plan_hash"}
    return hashlib.sha256(canonical(body)).hexdigest()
