"""The base of an MCP worker: its manifest, its MCP server, and its registration at the hub.

    worker = Worker(worker_id="greeter", description="Greets people.", capabilities=["greeting"], ...)

    @worker.tool()
    async def greet(name: str) -> Greeting: ...

    if __name__ == "__main__":
        sys.exit(worker.main())

The process serves Streamable HTTP at `/mcp`. With `GATEHOUSE_URL` and `GATEHOUSE_TOKEN` set it registers at the hub and
sends heartbeats; the hub may start later or go away meanwhile. With `GATEHOUSE_WORKER_KEY` set it signs its manifest:
unsigned workers may not touch files or the network.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import functools
import itertools
import json
import logging
import os
import random
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import quote

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
from pydantic import BaseModel, Field, ValidationError

log = logging.getLogger("worker")

BOOTSTRAP_TOOL: Final = "worker_bootstrap"
SIGNATURE_SECONDS: Final = 3600
FETCH_SECONDS: Final = 5.0
MOST_BYTES: Final = 8 * 1_048_576
ARTIFACT: Final = re.compile(r"artifact:(?://)?(?:sha256[:/-])?([0-9a-f]{64})", re.ASCII)
ENVELOPES: Final = ("result", "payload", "structuredContent", "structured_content", "content")

ToolFunction = TypeVar("ToolFunction", bound=Callable[..., Any])
Document = TypeVar("Document", bound=BaseModel)

Pointer = Annotated[
    str | dict[str, Any],
    Field(description="Result pointer of the hub (artifact:... or inline:...), or the document itself."),
]
JobId = Annotated[str, Field(min_length=1, max_length=100)]


class Started(BaseModel):
    """A job that goes on after the call."""

    job_id: str
    estimated_duration_seconds: float


class JobStatus(BaseModel):
    job_id: str
    status: Literal["running", "complete", "failed"]
    progress: float = Field(description="Percent of the work that is done.")
    message: str


def refused(code: str, sentence: str) -> ToolError:
    """Return the error of a call that is refused: a code for programs, a sentence for people."""
    return ToolError(f"{code}: {sentence}")


class Worker:
    """One self-describing MCP worker.

    `constraints`, `hints` and `side_effects` stand in the manifest: the limits of calls, what a planner may expect of
    them, and what they touch. `claimed_tier` is a claim; the hub grants a tier by its own rules.
    """

    def __init__(
        self,
        *,
        worker_id: str,
        description: str,
        capabilities: Sequence[str],
        constraints: dict[str, int],
        hints: dict[str, str],
        side_effects: dict[str, str],
        claimed_tier: Literal["trusted", "verified", "sandbox", "untrusted"] = "verified",
        capacity: int = 4,
    ) -> None:
        self.worker_id = worker_id
        self.endpoint = ""
        self.capacity = capacity
        self.root = Path("/")
        self._active_calls = 0
        self._about: dict[str, Any] = {
            "capabilities": list(capabilities),
            "constraints": constraints,
            "hints": hints,
            "side_effects": side_effects,
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
        """Publish an async function as a tool. Planners and models search its docstring."""
        calm = not changes_things
        annotations = ToolAnnotations(read_only_hint=calm, idempotent_hint=calm, open_world_hint=open_world)

        def published(function: ToolFunction) -> ToolFunction:
            @functools.wraps(function)
            async def reporting(*arguments: Any, **named: Any) -> Any:
                try:
                    return await function(*arguments, **named)
                except (MCPError, ToolError):
                    raise
                except Exception as broken:
                    # An internal error tells the hub to try again; the SDK itself would hide the cause.
                    log.exception("%s broke", function.__name__)
                    raise MCPError(INTERNAL_ERROR, f"{type(broken).__name__}: {broken}"[:1_000]) from broken

            self.server.tool(title=title, annotations=annotations)(reporting)
            return function

        return published

    async def manifest(self) -> dict[str, Any]:
        """Return the worker's manifest, in the form of a registration."""
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

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Count the block as load: a call, or a job that goes on after it."""
        self._active_calls += 1
        try:
            yield
        finally:
            self._active_calls -= 1

    async def _count_calls(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        with self.working():
            return await call_next(ctx)

    def path(self, name: str) -> Path:
        """Return the real path of a file or folder that a call names, if it is inside of `--root`.

        :raises ToolError: `not_absolute`, `not_found`, `unreadable` or `outside_root`.
        """
        if not Path(name).is_absolute():
            raise refused("not_absolute", f"this must be an absolute path, not {name[:200]!r}")
        try:
            real = Path(name).resolve()
            exists = real.exists()
        except (OSError, ValueError, RuntimeError) as refusal:
            raise refused("unreadable", f"{name[:200]!r} cannot be read: {refusal}") from None
        if not real.is_relative_to(self.root):
            raise refused("outside_root", f"{name[:200]!r} is outside of the folder that this worker may read")
        if not exists:
            raise refused("not_found", f"{name} does not exist")
        return real

    def folder(self, name: str) -> Path:
        """Return the real path of a folder that a call names.

        :raises ToolError: as :meth:`path` does, or `not_a_folder`.
        """
        path = self.path(name)
        if not path.is_dir():
            raise refused("not_a_folder", f"{name} is not a folder")
        return path

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Serve until stopped, and return the process's exit code."""
        parser = argparse.ArgumentParser(prog=self.worker_id, description=f"Serve {self.worker_id} as an MCP worker.")
        parser.add_argument("--port", type=int, required=True, help="port to listen on; 0 takes a free one")
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback)")
        parser.add_argument("--endpoint", default="", help="address for the hub, where it differs from host and port")
        parser.add_argument("--root", type=Path, default=Path("/"), help="calls may read files in this folder only")
        options = parser.parse_args(argv)
        logging.basicConfig(level="INFO", stream=sys.stderr, format="%(asctime)s %(name)s %(message)s", force=True)
        for noisy in ("httpx2", "httpcore2", "mcp"):
            logging.getLogger(noisy).setLevel("WARNING")
        listener = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET)
        try:
            key = key_from_environment()
            self.root = options.root.resolve(strict=True)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((options.host, options.port))
        except (ValueError, OSError, OverflowError) as refusal:
            listener.close()
            sys.stderr.write(f"{self.worker_id} cannot start: {refusal}\n")
            return 2
        host, port = listener.getsockname()[:2]
        self.endpoint = options.endpoint or f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp"
        with listener, contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self._serve(listener, options.host, key))
        return 0

    async def _serve(self, listener: socket.socket, host: str, key: OKPKey | None) -> None:
        app = self.server.streamable_http_app(host=host)
        config = uvicorn.Config(app, log_level="warning", log_config=None, timeout_graceful_shutdown=3)
        server = uvicorn.Server(config)
        registering = asyncio.create_task(self._stay_registered(server, key))
        try:
            await server.serve(sockets=[listener])
        finally:
            registering.cancel()
            await asyncio.gather(registering, return_exceptions=True)

    async def _stay_registered(self, server: uvicorn.Server, key: OKPKey | None) -> None:
        while not server.started:
            await asyncio.sleep(0.02)
        sys.stdout.write(f"ready {self.worker_id} {self.endpoint}\n")
        sys.stdout.flush()
        url, token = os.environ.get("GATEHOUSE_URL", "").rstrip("/"), os.environ.get("GATEHOUSE_TOKEN", "")
        if not (url and token):
            log.info("GATEHOUSE_URL and GATEHOUSE_TOKEN are not set: serving without a hub")
            return
        # No ambient proxy: the hub is most often on loopback.
        async with httpx2.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=10.0, trust_env=False
        ) as hub:
            while True:
                await self._register(hub, key)
                await self._beat(hub)

    async def _register(self, hub: httpx2.AsyncClient, key: OKPKey | None) -> None:
        for failures in itertools.count():
            manifest = await self.manifest()
            status, answer = await _post(hub, "/workers/register", signed(manifest, key) if key else manifest)
            if status in {HTTPStatus.OK, HTTPStatus.CREATED}:
                tier, reason = answer.get("effective_tier"), answer.get("reason")
                log.info("registered as %s, effective tier %s (%s)", self.worker_id, tier, reason)
                return
            log.warning("registration not accepted (%s %s); trying again until it is", status, answer)
            await asyncio.sleep(_pause(failures))

    async def _beat(self, hub: httpx2.AsyncClient) -> None:
        """Send heartbeats until the hub no longer knows the worker, or asks for a new registration."""
        path, failures, interval = f"/workers/{quote(self.worker_id, safe='')}/heartbeat", 0, 30.0
        while True:
            load = min(1.0, self._active_calls / self.capacity)
            body = {"status": "healthy", "current_load": round(load, 2), "available": load < 1}
            status, answer = await _post(hub, path, body)
            if status == HTTPStatus.NOT_FOUND or answer.get("register_again") is True:
                return
            if status == HTTPStatus.OK:
                failures, interval = 0, float(answer.get("next_heartbeat_seconds", interval))
                await asyncio.sleep(interval)
            else:
                await asyncio.sleep(min(interval, _pause(failures)))
                failures += 1


async def _post(hub: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the answer's status and JSON object; status 0 where there is no answer."""
    try:
        response = await hub.post(path, json=body)
        answer = response.json()
    except (httpx2.HTTPError, OSError, ValueError) as away:
        return 0, {"code": "hub_away", "detail": str(away)}
    return response.status_code, answer if isinstance(answer, dict) else {}


def _pause(failures: int) -> float:
    """Return a random pause that grows with the failures."""
    return random.uniform(0.25, 0.5) * 2.0 ** min(failures, 6)  # noqa: S311 - spreads load, guards nothing


def key_from_environment() -> OKPKey | None:
    """Return the private Ed25519 key (a JWK with a `kid`) in `GATEHOUSE_WORKER_KEY`, or None if it is not set.

    :raises ValueError: if it is no such key.
    """
    text = os.environ.get("GATEHOUSE_WORKER_KEY", "")
    if not text:
        return None
    try:
        key = OKPKey.import_key(json.loads(text))
    except (ValueError, KeyError, TypeError, JoseError):
        key = None
    if key is None or not key.is_private or not key.kid:
        raise ValueError("GATEHOUSE_WORKER_KEY holds no private Ed25519 key as JWK with a kid")
    return key


def signed(manifest: dict[str, Any], key: OKPKey) -> dict[str, Any]:
    """Return the manifest with a signature over its canonical JSON that is valid for an hour."""
    trust = {**manifest["trust"], "key_id": key.kid}
    now = int(time.time())
    header = {"alg": "Ed25519", "kid": key.kid, "iat": now, "exp": now + SIGNATURE_SECONDS}
    registry = jws.JWSRegistry(
        header_registry={"iat": HeaderParameter("Signed at", "int"), "exp": HeaderParameter("Ends at", "int")},
        algorithms=["Ed25519"],
    )
    payload = rfc8785.dumps({**manifest, "trust": trust})
    return {**manifest, "trust": {**trust, "signature": jws.serialize_compact(header, payload, key, registry=registry)}}


async def resolve(pointer: str | dict[str, Any], model: type[Document], *, key: str, code: str) -> Document:
    """Return the document behind a result pointer of the hub; a document stands for itself.

    `inline:` pointers hold the document. `artifact:` pointers are fetched from the hub that `GATEHOUSE_URL` names.

    :param key: a member that the document has, and no envelope around it.
    :raises ToolError: if the pointer is of another kind, or does not lead to JSON in time and size; `code`, if the JSON
        is no such document.
    """
    document = pointer if isinstance(pointer, dict) else await _pointed_to(pointer.strip())
    for _ in range(3):
        if not isinstance(document, dict) or key in document:
            break
        document = next((document[name] for name in ENVELOPES if isinstance(document.get(name), dict)), None)
    try:
        return model.model_validate(document)
    except ValidationError as refusal:
        first = refusal.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "document"
        raise refused(code, f"{where}: {first['msg']}") from None


async def _pointed_to(pointer: str) -> Any:
    scheme, _, rest = pointer.partition(":")
    artifact = ARTIFACT.fullmatch(pointer)
    if artifact is None and scheme != "inline":
        raise refused("unknown_pointer", f"Pointers such as {pointer[:40]!r} are not followed")
    try:
        if artifact is not None:
            return json.loads(await _fetched(artifact[1]))
        if rest.lstrip().startswith("{"):
            return json.loads(rest)
        return json.loads(base64.b64decode(rest + "=" * (-len(rest) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        raise refused("not_json", "The pointer does not lead to a JSON document") from None


async def _fetched(digest: str) -> bytes:
    """Return an artifact's content from the hub, and from nowhere else."""
    hub, token = os.environ.get("GATEHOUSE_URL", ""), os.environ.get("GATEHOUSE_TOKEN", "")
    if not (hub and token):
        raise refused("no_hub", "GATEHOUSE_URL and GATEHOUSE_TOKEN are not set: artifacts can't be fetched")
    content = bytearray()
    headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}
    try:
        async with (
            httpx2.AsyncClient(follow_redirects=False, trust_env=False, timeout=FETCH_SECONDS) as http,
            http.stream("GET", f"{hub.rstrip('/')}/api/v1/artifacts/{digest}", headers=headers) as answer,
        ):
            if answer.status_code != HTTPStatus.OK:
                raise refused("hub_refused", f"The hub answered {answer.status_code} for artifact {digest}")
            async for chunk in answer.aiter_raw():
                content += chunk
                if len(content) > MOST_BYTES:
                    raise refused("too_large", f"Artifact {digest} is over the limit of {MOST_BYTES} bytes")
    except (httpx2.HTTPError, OSError) as away:
        raise refused("hub_away", f"The hub did not deliver artifact {digest}: {type(away).__name__}") from None
    return bytes(content)
