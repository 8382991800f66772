"""What operators see of a plan: its steps as a picture, and what a refusal misses."""

import re
from collections.abc import Mapping
from html import unescape
from typing import Any
from xml.etree import ElementTree as ET

from django.test import Client
from django.urls import reverse

from apps.plans import drawing
from apps.plans.proposals import Lack, Missing
from apps.principals.tenancy import Caller
from tests.plans.making import RESIZE, call, create, make_plan, register_example_workers


def drawn(document: Mapping[str, Any]) -> ET.Element:
    (picture,) = re.findall(r"<svg.*?</svg>", drawing.graph(document), re.DOTALL)
    return ET.fromstring(picture)  # noqa: S314  # our own


def test_steps_are_boxes_and_dependencies_lines() -> None:
    document = make_plan().document()
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
    assert len(picture.findall(f"{space}path")) == sum(len(step["depends_on"]) for step in document["steps"])


def test_half_made_plan_shows_what_it_asks_for() -> None:
    document = make_plan(call(RESIZE, image_path="/a.png")).document()

    assert "resize_image" in drawing.graph(document)
    assert "What is “width” for resize_image?" in unescape(drawing.needs(document))


def test_foreign_markup_is_shown_as_text() -> None:
    document = {"status": "ready", "steps": [{"step_id": "<b>", "step_type": "call_worker", "tool_name": "<script>"}]}

    assert "<script>" not in drawing.graph(document)
    assert "<b>" not in drawing.graph(document)
    assert "<b>" not in drawing.needs({**document, "plan_id": "p", "missing": [{"detail": "No tool does <b>"}]})


def page_of(console: Client, caller: Caller, **proposal: Any) -> str:
    """What the page of a plan says before its document."""
    with caller.acting():
        register_example_workers(caller)
        made = create(caller, proposal=proposal)
    shown = console.get(reverse("admin:plans_plan_change", args=[made.pk])).content.decode()
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", shown)).split()).split("Document", 1)[0]


def test_page_of_a_refused_plan_says_what_is_missing(kee: Caller, console: Client) -> None:
    missing = (Missing(kind=Lack.TOOL, detail="No tool bakes a cake."), Missing(kind=Lack.BUDGET, detail="Too dear."))

    page = page_of(console, kee, missing=missing)

    for said in ("No tool bakes a cake. Register an MCP worker", "Too dear.", "analyze_repository"):
        assert said in page
