"""What an execution does next: which steps begin, are skipped, and how it ends.

References between steps, `{{step-1.result_pointer}}`, are resolved from the envelopes of finished steps. Pure functions.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from re import Match
from typing import Any, Final

from apps.executions.errors import UnresolvedReference
from apps.executions.models import ExecutionStep
from apps.executions.states import ACTIVE, SETTLED, Status, StepStatus, Strategy
from apps.plans.shapes import OPENING, REFERENCE, RESULT_POINTER, RESULT_TEXT, WORKER_STEPS, StepType, place_in_list

# These go on with the results that exist. A critical failure has halted the plan before.
_GATHERS = frozenset({StepType.AGGREGATE, StepType.ESCALATE, StepType.WAIT_FOR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The next moves. `verdict` is set when nothing is left to do or to wait for."""

    begin: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    halt_as: Status | None = None
    verdict: Status | None = None


def next_moves(steps: Sequence[ExecutionStep], *, strategy: Strategy, halted_as: Status | None) -> Moves:
    """Decide from the steps alone: the same rows give the same moves in any process."""
    lost = any(step.status == StepStatus.FAILED and step.critical for step in steps)
    halt_as = halted_as or (Status.FAILED if lost and strategy != Strategy.PARTIAL else None)
    if halt_as is not None:
        pending = tuple(step.step_id for step in steps if step.status == StepStatus.PENDING)
        idle = not any(step.status in ACTIVE for step in steps)
        return Moves(skip=pending, halt_as=halt_as, verdict=halt_as if idle else None)
    known = {step.step_id: step for step in steps}
    begin = tuple(step.step_id for step in steps if _turn(step, known) is True)
    skip = tuple(step.step_id for step in steps if _turn(step, known) is False)
    if begin or skip or any(step.status not in SETTLED for step in steps):
        return Moves(begin=begin, skip=skip)
    return Moves(verdict=_verdict(steps))


def _turn(step: ExecutionStep, known: Mapping[str, ExecutionStep]) -> bool | None:
    """True: the step begins now. False: it never will. None: not yet, or not any more."""
    if step.status != StepStatus.PENDING:
        return None
    if step.step_type in _GATHERS:
        found = {known[name].status for name in step.depends_on}
        is_something = step.step_type != StepType.AGGREGATE or StepStatus.COMPLETE in found
        return is_something if found <= SETTLED else None
    needs = set(_needs(step, known))
    if needs & (SETTLED - {StepStatus.COMPLETE}):
        return False
    return needs <= {StepStatus.COMPLETE} or None


def _needs(step: ExecutionStep, known: Mapping[str, ExecutionStep]) -> list[str]:
    """The statuses of the steps that this one needs.

    A wait step ends even if the steps that it waits for fail, so a step after it needs those steps too.
    """
    needs, seen = list(step.depends_on), set(step.depends_on)
    for name in needs:
        if known[name].step_type == StepType.WAIT_FOR:
            needs += [other for other in known[name].depends_on if other not in seen]
            seen.update(known[name].depends_on)
    return [known[name].status for name in needs]


def _verdict(steps: Sequence[ExecutionStep]) -> Status:
    lost = [step for step in steps if step.status in {StepStatus.FAILED, StepStatus.SKIPPED}]
    if not lost:
        return Status.COMPLETE
    won = any(step.status == StepStatus.COMPLETE and step.step_type in WORKER_STEPS for step in steps)
    return Status.PARTIAL if won else Status.FAILED


Envelope = Mapping[str, Any]
PayloadOf = Callable[[str], Any]

# The longest text of one reference within a text, and of the whole text, as in a plan.
_ONE: Final = 2_000
_WHOLE: Final = 20_000


def resolve(value: Any, *, envelopes: Mapping[str, Envelope], payload_of: PayloadOf) -> Any:
    """The value with every reference replaced.

    A reference that is the whole text becomes the named value, of any type; a reference inside a text becomes text.
    `payload_of` returns the payload of a step whose envelope holds only a pointer.

    :raises UnresolvedReference: if a step has no envelope, or its result lacks the field.
    """
    if isinstance(value, str):
        return _resolve_text(value, envelopes, payload_of)
    if isinstance(value, Mapping):
        return {name: resolve(item, envelopes=envelopes, payload_of=payload_of) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(item, envelopes=envelopes, payload_of=payload_of) for item in value]
    return value


def readable(text: str, *, envelopes: Mapping[str, Envelope]) -> str:
    """A text for readers, with its references replaced by short texts.

    A result behind a pointer becomes the pointer. A reference that names nothing stays.
    """

    def named(match: Match[str]) -> str:
        try:
            return _as_text(_named(match, envelopes, _not_loaded))[:_ONE]
        except UnresolvedReference:
            return str(envelopes.get(match[1], {}).get(RESULT_POINTER) or match[0])

    return REFERENCE.sub(named, text)[:_WHOLE] if OPENING in text else text


def _not_loaded(step_id: str) -> Any:
    raise UnresolvedReference(f"The result of {step_id} is not loaded.")


def _resolve_text(text: str, envelopes: Mapping[str, Envelope], payload_of: PayloadOf) -> Any:
    if OPENING not in text:
        return text
    whole = REFERENCE.fullmatch(text)
    if whole is not None:
        return _named(whole, envelopes, payload_of)
    return REFERENCE.sub(lambda match: _as_text(_named(match, envelopes, payload_of)), text)


def _named(match: Match[str], envelopes: Mapping[str, Envelope], payload_of: PayloadOf) -> Any:
    step_id, path = match[1], match[2].split(".")
    envelope = envelopes.get(step_id)
    if envelope is None:
        raise UnresolvedReference(f"{match[0]} names a step without a result.")
    if path == [RESULT_POINTER] and envelope.get(RESULT_POINTER):
        return envelope[RESULT_POINTER]
    payload = envelope.get("payload")
    here: Any = payload_of(step_id) if payload is None else payload
    if path == [RESULT_TEXT] and not (isinstance(here, Mapping) and RESULT_TEXT in here):
        return _as_text(here)
    for part in path:
        here = _child(here, part, match[0])
    return here


def _child(here: Any, part: str, reference: str) -> Any:
    if isinstance(here, Mapping) and part in here:
        return here[part]
    if isinstance(here, list) and (place := place_in_list(part)) is not None and place < len(here):
        return here[place]
    raise UnresolvedReference(f"{reference} names nothing in that step's result: there is no {part!r}.")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
