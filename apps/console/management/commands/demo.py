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
import unicodedata
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import httpx2
from django.core.management.base import BaseCommand, CommandError
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import Implementation, TextContent
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.tree import Tree

_PATIENCE: Final = 180.0
_STARTING: Final = 60.0
_LOOK: Final = 0.2
_FAREWELL: Final = 5.0
_INTERRUPTED: Final = 130
_WINDOW_MS: Final = 1000
_CLOSER_LOOKS: Final = 3
_CAPABILITIES: Final = ("analyze_repository", "suggest_optimizations")
_QUOTES: Final = (('"', '"'), ("'", "'"), ("`", "`"), ("«", "»"))
Json = dict[str, Any]


class Command(BaseCommand):
    """Run the journey once and show each step; anything that goes wrong ends it with a clear message."""

    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", type=Path, help="the folder of a Python code base")

    def handle(self, *_args: Any, path: Path, **_options: Any) -> None:
        url, token = os.environ.get("GATEHOUSE_URL", ""), os.environ.get("GATEHOUSE_TOKEN", "")
        if not (url and token):
            raise CommandError("Set GATEHOUSE_URL and GATEHOUSE_TOKEN, or use bin/demo, which does.")
        root = path.expanduser().resolve()
        if not root.is_dir():
            raise CommandError(f"There is no folder {root}.")
        for chatty in ("httpx2", "mcp"):
            logging.getLogger(chatty).setLevel(logging.ERROR)
        # Lines stay whole where nobody looks through a terminal.
        screen = Console(highlight=False, soft_wrap=True, width=max(100, shutil.get_terminal_size((140, 40)).columns))
        try:
            asyncio.run(_journey(screen, url.rstrip("/"), token, root))
        except (KeyboardInterrupt, asyncio.CancelledError):
            sys.exit(_INTERRUPTED)
        except BaseExceptionGroup as group:
            raise CommandError(_why(group)) from group
        except (WentWrong, MCPError, httpx2.HTTPError, OSError, TimeoutError) as exc:
            raise CommandError(_why(exc)) from exc


class WentWrong(Exception):
    """The journey did not go as it should; the message is for the person who started it."""


def _why(exc: BaseException) -> str:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    if isinstance(exc, httpx2.HTTPError | OSError):
        return f"The hub does not answer: {str(exc) or type(exc).__name__}"
    return str(exc) or type(exc).__name__


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
        if result.is_error:
            said = " ".join(block.text for block in result.content if isinstance(block, TextContent))
            raise WentWrong(f"{tool} was refused: {said}")
        return dict(result.structured_content or {})

    async def until(self, what: str, look: Callable[[], Awaitable[Any]], *, seconds: float = _PATIENCE) -> Any:
        """Look again and again until there is something.

        :raises WentWrong: naming what did not come, after this long.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = await look()
            if found:
                return found
            await asyncio.sleep(_LOOK)
        raise WentWrong(f"{what} did not come within {seconds:g} seconds.")

    def step(self, title: str, detail: str = "") -> None:
        """Show the next step with the time since the start."""
        elapsed = time.monotonic() - self.began
        self.screen.print(f"[dim]{elapsed:6.2f} s[/]  [bold cyan]{title}[/]  {detail}")

    def tell(self, text: str) -> None:
        self.screen.print(f"          {text}")


@asynccontextmanager
async def _agent(screen: Console, url: str, token: str) -> AsyncIterator[Agent]:
    timeout = httpx2.Timeout(30.0)
    async with httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {token}"}, timeout=timeout, trust_env=False
    ) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, client_info=Implementation(name="kee", version="1")) as client:
            yield Agent(client=client, http=http, screen=screen, url=url)


async def _journey(screen: Console, url: str, token: str, root: Path) -> None:
    this = asyncio.current_task()
    if this is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    with screen.status("Connecting"):
        await _answering(url)
    async with _agent(screen, url, token) as kee:
        name = await _begin(kee)
        plan = await _delegate(kee, root)
        execution = await kee.call("execute_delegation_plan", plan_id=plan["plan_id"])
        kee.step("execute_delegation_plan", f"{execution['execution_id']}: {execution['status']}")
        async with _canceled_if_it_fails(kee, execution):
            task_id = await _watch_first_task(kee, plan, execution)
            handed_over = await _be_asked(kee, plan, execution)
            findings = await _synthesize(kee, plan, execution, task_id, handed_over)
        await _hear_of_it(kee, execution, findings)
        await _remember(kee, plan, findings)
        await _end(kee, name, plan)
        _where_to_look(kee, execution)


@asynccontextmanager
async def _canceled_if_it_fails(kee: Agent, execution: Json) -> AsyncIterator[None]:
    """A journey that ends in the middle leaves nothing owed; what is over already stays as it ended."""
    try:
        yield
    except BaseException:
        with anyio.move_on_after(_FAREWELL, shield=True), suppress(WentWrong, MCPError, httpx2.HTTPError, OSError):
            await kee.call("cancel_execution", execution_id=execution["execution_id"], reason="The demo ended early.")
        raise


async def _answering(url: str) -> None:
    """Wait for the hub, which may have been started a moment ago."""
    deadline = time.monotonic() + _STARTING
    async with httpx2.AsyncClient(trust_env=False) as http:
        while True:
            try:
                if (await http.get(f"{url}/livez")).is_success:
                    return
            except httpx2.TransportError:
                pass  # not up yet: the deadline decides
            if time.monotonic() > deadline:
                raise WentWrong(f"Nothing answers at {urlsplit(url).netloc}.")
            await asyncio.sleep(_LOOK)


async def _begin(kee: Agent) -> str:
    """Step 1: an empty inbox. What an interrupted run has left there is acked first, and said so."""
    who = await kee.call("whoami")
    policy = await kee.http.put(f"{kee.url}/api/v1/inbox/policy", json={"window_ms": _WINDOW_MS})
    _expect(policy.is_success, f"The digest window can't be set: {policy.text[:500]}")
    kee.step("Connected", f"as {who['principal']} over MCP {kee.client.protocol_version}; digest window one second")
    start = await kee.call("memory_bootstrap")
    if start["inbox_unread_count"]:
        left = start["inbox_unread_count"]
        await kee.until("An inbox without pending digests", lambda: _all_visible(kee))
        await _ack_everything(kee)
        kee.tell(f"[yellow]{left} receipts of an earlier run were still unread; they are acked now.[/]")
        start = await kee.call("memory_bootstrap")
    _expect(start["inbox_unread_count"] == 0, "The inbox is not empty at the start.")
    kee.step("memory_bootstrap", "inbox empty")
    return str(who["principal"])


async def _delegate(kee: Agent, root: Path) -> Json:
    """Step 2: one intent, one plan."""
    if os.environ.get("GATEHOUSE_DEMO_WORKERS") == "none" and not await _workers_are_there(kee):
        raise WentWrong("What runs was started without the bundled workers: end it and start it with bin/up.")
    await kee.until("The bundled workers", lambda: _workers_are_there(kee), seconds=_STARTING)
    plan = await kee.call("create_delegation_plan", **wish(str(root)))
    kee.step("create_delegation_plan", f"{plan['plan_id']}, receipt {plan['receipt_id']}")
    if plan["status"] == "needs_confirmation":
        kee.tell("; ".join(one["detail"] for one in plan["plan"]["unsure"]))
        plan = await kee.call("confirm_plan", plan_id=plan["plan_id"])
        kee.step("confirm_plan", f"{plan['plan_id']}, receipt {plan['receipt_id']}")
    if plan["status"] != "ready":
        raise WentWrong(f"The DeleGate has no plan for this: {plan['next_step']}")
    table = Table("step", "type", "worker", "tool", "waits for", box=None, padding=(0, 2), header_style="dim")
    for step in plan["steps"]:
        waits = step.get("depends_on") or step.get("wait_for_step_ids") or step.get("aggregate_step_ids") or []
        table.add_row(
            step["step_id"],
            step["step_type"],
            step.get("worker_id", ""),
            step.get("tool_name", ""),
            ", ".join(waits),
        )
    kee.screen.print(table)
    return plan


def wish(path: str) -> Json:
    """What is asked of the DeleGate: the path in quotes; where no quotes can hold it as it is, in the context as well."""
    as_read = unicodedata.normalize("NFC", path).strip()
    for opening, closing in _QUOTES:
        if opening not in path and closing not in path:
            intent = f"Analyze the Python codebase at {opening}{path}{closing} and suggest optimizations"
            return {"intent": intent} if as_read == path else {"intent": intent, "context": {"repo_path": path}}
    intent = "Analyze the Python codebase at repo_path and suggest optimizations"
    return {"intent": intent, "context": {"repo_path": path}}


async def _workers_are_there(kee: Agent) -> bool:
    listed = await kee.call("list_workers")
    offered = {
        tool if isinstance(tool, str) else tool["name"] for worker in listed["workers"] for tool in worker["tools"]
    }
    return offered.issuperset(_CAPABILITIES)


async def _watch_first_task(kee: Agent, plan: Json, execution: Json) -> str:
    """Step 3, first half: a Celery worker leases the task and tells how far it is."""

    async def queued() -> Json | None:
        report = await kee.call("get_plan_status", plan_id=plan["plan_id"])
        task = next((step for step in report["steps"] if step["task_id"]), None)
        if task is None:
            await _refuse_if_over(kee, plan)
        return task

    # Another process may have begun the execution first, so that the answer came before the task.
    task = next(iter(execution["async_tasks"]), None) or await kee.until("A task for the plan's first step", queued)
    task_id = str(task["task_id"])
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"))
    with Progress(*columns, TimeElapsedColumn(), console=kee.screen, transient=True) as progress:
        shown = progress.add_task(f"{task['step_id']} as {task_id}", total=100, said="queued")

        async def finished() -> Json | None:
            status = await kee.call("check_task_status", task_id=task_id)
            told = status["progress"] or {}
            progress.update(shown, completed=told.get("percent") or 0, said=told.get("message") or status["status"])
            return status if status["complete"] else None

        status = await kee.until(f"The end of {task_id}", finished)
    if status["status"] not in {"complete", "succeeded"}:
        raise WentWrong(f"{task_id} ended as {status['status']}: {(status['error'] or {}).get('message', '')}")
    kee.step(f"{task_id} is done", f"run {status['run_id']}, result at {status['result_pointer']}")
    return task_id


async def _be_asked(kee: Agent, plan: Json, execution: Json) -> Json:
    """Step 3, second half: the other worker has been called, and the results are handed to the agent."""

    async def asked() -> Json | None:
        for receipt in await _receipts_from(kee, "executions"):
            metadata = receipt["metadata"]
            if metadata.get("execution_id") == execution["execution_id"] and "step_id" in metadata:
                return receipt
        await _refuse_if_over(kee, plan)
        return None

    receipt = await kee.until("The hand-over of the results", asked)
    for result in receipt["metadata"]["results"]:
        if result["task_id"] is None:
            said = result["key_findings"].get("summary", "")
            kee.step(f"{result['step_id']} was called directly", f"{result['worker_id']}: {said}")
    kee.step("The results are handed over", f"{receipt['receipt_id']}: {receipt['summary']}")
    return dict(receipt)


async def _receipts_from(kee: Agent, source_system: str) -> list[Json]:
    """What an agent sees when it opens the entries of one source; nothing is acked by it."""
    inbox = await kee.call("read_inbox", source_system=source_system)
    opened = [await kee.call("expand_entry", ref=entry["ref"]) for entry in inbox["entries"]]
    return [receipt for entry in opened for receipt in entry["receipts"]]


async def _refuse_if_over(kee: Agent, plan: Json) -> None:
    report = await kee.call("get_plan_status", plan_id=plan["plan_id"])
    if report["status"] in {"failed", "canceled", "budget_exceeded", "partial"}:
        raise WentWrong(f"The plan ended as {report['status']}: {report['summary']}")


async def _synthesize(kee: Agent, plan: Json, execution: Json, task_id: str, handed_over: Json) -> Json:
    """The agent's own work: it reads both results, looks closer where it is worst, and combines what it found."""
    analysis = (await kee.call("fetch_task_result", task_id=task_id))["content"] or {}
    named = {result["worker_id"]: result for result in handed_over["metadata"]["results"]}
    report = await kee.call("get_plan_status", plan_id=plan["plan_id"])
    suggestions = next(
        (step["envelope"]["payload"] for step in report["steps"] if step["tool_name"] == "suggest_optimizations"), None
    ) or {"suggestions": [], "summary": ""}
    kee.step("fetch_task_result", str(analysis.get("summary", "")))

    closer = await _look_closer(kee, execution, analysis)
    worst = analysis.get("hotspots", [])[:5]
    best = suggestions.get("suggestions", [])[:5]
    summary = (
        f"{_counted(analysis.get('files', 0), 'file')}, {_counted(analysis.get('issues_total', 0), 'issue')}, "
        f"mean complexity {analysis.get('complexity_score', 0)}; "
        f"{_counted(suggestions.get('suggestions_count', len(best)), 'suggestion')}, first: {best[0]['title'] + ' in ' + best[0]['path'] if best else 'none'}."
    )
    findings = {
        "summary": summary,
        "workers": sorted(worker for worker in named if worker),
        "hotspots": worst,
        "suggestions": best,
        "closer_looks": [{"task_id": looked, "path": path} for looked, path in closer.items()],
    }
    step_id = handed_over["metadata"]["step_id"]
    moved = await kee.call(
        "submit_step_result",
        execution_id=execution["execution_id"],
        step_id=step_id,
        result=findings,
        summary=summary,
    )
    kee.step("submit_step_result", f"{step_id}: {summary}")
    _expect(moved["status"] == "complete", f"The execution is {moved['status']}, not complete.")
    kee.step("The execution is complete", moved["execution_id"])
    return {**findings, "task_ids": [task_id, *closer]}


async def _look_closer(kee: Agent, execution: Json, analysis: Json) -> dict[str, str]:
    """Queue what can be learned about the worst modules one by one; the ends arrive as a burst."""
    closer: dict[str, str] = {}
    for path, part in _worst_modules(analysis).items():
        queued = await kee.call(
            "call_worker_tool",
            worker_id=await _worker_of(kee, "suggest_optimizations"),
            tool_name="suggest_optimizations",
            params={"analysis_pointer": part},
            mode="async",
            execution_id=execution["execution_id"],
        )
        closer[str(queued["task_id"])] = path
    kee.step("call_worker_tool", f"a closer look at {', '.join(closer.values())}" if closer else "nothing to look at")
    return closer


def _worst_modules(analysis: Json) -> dict[str, Json]:
    """The modules with the most findings, each with its own part of the analysis."""
    parts: dict[str, Json] = defaultdict(lambda: {"issues": [], "hotspots": []})
    for kind in ("issues", "hotspots"):
        for finding in analysis.get(kind, []):
            parts[finding["path"]][kind].append(finding)
    ranked = sorted(parts, key=lambda path: (-len(parts[path]["hotspots"]) - len(parts[path]["issues"]), path))
    return {path: parts[path] for path in ranked[:_CLOSER_LOOKS]}


async def _worker_of(kee: Agent, tool: str) -> str:
    listed = await kee.call("list_workers")
    for worker in listed["workers"]:
        if tool in {offered if isinstance(offered, str) else offered["name"] for offered in worker["tools"]}:
            return str(worker["worker_id"])
    raise WentWrong(f"No worker offers {tool} any more.")


async def _hear_of_it(kee: Agent, execution: Json, findings: Json) -> None:
    """Step 4: the burst of completions is one digest; it is read, and acked as far as it was shown."""
    expected = len(findings["task_ids"])

    async def flushed() -> Json | None:
        inbox = await kee.call("read_inbox")
        ended = sum(entry["count"] for entry in inbox["entries"] if "asyncgate" in entry["source_systems"])
        whole = not inbox["pending"] and ended >= expected
        return inbox if whole else None

    inbox = await kee.until("The digest of the completions", flushed, seconds=_STARTING)
    kee.step("read_inbox", f"{_counted(len(inbox['entries']), 'entry')} for {_counted(inbox['visible'], 'receipt')}")
    for entry in inbox["entries"]:
        title = entry["title"] or entry["summary"].splitlines()[0]
        kee.tell(f"{entry['token']}  {entry['kind']}  {_counted(entry['count'], 'receipt')}  [bold]{title}[/]")
    if len(findings["closer_looks"]) > 1:  # asked for at once, so that their ends are a burst
        largest = max((entry["count"] for entry in inbox["entries"] if entry["kind"] == "digest_snapshot"), default=0)
        _expect(largest > 1, "The burst of completions did not become one digest.")
    for task_id in findings["task_ids"]:
        result = await kee.call("fetch_task_result", task_id=task_id)
        kee.step("fetch_task_result", f"{task_id}: {result['summary']}")
    token = inbox["entries"][-1]["token"]
    acked = await kee.call("ack_through", through=token)
    kee.step(
        "ack_through",
        f"{token}: {_counted(acked['acked_entries'], 'entry')}, {_counted(acked['acked_receipts'], 'receipt')}",
    )


async def _all_visible(kee: Agent) -> bool:
    return not (await kee.call("read_inbox"))["pending"]


async def _ack_everything(kee: Agent) -> None:
    while (inbox := await kee.call("read_inbox"))["entries"]:
        await kee.call("ack_through", through=inbox["entries"][-1]["token"])


async def _remember(kee: Agent, plan: Json, findings: Json) -> None:
    stored = await kee.call(
        "memory_store",
        observation=f"{plan['plan']['intent']}: {findings['summary']}",
        domain="code_analysis",
        confidence=0.9,
        evidence=[f"plan:{plan['plan_id']}"],
    )
    kee.step("memory_store", f"{stored['ref']} in code_analysis")


async def _end(kee: Agent, name: str, plan: Json) -> None:
    """Bootstrap again: nothing unread, nothing owed for this plan, and a chain without a loose end."""
    start = await kee.call("memory_bootstrap")
    _expect(start["inbox_unread_count"] == 0, f"{start['inbox_unread_count']} receipts are still unread.")
    kee.step("memory_bootstrap", f"inbox of {name} empty")
    chain = (await kee.call("get_receipt_chain", receipt_id=plan["receipt_id"]))["receipts"]
    loose = [link["receipt_id"] for link in chain if link["obligation"] == "open"]
    kee.screen.print(_tree(chain))
    _expect(not loose, f"Obligations are still open: {', '.join(loose)}.")
    kinds = {link["event_type"] for link in chain}
    wanted = {"task_received", "plan_created", "task_queued", "task_complete", "plan_complete"}
    _expect(kinds >= wanted, f"The chain lacks {', '.join(sorted(wanted - kinds))}.")
    kee.step("The chain is complete", f"{len(chain)} receipts, no obligation open")


def _tree(chain: list[Json]) -> Tree:
    """Causes above what they caused; a receipt that closes another hangs under it."""
    known = {link["receipt_id"] for link in chain} | {link["uuid"] for link in chain}
    below: dict[str, list[Json]] = defaultdict(list)
    roots: list[Json] = []
    for link in sorted(chain, key=lambda link: link["created_at"]):
        above = link["pairs_with"] or link["caused_by_receipt_id"]
        if above in known:
            below[above].append(link)
        else:
            roots.append(link)
    tree = Tree("[bold]The receipts of this plan[/]")
    for root in roots:
        _grow(tree, root, below)
    return tree


def _grow(tree: Tree, link: Json, below: Mapping[str, list[Json]]) -> None:
    how = "closes it: " if link["pairs_with"] else ""
    colour = {"open": "red", "closed": "green", None: "dim"}[link["obligation"]]
    branch = tree.add(
        f"{how}[bold]{link['event_type']}[/]  [dim]{link['receipt_id']}  {link['surface']}[/]  [{colour}]{link['obligation'] or ''}[/]"
    )
    for child in [*below.get(link["receipt_id"], []), *below.get(link["uuid"], [])]:
        _grow(branch, child, below)


def _where_to_look(kee: Agent, execution: Json) -> None:
    number = execution["execution_id"].removeprefix("exec_")
    admin = f"{kee.url}/admin"
    if os.environ.get("GATEHOUSE_DEMO_STACK") == "own":
        admin = "/admin"
        kee.screen.print(
            "\n[bold]Where to look[/]: this stack ends now; start it with bin/up, which prints its address, then"
        )
    else:
        kee.screen.print("\n[bold]Where to look[/] (the console's password is in the data folder)")
    for what, where in (
        ("the execution", f"executions/execution/{number}/change/"),
        ("plans", "plans/plan/"),
        ("tasks", "tasks/task/"),
        ("receipts", "receipts/receipt/"),
        ("inboxes", "digests/inbox/"),
        ("memory", "memory/memory/"),
    ):
        kee.tell(f"{what:<14} {admin}/{where}")
    kee.screen.print(f"\n[bold green]Done in {time.monotonic() - kee.began:.1f} s.[/]")


def _counted(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


def _expect(holds: object, otherwise: str) -> None:
    """:raises WentWrong: if it does not hold."""
    if not holds:
        raise WentWrong(otherwise)
