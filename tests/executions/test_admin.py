"""What operators see of an execution."""

import re
from html import unescape
from typing import Any
from xml.etree import ElementTree as ET

from django.test import Client
from django.urls import reverse

from apps.executions import reports
from apps.executions.models import Execution, ExecutionStep
from apps.principals.models import Operator, Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from tests.executions.making import (
    REPORT,
    advance,
    begin,
    call_step,
    do_task,
    example_steps,
    make_worker,
    queue_step,
)
from tests.executions.workers import WorkerServer
from tests.factories import make_caller


def test_page_links_plan_tasks_and_receipts(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, example_steps())
    advance(execution)
    with acting_as_system("test"):
        operator = Operator.objects.create_superuser("olga", password=None)
        step = ExecutionStep.objects.get(step_id="step-1")
    client = Client()
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")

    page = client.get(reverse("admin:executions_execution_change", args=[execution.pk])).content.decode()
    listing = client.get(reverse("admin:executions_execution_changelist")).content.decode()
    of_step = client.get(reverse("admin:executions_executionstep_change", args=[step.pk]))

    assert execution.plan_id in page
    assert reverse("admin:tasks_task_change", args=[step.task_id]) in page
    assert "/receipts/receipt/" in page
    assert execution.ref in listing
    assert of_step.status_code == 200


def test_page_draws_the_plan_and_its_provenance(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    told: dict[str, Any] = {
        "provenance": {"text": {"source": "literal", "text": "hello"}},
        "confidence": 0.9,
        "alternatives": [{"tool_name": "say", "score": 0.4}],
    }
    execution = begin(
        kee,
        [
            call_step("step-1", **told),
            call_step("step-2", "break_down", depends_on=["step-1"]),
            call_step("step-3", depends_on=["step-2"]),
        ],
    )
    advance(execution)
    with acting_as_system("test"):
        operator = Operator.objects.create_superuser("olga", password=None)
    client = Client()
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")

    page = client.get(reverse("admin:executions_execution_change", args=[execution.pk])).content.decode()

    (picture,) = re.findall(r"<svg[^>]*Steps of the plan.*?</svg>", page, re.DOTALL)
    drawn = ET.fromstring(picture)  # noqa: S314  # our own
    space = "{http://www.w3.org/2000/svg}"
    boxes = {
        box.findall(f"{space}text")[2].text.split(" · ")[0]: box  # type: ignore[union-attr]  # it has one
        for box in drawn.findall(f"{space}g")
    }
    states = {name: (box.findall(f"{space}text")[1].text or "").split(" · ")[0] for name, box in boxes.items()}
    assert states == {"step-1": "complete", "step-2": "failed", "step-3": "skipped"}
    edges = [box.find(f"{space}rect").attrib["stroke"] for box in boxes.values()]  # type: ignore[union-attr]  # it has one
    assert len(set(edges)) == 3
    details = re.sub(r"<[^>]+>", " ", page)
    assert re.search(r"text\s+= +&quot;hello&quot;\s+\(literal hello\)", details)
    assert "say (0.4)" in details


def page_of(execution: Execution) -> str:
    """The text of an execution's page."""
    with acting_as_system("test"):
        operator = Operator.objects.create_superuser("olga", password=None)
    client = Client()
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")
    page = client.get(reverse("admin:executions_execution_change", args=[execution.pk])).content.decode()
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_page_says_why_a_step_failed(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    gather = {"step_id": "sum", "step_type": "aggregate", "aggregate_step_ids": ["step-2"]}
    execution = begin(
        kee, [call_step("step-1", "break_down"), call_step("step-2", depends_on=["step-1"]), gather, REPORT]
    )
    advance(execution)
    with acting_as_system("test"):
        why = reports.outcome(ExecutionStep.objects.get(step_id="step-1"))

    page = page_of(execution)

    assert "out of paper" in why
    assert f"What came of it step-1 failed: {why}" in page
    assert f"step-1 (call_worker) Change Failed {why}" in page


def test_page_says_what_the_owner_owes(kee: Caller, tenant: Tenant, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, example_steps())
    advance(execution)
    do_task(make_caller(tenant, "hands", Kind.WORKER), {"text": "found"})
    advance(execution)

    page = page_of(execution)

    assert "Complete Done by hand. texter: echo" in page
    assert "Waits for step-4 waits for its owner, Kee, to combine the results and hand them in." in page


def test_page_names_awaited_task_and_receipts(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    wait = {"step_id": "wait", "step_type": "wait_for", "wait_for_receipts": ["rcpt_to_come"]}
    execution = begin(kee, [queue_step("step-1"), wait, REPORT])
    advance(execution)
    with acting_as_system("test"):
        task = ExecutionStep.objects.get(step_id="step-1").task_ref

    page = page_of(execution)

    assert f"step-1 waits for {task}, a task for texter." in page
    assert "wait waits for receipts: rcpt_to_come." in page
