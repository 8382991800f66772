"""What every worker of the hub shares: its manifest, its registration and its MCP server.

A worker file declares a `Worker`, decorates its tools and calls `main`:

    worker = Worker(worker_id="greeter", description="Greets people.", capabilities=["greeting"], ...)

    @worker.tool()
    def greet(name: str) -> Greeting: ...

    if __name__ == "__main__":
        sys.exit(worker.main())

`refused(code, sentence)` makes the error of a call that is not done, and `worker.root` judges the paths
that a call names. The process serves Streamable HTTP at `/mcp`. With `GATEHOUSE_URL` and `GATEHOUSE_TOKEN` set it
also announces itself to the hub and keeps its heartbeat going. The hub may start later, go away and
come back; the worker serves in the meantime. With `GATEHOUSE_WORKER_KEY` set it signs its manifest:
unsigned workers may do nothing that touches files or the network.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import logging
import math
import os
import random
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import rfc8785
import uvicorn
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from joserfc.registry import HeaderParameter
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import INTERNAL_ERROR, ToolAnnotations

log = logging.getLogger("worker")

BOOTSTRAP_TOOL: Final = "worker_bootstrap"
DEFAULT_HEARTBEAT_SECONDS: Final = 30.0
LONGEST_HEARTBEAT_SECONDS: Final = 3600.0
FIRST_RETRY_SECONDS: Final = 0.5
LONGEST_RETRY_SECONDS: Final = 30.0
HUB_TIMEOUT_SECONDS: Final = 10.0
SIGNATURE_SECONDS: Final = 3600
LONGEST_CAUSE: Final = 1_000

ToolFunction = TypeVar("ToolFunction", bound=Callable[..., Any])


class Constraints(TypedDict):
    """What the hub must keep to when it calls this worker."""

    max_payload_bytes: int
    timeout_seconds: int
    rate_limit_per_hour: int


class Hints(TypedDict):
    """What a planner may expect of a call. `long` (over a minute) is queued, `fast` is called directly."""

    latency_band: Literal["fast", "medium", "slow"]
    cost_band: Literal["free", "low", "medium", "high"]
    expected_runtime: Literal["fast", "medium", "long"]


class SideEffects(TypedDict):
    """What a call touches outside the worker's own memory."""

    filesystem: Literal["read", "write", "none"]
    network: Literal["outbound", "bidirectional", "none"]
    execution: Literal["subprocess", "container", "none"]


def refused(code: str, sentence: str) -> ToolError:
    """Return the error that says why a call is not done: a name for programs, a sentence for people."""
    return ToolError(f"{code}: {sentence}")


class Root:
    """The folder that calls may name paths in. Links are followed to where they lead, and judged there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, name: str) -> Path:
        """Return a folder that a call may read, by its real path.

        :raises ToolError: `not_absolute`, `not_found`, `unreadable`, `outside_root` or `not_a_folder`.
        """
        path = self.locate(name)
        if not path.is_dir():
            raise refused("not_a_folder", f"{name} is not a folder")
        if not os.access(path, os.R_OK | os.X_OK):
            raise refused("unreadable", f"{name} cannot be read: permission denied")
        return path

    def read(self, name: str, *, limit: int) -> bytes:
        """Return a regular file's content.

        :raises ToolError: as :meth:`folder` does, or `not_a_file` or `too_large`.
        """
        path = self.locate(name)
        try:
            # A link put in its place meanwhile is refused, and a pipe does not block.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as refusal:
            raise refused("unreadable", f"{name} cannot be read: {refusal.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise refused("not_a_file", f"{name} is not a regular file")
            if self.locate(name) != path:
                raise refused("outside_root", f"{name} changed its place while it was read")
            content = file.read(limit + 1)
        if len(content) > limit:
            raise refused("too_large", f"{name} is over the limit of {limit} bytes")
        return content

    def locate(self, name: str) -> Path:
        """Return the real path of what a call names, whatever it is.

        :raises ToolError: `not_absolute`, `not_found`, `unreadable` or `outside_root`.
        """
        path = Path(name)
        if not path.is_absolute():
            raise refused("not_absolute", f"this must be an absolute path, not {name[:200]!r}")
        try:
            real = path.resolve(strict=True)
        except FileNotFoundError:
            # What is outside is not told apart from what is not there.
            if not path.resolve().is_relative_to(self.path):
                raise self._outside(name) from None
            raise refused("not_found", f"{name} does not exist") from None
        except (OSError, ValueError, RuntimeError) as refusal:
            reason = getattr(refusal, "strerror", None) or refusal
            raise refused("unreadable", f"{name[:200]!r} cannot be read: {reason}") from None
        if not real.is_relative_to(self.path):
            raise self._outside(name)
        return real

    def _outside(self, name: str) -> ToolError:
        return refused("outside_root", f"{name[:200]!r} is outside of the folder that this worker may read")


class Worker:
    """One self-describing MCP worker: it executes what it is given and creates work for nobody.

    `claimed_tier` is a claim; the hub grants a tier by its own rules.
    """

    def __init__(
        self,
        *,
        worker_id: str,
        description: str,
        capabilities: Sequence[str],
        constraints: Constraints,
        hints: Hints,
        side_effects: SideEffects,
        claimed_tier: Literal["trusted", "verified", "sandbox", "untrusted"] = "verified",
        capacity: int = 4,
    ) -> None:
        self.worker_id = worker_id
        self.endpoint = ""
        self.capacity = capacity
        self.root = Root(Path("/"))
        self.signing_key: OKPKey | None = None
        self._active_calls = 0
        self._about: dict[str, Any] = {
            "capabilities": list(capabilities),
            "constraints": dict(constraints),
            "hints": dict(hints),
            "side_effects": dict(side_effects),
            "trust": {"tier": claimed_tier},
        }
        self.server: MCPServer[Any] = MCPServer(
            worker_id, description=description, instructions=description, version="1.0.0", log_level="WARNING"
        )
        self.server.middleware.append(self._count_calls)
        self.server.tool(
            name=BOOTSTRAP_TOOL,
            description="Return this worker's manifest: its tools with their schemas, capabilities, limits and side effects.",
            annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
        )(self.manifest)

    def tool(
        self, *, title: str | None = None, open_world: bool = False, changes_things: bool = False
    ) -> Callable[[ToolFunction], ToolFunction]:
        """Publish a function as a tool, read-only unless it says otherwise. Its docstring is what planners and models search and read."""
        calm = not changes_things
        annotations = ToolAnnotations(read_only_hint=calm, idempotent_hint=calm, open_world_hint=open_world)
        publish = self.server.tool(title=title, annotations=annotations)

        def published(function: ToolFunction) -> ToolFunction:
            publish(_telling_why(function))
            return function

        return published

    async def manifest(self) -> dict[str, Any]:
        """Return what the worker tells the hub about itself, in the form of the registration call."""
        tools = [
            {
                "name": tool.name,
                "description": tool.description or "",
                "input_schema": tool.input_schema,
                "output_schema": tool.output_schema or {"type": "object"},
            }
            for tool in await self.server.list_tools()
            if tool.name != BOOTSTRAP_TOOL
        ]
        return {"worker_id": self.worker_id, "endpoint": self.endpoint, "tools": tools, **self._about}

    async def registration(self) -> dict[str, Any]:
        """Return the manifest for the hub, signed where `GATEHOUSE_WORKER_KEY` holds a key that an operator enrolled there."""
        manifest = await self.manifest()
        return signed(manifest, self.signing_key) if self.signing_key else manifest

    def health(self) -> dict[str, Any]:
        """Return the body of a heartbeat."""
        return {
            "status": "healthy",
            "current_load": round(min(1.0, self._active_calls / self.capacity), 2),
            "available": self._active_calls < self.capacity,
        }

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Count as load what the block does: a job that goes on after the call that has started it."""
        self._active_calls += 1
        try:
            yield
        finally:
            self._active_calls -= 1

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Serve until stopped, and return the process's exit code."""
        options = _parse(argv, self.worker_id, reads_files=self._about["side_effects"]["filesystem"] != "none")
        logging.basicConfig(level="INFO", stream=sys.stderr, format="%(asctime)s %(name)s %(message)s", force=True)
        for noisy in ("httpx2", "httpcore2", "mcp"):
            logging.getLogger(noisy).setLevel("WARNING")
        try:
            hub = Hub.from_environment()
            self.signing_key = key_from_environment()
            self.root = Root(_existing_folder(options.root))
            listener = _listen(options.host, options.port)
        except (ValueError, OSError) as refusal:
            sys.stderr.write(f"{self.worker_id} cannot start: {refusal}\n")
            return 2
        host, port = listener.getsockname()[:2]
        self.endpoint = options.endpoint or f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp"
        with listener, contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self._serve(listener, host=options.host, hub=hub))
        return 0

    async def _serve(self, listener: socket.socket, *, host: str, hub: Hub | None) -> None:
        config = uvicorn.Config(
            self.server.streamable_http_app(host=host),
            log_level="warning",
            log_config=None,
            timeout_graceful_shutdown=3,
        )
        server = _AnnouncingServer(config)
        announcing = asyncio.create_task(self._announce(server.ready, hub))
        try:
            await server.serve(sockets=[listener])
        finally:
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)

    async def _announce(self, ready: asyncio.Event, hub: Hub | None) -> None:
        await ready.wait()
        sys.stdout.write(f"ready {self.worker_id} {self.endpoint}\n")
        sys.stdout.flush()
        if hub is None:
            log.info("GATEHOUSE_URL and GATEHOUSE_TOKEN are not set: serving without a hub")
            return
        async with hub:
            await hub.keep_registered(self)

    async def _count_calls(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        with self.working():
            return await call_next(ctx)


class Hub:
    """The hub as a worker sees it: a place to register at and to send heartbeats to.

    :raises ValueError: if the address is not an http or https URL.
    """

    def __init__(self, *, url: str, token: str) -> None:
        address = urlsplit(url)
        if address.scheme not in {"http", "https"} or not address.hostname or address.username:
            raise ValueError("GATEHOUSE_URL must be an http or https address without credentials")
        if not (token.isascii() and token.isprintable()):
            raise ValueError("GATEHOUSE_TOKEN holds characters that cannot be sent in a header")
        self.url = url.rstrip("/")
        # No ambient proxy: the address names the hub itself, most often on loopback.
        self.http = httpx2.AsyncClient(
            timeout=HUB_TIMEOUT_SECONDS,
            headers={"Authorization": f"Bearer {token}"},
            follow_redirects=False,
            trust_env=False,
        )

    @classmethod
    def from_environment(cls) -> Hub | None:
        """Return the hub that the environment names, or None if it names none."""
        url, token = os.environ.get("GATEHOUSE_URL", ""), os.environ.get("GATEHOUSE_TOKEN", "")
        return cls(url=url, token=token) if url and token else None

    async def __aenter__(self) -> Hub:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def keep_registered(self, worker: Worker) -> None:
        """Register, then beat for ever; register again, signed anew, whenever the hub no longer knows the worker or asks for it."""
        while True:
            await self._register(worker)
            await self._beat_until_forgotten(worker)

    async def _register(self, worker: Worker) -> None:
        failures, told = 0, ""
        while True:
            status, answer = await self._post("/workers/register", await worker.registration())
            if status in {HTTPStatus.OK, HTTPStatus.CREATED}:
                tier, reason = answer.get("effective_tier", "unknown"), answer.get("reason", "the hub says not why")
                log.info("registered as %s, effective tier %s (%s)", worker.worker_id, tier, reason)
                return
            if (why := _why_not(status, answer)) != told:
                log.warning("registration not accepted (%s); trying again until it is", why)
                told = why
            await asyncio.sleep(_backoff(failures))
            failures += 1

    async def _beat_until_forgotten(self, worker: Worker) -> None:
        path = f"/workers/{quote(worker.worker_id, safe='')}/heartbeat"
        interval, failures = DEFAULT_HEARTBEAT_SECONDS, 0
        while True:
            status, answer = await self._post(path, worker.health())
            if status == HTTPStatus.NOT_FOUND:
                log.warning("the hub does not know %s any more; registering again", worker.worker_id)
                return
            if status == HTTPStatus.OK:
                interval, failures = _interval(answer.get("next_heartbeat_seconds"), otherwise=interval), 0
                await asyncio.sleep(interval)
                if answer.get("register_again") is True:
                    return
                continue
            if failures == 0:
                log.warning("heartbeat not accepted (%s)", _why_not(status, answer))
            await asyncio.sleep(min(interval, _backoff(failures)))
            failures += 1

    async def _post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the answer's status and JSON object; status 0 when there was no answer."""
        try:
            response = await self.http.post(f"{self.url}{path}", json=body)
        except (httpx2.HTTPError, OSError) as away:
            log.debug("hub not reachable: %r", away)
            return 0, {}
        try:
            answer = response.json()
        except ValueError:
            answer = None
        return response.status_code, answer if isinstance(answer, dict) else {}


class _AnnouncingServer(uvicorn.Server):
    """Tells when the listener answers, so that the hub never probes a worker that is not there yet."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


def _telling_why(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a tool that breaks say what broke it, as an internal error: the hub may try again.

    The SDK keeps the cause to itself; a refusal (`ToolError`) stays what it is, and is final.
    """

    @functools.wraps(function)
    async def told(*arguments: Any, **named: Any) -> Any:
        try:
            return await function(*arguments, **named)
        except (MCPError, ToolError):
            raise
        except Exception as broken:
            log.exception("%s broke", function.__name__)
            cause = f"{type(broken).__name__}: {broken}" if str(broken) else type(broken).__name__
            raise MCPError(INTERNAL_ERROR, cause[:LONGEST_CAUSE]) from broken

    return told


def key_from_environment() -> OKPKey | None:
    """Return the private Ed25519 key (a JWK with a `kid`) in `GATEHOUSE_WORKER_KEY`, or None if it is not set.

    :raises ValueError: if there is something else in it.
    """
    text = os.environ.get("GATEHOUSE_WORKER_KEY", "")
    if not text:
        return None
    try:
        key = OKPKey.import_key(json.loads(text))
    except (ValueError, KeyError, TypeError, JoseError) as refusal:
        raise ValueError("GATEHOUSE_WORKER_KEY holds no private Ed25519 key as JWK") from refusal
    if not (key.is_private and key.kid):
        raise ValueError("GATEHOUSE_WORKER_KEY holds no private Ed25519 key with a kid")
    return key


def signed(manifest: dict[str, Any], key: OKPKey) -> dict[str, Any]:
    """Return the manifest with a signature over its canonical JSON, good for an hour: trust lasts no longer."""
    trust = {**manifest["trust"], "key_id": key.kid}
    now = int(time.time())
    header = {"alg": "Ed25519", "kid": key.kid, "iat": now, "exp": now + SIGNATURE_SECONDS}
    registry = jws.JWSRegistry(
        header_registry={"iat": HeaderParameter("Signed at", "int"), "exp": HeaderParameter("Ends at", "int")},
        algorithms=["Ed25519"],
    )
    payload = rfc8785.dumps({**manifest, "trust": trust})
    return {**manifest, "trust": {**trust, "signature": jws.serialize_compact(header, payload, key, registry=registry)}}


def _backoff(failures: int) -> float:
    """Return a random pause that grows with the failures, so that workers do not return in step."""
    ceiling = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(failures, 10))
    return random.uniform(ceiling / 2, ceiling)  # noqa: S311 - spreads load, guards nothing


def _why_not(status: int, answer: Mapping[str, Any]) -> str:
    """Return in one line why a call was not accepted, in the hub's words where it has any."""
    if not status:
        return "hub not reachable"
    faults = answer.get("errors")
    fault = faults[0] if isinstance(faults, list) and faults and isinstance(faults[0], dict) else {}
    said = [answer.get("code"), answer.get("detail"), fault.get("pointer"), fault.get("message")]
    return " ".join(" ".join([str(status), *(text for text in said if isinstance(text, str))]).split())[:LONGEST_CAUSE]


def _interval(named: object, *, otherwise: float) -> float:
    """Return the interval that the hub named, within reason."""
    if isinstance(named, bool) or not isinstance(named, int | float) or not math.isfinite(named) or named <= 0:
        return otherwise
    return min(max(float(named), 0.1), LONGEST_HEARTBEAT_SECONDS)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as refusal:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {refusal}") from refusal
    return listener


def _existing_folder(path: Path) -> Path:
    real = path.resolve()
    if not real.is_dir():
        raise ValueError(f"--root {path} is not a folder")
    return real


def _parse(argv: Sequence[str] | None, worker_id: str, *, reads_files: bool) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=worker_id, description=f"Serve {worker_id} as an MCP worker.")
    parser.add_argument("--port", type=int, required=True, help="port to listen on; 0 takes a free one")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback)")
    parser.add_argument("--endpoint", default="", help="address to tell the hub, where it differs from host and port")
    parser.set_defaults(root=Path("/"))
    if reads_files:
        parser.add_argument("--root", type=Path, help="calls may read files in this folder only (default: everywhere)")
    return parser.parse_args(argv)
