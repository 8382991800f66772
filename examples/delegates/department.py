"""department: a DeleGate as a worker of another one. Give it an intent: it has it planned and carried out, and brings the result.

To the DeleGate above it is a worker like any other: it registers there (`GATEHOUSE_URL`, `GATEHOUSE_TOKEN`,
`GATEHOUSE_WORKER_KEY`). Below, at the deployment of the department, it is the agent that asks: it speaks MCP there
(`DEPARTMENT_URL`, `DEPARTMENT_TOKEN`: a token with the scope `plans` of a principal of the kind `delegate`). The two may
be one deployment; then `DEPARTMENT_DELEGATE` names the DeleGate that is asked.

The work outlasts a call, so a call answers a job: its id is that of the plan below, where all of its state is. This process
keeps none and may be killed at any moment.

Run it: `DEPARTMENT_NAME=code-dept DEPARTMENT_TOOL=analyze_code DEPARTMENT_DOES="Analyzes codebases." python
examples/delegates/department.py --port 8810`
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import INTERNAL_ERROR, TextContent
from pydantic import BaseModel, Field

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workers"))

from worker_kit import Worker, refused

HUB_SECONDS: Final = 30.0
SUCCEEDED: Final = frozenset({"complete", "partial"})
FAILED: Final = frozenset({"failed", "budget_exceeded", "canceled", "abandoned"})

Intent = Annotated[str, Field(min_length=1, max_length=20_000, description="What is wanted, in plain words.")]
JobId = Annotated[str, Field(min_length=1, max_length=100)]


class Started(BaseModel):
    """A job that goes on after the call."""

    job_id: str
    estimated_duration_seconds: float


class JobStatus(BaseModel):
    job_id: str
    status: Literal["running", "complete", "failed"]
    progress: float = Field(description="Percent of the steps that are done.")
    message: str


class Carried(BaseModel):
    """What came of an intent, as the department reports it."""

    plan_id: str
    execution_id: str
    status: str
    summary: str
    results: list[dict[str, Any]] = Field(description="One for each step that bears a result.")
    findings: dict[str, Any] = Field(description="What the steps found, by step.")
    receipt_id: str = Field(description="The receipt of the department's plan, which goes back to whoever asked.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Department:
    """The deployment below, and who of it is asked.

    :raises ValueError: if the environment names no deployment.
    """

    url: str
    token: str
    delegate: str | None

    @classmethod
    def from_environment(cls) -> Department:
        url, token = os.environ.get("DEPARTMENT_URL", ""), os.environ.get("DEPARTMENT_TOKEN", "")
        if not (url and token):
            raise ValueError("DEPARTMENT_URL and DEPARTMENT_TOKEN must name the department's deployment")
        return cls(
            url=f"{url.rstrip('/')}/mcp",
            token=token,
            delegate=os.environ.get("DEPARTMENT_DELEGATE") or None,
        )

    async def plan(
        self, intent: str, context: Mapping[str, Any], cause: str | None, path: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Have the intent planned.

        :param path: the keys of the DeleGates that it has come through, so that it comes to none of them again.
        """
        async with self._connected() as client:
            wanted: dict[str, Any] = {"intent": intent, "context": dict(context), "delegation_path": list(path)}
            if cause is not None:
                wanted["caused_by_receipt_id"] = cause
            if self.delegate is not None:
                wanted["delegate_id"] = self.delegate
            return await self._answer(client, "create_delegation_plan", wanted)

    async def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call one tool of the deployment."""
        async with self._connected() as client:
            return await self._answer(client, tool, arguments)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=HUB_SECONDS, trust_env=False) as http,
            Client(streamable_http_client(self.url, http_client=http), cache=None) as client,
        ):
            yield client

    async def _answer(self, client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the tool answers.

        :raises ToolError: if the deployment refuses, in its words.
        """
        answer = await client.call_tool(tool, arguments)
        if answer.is_error:
            text = " ".join(block.text for block in answer.content if isinstance(block, TextContent))
            raise ToolError(text or f"The department refused {tool} without a word")
        if answer.structured_content is None:
            raise MCPError(INTERNAL_ERROR, f"The department answered {tool} with nothing")
        found: dict[str, Any] = answer.structured_content
        return found


def worker_of(department: Department, about: Mapping[str, str]) -> Worker:
    """The department as a worker: its one tool for work, and those for the jobs that come of it."""
    name = about.get("DEPARTMENT_NAME", "department")
    does = about.get("DEPARTMENT_DOES", "Plans and carries out what it is asked for.")
    worker = Worker(
        worker_id=name,
        description=does,
        capabilities=about.get("DEPARTMENT_CAPABILITIES", "delegation").split(),
        constraints={"max_payload_bytes": 1_048_576, "timeout_seconds": 60, "rate_limit_per_hour": 36_000},
        hints={"latency_band": "slow", "cost_band": "low", "expected_runtime": "long"},
        # It hands work on, so it may do whatever its own workers may.
        side_effects={"filesystem": "write", "network": "outbound", "execution": "subprocess"},
        claimed_tier="trusted",
        capacity=16,
    )

    async def carry_out(
        intent: Intent,
        context: dict[str, Any] = {},  # noqa: B006 - the schema's default
        caused_by_receipt_id: str | None = None,
        delegation_path: list[str] = [],  # noqa: B006 - the schema's default
    ) -> Started:
        plan = await department.plan(intent, context, caused_by_receipt_id, delegation_path)
        if plan["status"] != "ready":
            missing = "; ".join(one["detail"] for one in plan["plan"]["missing"][:3])
            raise refused("needs_escalation", f"{name} can't do this by itself: {missing}")
        await department.ask("execute_delegation_plan", plan_id=plan["plan_id"])
        return Started(job_id=plan["plan_id"], estimated_duration_seconds=plan["estimated_runtime_seconds"])

    carry_out.__name__ = about.get("DEPARTMENT_TOOL", "carry_out")
    carry_out.__doc__ = does
    worker.tool(open_world=True, changes_things=True)(carry_out)

    _add_jobs(worker, department)
    return worker


def _add_jobs(worker: Worker, department: Department) -> None:
    """The tools that tell of a job, and the one that cancels it."""

    @worker.tool(title="Status of a job")
    async def get_job_status(job_id: JobId) -> JobStatus:
        """Tell how far a job is: running, complete or failed."""
        report = await department.ask("get_plan_status", plan_id=job_id)
        return JobStatus(
            job_id=job_id,
            status="complete"
            if report["status"] in SUCCEEDED
            else "failed"
            if report["status"] in FAILED
            else "running",
            progress=100 * report["steps_complete"] / max(report["steps_total"], 1),
            message=report["summary"],
        )

    @worker.tool(title="Result of a job")
    async def get_job_result(job_id: JobId) -> Carried:
        """Return what a job that is complete has found, with a pointer to each whole result."""
        report = await department.ask("get_plan_status", plan_id=job_id)
        if report["status"] not in SUCCEEDED:
            raise refused("not_complete", f"{job_id} is {report['status']}")
        return Carried(
            plan_id=report["plan_id"],
            execution_id=report["execution_id"],
            status=report["status"],
            summary=report["summary"],
            results=report["results"],
            findings={one["step_id"]: one["key_findings"] for one in report["results"]},
            receipt_id=report["receipt_id"],
        )

    @worker.tool(title="Cancel a job", changes_things=True)
    async def cancel_job(job_id: JobId) -> JobStatus:
        """Stop a job: what of it has not begun never will. One that has ended stays as it is."""
        report = await department.ask("get_plan_status", plan_id=job_id)
        if report["ended_at"] is None and report["execution_id"] is not None:
            await department.ask("cancel_execution", execution_id=report["execution_id"], reason="Canceled above.")
        return await get_job_status(job_id)


def main() -> int:
    """Serve until stopped, and return the process's exit code."""
    try:
        department = Department.from_environment()
    except ValueError as refusal:
        sys.stderr.write(f"The department cannot start: {refusal}\n")
        return 2
    return worker_of(department, os.environ).main()


if __name__ == "__main__":
    sys.exit(main())
