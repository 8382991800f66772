"""The independent judge of plans: whoever wrote one (the planner, a model, a person), the same rules decide.

Nothing here trusts the author, and nothing here mends: every fault is named by a code and a JSON pointer.
"""

from __future__ import annotations

import graphlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from apps.core.errors import near, pointer_to
from apps.core.foreign_schemas import validator
from apps.plans import documents
from apps.plans.catalogue import (
    Catalogue,
    Reference,
    Tool,
    expected_seconds,
    lacks_room,
    member_at,
    output_at,
    payload_bytes,
    references_in,
    types_meet,
)
from apps.plans.documents import WHOLE, Plan, Step
from apps.plans.shapes import PlanConstraints, StepType
from apps.workers.shapes import OfferView as Offer

MAX_PROBLEMS: Final = 100
_MOST_STEPS: Final = 64
_CHOICES: Final = frozenset({"anyOf", "oneOfMultipleValid", "oneOfNotValid", "oneOf", "not", "unevaluatedProperties"})
"""Keywords whose verdict on an object or a list may change with what its references come to."""
_CLOSED: Final = frozenset({"additionalProperties", "unevaluatedProperties", "falseSchema"})
"""Keywords that refuse a name that is not declared."""
_SECRETS: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bght_[A-Za-z0-9]+_[A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bxox[abprs]-[A-Za-z0-9-]{10,}|\bsk-[A-Za-z0-9_-]{20,}"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a plan: where (a JSON pointer), which rule, and a sentence."""

    path: str
    code: str
    message: str


def parse(document: Mapping[str, Any]) -> tuple[Plan | None, list[Problem]]:
    """What anybody's document is, and what is wrong with its shape and its hash. Without the shape it is no plan."""
    try:
        plan = Plan.model_validate(document)
        is_hashed = plan.plan_hash in {None, documents.plan_hash(document)}
    except ValidationError as refusal:
        faults = refusal.errors(include_url=False, include_input=False)
        return None, list(map(_fault_of_shape, faults[:MAX_PROBLEMS]))
    except (ValueError, RecursionError) as refusal:
        return None, [Problem("", "schema", f"The plan has no canonical JSON form: {refusal}"[:500])]
    return plan, [] if is_hashed else [Problem("/plan_hash", "plan_hash", "This is not the hash of this plan.")]


def validate(plan: Plan, catalogue: Catalogue) -> list[Problem]:
    """Every fault of a plan, in a fixed order; an empty list is a valid plan.

    What the plan says of its own cost and duration is not judged: whoever keeps a plan computes them.
    """
    return list(itertools.islice(_judged(_Case(plan, catalogue)), MAX_PROBLEMS))


def estimates(plan: Plan, catalogue: Catalogue) -> dict[str, Any]:
    """What a plan takes and costs by its steps, and whether two of them may run at once, as a plan tells it."""
    case = _Case(plan, catalogue)
    return {
        "estimated_total_runtime_seconds": round(case.runtime, 3),
        "execution_cost_estimate": round(math.fsum(map(case.cost, case.to_do)), 6),
        "can_run_parallel": case.has_independent_steps,
    }


def param_problems(tool: Tool, params: Mapping[str, Any]) -> list[Problem]:
    """What a tool refuses in the params; a reference stands for its target, and no choice that holds one is judged."""
    held = {found.pointer for found in references_in(params) if found.whole}
    found = []
    for error in validator(tool.input_schema, formats=True).iter_errors(dict(params)):
        where, kind = pointer_to(*error.instance_path), error.kind.name
        inside = any(where == one or where.startswith(f"{one}/") for one in held)
        around = kind in _CHOICES and any(one.startswith(f"{where}/") for one in held)
        if kind == "required":
            path = pointer_to(*error.instance_path, error.kind.as_dict()["property"])
            found.append(Problem(path, "param_missing", error.message[:500]))
        elif not inside and not around and (where or kind not in _CLOSED):
            found.append(Problem(where, "param_invalid", error.message[:500]))
    schema = tool.input_schema
    takes_any = schema.get("patternProperties") or schema.get("additionalProperties", not tool.inputs)
    for name in params:
        if not takes_any and member_at(tool.input_schema, (name,)) is None:
            message = f"{tool.name} takes no {name[-100:]}.{near(name, tool.inputs)}"
            found.append(Problem(pointer_to(name), "param_unknown", message))
    return found[:MAX_PROBLEMS]


def _fault_of_shape(fault: ErrorDetails) -> Problem:
    *above, last = fault["loc"] or ("",)
    if fault["type"] == "extra_forbidden":
        return Problem(pointer_to(*fault["loc"]), "unknown_member", f"A plan has no member {str(last)[:100]!r} here.")
    if fault["type"] == "missing":
        return Problem(pointer_to(*above), "schema", f"{last} is missing.")
    return Problem(pointer_to(*fault["loc"]), "schema", f"{fault['msg']}."[:500])


class _Case:
    """A plan under judgement: its steps by id, what each depends on, and what their workers offer."""

    def __init__(self, plan: Plan, catalogue: Catalogue) -> None:
        self.plan = plan
        self.bounds = plan.constraints or PlanConstraints()
        self.catalogue = catalogue.without(self.bounds.exclude_workers)
        self.steps = plan.steps
        self.by_id = {step.step_id: step for step in self.steps}
        self._position = {step.step_id: number for number, step in enumerate(self.steps)}
        self.parents = documents.parents_of(self.steps)

    @cached_property
    def order(self) -> tuple[str, ...]:
        return tuple(graphlib.TopologicalSorter(self.parents).static_order())

    @cached_property
    def upstream(self) -> Mapping[str, frozenset[str]]:
        """All steps that must be over before each one begins."""
        found: dict[str, frozenset[str]] = {}
        for step_id in self.order:
            parents = self.parents[step_id]
            found[step_id] = parents.union(*(found[parent] for parent in parents))
        return found

    @cached_property
    def to_do(self) -> list[Step]:
        return [step for step in self.steps if step.is_to_do]

    @cached_property
    def runtime(self) -> float:
        """How long the longest way takes, by the steps' own estimates, else by what is expected of their workers."""
        finish: dict[str, float] = {}
        for step_id in self.order:
            step, seconds = self.by_id[step_id], 0.0
            if step.is_to_do and step.estimated_runtime_seconds is not None:
                seconds = step.estimated_runtime_seconds
            elif step.is_to_do and (source := self.offer(step)):
                seconds = expected_seconds(source[1])
            finish[step_id] = seconds + max((finish[parent] for parent in self.parents[step_id]), default=0.0)
        return max(finish.values(), default=0.0)

    def cost(self, step: Step) -> float:
        """What a step says it costs, or what its worker asks if that is more."""
        source = self.offer(step)
        return max(source[1].cost if source else 0.0, step.estimated_cost or 0.0)

    @property
    def has_independent_steps(self) -> bool:
        todo = [step.step_id for step in self.to_do]
        return any(
            one not in self.upstream[other] and other not in self.upstream[one]
            for one, other in itertools.combinations(todo, 2)
        )

    def offer(self, step: Step) -> tuple[Tool, Offer] | None:
        return self.catalogue.find(step.worker_id or "", step.tool_name or "")

    def path(self, step_id: str, *more: object) -> str:
        return pointer_to("steps", self._position[step_id], *more)


def _judged(case: _Case) -> Iterator[Problem]:
    """One fault after the other, so that whoever has heard enough does not look further."""
    yield from _disorder(case) or itertools.chain.from_iterable(rule(case) for rule in _RULES)


def _disorder(case: _Case) -> list[Problem]:
    """Why the steps have no order: no other rule can be asked then."""
    found = [
        Problem(case.path(step_id), "duplicate_step", f"{times} steps are called {step_id}.")
        for step_id, times in Counter(step.step_id for step in case.steps).items()
        if times > 1
    ]
    unknown = (
        Problem(case.path(step.step_id, name, place), "unknown_step", f"There is no step {target}.")
        for step in case.steps
        for name in ("depends_on", "wait_for_step_ids", "aggregate_step_ids")
        for place, target in enumerate(getattr(step, name) or ())
        if target not in case.by_id
    )
    found += itertools.islice(unknown, MAX_PROBLEMS)
    if not found:
        try:
            graphlib.TopologicalSorter(case.parents).prepare()
        except graphlib.CycleError as error:
            around = list(reversed(error.args[1]))
            message = f"The steps depend on each other: {' -> '.join(around)}."
            found.append(Problem(case.path(around[0]), "cycle", message))
    return found


def _status(case: _Case) -> Iterator[Problem]:
    """A plan has what its status says: all steps and an end, or one step that asks for a decision."""
    plan = case.plan
    last = plan.steps[-1]
    if plan.status not in WHOLE:
        if len(plan.steps) > 1 or last.step_type != StepType.ESCALATE or not last.decision_required:
            yield Problem("/steps", "status", f"A plan that is {plan.status} has one step, which asks for a decision.")
        return
    if last.step_type != StepType.ESCALATE:
        yield Problem(case.path(last.step_id), "no_final_escalate", "A plan ends in an escalate step.")
    if not any(step.runs_tool or step.decision_required for step in plan.steps):
        yield Problem("/steps", "empty", "The plan runs no tool and asks for no decision.")


def _waits(case: _Case) -> Iterator[Problem]:
    for step in case.steps:
        for place, target in enumerate(step.wait_for_step_ids or ()):
            if case.by_id[target].step_type != StepType.QUEUE_EXECUTION:
                message = f"{target} is not queued: there is nothing to wait for."
                yield Problem(case.path(step.step_id, "wait_for_step_ids", place), "wait_for_nothing", message)
        for place, target in enumerate(step.aggregate_step_ids or ()):
            if not case.by_id[target].runs_tool and case.by_id[target].step_type != StepType.AGGREGATE:
                message = f"{target} bears no result."
                yield Problem(case.path(step.step_id, "aggregate_step_ids", place), "no_result", message)


def _done(case: _Case) -> Iterator[Problem]:
    """Only a plan that takes another's place has steps that are done."""
    for step in case.steps:
        if step.done and not (step.runs_tool and case.plan.replaces):
            message = "No earlier plan can have done this step."
            yield Problem(case.path(step.step_id, "done"), "done_nowhere", message)


def _tools(case: _Case) -> Iterator[Problem]:
    """Each worker offers the tool, may run it, and takes these params."""
    catalogue = case.catalogue
    for step in case.to_do:
        worker_id, tool_name = step.worker_id or "", step.tool_name or ""
        if step.missing_params:
            message = f"The plan is {case.plan.status}, and none of its steps lacks a param."
            yield Problem(case.path(step.step_id, "missing_params"), "param_missing", message)
        match case.offer(step):
            case tool, offer:
                yield from _fits(case, step, tool, offer)
            case None if offered := catalogue.tools_of(worker_id):
                meant = near(tool_name, sorted(catalogue.by_uid[uid].name for uid in offered))
                message = f"{worker_id} offers no {tool_name}.{meant}"
                yield Problem(case.path(step.step_id, "tool_name"), "unknown_tool", message)
            case None:
                message = f"There is no worker {worker_id}." if worker_id else "The step names no worker."
                yield Problem(case.path(step.step_id, "worker_id"), "unknown_worker", message)


def _fits(case: _Case, step: Step, tool: Tool, offer: Offer) -> Iterator[Problem]:
    params, base = step.params or {}, case.path(step.step_id, "params")
    if barred := case.catalogue.bar(offer):
        message = f"{step.worker_id} may not run this tool: {barred}."
        yield Problem(case.path(step.step_id, "worker_id"), "not_eligible", message)
    if step.tool_uid not in {None, tool.uid}:
        message = "The tool is no longer the version that this step names."
        yield Problem(case.path(step.step_id, "tool_uid"), "tool_changed", message)
    for found in param_problems(tool, params):
        yield Problem(f"{base}{found.path}", found.code, found.message)


def _references(case: _Case) -> Iterator[Problem]:
    for step in case.steps:
        for name in ("params", "synthesis_instructions", "report_summary", "recommendation"):
            for found in references_in(getattr(step, name), case.path(step.step_id, name)):
                yield from _reference(case, found, step)


def _reference(case: _Case, found: Reference, step: Step) -> Iterator[Problem]:
    if not found.path:
        message = "A reference reads {{step-1.field}}, and stands in a value."
        yield Problem(found.pointer, "reference_malformed", message)
        return
    target = case.by_id.get(found.step_id)
    if target is None or not target.runs_tool:
        yield Problem(found.pointer, "reference_unknown_step", f"No step {found.step_id} bears a result.")
        return
    upstream = case.upstream[step.step_id]
    if found.step_id not in upstream:
        message = f"{step.step_id} does not depend on {found.step_id}."
        yield Problem(found.pointer, "reference_not_upstream", message)
    elif target.step_type == StepType.QUEUE_EXECUTION and not target.done:
        waited = (case.by_id[one].wait_for_step_ids or () for one in upstream)
        if not any(found.step_id in ids for ids in waited):
            message = f"{found.step_id} is queued: a wait_for must stand between it and {step.step_id}."
            yield Problem(found.pointer, "reference_needs_wait", message)
    source = case.offer(target)
    if source is None or (target.done and target.tool_uid != source[0].uid):
        return
    field_schema = output_at(source[0].output_schema, found.path)
    own = case.offer(step) if step.runs_tool else None
    # What follows `/steps/0/params` is the place in the params.
    place = [part.replace("~1", "/").replace("~0", "~") for part in found.pointer.split("/")[4:]]
    if field_schema is None:
        message = f"{target.tool_name} declares no {'.'.join(found.path)}."
        yield Problem(found.pointer, "reference_unknown_field", message)
    elif own and found.whole and not types_meet(field_schema, member_at(own[0].input_schema, place)):
        yield Problem(found.pointer, "reference_type", f"{'.'.join(found.path)} is of another type than this param.")


def _secrets(case: _Case) -> Iterator[Problem]:
    for step in case.steps:
        if _SECRETS.search(json.dumps(step.params or {})):
            yield Problem(case.path(step.step_id, "params"), "secret", "A plan carries no credentials.")


def _bounds(case: _Case) -> Iterator[Problem]:
    """How many steps, how long, how often a worker is called, and what it costs."""
    bounds, budget = case.bounds, case.bounds.budget
    if len(case.steps) > _MOST_STEPS:
        yield Problem("/steps", "too_many_steps", f"{len(case.steps)} steps; {_MOST_STEPS} are allowed.")
    runtime = max(case.plan.estimated_total_runtime_seconds or 0, case.runtime)
    if bounds.timeout_seconds is not None and runtime > bounds.timeout_seconds:
        message = f"About {runtime} s; {bounds.timeout_seconds} s are allowed."
        yield Problem("/estimated_total_runtime_seconds", "time", message)
    calls: Counter[str] = Counter()
    total = 0.0
    for step in case.to_do:
        source, worker_id = case.offer(step), step.worker_id or ""
        calls[worker_id] += 1
        size = payload_bytes(step.params or {})
        if source and (lack := lacks_room(source[1], payload_bytes=size, calls=calls[worker_id])):
            yield Problem(case.path(step.step_id, "worker_id"), "no_room", f"{lack}.")
        cost = case.cost(step)
        total += cost
        if budget.max_cost_per_step is not None and cost > budget.max_cost_per_step:
            message = f"{cost} a call; {budget.max_cost_per_step} are allowed a step."
            yield Problem(case.path(step.step_id), "budget", message)
    if budget.max_total_cost is not None and round(total, 6) > budget.max_total_cost:
        yield Problem("/steps", "budget", f"{round(total, 6)} in all; {budget.max_total_cost} are allowed.")


_RULES: Final = (_status, _done, _waits, _tools, _secrets, _references, _bounds)
