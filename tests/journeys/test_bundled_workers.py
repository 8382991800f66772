"""Plans for the bundled workers, carried out to the end, all of it over MCP."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from apps.executions import services
from apps.executions.models import Execution
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller
from apps.tasks.jobs import work as execute_queue
from apps.workers.models import State, Worker
from tests.bundled_workers.processes import GRADIENTS, RECEIPTS, SCRIPTS, running, write_pdf
from tests.factories import make_caller, make_token
from tests.server import Server, ask, ready_plan
from tests.waiters import until
from tests.workers.factories import enroll, make_key

pytestmark = pytest.mark.ci


@pytest.fixture
def kee(acme: Tenant, server: Server) -> Iterator[Caller]:
    """An agent in a tenant where all bundled workers have registered themselves."""
    caller = make_caller(acme, "Kee", Kind.AI)
    key = make_key()
    with caller.acting():
        enroll(caller, key)
    with ExitStack() as workers:
        for script in SCRIPTS:
            name = script.removesuffix(".py").replace("_", "-")
            token = make_token(acme, name, Kind.WORKER, scopes=[Scope.WORKERS_REGISTER, Scope.TASKS_WORK])
            workers.enter_context(
                running(script, GATEHOUSE_URL=server.url, GATEHOUSE_TOKEN=token, GATEHOUSE_WORKER_KEY=json.dumps(key))
            )
        until(lambda: registered(caller) == len(SCRIPTS), "the registration of all")
        yield caller


@pytest.fixture
def token(acme: Tenant, kee: Caller) -> str:
    return make_token(acme, "Kee", scopes=[Scope.PLANS, Scope.TASKS_QUEUE, Scope.INBOX, Scope.MEMORY])


def registered(caller: Caller) -> int:
    with caller.acting():
        return Worker.objects.filter(state=State.READY).count()


def planned(plan: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(step["step_type"], step["worker_id"], step["tool_name"]) for step in plan["steps"] if "tool_name" in step]


def carried_out(server: Server, token: str, kee: Caller, plan_id: str) -> dict[str, Any]:
    """Execute a plan, being the Celery workers ourselves, until only its principal is left to act."""
    ask(server.url, token, "execute_delegation_plan", plan_id=plan_id)
    deadline = time.monotonic() + 240
    while True:
        report = ask(server.url, token, "get_plan_status", plan_id=plan_id)
        waiting = {step["status"] for step in report["steps"]} & {"queued", "running", "pending"}
        mine = any(step["status"] == "awaiting" and step["step_type"] == "aggregate" for step in report["steps"])
        if not waiting or mine or report["status"] in {"complete", "failed"}:
            return report
        assert time.monotonic() < deadline, report
        execute_queue(kee.tenant_id, "execute")
        with kee.acting():
            execution_id = Execution.objects.get(plan_id=plan_id).pk
        services.advance(tenant_id=kee.tenant_id, execution_id=execution_id)


def found(report: dict[str, Any], tool: str) -> dict[str, Any]:
    (envelope,) = [step["envelope"] for step in report["steps"] if step["tool_name"] == tool]
    assert envelope["status"] == "complete", envelope
    payload: dict[str, Any] = envelope["payload"]
    return payload


def put_together(server: Server, token: str, report: dict[str, Any], summary: str) -> dict[str, Any]:
    """Hand in what the plan's principal made of the results, and read how the plan ended."""
    (step,) = [step for step in report["steps"] if step["step_type"] == "aggregate"]
    ask(
        server.url,
        token,
        "submit_step_result",
        execution_id=report["execution_id"],
        step_id=step["step_id"],
        result={"told": summary},
        summary=summary,
    )
    done = ask(server.url, token, "get_plan_status", plan_id=report["plan_id"])
    assert (done["status"], done["summary"], done["steps_complete"]) == ("complete", summary, done["steps_total"])
    assert done["report"]["recommendation"]
    chain = ask(server.url, token, "get_receipt_chain", receipt_id=done["terminal_receipt_id"])
    events = [link["event_type"] for link in chain["receipts"]]
    assert events[0] == "task_received"
    assert {"plan_created", "task_queued", "task_complete", "plan_complete"} <= set(events)
    assert ask(server.url, token, "memory_bootstrap")["owed_by_me"] == []
    return done


def test_pdfs_are_found_indexed_and_their_concepts_extracted(
    server: Server, token: str, kee: Caller, tmp_path: Path
) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    write_pdf(documents / "gradients.pdf", GRADIENTS, title="On gradients")
    write_pdf(documents / "receipts.pdf", RECEIPTS)
    (documents / "notes.txt").write_text("no PDF")

    plan = ready_plan(
        server.url,
        token,
        intent=f"Index all PDFs in {documents}, extract key concepts, and generate summary",
        context={"file_types": ["pdf"], "path": str(documents)},
    )
    assert planned(plan) == [
        ("call_worker", "file-scanner", "scan_directory"),
        ("queue_execution", "pdf-indexer", "index_pdfs"),
        ("queue_execution", "concept-extractor", "extract_concepts"),
    ]
    report = carried_out(server, token, kee, plan["plan_id"])

    assert found(report, "scan_directory")["files_found"] == 2
    assert found(report, "index_pdfs")["summary"] == "Indexed 2 PDFs: 3 pages, skipped 0"
    concepts = found(report, "extract_concepts")
    assert concepts["concepts"][0]["name"] == "Gradient descent"
    assert concepts["documents_read"] == 2
    assert len(report["async_task_ids"]) == 2

    # Another session: the inbox tells of both tasks, their results are fetched, and what was learned is kept.
    received = ask(server.url, token, "get_inbox_receipts", limit=50)["receipts"]
    told = {one["metadata"]["task_id"]: one["summary"] for one in received if one["event_type"] == "task_complete"}
    assert set(told) == set(report["async_task_ids"])
    assert "Indexed 2 PDFs: 3 pages, skipped 0" in told.values()
    fetched = [ask(server.url, token, "fetch_task_result", task_id=task_id)["content"] for task_id in told]
    assert any(content["summary"] == concepts["summary"] for content in fetched)
    kept = ask(server.url, token, "memory_store", observation=concepts["summary"], domain="document_analysis")
    assert kept
    put_together(server, token, report, "Two PDFs, on gradients and on receipts.")
