"""What operators see of a plan: its steps as a picture, where each param is from, and what a refusal misses."""

import re
from collections.abc import Mapping
from html import unescape
from typing import Any
from xml.etree import ElementTree as ET

from django.test import Client
from django.urls import reverse

from apps.plans import drawing, services
from apps.plans.models import Plan
from apps.plans.services import PlanRequest
from apps.principals.tenancy import Caller
from tests.factories import T0
from tests.plans.shelf import make_plan
from tests.plans.test_stored_plans import FLAGSHIP, register_example_workers


def drawn(document: Mapping[str, Any]) -> ET.Element:
    (picture,) = re.findall(r"<svg.*?</svg>", drawing.graph(document), re.DOTALL)
    return ET.fromstring(picture)  # noqa: S314  # our own


def test_steps_are_boxes_and_dependencies_lines() -> None:
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


def test_params_show_their_value_and_source() -> None:
    document = make_plan("Analyze the Python codebase at /path/to/repo and suggest optimizations").document()

    told = unescape(re.sub(r"<[^>]+>", " ", drawing.details(document)))

    assert re.search(r'repo_path\s+= +"/path/to/repo"\s+\(literal /path/to/repo\)', told)
    assert re.search(r'analysis_pointer\s+= +"\{\{step-1.result_pointer\}\}"\s+\(step step-1 result_pointer\)', told)


def test_refusal_shows_its_partial_plan_and_what_is_missing() -> None:
    document = make_plan("Resize the picture /tmp/a.png").document()

    assert "resize_image" in drawing.graph(document)
    assert "Refused" in drawing.refusal(document)
    assert all(one["detail"] in unescape(drawing.refusal(document)) for one in document["missing"])
    assert re.search(r"width</code> = missing", drawing.details(document))


def test_foreign_markup_is_shown_as_text() -> None:
    document = {"status": "ready", "steps": [{"step_id": "<b>", "step_type": "call_worker", "tool_name": "<script>"}]}

    assert "<script>" not in drawing.graph(document)
    assert "<b>" not in drawing.details(document)
    assert "<b>" not in drawing.refusal({"missing": [{"detail": "No tool does <b>"}]})


def text_of(console: Client, page: str, *args: object) -> str:
    shown = console.get(reverse(f"admin:plans_plan_{page}", args=args)).content.decode()
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", shown)).split())


def make(caller: Caller, intent: str = FLAGSHIP) -> Plan:
    with caller.acting():
        made = services.create_plan(caller=caller, request=PlanRequest(intent=intent), now=T0)
        return Plan.objects.get(plan_id=made.document["plan_id"])


def test_page_of_a_refused_plan_says_what_is_missing(kee: Caller, console: Client) -> None:
    with kee.acting():
        register_example_workers(kee)
    refused = make(kee, "Analyze the Python codebase at /path/to/repo and bake a cake")
    assert refused.status == "needs_escalation"

    page = text_of(console, "change", refused.pk)

    assert "Refused: it can't be carried out." in page
    before_the_document, _ = page.split("Document", 1)
    for one in refused.document["missing"]:
        assert one["detail"] in before_the_document
    assert "Best partial plan, which is not carried out analyze_repository" in page


def test_page_of_a_ready_plan_shows_its_steps(kee: Caller, console: Client) -> None:
    with kee.acting():
        register_example_workers(kee)

    page = text_of(console, "change", make(kee).pk)

    assert "Steps analyze_repository" in page
    assert "Refused" not in page
    assert "artial plan" not in page
