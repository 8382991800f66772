"""What a source knows about its own receipts: which belong together, how to summarize a thread of them, what to do next.

An app registers a hook for a source system in a module named `hooks`, which is imported at start-up::

    register(Hook(source_system="crm", reads=("deal.id",), group_of=group_of, summarize_thread=summarize_thread))

Hooks are pure and quick: `summarize_thread` runs while the inbox is locked. If a hook fails, the failure is logged and
the receipt is treated as if its source had no hook.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from apps.digests.shapes import NextActionOutput, ReceiptOutput
from apps.receipts.models import Surface
from apps.receipts.services import Group, ReceiptDraft

logger = logging.getLogger(__name__)

# The length to which each value of the metadata is cut for a hook.
VALUE_LENGTH: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A receipt as a hook sees it: of the metadata only the texts of the paths that the hook reads."""

    source_system: str
    event_type: str = ""
    dedupe_key: str
    title: str | None = None
    summary: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    def get(self, *paths: str) -> str | None:
        """The text at the first of these paths that has any."""
        return next((self.values[path] for path in paths if self.values.get(path)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The thread to summarize. It may hold more receipts than the hook is given, which are the newest."""

    resource_ref: str
    event_family: str
    count: int


GroupOf = Callable[[Fact], Group | None]
SummarizeThread = Callable[[Sequence[Fact], Context], tuple[str, str] | None]
Rule = Callable[[ReceiptOutput], NextActionOutput | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """The hook of one source system. `reads` are dotted paths into the metadata (`check_run.pull_requests.0.number`)."""

    source_system: str
    group_of: GroupOf
    summarize_thread: SummarizeThread | None = None
    next_action: Rule | None = None
    reads: Sequence[str] = ()


_hooks: Final[dict[str, Hook]] = {}


def register(hook: Hook) -> None:
    """Register the one hook of a source system."""
    if hook.source_system in _hooks:
        raise ValueError(f"{hook.source_system!r} has a hook already.")
    _hooks[hook.source_system] = hook


def hook_of(source_system: str) -> Hook | None:
    return _hooks.get(source_system)


def fact_of(draft: ReceiptDraft) -> Fact:
    """A receipt that is about to be posted, as the hook of its source sees it."""
    hook = hook_of(draft.source_system)
    found = {path: _text(draft.metadata, path.split(".")) for path in hook.reads} if hook is not None else {}
    return Fact(
        source_system=draft.source_system,
        event_type=draft.event_type,
        dedupe_key=draft.dedupe_key,
        title=draft.title,
        summary=draft.summary[:VALUE_LENGTH],
        values={path: text[:VALUE_LENGTH] for path, text in found.items() if text is not None},
    )


def _text(value: Any, path: Sequence[str]) -> str | None:
    """The value at a path, as the database writes it; None if it is no single value."""
    for step in path:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, Sequence) and not isinstance(value, str) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (str, int, float)) else None


def value_at(metadata: Mapping[str, Any], *paths: str) -> str | None:
    """The text at the first of these dotted paths that has any."""
    return next((text for path in paths if (text := _text(metadata, path.split(".")))), None)


def group_of(fact: Fact) -> Group | None:
    """The group that the source's hook gives a receipt; None if it gives none, or there is no hook."""
    hook = hook_of(fact.source_system)
    if hook is None:
        return None
    try:
        group = hook.group_of(fact)
        if group is not None:
            _check_group(group)
    except Exception:
        logger.exception("the hook of %s could not group a receipt", fact.source_system)
        return None
    return group


def summarize_thread(source_system: str, facts: Sequence[Fact], context: Context) -> tuple[str, str] | None:
    """Title and summary of a thread by the hook of its source; None if it gives none."""
    hook = hook_of(source_system)
    if hook is None or hook.summarize_thread is None:
        return None
    try:
        texts = hook.summarize_thread(facts, context)
        if texts is None:
            return None
        title, summary = texts
        _check_texts(title, summary)
    except Exception:
        logger.exception("the hook of %s could not summarize a thread", source_system)
        return None
    return (title, summary) if title.strip() and summary.strip() else None


def _check_group(group: object) -> None:
    """:raises TypeError, ValueError: if it is no group that can be stored."""
    if not isinstance(group, Group):
        raise TypeError(f"no Group, but {group!r}")
    _check_texts(*(text for text in (group.resource_ref, group.event_family, group.summary_hint) if text is not None))


def _check_texts(*texts: object) -> None:
    """:raises TypeError, ValueError: if one of them is no text that can be stored."""
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"no text, but {text!r}")
        if "\x00" in text:
            raise ValueError("It holds a NUL character.")
        text.encode()  # no lone surrogates


def next_action(receipt: ReceiptOutput) -> NextActionOutput:
    """What a reader would do next with a receipt: by the hook of its source, else by the first rule that fits."""
    hook = hook_of(receipt.source_system)
    if hook is not None and hook.next_action is not None:
        try:
            action = hook.next_action(receipt)
        except Exception:
            logger.exception("the hook of %s could not suggest what to do next", receipt.source_system)
        else:
            if isinstance(action, NextActionOutput):
                return action
            if action is not None:
                logger.error("the hook of %s suggested %r as the next action", receipt.source_system, action)
    return next(found for rule in _RULES if (found := rule(receipt)) is not None)


def _of_task(tool: str, *events: str, doing: str) -> Rule:
    def rule(receipt: ReceiptOutput) -> NextActionOutput | None:
        task = receipt.metadata.get("task_id")
        if receipt.event_type not in events or not isinstance(task, str):
            return None
        then = ", then archive this receipt" if receipt.surface == Surface.INBOX else ""
        return NextActionOutput(description=f"{doing} {task}{then}.", tool=tool, arguments={"task_id": task})

    return rule


def _plan(receipt: ReceiptOutput) -> NextActionOutput | None:
    plan = receipt.metadata.get("plan_id")
    if receipt.event_type != "plan_created" or not isinstance(plan, str):
        return None
    step = receipt.suggested_next_step or "Execute the plan's steps."
    return NextActionOutput(description=step, tool="execute_delegation_plan", arguments={"plan_id": plan})


def _as_suggested(receipt: ReceiptOutput) -> NextActionOutput | None:
    return NextActionOutput(description=receipt.suggested_next_step) if receipt.suggested_next_step else None


def _pointer(receipt: ReceiptOutput) -> NextActionOutput | None:
    pointer = receipt.artifact_pointer or receipt.metadata.get("result_pointer")
    if not isinstance(pointer, str):
        return None
    where = f" in {receipt.artifact_location}" if receipt.artifact_location else ""
    return NextActionOutput(description=f"Look at {pointer}{where}, then archive this receipt.")


def _archive(receipt: ReceiptOutput) -> NextActionOutput:
    if receipt.surface != Surface.INBOX:
        return NextActionOutput(description="Nothing to do: this receipt is proof of what happened.")
    return NextActionOutput(
        description="Read it, act if it concerns you, then archive it.",
        tool="archive_inbox_receipt",
        arguments={"receipt_id": receipt.receipt_id},
    )


_RULES: Final[tuple[Rule, ...]] = (
    _of_task("fetch_task_result", "task_complete", doing="Fetch the result of task"),
    _of_task("check_task_status", "task_failed", "task_queued", doing="Look at task"),
    _plan,
    _as_suggested,
    _pointer,
    _archive,
)
