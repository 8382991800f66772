import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from apps.digests import guidance
from apps.digests.guidance import Clues, NextAction
from apps.receipts.services import Group, ReceiptDraft

logger = logging.getLogger(__name__)

# How much of one value of the metadata a hook sees.
VALUE_LENGTH: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A receipt as a hook sees it: of the metadata only the texts of the paths that the hook reads."""

    source_system: str
    event_type: str
    dedupe_key: str
    title: str | None
    summary: str
    values: Mapping[str, str] = field(default_factory=dict)

    def get(self, *paths: str) -> str | None:
        """The text at the first of these paths that has any."""
        return next((self.values[path] for path in paths if self.values.get(path)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The thread that is to be summed up. It may hold more receipts than are shown, which are the newest."""

    resource_ref: str
    event_family: str
    count: int


GroupOf = Callable[[Fact], Group | None]
SummarizeThread = Callable[[Sequence[Fact], Context], tuple[str, str] | None]
NextActionOf = Callable[[Clues], NextAction | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """What one source system says. `reads` are dotted paths into the metadata (`check_run.pull_requests.0.number`)."""

    source_system: str
    group_of: GroupOf
    summarize_thread: SummarizeThread | None = None
    next_action: NextActionOf | None = None
    reads: Sequence[str] = ()


_hooks: Final[dict[str, Hook]] = {}


def register(hook: Hook) -> None:
    """Have a source system asked. There is one hook per source."""
    if hook.source_system in _hooks:
        raise ValueError(f"{hook.source_system!r} has a hook already.")
    _hooks[hook.source_system] = hook


def unregister(source_system: str) -> None:
    del _hooks[source_system]


def hook_of(source_system: str) -> Hook | None:
    return _hooks.get(source_system)


def fact_of(said: ReceiptDraft) -> Fact:
    """A receipt that is to be posted as its source's hook sees it."""
    hook = hook_of(said.source_system)
    found = {path: _text(said.metadata, path.split(".")) for path in hook.reads} if hook is not None else {}
    return Fact(
        source_system=said.source_system,
        event_type=said.event_type,
        dedupe_key=said.dedupe_key,
        title=said.title,
        summary=said.summary[:VALUE_LENGTH],
        values={path: text[:VALUE_LENGTH] for path, text in found.items() if text is not None},
    )


def _text(value: Any, path: Sequence[str]) -> str | None:
    """What stands at a path, as the database writes it; None for what is no single value."""
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


def group_of(fact: Fact) -> Group | None:
    """What the source's hook says a receipt belongs to; None if it says nothing, or there is none."""
    hook = hook_of(fact.source_system)
    if hook is None:
        return None
    try:
        said = hook.group_of(fact)
        if said is not None:
            _check_group(said)
    except Exception:
        logger.exception("the hook of %s could not group a receipt", fact.source_system)
        return None
    return said


def summarize_thread(source_system: str, facts: Sequence[Fact], context: Context) -> tuple[str, str] | None:
    """Title and summary of a thread in the words of its source; None if it has none."""
    hook = hook_of(source_system)
    if hook is None or hook.summarize_thread is None:
        return None
    try:
        said = hook.summarize_thread(facts, context)
        if said is None:
            return None
        title, summary = said
        _check_text(title)
        _check_text(summary)
    except Exception:
        logger.exception("the hook of %s could not sum a thread up", source_system)
        return None
    return (title, summary) if title.strip() and summary.strip() else None


def next_action(clues: Clues) -> NextAction:
    """What a reader would do next with a receipt: by its source's rules, else by the table's."""
    hook = hook_of(clues.source_system)
    if hook is not None and hook.next_action is not None:
        try:
            said = hook.next_action(clues)
        except Exception:
            logger.exception("the hook of %s could not say what to do next", clues.source_system)
        else:
            if isinstance(said, NextAction):
                return said
            if said is not None:
                logger.error("the hook of %s said %r of what to do next", clues.source_system, said)
    return guidance.next_action(clues)


def value_at(metadata: Mapping[str, Any], *paths: str) -> str | None:
    """The text at the first of these dotted paths that has any."""
    return next((text for path in paths if (text := _text(metadata, path.split(".")))), None)


def _check_group(said: object) -> None:
    """:raises TypeError, ValueError: if it is no group that can be stored."""
    if not isinstance(said, Group):
        raise TypeError(f"no Group, but {said!r}")
    for text in (said.resource_ref, said.event_family, said.summary_hint):
        if text is not None:
            _check_text(text)


def _check_text(said: object) -> None:
    """:raises TypeError, ValueError: if it is no text that can be stored."""
    if not isinstance(said, str):
        raise TypeError(f"no text, but {said!r}")
    if "\x00" in said:
        raise ValueError("It holds a NUL character.")
    said.encode()  # no lone surrogates
