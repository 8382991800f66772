"""What a reader would do next with a receipt: a small table of rules, the first that fits. A source's hook comes before."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """What the rules look at."""

    receipt_id: str
    source_system: str
    event_type: str
    metadata: Mapping[str, Any]
    artifact_pointer: str | None
    artifact_location: str | None
    suggested_next_step: str | None
    in_inbox: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAction:
    """A suggestion: a sentence, and the tool that does it where there is one."""

    description: str
    tool: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


Rule = Callable[[Clues], NextAction | None]


def next_action(clues: Clues) -> NextAction:
    """The first suggestion of the table; in an inbox, archiving is always one."""
    return next(found for rule in RULES if (found := rule(clues)) is not None)


def _of_task(tool: str, *events: str, doing: str) -> Rule:
    def rule(clues: Clues) -> NextAction | None:
        task = clues.metadata.get("task_id")
        if clues.event_type not in events or not isinstance(task, str):
            return None
        then = ", then archive this receipt" if clues.in_inbox else ""
        return NextAction(description=f"{doing} {task}{then}.", tool=tool, arguments={"task_id": task})

    return rule


def _plan(clues: Clues) -> NextAction | None:
    plan = clues.metadata.get("plan_id")
    if clues.event_type != "plan_created" or not isinstance(plan, str):
        return None
    return NextAction(
        description=clues.suggested_next_step or "Execute the plan's steps.",
        tool="execute_delegation_plan",
        arguments={"plan_id": plan},
    )


def _as_suggested(clues: Clues) -> NextAction | None:
    return NextAction(description=clues.suggested_next_step) if clues.suggested_next_step else None


def _pointer(clues: Clues) -> NextAction | None:
    pointer = clues.artifact_pointer or clues.metadata.get("result_pointer")
    if not isinstance(pointer, str):
        return None
    place = f" in {clues.artifact_location}" if clues.artifact_location else ""
    return NextAction(description=f"Look at {pointer}{place}, then archive this receipt.")


def _archive(clues: Clues) -> NextAction:
    if not clues.in_inbox:
        return NextAction(description="Nothing to do: this receipt is proof of what happened.")
    return NextAction(
        description="Read it, act if it concerns you, then archive it.",
        tool="archive_inbox_receipt",
        arguments={"receipt_id": clues.receipt_id},
    )


RULES: Final[tuple[Rule, ...]] = (
    _of_task("fetch_task_result", "task_complete", doing="Fetch the result of task"),
    _of_task("check_task_status", "task_failed", "task_queued", doing="Look at task"),
    _plan,
    _as_suggested,
    _pointer,
    _archive,
)
