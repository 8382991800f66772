"""What an operator sees of a plan: its steps as a graph, and of each param where it is from."""

import re
from xml.etree import ElementTree as ET

from apps.plans import drawing
from tests.plans.shelf import make_plan


def test_each_step_is_a_box_right_of_what_it_depends_on_and_each_dependency_a_line() -> None:
    document = make_plan("Analyze the Python codebase at /path/to/repo and suggest optimizations").document()

    picture = ET.fromstring(drawing.graph(document))  # noqa: S314  # our own

    space = "{http://www.w3.org/2000/svg}"
    boxes = picture.findall(f"{space}g")
    assert [box.findtext(f"{space}title") for box in boxes] == [
        "analyze_repository",
        "wait_for",
        "suggest_optimizations",
        "aggregate",
        "escalate",
    ]
    left = [int(rect.attrib["x"]) for rect in picture.iter(f"{space}rect")]
    assert left == sorted(left)
    lines = [path for path in picture.findall(f"{space}path") if path.attrib["stroke-dasharray"] == "none"]
    assert len(lines) == sum(len(step["depends_on"]) for step in document["steps"])


def test_params_tell_their_value_and_where_it_is_from() -> None:
    document = make_plan("Analyze the Python codebase at /path/to/repo and suggest optimizations").document()

    told = re.sub(r"<[^>]+>", " ", drawing.details(document))

    assert re.search(r"repo_path\s+= /path/to/repo\s+\(literal /path/to/repo\)", told)
    assert re.search(r"analysis_pointer\s+= \{\{step-1.result_pointer\}\}\s+\(step step-1 result_pointer\)", told)


def test_a_refusal_shows_its_partial_plan_and_what_is_missing() -> None:
    document = make_plan("Resize the picture /tmp/a.png").document()

    assert "resize_image" in drawing.graph(document)
    assert re.search(r"width</code> = missing", drawing.details(document))


def test_what_others_wrote_is_shown_as_text() -> None:
    document = {"status": "ready", "steps": [{"step_id": "<b>", "step_type": "call_worker", "tool_name": "<script>"}]}

    assert "<script>" not in drawing.graph(document)
    assert "<b>" not in drawing.details(document)
