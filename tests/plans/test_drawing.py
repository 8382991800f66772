"""What an operator sees of a plan: its steps as a graph, and of each param where it is from."""

import re
from collections.abc import Mapping
from html import unescape
from typing import Any
from xml.etree import ElementTree as ET

from apps.plans import drawing
from tests.plans.shelf import make_plan


def drawn(document: Mapping[str, Any]) -> ET.Element:
    (picture,) = re.findall(r"<svg.*?</svg>", drawing.graph(document), re.DOTALL)
    return ET.fromstring(picture)  # noqa: S314  # our own


def test_each_step_is_a_box_below_what_it_depends_on_and_each_dependency_a_line() -> None:
    document = make_plan("Analyze the Python codebase at /path/to/repo and suggest optimizations").document()

    picture = drawn(document)

    space = "{http://www.w3.org/2000/svg}"
    boxes = picture.findall(f"{space}g")
    assert [box.findtext(f"{space}title") for box in boxes] == [
        "analyze_repository",
        "wait_for",
        "suggest_optimizations",
        "aggregate",
        "escalate",
    ]
    tops = [int(rect.attrib["y"]) for rect in picture.iter(f"{space}rect")]
    assert tops == sorted(set(tops))
    lines = [path for path in picture.findall(f"{space}path") if path.attrib["stroke-dasharray"] == "none"]
    assert len(lines) == sum(len(step["depends_on"]) for step in document["steps"])


def test_params_tell_their_value_and_where_it_is_from() -> None:
    document = make_plan("Analyze the Python codebase at /path/to/repo and suggest optimizations").document()

    told = unescape(re.sub(r"<[^>]+>", " ", drawing.details(document)))

    assert re.search(r'repo_path\s+= +"/path/to/repo"\s+\(literal /path/to/repo\)', told)
    assert re.search(r'analysis_pointer\s+= +"\{\{step-1.result_pointer\}\}"\s+\(step step-1 result_pointer\)', told)


def test_values_are_shown_as_json_and_letters_as_they_are() -> None:
    params = {"path": "/büro", "recursive": True, "file_types": ["pdf"], "limit": None}
    document = {"steps": [{"step_id": "step-1", "step_type": "call_worker", "tool_name": "scan", "params": params}]}

    told = unescape(drawing.details(document))

    for value in ('"/büro"', "true", '["pdf"]', "null"):
        assert f"<code>{value}</code>" in told


def test_a_wide_plan_is_made_a_little_smaller_and_then_scrolls_by_keyboard_too() -> None:
    steps = [{"step_id": f"step-{number}", "step_type": "call_worker", "tool_name": "say"} for number in range(10)]

    region = ET.fromstring(drawing.graph({"steps": steps}))  # noqa: S314  # our own

    (picture,) = region
    wide = int(picture.attrib["width"])
    assert wide > 2_000
    assert f"min-width:{round(wide * 0.75)}px" in picture.attrib["style"]
    assert (region.attrib["tabindex"], region.attrib["class"]) == ("0", "overflow-x-auto")


def test_a_refusal_shows_its_partial_plan_and_what_is_missing() -> None:
    document = make_plan("Resize the picture /tmp/a.png").document()

    assert "resize_image" in drawing.graph(document)
    assert "Refused" in drawing.refusal(document)
    assert all(one["detail"] in unescape(drawing.refusal(document)) for one in document["missing"])
    assert re.search(r"width</code> = missing", drawing.details(document))


def test_a_refusal_for_which_nothing_was_found_draws_nothing() -> None:
    document = make_plan("Bake a cake").document()

    assert document["status"] == "needs_escalation"
    assert drawing.graph(document) == "No steps."
    assert "<td" not in drawing.details(document)


def test_what_others_wrote_is_shown_as_text() -> None:
    document = {"status": "ready", "steps": [{"step_id": "<b>", "step_type": "call_worker", "tool_name": "<script>"}]}

    assert "<script>" not in drawing.graph(document)
    assert "<b>" not in drawing.details(document)
    assert "<b>" not in drawing.refusal({"missing": [{"detail": "No tool does <b>"}]})
