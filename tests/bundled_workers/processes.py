"""Real worker processes, a real MCP client, and a stand-in for the hub at the far end of the network."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

from mcp import Client
from mcp.types import CallToolResult

WORKERS = Path(__file__).resolve().parents[2] / "examples" / "workers"
DEADLINE = 30.0
TOKEN = "ght_test_worker"


@dataclass(frozen=True, slots=True)
class RunningWorker:
    endpoint: str
    process: subprocess.Popen[str]


@contextmanager
def running(script: str, *arguments: str, log: IO[str] | None = None, **environment: str) -> Iterator[RunningWorker]:
    """Start a worker on a free port, wait until it says that it is ready, stop it at the end.

    :param log: where what it logs goes; None: where the test's own goes.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GATEHOUSE_")}
    process = subprocess.Popen(
        [sys.executable, str(WORKERS / script), "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=inherited | environment,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready "), f"{script} did not start: {line!r}, exit code {process.poll()}"
        yield RunningWorker(endpoint=line.split()[2], process=process)
    finally:
        process.terminate()
        process.wait(DEADLINE)
        process.stdout.close()


def call(endpoint: str, tool: str, arguments: dict[str, Any], *, mode: str = "auto") -> CallToolResult:
    async def answer() -> CallToolResult:
        async with Client(endpoint, mode=mode, read_timeout_seconds=DEADLINE) as client:
            return await client.call_tool(tool, arguments)

    return asyncio.run(answer())


def result_of(endpoint: str, tool: str, arguments: dict[str, Any], *, mode: str = "auto") -> dict[str, Any]:
    answer = call(endpoint, tool, arguments, mode=mode)
    assert not answer.is_error, answer.content
    assert answer.structured_content is not None
    structured: dict[str, Any] = answer.structured_content
    return structured


def refusal_of(endpoint: str, tool: str, arguments: dict[str, Any]) -> str:
    answer = call(endpoint, tool, arguments)
    assert answer.is_error, answer.structured_content
    return "".join(getattr(block, "text", "") for block in answer.content)


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Poll until something holds, and fail with its name when the deadline passes."""
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Seen:
    method: str
    path: str
    authorization: str
    body: Any


class Drip:
    """An answer that comes one byte at a time and never ends by itself."""


@dataclass
class StandInHub:
    """A network peer that answers as scripted: `answers[path]` is a list of (status, body), the last one repeats."""

    answers: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""

    def requests(self, path: str) -> list[Seen]:
        return [request for request in self.seen if request.path == path]

    def answer(self, path: str) -> tuple[int, Any]:
        scripted = self.answers.get(path, [(404, {"code": "not_found"})])
        return scripted.pop(0) if len(scripted) > 1 else scripted[0]


@contextmanager
def stand_in_hub(hub: StandInHub, *, port: int = 0) -> Iterator[StandInHub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            body = json.loads(raw) if raw else None
            hub.seen.append(Seen(self.command, self.path, self.headers.get("Authorization", ""), body))
            status, answer = hub.answer(self.path)
            if isinstance(answer, Drip):
                self.drip()
                return
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            if status in {301, 302, 307}:
                self.send_header("Location", content.decode())
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Connection", "close")
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(content)

        def drip(self) -> None:
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b" ")
                    time.sleep(0.2)

        do_GET = do_POST = respond  # noqa: N815 - the base class names them so

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
