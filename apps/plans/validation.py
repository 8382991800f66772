"""The independent judge of plans: whoever wrote one (the planner, a model, a person), the same rules decide.

Nothing here trusts the author, and nothing here mends: every fault is named by a code and a JSON pointer.
"""

from __future__ import annotations

import graphlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, Final

import jsonschema_rs

from apps.core.errors import near, pointer_to
from apps.plans import documents, references
from apps.plans.catalogue import Catalogue, Tool, contract_key, types_meet
from apps.plans.documents import PlanStatus
from apps.plans.offers import expected_seconds, payload_bytes
from apps.plans.references import Malformed, Misplaced, Reference
from apps.plans.shapes import WORKER_STEPS, StepType, tighter
from apps.workers.shapes import OfferView as Offer

MAX_PROBLEMS: Final = 100
_ROUNDING: Final = 0.01
"""By which part of it a sum may be told otherwise than its steps make it; a plan tells money to 6 and time to 3 places."""
_MOST_WEIGHED: Final = 64
"""Of how many steps at most it is looked at which may run at once: with more the plan is too long anyway."""

_SECRETS: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bght_[A-Za-z0-9]+_[A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bxox[abprs]-[A-Za-z0-9-]{10,}|\bsk-[A-Za-z0-9_-]{20,}"
)


_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_EXACT: Final = 2**53


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a plan: where (a JSON pointer), which rule, and a sentence."""

    path: str
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a plan may cost and how wide and long it may be. None bounds nothing."""

    max_steps: int = 64
    max_fan_out: int = 16
    max_total_cost: float | None = None
    max_cost_per_step: float | None = None
    max_runtime_seconds: float | None = None


def validate(document: object, catalogue: Catalogue, *, limits: Limits | None = None) -> list[Problem]:
    """Return every fault of a plan, in a fixed order; an empty list is a valid plan.

    Where its shape is wrong, only what does not hang on the wrong places is judged besides.
    """
    if not isinstance(document, dict):
        return [Problem("", "schema", "A plan is a JSON object.")]
    shape: list[Problem] = []
    try:
        shape = _shape(document)
        if not _is_plainly_canonical(document):
            documents.canonical(document)
    except (ValueError, RecursionError) as refusal:
        return [*shape, Problem("", "schema", f"The plan has no canonical JSON form: {refusal}"[:500])][:MAX_PROBLEMS]
    judge = _judged if not shape else partial(_judged_besides, shape)
    found = itertools.chain(shape, judge(document, catalogue, limits or Limits()))
    return list(itertools.islice(found, MAX_PROBLEMS))


def workers_named(document: object) -> frozenset[str]:
    """The ids of all workers that a plan's steps may be about, whatever its shape: those whose offers it is judged by."""
    steps = document.get("steps") if isinstance(document, dict) else None
    found: list[object] = []
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict):
            others = step.get("fallback_worker_ids")
            found += [step.get("worker_id"), *(others if isinstance(others, list) else ())]
    return frozenset(one for one in found if isinstance(one, str))


def _judged(document: dict[str, Any], catalogue: Catalogue, limits: Limits) -> Iterable[Problem]:
    graph = _Graph(document["steps"])
    return _unsortable(graph) or _ruled(_RULES, document, graph, catalogue, limits)


def _judged_besides(
    shape: Sequence[Problem], document: dict[str, Any], catalogue: Catalogue, limits: Limits
) -> Iterable[Problem]:
    """What is wrong with the steps whose own shape is right; what the plan says of itself is left for when all of it is."""
    wrong = [fault.path.split("/")[1:] for fault in shape]
    given = document.get("steps")
    if len(shape) == MAX_PROBLEMS or ["steps"] in wrong or not isinstance(given, list):
        return []
    numbers = {int(path[1]) for path in wrong if path[:1] == ["steps"]}
    members = {path[0] for path in wrong if path}
    steps = {number: step for number, step in enumerate(given) if number not in numbers}
    sound = {name: value for name, value in document.items() if name not in members} | {"steps": [*steps.values()]}
    graph = _Graph(sound["steps"], tuple(steps))
    if numbers:
        # What a step hangs on may be one of those that can't be read.
        return _repeated(graph) or _ruled(_RULES_OF_A_STEP, sound, graph, catalogue, limits)
    return _unsortable(graph) or _ruled(_RULES_OF_STEPS, sound, graph, catalogue, limits)


def _unsortable(graph: _Graph) -> list[Problem]:
    unknown = itertools.islice(_unknown_steps(graph), MAX_PROBLEMS)
    return [*_repeated(graph), *unknown] or _cycles(graph) or _hints(graph)


def _ruled(
    rules: Iterable[_Rule], document: dict[str, Any], graph: _Graph, catalogue: Catalogue, limits: Limits
) -> Iterator[Problem]:
    """One fault after the other, so that who has heard of enough looks for no more."""
    bounds = bounds_of(document, limits)
    for rule in rules:
        yield from rule(document, graph, catalogue, bounds)


def bounds_of(document: Mapping[str, Any], limits: Limits) -> Limits:
    """The given bounds, or the plan's own where they are tighter."""
    own = document.get("constraints") or {}
    return replace(
        limits,
        max_total_cost=tighter(limits.max_total_cost, own.get("max_total_cost")),
        max_cost_per_step=tighter(limits.max_cost_per_step, own.get("max_cost_per_step")),
        max_runtime_seconds=tighter(limits.max_runtime_seconds, own.get("timeout_seconds")),
    )


def estimates(document: Mapping[str, Any], catalogue: Catalogue) -> dict[str, float]:
    """What a valid plan takes and costs by its steps, as a plan tells it."""
    graph = _Graph(document["steps"])
    return {
        "estimated_total_runtime_seconds": round(_runtime(graph, catalogue), 3),
        "execution_cost_estimate": round(_cost(graph, catalogue), 6),
    }


def carries_secret(value: str) -> bool:
    """Does this text look like a credential that has no place in a plan?"""
    return _SECRETS.search(value) is not None


def param_problems(tool: Tool, params: Mapping[str, Any]) -> list[Problem]:
    """Return what a tool refuses in the params; a reference stands for its target and is not judged here."""
    held = {found.pointer for found in references.within(params) if isinstance(found, Reference) and found.whole}
    errors = validator(contract_key(tool.input_schema)).iter_errors(dict(params))
    faults = (
        found
        for error in errors
        if not _is_about_reference(error, held)
        for found in _faults(error, tool, params, held)
    )
    unknown = (_unknown_param(tool, (name,)) for name in params if tool.inputs and _is_undeclared(tool, (name,)))
    found: dict[Problem, None] = {}
    for fault in itertools.chain(faults, unknown):
        found[fault] = None
        if len(found) == MAX_PROBLEMS:
            break
    return list(found)


def _is_about_reference(error: jsonschema_rs.ValidationError, held: set[str]) -> bool:
    """May what is refused be right, once the references are what they stand for?"""
    where = pointer_to(*error.instance_path)
    if any(where == pointer or where.startswith(f"{pointer}/") for pointer in held):
        return True
    if not _holds(where, held):
        return False
    branches = error.kind.as_dict().get("context", ())
    may_hold = any(all(_is_about_reference(fault, held) for fault in branch) for branch in branches)
    return may_hold or error.kind.name == "not"


def _holds(where: str, held: set[str]) -> bool:
    return any(pointer.startswith(f"{where}/") for pointer in held)


def _faults(
    error: jsonschema_rs.ValidationError, tool: Tool, params: Mapping[str, Any], held: set[str]
) -> Iterator[Problem]:
    if error.kind.name == "required":
        path = pointer_to(*error.instance_path, error.kind.as_dict()["property"])
        yield Problem(path, "param_missing", error.message[:500])
    elif (unexpected := _unexpected(error, params)) is not None:
        # A branch that fails only for a reference in it evaluates none of its members.
        spared = error.kind.name == "unevaluatedProperties" and _holds(pointer_to(*error.instance_path), held)
        for name in sorted(unexpected)[:MAX_PROBLEMS]:
            place = (*map(str, error.instance_path), name)
            if not spared or _is_undeclared(tool, place):
                yield _unknown_param(tool, place)
    else:
        yield Problem(pointer_to(*error.instance_path), "param_invalid", error.message[:500])


def _unexpected(error: jsonschema_rs.ValidationError, params: Mapping[str, Any]) -> Iterable[str] | None:
    """The names that a closed schema does not know; None if it is something else that is refused."""
    if error.kind.name != "falseSchema":
        names: list[str] | None = error.kind.as_dict().get("unexpected")
        return names
    # What is closed and declares nothing is refused as a whole.
    above: Any = params
    for part in error.instance_path:
        above = above[part]
    return above if error.schema_path[-1] == "additionalProperties" and isinstance(above, Mapping) else None


def _is_undeclared(tool: Tool, place: Sequence[str]) -> bool:
    above = references.member(tool.input_schema, place[:-1])
    takes_any = isinstance(above, Mapping) and above.get("additionalProperties")
    return not takes_any and references.member(tool.input_schema, place) is None


def _unknown_param(tool: Tool, place: Sequence[str]) -> Problem:
    above = references.member(tool.input_schema, place[:-1])
    known = above.get("properties") if isinstance(above, Mapping) else None
    meant = near(place[-1], known) if isinstance(known, Mapping) else ""
    return Problem(pointer_to(*place), "param_unknown", f"{tool.name} takes no {'.'.join(place)[-100:]}.{meant}")


@lru_cache(maxsize=8192)
def validator(schema_key: str) -> jsonschema_rs.Validator:
    """Return the compiled validator of a schema's text. It never fetches anything."""
    return jsonschema_rs.validator_for(schema_key, validate_formats=True, offline=True)


_PLAN_KEY: Final = contract_key(documents.schema())
_STEP_SCHEMA: Final = documents.schema()["$defs"]["step"]
_MEMBERS: Final = sorted({*documents.schema()["properties"], *_STEP_SCHEMA["properties"]})


def _shape(document: dict[str, Any]) -> list[Problem]:
    errors = itertools.islice(validator(_PLAN_KEY).iter_errors(document), MAX_PROBLEMS)
    return list(itertools.islice(itertools.chain.from_iterable(map(_faults_of_shape, errors)), MAX_PROBLEMS))


def _faults_of_shape(error: jsonschema_rs.ValidationError) -> Iterator[Problem]:
    """What the schema has against a plan; a member that it does not know is told where it stands."""
    if error.kind.name != "additionalProperties":
        yield Problem(pointer_to(*error.instance_path), "schema", error.message[:500])
        return
    for name in sorted(error.kind.as_dict()["unexpected"])[:MAX_PROBLEMS]:
        path = pointer_to(*error.instance_path, name)
        message = f"A plan has no member {name[:100]!r} here.{near(name, _MEMBERS)}"
        yield Problem(path, "unknown_member", message)


def _is_plainly_canonical(value: Any) -> bool:
    """Has it certainly a canonical form? To write that down only to see whether it can be would take the most of judging."""
    if isinstance(value, str):
        return value.isascii() or not _SURROGATES.search(value)
    if isinstance(value, dict):
        for name, item in value.items():
            if not (isinstance(name, str) and name.isascii() and _is_plainly_canonical(item)):
                return False
        return True
    if isinstance(value, list):
        return all(map(_is_plainly_canonical, value))
    return value is None or (isinstance(value, (int, float)) and abs(value) < _EXACT)


class _Graph:
    """The steps by id, what each depends on, and what lies upstream of each."""

    def __init__(self, steps: list[dict[str, Any]], numbers: Sequence[int] | None = None) -> None:
        """:param numbers: where in the plan the steps stand, if not all of them are given."""
        self.steps = steps
        self.by_id = {step["step_id"]: step for step in steps}
        places = range(len(steps)) if numbers is None else numbers
        self.position = {step["step_id"]: number for number, step in zip(places, steps, strict=True)}
        self.parents = {step["step_id"]: self._parents_of(step, number) for number, step in enumerate(steps)}

    @cached_property
    def order(self) -> tuple[str, ...]:
        return tuple(graphlib.TopologicalSorter(self.parents).static_order())

    @cached_property
    def upstream(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for step_id in self.order:
            parents = self.parents[step_id]
            found[step_id] = parents.union(*(found[parent] for parent in parents))
        return found

    def _parents_of(self, step: Mapping[str, Any], number: int) -> frozenset[str]:
        """The ids of every step that must be over before this one begins.

        An escalate that names none reports on the whole plan, so it comes after all that are listed before it.
        """
        named = frozenset(
            name
            for member in ("depends_on", "wait_for_step_ids", "aggregate_step_ids")
            for name in step.get(member, ())
        )
        if step["step_type"] == StepType.ESCALATE and not named:
            return frozenset(earlier["step_id"] for earlier in self.steps[:number])
        return named

    def path(self, step_id: str) -> str:
        return f"/steps/{self.position[step_id]}"


_Rule = Callable[[dict[str, Any], _Graph, Catalogue, "Limits"], Iterator[Problem]]


def _repeated(graph: _Graph) -> list[Problem]:
    return [
        Problem(graph.path(step_id), "duplicate_step", f"{times} steps are called {step_id}.")
        for step_id, times in Counter(step["step_id"] for step in graph.steps).items()
        if times > 1
    ]


def _unknown_steps(graph: _Graph) -> Iterator[Problem]:
    return (
        Problem(f"/steps/{number}/{name}/{place}", "unknown_step", f"There is no step {target}.")
        for number, step in enumerate(graph.steps)
        for name in ("depends_on", "order_hint", "wait_for_step_ids", "aggregate_step_ids")
        for place, target in enumerate(step.get(name, ()))
        if target not in graph.by_id
    )


def _cycles(graph: _Graph) -> list[Problem]:
    try:
        graphlib.TopologicalSorter(graph.parents).prepare()
    except graphlib.CycleError as error:
        around = list(reversed(error.args[1]))
        return [Problem(graph.path(around[0]), "cycle", f"The steps depend on each other: {' -> '.join(around)}.")]
    return []


def _hints(graph: _Graph) -> list[Problem]:
    """A step that is to come after what itself waits for it, or is to come after it, has a hint that no order could follow."""
    hinted = {step["step_id"]: tuple(step.get("order_hint", ())) for step in graph.steps}
    if not any(hinted.values()):
        return []
    against = [
        (step_id, place)
        for step_id, targets in hinted.items()
        for place, target in enumerate(targets)
        if step_id in {target, *graph.upstream[target]}
    ]
    return [
        Problem(
            f"{graph.path(step_id)}/order_hint/{place}",
            "order_hint",
            f"{step_id} can't come after {hinted[step_id][place]}: no order follows this hint and all else.",
        )
        for step_id, place in against or _hints_in_a_circle(graph, hinted)
    ]


def _hints_in_a_circle(graph: _Graph, hinted: Mapping[str, tuple[str, ...]]) -> list[tuple[str, int]]:
    """The first hint of a circle that hints make with each other; the step and the place among its hints."""
    try:
        graphlib.TopologicalSorter({one: graph.parents[one].union(hinted[one]) for one in hinted}).prepare()
    except graphlib.CycleError as error:
        before: list[str] = error.args[1]
        return [(one, hinted[one].index(other)) for other, one in itertools.pairwise(before) if other in hinted[one]][
            :1
        ]
    return []


def _ending(document: dict[str, Any], graph: _Graph, _catalogue: Catalogue, _limits: Limits) -> Iterator[Problem]:
    closing = [step["step_id"] for step in graph.steps if step["step_type"] == StepType.ESCALATE]
    last = graph.steps[-1]["step_id"]
    if last not in closing:
        yield Problem(graph.path(last), "no_final_escalate", "A plan ends in an escalate step.")
    asks = any(step.get("decision_required") for step in graph.steps)
    if document.get("status", PlanStatus.READY) == PlanStatus.READY and not _workers(graph) and not asks:
        yield Problem("/steps", "empty", "The plan runs no tool and asks for no decision.")


def _waits(_document: dict[str, Any], graph: _Graph, _catalogue: Catalogue, _limits: Limits) -> Iterator[Problem]:
    for step in graph.steps:
        where = graph.path(step["step_id"])
        for place, target in enumerate(step.get("wait_for_step_ids", ())):
            if graph.by_id[target]["step_type"] != StepType.QUEUE_EXECUTION:
                message = f"{target} is not queued: there is nothing to wait for."
                yield Problem(f"{where}/wait_for_step_ids/{place}", "wait_for_nothing", message)
        for place, target in enumerate(step.get("aggregate_step_ids", ())):
            if graph.by_id[target]["step_type"] not in {*WORKER_STEPS, StepType.AGGREGATE}:
                yield Problem(f"{where}/aggregate_step_ids/{place}", "no_result", f"{target} bears no result.")


_OF_WORKERS: Final = (
    "worker_id",
    "tool_name",
    "tool_uid",
    "params",
    "provenance",
    "mode",
    "fallback_worker_ids",
    "alternatives",
)
_OF_TYPES: Final = {
    StepType.CALL_WORKER: _OF_WORKERS,
    StepType.QUEUE_EXECUTION: _OF_WORKERS,
    StepType.WAIT_FOR: ("wait_for_step_ids", "wait_for_receipts"),
    StepType.AGGREGATE: ("aggregate_step_ids", "synthesis_instructions", "executor"),
    StepType.ESCALATE: ("report_summary", "decision_required", "recommendation"),
}
"""The members that only steps of some types have."""
_BOUND: Final = frozenset(name for names in _OF_TYPES.values() for name in names)
_MODES: Final = {StepType.CALL_WORKER: "direct", StepType.QUEUE_EXECUTION: "async"}


def _members(document: dict[str, Any], graph: _Graph, _catalogue: Catalogue, _limits: Limits) -> Iterator[Problem]:
    """No step has what steps of its type know nothing of, or says of itself that it is of another."""
    for step in graph.steps:
        where, step_type = graph.path(step["step_id"]), step["step_type"]
        for name in step:
            if name in _BOUND and name not in _OF_TYPES[step_type]:
                yield Problem(f"{where}/{name}", "misplaced_member", f"A step of type {step_type} has no {name}.")
    if document.get("status") == PlanStatus.READY and document.get("missing"):
        yield Problem("/missing", "missing", "A plan that is ready lacks nothing.")


def _calls(_document: dict[str, Any], graph: _Graph, _catalogue: Catalogue, _limits: Limits) -> Iterator[Problem]:
    """What a step says of how it calls, and of where its params are from, fits its type and its params."""
    for step in _workers(graph):
        where, step_type = graph.path(step["step_id"]), step["step_type"]
        if step.get("mode", _MODES[step_type]) != _MODES[step_type]:
            message = f"A step of type {step_type} is {_MODES[step_type]}, not {step['mode']}."
            yield Problem(f"{where}/mode", "mode", message)
        for name in step.get("provenance", {}):
            if name not in step["params"]:
                message = f"The step has no param {name[:100]}."
                yield Problem(where + pointer_to("provenance", name), "provenance", message)


def _done(document: dict[str, Any], graph: _Graph, _catalogue: Catalogue, _limits: Limits) -> Iterator[Problem]:
    """Only a plan that takes another's place has steps that are done, and they have waited for nothing that is not."""
    done = {step["step_id"] for step in _workers(graph) if step.get("done")}
    for step in graph.steps:
        if not step.get("done"):
            continue
        where = graph.path(step["step_id"])
        if step["step_id"] not in done or not document.get("replaces"):
            yield Problem(f"{where}/done", "done_nowhere", "No earlier plan can have done this step.")
        for parent in sorted(graph.parents[step["step_id"]] - done):
            yield Problem(f"{where}/done", "done_too_early", f"It depends on {parent}, which is still to be done.")


def _tools(_document: dict[str, Any], graph: _Graph, catalogue: Catalogue, _limits: Limits) -> Iterator[Problem]:
    for step in _to_do(graph):
        where = graph.path(step["step_id"])
        match _offer(step, catalogue):
            case None:
                yield _unknown(step, where, catalogue)
            case tool, offer:
                yield from _fits(step, where, tool, offer, catalogue)
        yield from _fallbacks(step, where, catalogue)


def _unknown(step: Mapping[str, Any], where: str, catalogue: Catalogue) -> Problem:
    worker_id, tool_name = step["worker_id"], step["tool_name"]
    if not catalogue.has_worker(worker_id):
        return Problem(f"{where}/worker_id", "unknown_worker", f"There is no worker {worker_id}.")
    meant = near(tool_name, sorted(catalogue.by_uid[uid].name for uid in catalogue.tools_of(worker_id)))
    return Problem(f"{where}/tool_name", "unknown_tool", f"{worker_id} offers no {tool_name}.{meant}")


def _exclusions(document: dict[str, Any], graph: _Graph, _catalogue: Catalogue, _limits: Limits) -> Iterator[Problem]:
    excluded = frozenset(document.get("constraints", {}).get("exclude_workers", ()))
    for step in _to_do(graph):
        where = graph.path(step["step_id"])
        named = [("worker_id", step["worker_id"])]
        named += [(f"fallback_worker_ids/{at}", one) for at, one in enumerate(step.get("fallback_worker_ids", ()))]
        for name, worker_id in named:
            if worker_id in excluded:
                yield Problem(f"{where}/{name}", "excluded_worker", f"The plan's own constraints exclude {worker_id}.")


def _fits(step: dict[str, Any], where: str, tool: Tool, offer: Offer, catalogue: Catalogue) -> Iterator[Problem]:
    if barred := catalogue.bar(offer):
        code = "outside_pool" if catalogue.is_outside(step["worker_id"]) else "not_eligible"
        yield Problem(f"{where}/worker_id", code, f"{step['worker_id']} may not run this tool: {barred}.")
    if step.get("tool_uid", tool.uid) != tool.uid:
        yield Problem(f"{where}/tool_uid", "tool_changed", "The tool is no longer the version that this step names.")
    for found in param_problems(tool, step["params"]):
        yield Problem(f"{where}/params{found.path}", found.code, found.message)
    size = payload_bytes(step["params"])
    if offer.max_payload_bytes is not None and size > offer.max_payload_bytes:
        message = f"{step['worker_id']} takes {offer.max_payload_bytes} bytes a call, not {size}."
        yield Problem(f"{where}/params", "payload", message)


def _fallbacks(step: dict[str, Any], where: str, catalogue: Catalogue) -> Iterator[Problem]:
    for place, worker_id in enumerate(step.get("fallback_worker_ids", ())):
        if worker_id == step["worker_id"]:
            message = f"{worker_id} is the worker of this step: it can't stand in for itself."
            yield Problem(f"{where}/fallback_worker_ids/{place}", "fallback", message)
            continue
        found = catalogue.find(worker_id, step["tool_name"])
        if found is None or catalogue.bar(found[1]):
            message = f"{worker_id} may not stand in for {step['worker_id']}."
            yield Problem(f"{where}/fallback_worker_ids/{place}", "not_eligible", message)


def _references(document: dict[str, Any], graph: _Graph, catalogue: Catalogue, _limits: Limits) -> Iterator[Problem]:
    for step in graph.steps:
        base = graph.path(step["step_id"])
        for name in ("params", "synthesis_instructions", "report_summary", "recommendation"):
            for found in references.within(step.get(name), f"{base}/{name}"):
                yield from _reference(found, step, graph, catalogue)
    outputs = document.get("references", {}).get("expected_outputs", {})
    for found in references.within(outputs.get("result_pointers"), "/references/expected_outputs/result_pointers"):
        yield from _reference(found, None, graph, catalogue)


def _reference(
    found: Reference | Malformed | Misplaced, step: dict[str, Any] | None, graph: _Graph, catalogue: Catalogue
) -> Iterator[Problem]:
    if isinstance(found, Misplaced):
        yield Problem(found.pointer, "reference_misplaced", "A reference stands in a value, not in a member's name.")
        return
    if isinstance(found, Malformed):
        yield Problem(found.pointer, "reference_malformed", "A reference reads {{step-1.field}}.")
        return
    target = graph.by_id.get(found.step_id)
    if target is None or target["step_type"] not in WORKER_STEPS:
        yield Problem(found.pointer, "reference_unknown_step", f"No step {found.step_id} bears a result.")
        return
    if step is not None:
        yield from _order(found, step, target, graph)
    yield from _field(found, step, target, catalogue)


def _order(found: Reference, step: dict[str, Any], target: dict[str, Any], graph: _Graph) -> Iterator[Problem]:
    upstream = graph.upstream[step["step_id"]]
    if found.step_id not in upstream:
        message = f"{step['step_id']} does not depend on {found.step_id}."
        yield Problem(found.pointer, "reference_not_upstream", message)
    elif target["step_type"] == StepType.QUEUE_EXECUTION and not target.get("done"):
        waits = (graph.by_id[step_id].get("wait_for_step_ids", ()) for step_id in upstream)
        if not any(found.step_id in waited for waited in waits):
            message = f"{found.step_id} is queued: a wait_for must stand between it and {step['step_id']}."
            yield Problem(found.pointer, "reference_needs_wait", message)


def _field(
    found: Reference, step: dict[str, Any] | None, target: dict[str, Any], catalogue: Catalogue
) -> Iterator[Problem]:
    source = _offer(target, catalogue)
    if source is None or (target.get("done") and target.get("tool_uid") != source[0].uid):
        return
    field_schema = references.resolve(source[0].output_schema, found.path)
    if field_schema is None:
        message = f"{target['tool_name']} declares no {'.'.join(found.path)}."
        yield Problem(found.pointer, "reference_unknown_field", message)
        return
    wanted = _param_schema(found, step, catalogue)
    if found.whole and not types_meet(field_schema, wanted):
        yield Problem(found.pointer, "reference_type", f"{'.'.join(found.path)} is of another type than this param.")


def _param_schema(found: Reference, step: dict[str, Any] | None, catalogue: Catalogue) -> object:
    own = _offer(step, catalogue) if step is not None and step["step_type"] in WORKER_STEPS else None
    if own is None:
        return None
    parts = found.pointer.split("/")[_ABOVE_PARAMS:]
    return references.member(own[0].input_schema, [part.replace("~1", "/").replace("~0", "~") for part in parts])


_ABOVE_PARAMS: Final = 4
"""Parts of `/steps/0/params`; what follows is the place in the params."""


def _secrets(_document: dict[str, Any], graph: _Graph, _catalogue: Catalogue, _limits: Limits) -> Iterator[Problem]:
    for step in _workers(graph):
        for pointer, text in _texts(step["params"], f"{graph.path(step['step_id'])}/params"):
            if carries_secret(text):
                yield Problem(pointer, "secret", "A plan carries no credentials.")


def _texts(value: Any, pointer: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield pointer, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield pointer + pointer_to(name), name
            yield from _texts(item, pointer + pointer_to(name))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _texts(item, f"{pointer}/{place}")


def _bounds(document: dict[str, Any], graph: _Graph, catalogue: Catalogue, limits: Limits) -> Iterator[Problem]:
    if len(graph.steps) > limits.max_steps:
        yield Problem("/steps", "too_many_steps", f"{len(graph.steps)} steps; {limits.max_steps} are allowed.")
    dependants = Counter(parent for parents in graph.parents.values() for parent in parents)
    todo = [step["step_id"] for step in _to_do(graph)]
    if len(todo) > limits.max_fan_out and (width := _width(todo[:_MOST_WEIGHED], graph)) > limits.max_fan_out:
        message = f"{width} steps may come to run at once; {limits.max_fan_out} are allowed."
        yield Problem("/steps", "fan_out", message)
    for step_id, times in dependants.items():
        if times > limits.max_fan_out:
            message = f"{times} steps depend on {step_id}; {limits.max_fan_out} are allowed."
            yield Problem(graph.path(step_id), "fan_out", message)
    runtime = max(document.get("estimated_total_runtime_seconds", 0), _runtime(graph, catalogue))
    if limits.max_runtime_seconds is not None and runtime > limits.max_runtime_seconds:
        message = f"About {runtime} s; {limits.max_runtime_seconds} s are allowed."
        yield Problem("/estimated_total_runtime_seconds", "time", message)
    yield from _headroom(graph, catalogue)
    yield from _budget(graph, catalogue, limits)


def _width(step_ids: Sequence[str], graph: _Graph) -> int:
    """The most of some steps of which none waits for another: by Dilworth as many as the fewest chains that hold them all."""
    follows = {one: [other for other in step_ids if one in graph.upstream[other]] for one in step_ids}
    before: dict[str, str] = {}

    def finds_a_place(one: str, tried: set[str]) -> bool:
        for other in follows[one]:
            if other not in tried:
                tried.add(other)
                if other not in before or finds_a_place(before[other], tried):
                    before[other] = one
                    return True
        return False

    return len(step_ids) - sum(finds_a_place(one, set()) for one in step_ids)


def _runtime(graph: _Graph, catalogue: Catalogue) -> float:
    """How long the longest way through the plan takes, by the steps' own estimates, else by what is expected of their workers."""
    finish: dict[str, float] = {}
    for step_id in graph.order:
        begin = max((finish[parent] for parent in graph.parents[step_id]), default=0.0)
        finish[step_id] = begin + _seconds(graph.by_id[step_id], catalogue)
    return max(finish.values(), default=0.0)


def _seconds(step: Mapping[str, Any], catalogue: Catalogue) -> float:
    if step["step_type"] not in WORKER_STEPS or step.get("done"):
        return 0.0
    if "estimated_runtime_seconds" in step:
        return float(step["estimated_runtime_seconds"])
    source = _offer(step, catalogue)
    return expected_seconds(source[1]) if source else 0.0


def _claims(document: dict[str, Any], graph: _Graph, catalogue: Catalogue, _limits: Limits) -> Iterator[Problem]:
    """What a plan says of itself is so: its hash, what it costs and how long it takes, whether steps may run at once."""
    if document.get("plan_hash", "") not in {"", *_hash_of(document)}:
        yield Problem("/plan_hash", "plan_hash", "This is not the hash of this plan.")
    yield from _understated(graph, catalogue)
    for name, told, places in (
        ("estimated_total_runtime_seconds", _runtime(graph, catalogue), 3),
        ("execution_cost_estimate", _cost(graph, catalogue), 6),
    ):
        if not math.isclose(document.get(name, told), told, rel_tol=_ROUNDING, abs_tol=10.0**-places):
            yield Problem(f"/{name}", "estimate", f"By its steps it is {round(told, places)}, not {document[name]}.")
    todo = [step["step_id"] for step in _to_do(graph)]
    if document.get("can_run_parallel") and not any(
        one not in graph.upstream[other] and other not in graph.upstream[one]
        for one, other in itertools.combinations(todo, 2)
    ):
        yield Problem("/can_run_parallel", "estimate", "Each step waits for another: none can run beside it.")


def _hash_of(document: dict[str, Any]) -> Iterator[str]:
    if "plan_hash" in document:
        yield documents.plan_hash(document)


def _cost(graph: _Graph, catalogue: Catalogue) -> float:
    """What the steps that are left say they cost, else what their workers ask."""
    found = ((step, _offer(step, catalogue)) for step in _to_do(graph))
    return math.fsum(step.get("estimated_cost", source[1].cost if source else 0.0) for step, source in found)


def _understated(graph: _Graph, catalogue: Catalogue) -> Iterator[Problem]:
    """A step that says it takes less than half of what its worker is known for misleads; medians move, so a little is let pass."""
    for step in _to_do(graph):
        source = _offer(step, catalogue)
        if source is None:
            continue
        known = {"estimated_cost": source[1].cost, "estimated_runtime_seconds": expected_seconds(source[1])}
        for name, value in known.items():
            if step.get(name, value) < value / 2:
                path = f"{graph.path(step['step_id'])}/{name}"
                yield Problem(path, "estimate", f"{step['worker_id']} is known for {value}, not {step[name]}.")


def _headroom(graph: _Graph, catalogue: Catalogue) -> Iterator[Problem]:
    """No worker is to be called more often than it may be in an hour; one call is always let through."""
    calls: Counter[str] = Counter()
    for step in _to_do(graph):
        source = _offer(step, catalogue)
        calls[step["worker_id"]] += 1
        most = source[1].calls_per_hour if source else None
        if most is not None and calls[step["worker_id"]] > max(most, 1):
            message = f"{step['worker_id']} takes {most:g} calls an hour; this is the {calls[step['worker_id']]}th."
            yield Problem(f"{graph.path(step['step_id'])}/worker_id", "headroom", message)


def _budget(graph: _Graph, catalogue: Catalogue, limits: Limits) -> Iterator[Problem]:
    total = 0.0
    for step in _to_do(graph):
        source = _offer(step, catalogue)
        cost = max(source[1].cost if source else 0.0, step.get("estimated_cost", 0.0))
        total += cost
        if limits.max_cost_per_step is not None and cost > limits.max_cost_per_step:
            message = f"{cost} a call; {limits.max_cost_per_step} are allowed a step."
            yield Problem(graph.path(step["step_id"]), "budget", message)
    if limits.max_total_cost is not None and round(total, 6) > limits.max_total_cost:
        yield Problem("/steps", "budget", f"{round(total, 6)} in all; {limits.max_total_cost} are allowed.")


def _workers(graph: _Graph) -> list[dict[str, Any]]:
    return [step for step in graph.steps if step["step_type"] in WORKER_STEPS]


def _to_do(graph: _Graph) -> list[dict[str, Any]]:
    return [step for step in _workers(graph) if not step.get("done")]


def _offer(step: Mapping[str, Any], catalogue: Catalogue) -> tuple[Tool, Offer] | None:
    return catalogue.find(step["worker_id"], step["tool_name"])


_RULES_OF_A_STEP: Final[tuple[_Rule, ...]] = (_members, _calls, _tools, _exclusions, _secrets)
"""What may be asked of a step whatever others there are."""
_RULES_OF_STEPS: Final[tuple[_Rule, ...]] = (
    _waits,
    _members,
    _calls,
    _tools,
    _exclusions,
    _references,
    _secrets,
    _bounds,
)
"""What may be asked of all steps whatever the plan says of itself."""
_RULES: Final[tuple[_Rule, ...]] = (
    _ending,
    _waits,
    _members,
    _calls,
    _done,
    _tools,
    _exclusions,
    _references,
    _secrets,
    _bounds,
    _claims,
)
