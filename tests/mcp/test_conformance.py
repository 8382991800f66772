"""The official conformance suite and the official clients in TypeScript against a running web process."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from apps.mcp import calls
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from tests.factories import make_caller, make_token
from tests.mcp.node import run_node
from tests.server import Server, end_server, start_server
from tests.tasks import making

pytestmark = pytest.mark.ci

SUITE = "node_modules/@modelcontextprotocol/conformance/dist/index.js"


TASKS = (
    "lifecycle",
    "capability-negotiation",
    "wire-fields",
    "request-state-removal",
    "mrtr-input",
    "request-headers",
    "dispatch-and-envelope",
    "required-task-error",
    "mrtr-composition",
)


@pytest.fixture
def fixtures(acme: Tenant) -> Iterator[str]:
    """The address of a product of two web processes that has what the suite looks for."""
    kee = make_caller(acme)
    for name in ("slow", "slowly", "fails", "vanishes"):
        making.make_type(kee, name, stuck_after=2, revoke_stuck=True, max_expiries=1)
    process, url = start_server(
        "tests.mcp.conformance_fixtures:application",
        processes=2,
        CONFORMANCE_TOKEN=make_token(acme),
        CONFORMANCE_WORKER=str(make_caller(acme, "hands", Kind.WORKER).principal_id),
    )
    yield f"{url}/mcp"
    end_server(process)


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
def test_the_server_passes_what_a_revision_requires(
    packages: Path, fixtures: str, revision: str, tmp_path: Path
) -> None:
    run = run_node(
        packages / SUITE, "server", "--url", fixtures, "--requirements", revision, "-o", tmp_path, check=False
    )

    required = _required(packages, revision)
    failed = {name: faults for name in required if (faults := _faults(tmp_path, name))}
    assert not failed, f"{failed}\n{run.stdout[-4000:]}{run.stderr[-2000:]}"


def test_the_server_passes_what_the_tasks_extension_asks(packages: Path, fixtures: str, tmp_path: Path) -> None:
    said = {}
    for name in TASKS:
        run = run_node(
            packages / SUITE, "server", "--url", fixtures, "--scenario", f"tasks-{name}", "-o", tmp_path, check=False
        )
        if faults := _faults(tmp_path, f"tasks-{name}"):
            said[name] = faults, run.stderr[-2000:]
    assert not said, json.dumps(said, indent=1)


def _required(packages: Path, revision: str) -> list[str]:
    listed = run_node(packages / SUITE, "list", "--requirements", revision)
    of_servers = listed.stdout.partition("Client scenarios")[0]
    return [line.removeprefix("  - ") for line in of_servers.splitlines() if line.startswith("  - ")]


def _faults(results: Path, scenario: str) -> list[str]:
    checks = [check for found in results.rglob(f"*{scenario}*/checks.json") for check in json.loads(found.read_text())]
    assert checks, f"{scenario} did not run"
    return [f"{check['id']}: {check.get('errorMessage')}" for check in checks if check["status"] == "FAILURE"]


pytestmark = pytest.mark.ci

INSPECTOR = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"


def test_every_refusal_is_readable_after_the_tools_are_listed(server: Server, acme: Tenant, packages: Path) -> None:
    token = make_token(acme, "all", Kind.SERVICE, scopes=set(Scope))
    read = json.loads(run_node(packages / "refuse.mjs", f"{server.url}/mcp?tools=all", token).stdout)

    assert set(read) == {declared.name for declared in calls.tools()} | {calls.CALL_TOOL.name}
    for name, result in read.items():
        assert result["isError"], name
        assert "structuredContent" not in result, name
        assert "/nonesuch" in result["content"][0]["text"], name


def inspector(server: Server, acme: Tenant, packages: Path) -> Callable[..., CompletedProcess[str]]:
    address = ["--server-url", f"{server.url}/mcp", "--header", f"Authorization: Bearer {make_token(acme)}"]
    return partial(run_node, packages / INSPECTOR, "--cli", *address, check=False)


def test_inspector_bootstraps_delegates_and_acks(server: Server, acme: Tenant, packages: Path) -> None:
    def call(name: str, *given: str) -> Any:
        arguments = [part for one in given for part in ("--tool-arg", one)]
        called = inspect("--method", "tools/call", "--tool-name", name, *arguments)
        return json.loads(called.stdout)["structuredContent"]

    inspect, kee = inspector(server, acme, packages), make_caller(acme)
    making.make_type(kee)
    assert call("memory_bootstrap")["inbox_items"] == []
    task = call("queue_task", "task_type=index")["task_id"]
    worker = make_caller(acme, "W", Kind.WORKER)
    making.complete(worker, making.lease_one(worker))
    assert call("fetch_task_result", f"task_id={task}")["status"] == "succeeded"
    (entry,) = call("read_inbox")["entries"]
    assert call("ack_through", f"through={entry['token']}")["acked_receipts"] == 1


def test_inspector_shows_every_refusal_of_an_agents_tools(server: Server, acme: Tenant, packages: Path) -> None:
    def refuse(name: str) -> str:
        called = inspect("--method", "tools/call", "--tool-name", name, "--tool-arg", "nonesuch=1")
        return called.stdout + called.stderr

    inspect = inspector(server, acme, packages)
    listed = json.loads(inspect("--method", "tools/list").stdout)["tools"]
    with ThreadPoolExecutor(2) as together:
        names = [tool["name"] for tool in listed]
        said = dict(zip(names, together.map(refuse, names), strict=True))

    assert len(said) > 5
    assert {name: text for name, text in said.items() if "/nonesuch" not in text} == {}


@pytest.mark.parametrize(
    ("revision", "scenario"),
    [
        ("2026-07-28", "tools_call"),
        ("2026-07-28", "request-metadata"),
        ("2026-07-28", "http-standard-headers"),
        ("2026-07-28", "http-custom-headers"),
        ("2026-07-28", "http-invalid-tool-headers"),
        ("2026-07-28", "json-schema-ref-no-deref"),
        ("2026-07-28", "sep-2322-client-request-state"),
        ("2025-11-25", "elicitation-sep1034-client-defaults"),
        ("2025-11-25", "initialize"),
        ("2025-11-25", "tools_call"),
        ("2025-11-25", "sse-retry"),
    ],
)
def test_the_client_of_workers_passes(packages: Path, revision: str, scenario: str, tmp_path: Path) -> None:
    """All that is required but what needs credentials."""
    command = f"{shlex.quote(sys.executable)} -m tests.mcp.conformance_client"
    chosen = ["--spec-version", revision, "--scenario", scenario]
    run = run_node(packages / SUITE, "client", "--command", command, *chosen, "-o", tmp_path, check=False)
    faults = _faults(tmp_path, scenario)
    assert not faults, f"{faults}\n{run.stdout[-4000:]}{run.stderr[-2000:]}"
