"""A plan as a picture: steps from top to bottom, hard edges as lines, hints as dashes. Pure.

Both the picture and the table stay within the width that they are given: what is wider scrolls, by keyboard too. Classes are
the console's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from apps.plans.documents import next_step, partial_of

_WIDE, _HIGH, _GAP_X, _GAP_Y, _EDGE = 190, 58, 22, 36, 12
# As far a wide picture is made smaller, so that its words can still be read; then it scrolls.
_SMALLEST: Final = 0.75
_CELL: Final = "px-3 py-2 text-left align-top border-b border-base-200 dark:border-base-800"
_LONG: Final = 26
_PLAIN: Final = "#6b7280"
_FILLS: Final = {
    "call_worker": "#dbeafe",
    "queue_execution": "#e0e7ff",
    "wait_for": "#f3f4f6",
    "aggregate": "#dcfce7",
    "escalate": "#fef3c7",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """What is to be seen at a step besides what the plan says of it: a word, and the colour of its edge."""

    word: str
    colour: str


@dataclass(frozen=True, slots=True)
class _Box:
    step: Mapping[str, Any]
    x: int
    y: int


def graph(document: Mapping[str, Any], marks: Mapping[str, Mark] = MappingProxyType({})) -> SafeString:
    """The steps of a plan, or those of its partial plan, as an SVG.

    :param marks: by step id.
    """
    steps = _steps(document)
    if not steps:
        return SafeString("No steps.")
    boxes = _boxes(steps)
    width = max(box.x for box in boxes.values()) + _WIDE + _EDGE
    height = max(box.y for box in boxes.values()) + _HIGH + _EDGE
    picture = format_html(
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="Steps of the plan" width="{}" height="{}"'
        ' viewBox="0 0 {} {}" style="width:100%;height:auto;min-width:{}px;max-width:{}px" font-size="12"'
        ' font-family="sans-serif">{}{}</svg>',
        width,
        height,
        width,
        height,
        min(width, round(width * _SMALLEST)),
        width,
        format_html_join("", "{}", ((line,) for line in _lines(boxes))),
        format_html_join("", "{}", ((_drawn(box, marks.get(step_id)),) for step_id, box in boxes.items())),
    )
    return _within("The steps, drawn", picture)


def details(document: Mapping[str, Any]) -> SafeString:
    """What each step was given and where that is from, which tools might have stood there, and how sure it is."""
    table = format_html(
        '<table class="w-full"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>',
        format_html_join(
            "",
            '<th scope="col" class="{}">{}</th>',
            ((_CELL, name) for name in ("Step", "Params and where they are from", "Alternatives", "Confidence")),
        ),
        format_html_join("", "<tr>{}</tr>", ((_row(step),) for step in _steps(document) if step.get("tool_name"))),
    )
    return _within("What the steps were given", table)


def needs(document: Mapping[str, Any]) -> SafeString:
    """What to do next with a plan, and below it each guess, question or reason, a sentence each."""
    reasons = [
        one.get("detail") or one.get("text", "")
        for name in ("unsure", "questions", "missing")
        for one in document.get(name) or ()
    ]
    return format_html(
        '<p class="font-semibold">{}</p><ul>{}</ul>',
        next_step(document),
        format_html_join("", "<li>{}</li>", ((one,) for one in reasons)),
    )


def _within(label: str, wide: SafeString) -> SafeString:
    """As wide as there is room, and never the reason that there is more."""
    return format_html(
        '<div role="region" aria-label="{}" tabindex="0" class="overflow-x-auto" style="contain:inline-size">{}</div>',
        label,
        wide,
    )


def _steps(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    steps: Sequence[Mapping[str, Any]] = partial_of(document)["steps"]
    return steps


def _boxes(steps: Sequence[Mapping[str, Any]]) -> dict[str, _Box]:
    """Each step stands below all that it depends on or is hinted to follow."""
    rows: dict[str, int] = {}
    columns: dict[int, int] = {}
    boxes = {}
    for step in steps:
        above = [rows[one] for one in (*step.get("depends_on", ()), *step.get("order_hint", ())) if one in rows]
        row = max(above, default=-1) + 1
        column = columns.get(row, 0)
        rows[step["step_id"]], columns[row] = row, column + 1
        boxes[step["step_id"]] = _Box(step, _EDGE + column * (_WIDE + _GAP_X), _EDGE + row * (_HIGH + _GAP_Y))
    return boxes


def _lines(boxes: Mapping[str, _Box]) -> Iterator[SafeString]:
    for box in boxes.values():
        for name, dashes in (("depends_on", "none"), ("order_hint", "4 4")):
            for source in box.step.get(name, ()):
                if source in boxes:
                    yield _line(boxes[source], box, dashes)


def _line(source: _Box, target: _Box, dashes: str) -> SafeString:
    x1, y1, x2, y2 = source.x + _WIDE // 2, source.y + _HIGH, target.x + _WIDE // 2, target.y
    path = f"M{x1} {y1} C{x1} {y1 + _GAP_Y // 2} {x2} {y2 - _GAP_Y // 2} {x2} {y2}"
    return format_html(
        '<path d="{}" fill="none" stroke="#6b7280" stroke-width="1.5" stroke-dasharray="{}"/>', path, dashes
    )


def _drawn(box: _Box, mark: Mark | None) -> SafeString:
    step = box.step
    sure = f" · {step['confidence']:.0%}" if step.get("confidence") is not None else ""
    return format_html(
        '<g><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="6" fill="{}" stroke="{}" stroke-width="{}"/>'
        '<text x="{}" y="{}" fill="#111827" font-weight="bold">{}</text>'
        '<text x="{}" y="{}" fill="#111827">{}</text><text x="{}" y="{}" fill="#4b5563">{}</text></g>',
        step.get("tool_name") or step["step_type"],
        box.x,
        box.y,
        _WIDE,
        _HIGH,
        _FILLS.get(step["step_type"], "#ffffff"),
        _PLAIN if mark is None else mark.colour,
        1 if mark is None else 3,
        box.x + 8,
        box.y + 17,
        _short(step.get("tool_name") or step["step_type"]),
        box.x + 8,
        box.y + 33,
        _short(" · ".join(part for part in (mark and mark.word, step.get("worker_id")) if part)),
        box.x + 8,
        box.y + 49,
        f"{step['step_id']} · {step['step_type']}{sure}",
    )


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def _row(step: Mapping[str, Any]) -> SafeString:
    sure = "" if step.get("confidence") is None else f"{step['confidence']:.0%}"
    name = format_html("{} {}", step["step_id"], step.get("tool_name", ""))
    cells = (name, _params(step), _alternatives(step), sure)
    return format_html_join("", '<td class="{}">{}</td>', ((_CELL, cell) for cell in cells))


def _params(step: Mapping[str, Any]) -> SafeString:
    sources = step.get("provenance") or {}
    given = [
        (name, _json(value), _source(sources.get(name) or {})) for name, value in (step.get("params") or {}).items()
    ]
    lacking = [(name, "missing", "") for name in step.get("missing_params", ())]
    return format_html_join("", "<div><code>{}</code> = {} <em>{}</em></div>", (*given, *lacking))


def _json(value: object) -> SafeString:
    return format_html("<code>{}</code>", json.dumps(value, ensure_ascii=False))


def _source(source: Mapping[str, Any]) -> str:
    about = source.get("key") or source.get("text") or source.get("path") or ""
    origin = " ".join(part for part in (source.get("source", ""), source.get("step_id", ""), str(about)) if part)
    return f"({origin})" if origin else ""


def _alternatives(step: Mapping[str, Any]) -> SafeString:
    found = ((one["tool_name"], one["score"]) for one in step.get("alternatives") or ())
    return format_html_join("", "<div>{} ({})</div>", found)
