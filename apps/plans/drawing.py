"""A plan as a picture: steps from top to bottom, what each depends on as lines. Pure. Classes are the console's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from apps.plans.documents import next_step, partial_of

_WIDE, _HIGH, _GAP_X, _GAP_Y, _EDGE = 190, 58, 22, 36, 12
# As far a wide picture is made smaller, so that its words can still be read; then it scrolls.
_SMALLEST: Final = 0.75
_LONG: Final = 26
_FILLS: Final = {
    "call_worker": "#dbeafe",
    "queue_execution": "#e0e7ff",
    "wait_for": "#f3f4f6",
    "aggregate": "#dcfce7",
    "escalate": "#fef3c7",
}


Mark = tuple[str, str, str]
"""Of a step: a word, the colour of its box's edge, and the address of its page."""
_UNMARKED: Final[Mark] = ("", "", "")


def graph(document: Mapping[str, Any], marks: Mapping[str, Mark] = MappingProxyType({})) -> SafeString:
    """The steps of a plan, or those of its partial plan, as an SVG.

    :param marks: by step id.
    """
    steps: Sequence[Mapping[str, Any]] = partial_of(document)["steps"]
    if not steps:
        return SafeString("No steps.")
    places = _places(steps)
    width = max(x for x, _ in places.values()) + _WIDE + _EDGE
    height = max(y for _, y in places.values()) + _HIGH + _EDGE
    lines = [
        (_line(places[source], places[step["step_id"]]),)
        for step in steps
        for source in step.get("depends_on", ())
        if source in places
    ]
    boxes = [(_box(step, *places[step["step_id"]], marks.get(step["step_id"], _UNMARKED)),) for step in steps]
    return format_html(
        '<div role="region" aria-label="The steps, drawn" tabindex="0" class="overflow-x-auto" style="contain:inline-size">'
        '<svg xmlns="http://www.w3.org/2000/svg" role="{}" aria-label="Steps of the plan" width="{}" height="{}"'
        ' viewBox="0 0 {} {}" style="width:100%;height:auto;min-width:{}px;max-width:{}px" font-size="12"'
        ' font-family="sans-serif">{}{}</svg></div>',
        # What is an image can't be entered, so its links could not be followed by keyboard.
        *("group" if marks else "img", width, height, width, height, min(width, round(width * _SMALLEST)), width),
        format_html_join("", "{}", lines),
        format_html_join("", "{}", boxes),
    )


def needs(document: Mapping[str, Any]) -> SafeString:
    """What to do next with a plan, and below it each guess, question or reason, a sentence each."""
    reasons = [
        str(one.get("detail") or one.get("text"))
        for name in ("unsure", "questions", "missing")
        for one in document.get(name) or ()
    ]
    return format_html(
        '<p class="font-semibold">{}</p><ul>{}</ul>',
        next_step(document),
        format_html_join("", "<li>{}</li>", ((one,) for one in reasons)),
    )


def _places(steps: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """The left upper corner of each step by its id: it stands below all that it depends on."""
    rows: dict[str, int] = {}
    for step in steps:
        rows[step["step_id"]] = max((rows[one] + 1 for one in step.get("depends_on", ()) if one in rows), default=0)
    columns: Counter[int] = Counter()
    found = {}
    for step_id, row in rows.items():
        found[step_id] = (_EDGE + columns[row] * (_WIDE + _GAP_X), _EDGE + row * (_HIGH + _GAP_Y))
        columns[row] += 1
    return found


def _line(source: tuple[int, int], target: tuple[int, int]) -> SafeString:
    x1, y1, x2, y2 = source[0] + _WIDE // 2, source[1] + _HIGH, target[0] + _WIDE // 2, target[1]
    path = f"M{x1} {y1} C{x1} {y1 + _GAP_Y // 2} {x2} {y2 - _GAP_Y // 2} {x2} {y2}"
    return format_html('<path d="{}" fill="none" stroke="#6b7280" stroke-width="1.5"/>', path)


def _box(step: Mapping[str, Any], x: int, y: int, mark: Mark) -> SafeString:
    word, colour, address = mark
    name = step.get("tool_name") or step["step_type"]
    box = format_html(
        '<g><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="6" fill="{}" stroke="{}" stroke-width="{}"/>'
        '<text x="{}" y="{}" fill="#111827" font-weight="bold">{}</text>'
        '<text x="{}" y="{}" fill="#111827">{}</text><text x="{}" y="{}" fill="#4b5563">{}</text></g>',
        *(name, x, y, _WIDE, _HIGH, _FILLS.get(step["step_type"], "#ffffff"), colour or "#6b7280", 3 if colour else 1),
        *(x + 8, y + 17, _short(name)),
        *(x + 8, y + 33, _short(" · ".join(part for part in (word, step.get("worker_id")) if part))),
        *(x + 8, y + 49, f"{step['step_id']} · {step['step_type']}"),
    )
    return format_html('<a href="{}">{}</a>', address, box) if address else box


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"
