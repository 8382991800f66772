"""A server outside of the building, for outgoing calls: it answers as a test tells it, well or badly."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Exchange"], None]


@dataclass(frozen=True)
class Received:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Remote:
    """Where it answers, what has come, and what is said to whoever comes next.

    `script` is used up one by one; then `always` answers.
    """

    url: str
    always: Behaviour
    script: list[Behaviour] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, received: Received) -> Behaviour:
        with self.lock:
            self.received.append(received)
            return self.script.pop(0) if self.script else self.always


@dataclass(frozen=True)
class Exchange:
    """One request and the way back to its sender."""

    received: Received
    handler: BaseHTTPRequestHandler
    remote: Remote

    def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.handler.send_response(status)
        for name, value in headers.items():
            self.handler.send_header(name, value)
        self.handler.send_header("Content-Length", str(len(body)))
        self.handler.end_headers()
        self.handler.wfile.write(body)


def says(status: int, body: Any = None, **headers: str) -> Behaviour:
    """Answer JSON (bytes are sent as they are)."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda exchange: exchange.answer(status, content, {"Content-Type": "application/json"} | named)


def hangs(exchange: Exchange) -> None:
    """Never answer."""
    exchange.remote.closing.wait()


def hangs_up(exchange: Exchange) -> None:
    """Take the request and close the connection without a word."""
    exchange.handler.close_connection = True


def drips(exchange: Exchange) -> None:
    """Answer a byte at a time, without end."""
    exchange.handler.send_response(200)
    exchange.handler.send_header("Content-Length", "1000000")
    exchange.handler.end_headers()
    repeats(exchange, b" ", pause=0.05)


def repeats(exchange: Exchange, piece: bytes, *, pause: float = 0.0) -> None:
    """Send this again and again, without end."""
    with suppress(OSError):
        while not exchange.remote.closing.wait(pause):
            exchange.handler.wfile.write(piece)


def floods(exchange: Exchange) -> None:
    """Answer 100 MB."""
    exchange.handler.send_response(200)
    exchange.handler.send_header("Content-Length", str(100 * 1024 * 1024))
    exchange.handler.end_headers()
    with suppress(OSError):
        for _ in range(100):
            exchange.handler.wfile.write(b" " * (1024 * 1024))


@contextmanager
def serving(always: Behaviour | None = None, *, tls: ssl.SSLContext | None = None) -> Iterator[Remote]:
    """A remote on loopback for as long as the block lasts; over TLS if it has a certificate."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            received = Received(self.path, dict(self.headers.items()), self.rfile.read(length))
            remote.next(received)(Exchange(received, self, remote))
            self.close_connection = True

        def do_GET(self) -> None:
            self.do_POST()

        def end_headers(self) -> None:
            # It hangs up after each answer; a caller that was not told may send the next request into that.
            self.send_header("Connection", "close")
            super().end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class names it so
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "http" if tls is None else "https"
    remote = Remote(url=f"{scheme}://127.0.0.1:{server.server_port}", always=always or says(200, {}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield remote
    finally:
        remote.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
