"""The main job once, seen from outside: an agent delegates an intent over MCP, and hears what became of it.

`GATEHOUSE_URL` names the hub, `GATEHOUSE_TOKEN` is the agent's. Nothing here touches the database: whatever the
demo knows, it was told over MCP.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
import webbrowser
from argparse import ArgumentParser
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
from django.core.management.base import BaseCommand, CommandError
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import Implementation, TextContent
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from config.typed import typed

_PATIENCE: Final = 180.0
_LOOK: Final = 0.2
_FAREWELL: Final = 5.0
_INTERRUPTED: Final = 130
_CLOSER_LOOKS: Final = 3
_ANALYZES, _SUGGESTS = "analyze_repository", "suggest_optimizations"
_OVER: Final = {"failed", "canceled", "budget_exceeded", "partial"}
_EVENTS: Final = {"task_received", "plan_created", "task_queued", "task_complete", "plan_complete"}
Json = dict[str, Any]


class Command(BaseCommand):
    """Run the journey once and show each step; anything that goes wrong ends it with a clear message."""

    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", type=Path, help="the folder of a Python code base")
        parser.add_argument("--watch", action="store_true", help="open the console's page of the execution")

    def handle(self, *_args: Any, path: Path, watch: bool, **_options: Any) -> None:
        url, token = os.environ.get("GATEHOUSE_URL", ""), os.environ.get("GATEHOUSE_TOKEN", "")
        if not (url and token):
            raise CommandError(f"Set GATEHOUSE_URL and GATEHOUSE_TOKEN, or use {typed('demo')}, which does.")
        root = path.expanduser().resolve()
        if not root.is_dir():
            raise CommandError(f"There is no folder {root}.")
        for chatty in ("httpx2", "mcp"):
            logging.getLogger(chatty).setLevel(logging.ERROR)
        # Lines stay whole where nobody looks through a terminal.
        screen = Console(highlight=False, soft_wrap=True, width=max(100, shutil.get_terminal_size((140, 40)).columns))
        try:
            asyncio.run(_journey(screen, url.rstrip("/"), token, root, watch=watch))
        except (KeyboardInterrupt, asyncio.CancelledError):
            sys.exit(_INTERRUPTED)
        except (BaseExceptionGroup, WentWrong, MCPError, httpx2.HTTPError, OSError) as exc:
            raise CommandError(_why(exc)) from exc


class WentWrong(Exception):
    """The journey did not go as it should; the message is for the person who started it."""


def _why(exc: BaseException) -> str:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    why = str(exc) or type(exc).__name__
    return f"The hub does not answer: {why}" if isinstance(exc, httpx2.HTTPError | OSError) else why


def _expect(holds: object, otherwise: str) -> None:
    """:raises WentWrong: if it does not hold."""
    if not holds:
        raise WentWrong(otherwise)


@dataclass
class Agent:
    """Kee, as its host runs it: an MCP client with a token, and a screen for the people who watch."""

    client: Client
    http: httpx2.AsyncClient
    screen: Console
    url: str
    began: float = field(default_factory=time.monotonic)

    async def call(self, tool: str, **arguments: Any) -> Json:
        """Call a tool of the hub.

        :raises WentWrong: with the hub's own words, if it refuses.
        """
        result = await self.client.call_tool(tool, arguments)
        said = " ".join(block.text for block in result.content if isinstance(block, TextContent))
        _expect(not result.is_error, f"{tool} was refused: {said}")
        return dict(result.structured_content or {})

    async def until(self, what: str, look: Callable[[], Awaitable[Any]]) -> Any:
        """Look again and again until there is something.

        :raises WentWrong: naming what did not come in time.
        """
        deadline = time.monotonic() + _PATIENCE
        while not (found := await look()):
            _expect(time.monotonic() < deadline, f"{what} did not come within {_PATIENCE:g} seconds.")
            await asyncio.sleep(_LOOK)
        return found

    def step(self, title: str, detail: object = "") -> None:
        """Show the next step with the time since the start."""
        self.screen.print(f"[dim]{time.monotonic() - self.began:6.2f} s[/]  [bold cyan]{title}[/]  {detail}")

    def tell(self, text: str) -> None:
        self.screen.print(f"          {text}")


async def _journey(screen: Console, url: str, token: str, root: Path, *, watch: bool) -> None:
    this = asyncio.current_task()
    if this is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30.0), trust_env=False) as http:
        transport = streamable_http_client(f"{url}/mcp?tools=all", http_client=http)
        async with Client(transport, client_info=Implementation(name="kee", version="1")) as client:
            kee = Agent(client=client, http=http, screen=screen, url=url)
            await _begin(kee)
            plan = await _delegate(kee, root)
            execution = await kee.call("execute_delegation_plan", plan_id=plan["plan_id"])
            kee.step("execute_delegation_plan", f"{execution['execution_id']}: {execution['status']}")
            number = execution["execution_id"].removeprefix("exec_")
            page = f"{url}/admin/executions/execution/{number}/change/"
            if watch:
                kee.tell(f"Its page, which renews itself: {page}")
                webbrowser.open(page)
            async with _canceled_if_it_fails(kee, execution):
                report = await _be_asked(kee, plan)
                summary, task_ids = await _synthesize(kee, execution["execution_id"], report)
            await _hear_of_it(kee, task_ids)
            await _end(kee, plan, summary)
            kee.tell(f"Where to look: {page}")
            if os.environ.get("GATEHOUSE_DEMO_STACK") == "own":
                kee.tell(f"This stack ends now; start it with {typed('up')}.")
            screen.print(f"\n[bold green]Done in {time.monotonic() - kee.began:.1f} s.[/]")


@asynccontextmanager
async def _canceled_if_it_fails(kee: Agent, execution: Json) -> AsyncIterator[None]:
    """A journey that ends in the middle leaves nothing owed; what is over already stays as it ended."""
    try:
        yield
    except BaseException:
        with anyio.move_on_after(_FAREWELL, shield=True), suppress(WentWrong, MCPError, httpx2.HTTPError, OSError):
            await kee.call("cancel_execution", execution_id=execution["execution_id"], reason="The demo ended early.")
        raise


async def _begin(kee: Agent) -> None:
    """Step 1: an empty inbox. What an interrupted run has left there is acked first, and said so."""
    who = await kee.call("whoami")
    policy = await kee.http.put(f"{kee.url}/api/v1/inbox/policy", json={"window_ms": 1000})
    _expect(policy.is_success, f"The digest window can't be set: {policy.text[:500]}")
    kee.step("Connected", f"as {who['principal']} over MCP {kee.client.protocol_version}; digest window one second")

    async def emptied() -> bool:
        if left := (await kee.call("read_inbox", limit=500))["entries"]:
            await kee.call("ack_through", through=left[-1]["token"])
            kee.tell("[yellow]What an earlier run has left unread is acked now.[/]")
        return bool((await kee.call("memory_bootstrap"))["inbox_unread_count"] == 0)

    await kee.until("An empty inbox", emptied)
    kee.step("memory_bootstrap", "inbox empty")


async def _delegate(kee: Agent, root: Path) -> Json:
    """Step 2: one intent, one plan."""

    async def registered() -> bool:
        tools = {tool for worker in (await kee.call("list_workers"))["workers"] for tool in worker["tools"]}
        return {_ANALYZES, _SUGGESTS} <= tools

    await kee.until(f"The bundled workers, which {typed('up')} starts,", registered)
    intent = f'Analyze the Python codebase at "{root}" and suggest optimizations'
    plan = await kee.call("create_delegation_plan", intent=intent)
    kee.step("create_delegation_plan", f"{plan['plan_id']}, receipt {plan['receipt_id']}")
    if plan["status"] == "needs_confirmation":
        kee.tell("; ".join(one["detail"] for one in plan["plan"]["unsure"]))
        plan = await kee.call("confirm_plan", plan_id=plan["plan_id"])
        kee.step("confirm_plan", f"{plan['plan_id']}, receipt {plan['receipt_id']}")
    _expect(plan["status"] == "ready", f"The DeleGate has no plan for this: {plan['next_step']}")
    table = Table("step", "type", "worker", "tool", "waits for", box=None, padding=(0, 2), header_style="dim")
    for step in sorted(plan["steps"], key=lambda step: int(step["step_id"].removeprefix("step-"))):
        waits = step.get("depends_on") or step.get("wait_for_step_ids") or step.get("aggregate_step_ids") or []
        members = (step.get(name, "") for name in ("step_id", "step_type", "worker_id", "tool_name"))
        table.add_row(*members, ", ".join(waits))
    kee.screen.print(table)
    return plan


async def _be_asked(kee: Agent, plan: Json) -> Json:
    """Step 3: a Celery worker leases one step's task, the other is called; then the agent is asked to combine."""

    async def asked() -> Json | None:
        report = await kee.call("get_plan_status", plan_id=plan["plan_id"], wait=20)
        _expect(report["status"] not in _OVER, f"The plan ended as {report['status']}: {report['summary']}")
        return report if report["wait_for_receipts"] else None

    report: Json = await kee.until("The hand-over of the results", asked)
    for result in (one for one in report["results"] if one["status"] == "complete"):
        how = f"{result['task_id']} is done" if result["task_id"] else f"{result['step_id']} was called directly"
        said = result["key_findings"].get("summary", "")
        kee.step(how, f"{result['worker_id']}: {said} Result at {result['result_pointer']}")
    return report


async def _synthesize(kee: Agent, execution_id: str, report: Json) -> tuple[str, list[str]]:
    """The agent's own work: it reads both results, looks closer where it is worst, and combines what it found.

    Returns the summary of its findings, and the tasks of which it will hear.
    """
    by_tool = {step["tool_name"]: step for step in report["steps"]}
    task_id, suggests = by_tool[_ANALYZES]["task_id"], by_tool[_SUGGESTS]
    analysis = (await kee.call("fetch_task_result", task_id=task_id))["content"] or {}
    kee.step("fetch_task_result", analysis.get("summary", ""))
    best = (suggests["envelope"]["payload"] or {}).get("suggestions", [])[:5]
    # What can be learned about the worst files alone is queued for each; the ends arrive as a burst.
    issues = analysis.get("issues", [])
    closer: dict[str, str] = {}
    for path, _ in Counter(issue["path"] for issue in issues).most_common(_CLOSER_LOOKS):
        queued = await kee.call(
            "call_worker_tool",
            worker_id=suggests["worker_id"],
            tool_name=_SUGGESTS,
            params={"analysis_pointer": {"issues": [issue for issue in issues if issue["path"] == path]}},
            mode="async",
            execution_id=execution_id,
        )
        closer[queued["task_id"]] = path
    kee.step("call_worker_tool", f"a closer look at {', '.join(closer.values()) or 'nothing'}")
    summary = (
        f"Files: {analysis.get('files', 0)}, issues: {analysis.get('issues_total', 0)}, "
        f"mean complexity: {analysis.get('complexity_score', 0)}, suggestions: {len(best)}."
    )
    (step_id,) = [step["step_id"] for step in report["steps"] if step["receipt_id"] in report["wait_for_receipts"]]
    moved = await kee.call(
        "submit_step_result",
        execution_id=execution_id,
        step_id=step_id,
        result={"hotspots": analysis.get("hotspots", [])[:5], "suggestions": best, "closer_looks": closer},
        summary=summary,
    )
    kee.step("submit_step_result", f"{step_id}: {summary}")
    for one in best[:3]:
        kee.tell(f"[bold]{one['title']}[/] in {one['path']}")
    _expect(moved["status"] == "complete", f"The execution is {moved['status']}, not complete.")
    kee.step("The execution is complete", moved["execution_id"])
    return summary, [task_id, *closer]


async def _hear_of_it(kee: Agent, task_ids: list[str]) -> None:
    """Step 4: the burst of completions is one digest; it is read, and acked as far as it was shown."""

    async def flushed() -> Json | None:
        inbox = await kee.call("read_inbox", limit=500, wait=20)
        ended = sum(entry["count"] for entry in inbox["entries"] if "asyncgate" in entry["source_systems"])
        return inbox if not inbox["pending"] and ended >= len(task_ids) else None

    inbox = await kee.until("The digest of the completions", flushed)
    kee.step("read_inbox", f"entries: {len(inbox['entries'])}, receipts: {inbox['visible']}")
    for entry in inbox["entries"]:
        title = entry["title"] or entry["summary"].splitlines()[0]
        kee.tell(f"{entry['token']}  {entry['kind']}  receipts: {entry['count']}  [bold]{title}[/]")
    largest = max((entry["count"] for entry in inbox["entries"] if entry["kind"] == "digest_snapshot"), default=0)
    # The first task ended alone; the closer looks were asked for at once.
    _expect(largest > 1 or len(task_ids) <= 2, "The burst of completions did not become one digest.")  # noqa: PLR2004
    for task_id in task_ids:
        kee.step("fetch_task_result", f"{task_id}: {(await kee.call('fetch_task_result', task_id=task_id))['summary']}")
    token = inbox["entries"][-1]["token"]
    acked = await kee.call("ack_through", through=token)
    kee.step("ack_through", f"{token}; entries: {acked['acked_entries']}, receipts: {acked['acked_receipts']}")


async def _end(kee: Agent, plan: Json, summary: str) -> None:
    """What was learned is stored; nothing is unread, nothing owed for this plan, and the chain has no loose end."""
    stored = await kee.call(
        "memory_store",
        observation=f"{plan['plan']['intent']}: {summary}",
        domain="code_analysis",
        confidence=0.9,
        evidence=[f"plan:{plan['plan_id']}"],
    )
    kee.step("memory_store", f"{stored['ref']} in code_analysis")
    unread = (await kee.call("memory_bootstrap"))["inbox_unread_count"]
    _expect(unread == 0, f"Unread receipts: {unread}.")
    kee.step("memory_bootstrap", "inbox empty")
    chain = (await kee.call("get_receipt_chain", receipt_id=plan["receipt_id"]))["receipts"]
    kee.screen.print(_tree(chain))
    loose = [link["receipt_id"] for link in chain if link["obligation"] == "open"]
    _expect(not loose, f"Obligations are still open: {', '.join(loose)}.")
    missing = _EVENTS - {link["event_type"] for link in chain}
    _expect(not missing, f"The chain lacks {', '.join(sorted(missing))}.")
    kee.step("The chain is complete", f"{len(chain)} receipts, no obligation open")


def _tree(chain: list[Json]) -> Tree:
    """Causes above what they caused; a receipt that closes another hangs under it."""
    root = Tree("[bold]The receipts of this plan[/]")
    branches: dict[str | None, Tree] = {}
    # A cause is older than what it caused.
    for link in sorted(chain, key=lambda link: link["created_at"]):
        above = branches.get(link["pairs_with"] or link["caused_by_receipt_id"], root)
        colour = {"open": "red", "closed": "green", None: "dim"}[link["obligation"]]
        branches[link["receipt_id"]] = branches[link["uuid"]] = above.add(
            f"{'closes it: ' if link['pairs_with'] else ''}[bold]{link['event_type']}[/]"
            f"  [dim]{link['receipt_id']}  {link['surface']}[/]  [{colour}]{link['obligation'] or ''}[/]"
        )
    return root
