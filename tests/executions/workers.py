"""A real MCP worker inside the test process: the SDK's server, under uvicorn, on a thread."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.types import CallToolResult, ResourceLink
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Route

from tests.waiters import until
from tests.workers.servers import begin_serving


@dataclass
class WorkerServer:
    """Where the worker answers, and what a test may see and steer of it."""

    endpoint: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    gate: threading.Event = field(default_factory=threading.Event)
    """`hold` answers when this is set."""
    entered: threading.Event = field(default_factory=threading.Event)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What `get_count_status` answers of a job, by its id; one that is not here is unknown."""
    escalations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the two tools that take an intent answer to it; else they say that it is done."""
    counted: dict[str, Any] = field(default_factory=dict)
    """What `get_count_result` answers."""
    counted_refused: bool = False
    """Does `get_count_result` answer that it won't?"""

    @property
    def redirecting(self) -> str:
        return self.endpoint.replace("/mcp", "/moved")

    def wait_for_calls(self, tool: str, number: int) -> None:
        """Return when the tool has been called so many times."""
        until(lambda: self.calls[tool] >= number, lambda: f"{tool} was called {self.calls[tool]} times")

    def reset(self) -> None:
        self.calls.clear()
        self.gate.clear()
        self.entered.clear()
        self.jobs.clear()
        self.escalations.clear()
        self.counted = {"summary": "Counted to 3", "numbers": [1, 2, 3]}
        self.counted_refused = False


class Rate(BaseModel):
    """What a tool asks for in the middle of its call."""

    percent: int
    round_up: bool = True


def _server(seen: WorkerServer) -> MCPServer[Any]:  # noqa: C901  # a list of small tools
    server: MCPServer[Any] = MCPServer("test-worker", log_level="ERROR")

    @server.tool()
    def echo(text: str) -> dict[str, Any]:
        seen.calls["echo"] += 1
        return {"text": text, "length": len(text), "items": [1, 2, 3]}

    @server.tool()
    def tell(text: str, caused_by_receipt_id: str) -> dict[str, Any]:
        return {"text": text, "caused_by_receipt_id": caused_by_receipt_id}

    @server.tool()
    def review_literature(intent: str) -> dict[str, Any]:
        return seen.escalations.get(intent, {"summary": f"Reviewed: {intent}"})

    @server.tool()
    def audit_code(intent: str) -> dict[str, Any]:
        return seen.escalations.get(intent, {"summary": f"Audited: {intent}"})

    def ask_rate(amount: int) -> Elicit[Rate]:
        return Elicit(f"Which rate for {amount}?", Rate)

    @server.tool()
    def tax(amount: int, rate: Annotated[Rate, Resolve(ask_rate)]) -> dict[str, Any]:
        return {"amount": amount, **rate.model_dump()}

    @server.tool()
    def shout(text: str) -> dict[str, Any]:
        seen.calls["shout"] += 1
        return {"text": text.upper()}

    @server.tool()
    async def count_to(number: int, ctx: Context[Any, Any], until_told: bool = False) -> dict[str, Any]:  # noqa: FBT002  # as a tool takes it
        seen.calls["count_to"] += 1
        for reached in range(1, number + 1):
            await ctx.report_progress(reached, number, f"at {reached}")
        while until_told and not seen.gate.is_set():
            await asyncio.sleep(0.01)
        return {"counted": number}

    @server.tool()
    async def hold(text: str) -> dict[str, Any]:
        seen.calls["hold"] += 1
        seen.entered.set()
        while not seen.gate.is_set():
            await asyncio.sleep(0.01)
        return {"text": text}

    @server.tool()
    def break_down() -> dict[str, Any]:
        seen.calls["break_down"] += 1
        raise ToolError("the machine is out of paper")

    @server.tool()
    def crash() -> dict[str, Any]:
        raise RuntimeError("told to nobody")

    @server.tool(structured_output=False)
    def draw(own: str = "") -> CallToolResult:
        link = ResourceLink(uri="https://example.com/plan.pdf", name="plan", mime_type="application/pdf")
        parts = [Image(data=b"a picture", format="png").to_image_content(), link]
        same = [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in parts]
        structured = {"content": same if own == "the same" else own} if own else None
        return CallToolResult(content=parts, structured_content=structured)

    @server.tool()
    def flood(size: int) -> dict[str, Any]:
        seen.calls["flood"] += 1
        return {"text": "x" * size}

    @server.tool(structured_output=False)
    async def say(text: str, ctx: Context[Any, Any]) -> str:
        seen.calls["say"] += 1
        await ctx.report_progress(3, 2, text)
        return text

    @server.tool()
    def complain(text: str) -> dict[str, Any]:
        seen.calls["complain"] += 1
        raise ToolError(text)

    @server.tool()
    def sum_up(size: int) -> dict[str, Any]:
        seen.calls["sum_up"] += 1
        return {"summary": "é" * size}

    _add_jobs(server, seen)
    return server


def _add_jobs(server: MCPServer[Any], seen: WorkerServer) -> None:  # a list of small tools
    """Tools of the kind that runs jobs of its own."""

    @server.tool()
    def start_count(number: int) -> dict[str, Any]:
        seen.calls["start_count"] += 1
        job_id = f"job-{seen.calls['start_count']}"
        seen.jobs[job_id] = {"status": "running", "progress": 40, "message": "at 2"}
        return {"job_id": job_id, "estimated_duration_seconds": number}

    @server.tool()
    def get_count_status(job_id: str) -> dict[str, Any]:
        seen.calls["get_count_status"] += 1
        if job_id not in seen.jobs:
            raise ToolError(f"unknown_job: {job_id}")
        return seen.jobs[job_id]

    @server.tool()
    def cancel_count(job_id: str) -> dict[str, Any]:
        seen.calls["cancel_count"] += 1
        if "ends_when_told" not in seen.jobs[job_id]:
            raise ToolError(f"not_cancelable: {job_id}")
        seen.jobs[job_id]["status"] = "canceled"
        return seen.jobs[job_id]

    @server.tool()
    def get_count_result(job_id: str) -> dict[str, Any]:
        seen.calls["get_count_result"] += 1
        if seen.counted_refused:
            raise ToolError("result_withheld")
        return seen.counted


@contextmanager
def serving() -> Iterator[WorkerServer]:
    """A worker on a free loopback port, until the block ends."""
    seen = WorkerServer()
    app = _server(seen).streamable_http_app()
    away = Starlette(routes=[Route("/moved", lambda _: RedirectResponse("/mcp", 307), methods=["GET", "POST"])])
    app.router.routes.extend(away.routes)
    seen.endpoint, stop = begin_serving(app)
    try:
        yield seen
    finally:
        seen.gate.set()
        stop()
