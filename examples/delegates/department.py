"""department: a DeleGate as an MCP worker of another DeleGate. It has an intent planned and executed, and returns the result.

It registers at the DeleGate above (`GATEHOUSE_URL`, `GATEHOUSE_TOKEN`, `GATEHOUSE_WORKER_KEY`). Below, it is an agent of the
department's deployment (`DEPARTMENT_URL`, `DEPARTMENT_TOKEN`: scope `plans`, a principal of kind `delegate`); in a shared
deployment `DEPARTMENT_DELEGATE` names the DeleGate to ask. A call returns a job whose id is the plan below, where all
state is: this process keeps none.

Run it: `DEPARTMENT_NAME=code-dept DEPARTMENT_TOOL=analyze_code DEPARTMENT_DOES="Analyzes codebases." python
examples/delegates/department.py --port 8810`
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import INTERNAL_ERROR, TextContent
from pydantic import BaseModel, Field

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workers"))

from worker_kit import JobId, JobStatus, Started, Worker, refused

SUCCEEDED: Final = frozenset({"complete", "partial"})
FAILED: Final = frozenset({"failed", "budget_exceeded", "canceled", "abandoned"})
NAME: Final = os.environ.get("DEPARTMENT_NAME", "department")
DOES: Final = os.environ.get("DEPARTMENT_DOES", "Plans and carries out what it is asked for.")

Intent = Annotated[str, Field(min_length=1, max_length=20_000, description="What is wanted, in plain words.")]

worker = Worker(
    worker_id=NAME,
    description=DOES,
    capabilities=os.environ.get("DEPARTMENT_CAPABILITIES", "delegation").split(),
    constraints={"max_payload_bytes": 1_048_576, "timeout_seconds": 60, "rate_limit_per_hour": 36_000},
    hints={"latency_band": "slow", "cost_band": "low", "expected_runtime": "long"},
    # It hands work on, so it may do whatever its own workers may.
    side_effects={"filesystem": "write", "network": "outbound", "execution": "subprocess"},
    claimed_tier="trusted",
    capacity=16,
)


class Carried(BaseModel):
    """The result of an intent, as the department reports it."""

    plan_id: str
    execution_id: str
    status: str
    summary: str
    results: list[dict[str, Any]] = Field(description="One for each step that bears a result.")
    findings: dict[str, Any] = Field(description="The findings of the steps, by step.")
    receipt_id: str = Field(description="The receipt of the department's plan.")


async def ask(tool: str, **arguments: Any) -> dict[str, Any]:
    """Call one tool of the department's deployment.

    :raises ToolError: if the deployment refuses, in its words.
    """
    headers = {"Authorization": f"Bearer {os.environ['DEPARTMENT_TOKEN']}"}
    url = f"{os.environ['DEPARTMENT_URL'].rstrip('/')}/mcp"
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30.0, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), cache=None) as client,
    ):
        answer = await client.call_tool(tool, arguments)
    if answer.is_error:
        text = " ".join(block.text for block in answer.content if isinstance(block, TextContent))
        raise ToolError(text or f"The department refused {tool} without a word")
    if answer.structured_content is None:
        raise MCPError(INTERNAL_ERROR, f"The department answered {tool} with nothing")
    found: dict[str, Any] = answer.structured_content
    return found


async def carry_out(
    intent: Intent,
    context: dict[str, Any] = {},  # noqa: B006 - the schema's default
    caused_by_receipt_id: str | None = None,
    delegation_path: list[str] = [],  # noqa: B006 - the schema's default
) -> Started:
    asked: dict[str, Any] = {"intent": intent, "context": context, "delegation_path": delegation_path}
    if caused_by_receipt_id is not None:
        asked["caused_by_receipt_id"] = caused_by_receipt_id
    if delegate := os.environ.get("DEPARTMENT_DELEGATE"):
        asked["delegate_id"] = delegate
    plan = await ask("create_delegation_plan", **asked)
    if plan["status"] == "needs_confirmation":
        # Nobody here could judge a guess better, and whoever asked sees in the result what was done.
        plan = await ask("confirm_plan", plan_id=plan["plan_id"])
    if plan["status"] != "ready":
        raise refused("needs_escalation", f"{NAME} can't do this by itself: {plan['next_step']}")
    await ask("execute_delegation_plan", plan_id=plan["plan_id"])
    return Started(job_id=plan["plan_id"], estimated_duration_seconds=plan["estimated_runtime_seconds"])


carry_out.__name__, carry_out.__doc__ = os.environ.get("DEPARTMENT_TOOL", "carry_out"), DOES
worker.tool(open_world=True, changes_things=True)(carry_out)


@worker.tool(title="Status of a job")
async def get_job_status(job_id: JobId) -> JobStatus:
    """Tell how far a job is: running, complete or failed."""
    report = await ask("get_plan_status", plan_id=job_id)
    is_over = report["status"] in SUCCEEDED or report["status"] in FAILED
    return JobStatus(
        job_id=job_id,
        status="running" if not is_over else "complete" if report["status"] in SUCCEEDED else "failed",
        progress=100 * report["steps_complete"] / max(report["steps_total"], 1),
        message=report["summary"],
    )


@worker.tool(title="Result of a job")
async def get_job_result(job_id: JobId) -> Carried:
    """Return what a job that is complete has found, with a pointer to each whole result."""
    report = await ask("get_plan_status", plan_id=job_id)
    if report["status"] not in SUCCEEDED:
        raise refused("not_complete", f"{job_id} is {report['status']}")
    return Carried(**report, findings={one["step_id"]: one["key_findings"] for one in report["results"]})


@worker.tool(title="Cancel a job", changes_things=True)
async def cancel_job(job_id: JobId) -> JobStatus:
    """Stop a job: what of it has not begun never will. One that has ended stays as it is."""
    report = await ask("get_plan_status", plan_id=job_id)
    if report["ended_at"] is None and report["execution_id"] is not None:
        await ask("cancel_execution", execution_id=report["execution_id"], reason="Canceled above.")
    return await get_job_status(job_id)


if __name__ == "__main__":
    if not (os.environ.get("DEPARTMENT_URL") and os.environ.get("DEPARTMENT_TOKEN")):
        sys.exit("The department cannot start: DEPARTMENT_URL and DEPARTMENT_TOKEN must name its deployment")
    worker.main()
