"""The base of an MCP worker: its manifest, its MCP server, and its registration at the hub.

    worker = Worker(worker_id="greeter", description="Greets people.", capabilities=["greeting"], ...)

    @worker.tool()
    async def greet(name: str) -> Greeting: ...

    if __name__ == "__main__":
        worker.main()

The process serves Streamable HTTP at `/mcp`. With `GATEHOUSE_URL` and `GATEHOUSE_TOKEN` set it registers at the hub and
sends heartbeats; the hub may start later or go away meanwhile. With `GATEHOUSE_WORKER_KEY` set it signs its manifest:
unsigned workers may not touch files or the network.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import inspect
import json
import logging
import os
import random
import re
import socket
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import anyio
import httpx2
import rfc8785
import uvicorn
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import INTERNAL_ERROR, ToolAnnotations
from pydantic import BaseModel, Field, ValidationError

log = logging.getLogger("worker")

BOOTSTRAP_TOOL: Final = "worker_bootstrap"
SIGNATURES: Final = jws.JWSRegistry(algorithms=["Ed25519"], strict_check_header=False)
SIGNATURE_SECONDS: Final = 3600
ARTIFACT: Final = re.compile(r"artifact:(?://)?(sha256-[0-9a-f]{64})", re.ASCII)
DESCRIBED: Final = {"name", "description", "input_schema", "output_schema"}

ToolFunction = TypeVar("ToolFunction", bound=Callable[..., Any])
Document = TypeVar("Document", bound=BaseModel)

Pointer = Annotated[
    str | dict[str, Any], Field(description="Result pointer of the hub (artifact:...), or the document itself.")
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

    `about` stands in the manifest: `constraints` limit calls, `hints` tell planners what to expect, `side_effects` say
    what calls touch. `claimed_tier` is a claim; the hub grants a tier by its own rules.
    """

    def __init__(
        self,
        *,
        worker_id: str,
        description: str,
        capacity: int = 4,
        claimed_tier: Literal["trusted", "verified", "sandbox", "untrusted"] = "verified",
        **about: Any,
    ) -> None:
        self.worker_id, self.endpoint, self.capacity, self.root = worker_id, "", capacity, Path("/")
        self.key: OKPKey | None = None
        self.is_registered = False
        self.running_calls = 0
        self.about = {**about, "trust": {"tier": claimed_tier}}
        self.server: MCPServer[Any] = MCPServer(worker_id, description=description, instructions=description)
        self.server.tool(name=BOOTSTRAP_TOOL, annotations=ToolAnnotations(read_only_hint=True))(self.manifest)

    def tool(
        self, *, title: str | None = None, open_world: bool = False, changes_things: bool = False
    ) -> Callable[[ToolFunction], ToolFunction]:
        """Publish an async function as a tool. Planners and models search its docstring."""
        calm = not changes_things
        annotations = ToolAnnotations(read_only_hint=calm, idempotent_hint=calm, open_world_hint=open_world)

        def published(function: ToolFunction) -> ToolFunction:
            @functools.wraps(function)
            async def reporting(*arguments: Any, **named: Any) -> Any:
                self.running_calls += 1
                try:
                    return await function(*arguments, **named)
                except (MCPError, ToolError):
                    raise
                except Exception as broken:
                    # An internal error tells the hub to try again; the SDK itself would hide the cause.
                    log.exception("%s broke", function.__name__)
                    raise MCPError(INTERNAL_ERROR, f"{type(broken).__name__}: {broken}"[:1_000]) from broken
                finally:
                    self.running_calls -= 1

            described = inspect.cleandoc(function.__doc__ or "")
            self.server.tool(title=title, description=described, annotations=annotations)(reporting)
            return function

        return published

    async def manifest(self) -> dict[str, Any]:
        """Return this worker's manifest: its tools with their schemas, capabilities, limits and side effects."""
        tools = [tool for tool in await self.server.list_tools() if tool.name != BOOTSTRAP_TOOL]
        described = [tool.model_dump(include=DESCRIBED, exclude_none=True) for tool in tools]
        return {"worker_id": self.worker_id, "endpoint": self.endpoint, "tools": described, **self.about}

    def path(self, name: str, *, is_folder: bool = False) -> Path:
        """Return the real path of a file or folder that a call names, if it is inside of `--root`.

        :raises ToolError: `outside_root`, `not_found` or `unreadable`.
        """
        try:
            real = Path("/", name).resolve()
            is_there = real.is_dir() if is_folder else real.is_file()
        except (OSError, ValueError, RuntimeError) as refusal:
            raise refused("unreadable", f"{name[:200]!r} cannot be read: {refusal}") from None
        if not real.is_relative_to(self.root):
            raise refused("outside_root", f"{name[:200]!r} is outside of the folder that this worker may read")
        if not is_there:
            raise refused("not_found", f"{name} is no {'folder' if is_folder else 'file'}")
        return real

    def main(self) -> None:
        """Serve until stopped."""
        parser = argparse.ArgumentParser(prog=self.worker_id, description=f"Serve {self.worker_id} as an MCP worker.")
        parser.add_argument("--port", type=int, required=True, help="port to listen on; 0 takes a free one")
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback)")
        parser.add_argument("--endpoint", help="address for the hub, where it differs from host and port")
        parser.add_argument("--root", type=Path, default=Path("/"), help="calls may read files in this folder only")
        options = parser.parse_args()
        logging.basicConfig(level="INFO", stream=sys.stderr, format="%(asctime)s %(name)s %(message)s", force=True)
        for noisy in ("httpx2", "httpcore2", "mcp"):
            logging.getLogger(noisy).setLevel("WARNING")
        try:
            if jwk := os.environ.get("GATEHOUSE_WORKER_KEY"):
                self.key = OKPKey.import_key(json.loads(jwk))
                self.signed({"trust": {}})  # refuses a public key now
            self.root = options.root.resolve(strict=True)
            listener = socket.create_server((options.host, options.port))
        except (ValueError, OSError, OverflowError, JoseError) as refusal:
            parser.error(f"cannot start: {refusal}")
        self.endpoint = options.endpoint or f"http://{options.host}:{listener.getsockname()[1]}/mcp"
        with listener, contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self.serve(listener, options.host))

    async def serve(self, listener: socket.socket, host: str) -> None:
        """Serve MCP on a socket, and stay registered meanwhile."""
        app = self.server.streamable_http_app(host=host)
        config = uvicorn.Config(app, log_level="warning", log_config=None, timeout_graceful_shutdown=3)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.stay_registered)
            sys.stdout.write(f"ready {self.worker_id} {self.endpoint}\n")
            sys.stdout.flush()
            await uvicorn.Server(config).serve(sockets=[listener])
            tasks.cancel_scope.cancel()

    async def stay_registered(self) -> None:
        """Register at the hub and send heartbeats, for ever; without a hub's address, return."""
        if not (os.environ.get("GATEHOUSE_URL") and os.environ.get("GATEHOUSE_TOKEN")):
            log.info("GATEHOUSE_URL and GATEHOUSE_TOKEN are not set: serving without a hub")
            return
        async with hub() as http:
            while True:
                await asyncio.sleep(await self.report(http))

    async def report(self, http: httpx2.AsyncClient) -> float:
        """Register, or send a heartbeat. Return the seconds until the next report; a failed one is repeated soon."""
        again = random.uniform(0.5, 2.0)  # noqa: S311 - spreads load, guards nothing
        path, load = "/workers/register", min(1.0, self.running_calls / self.capacity)
        body = self.signed(await self.manifest())
        if self.is_registered:
            path = f"/workers/{self.worker_id}/heartbeat"
            body = {"status": "healthy", "current_load": round(load, 2), "available": load < 1}
        try:
            response = await http.post(path, json=body)
            answer = response.json()
        except (httpx2.HTTPError, ValueError) as away:
            log.warning("%s: no answer (%s)", path, away)
            return again
        if not response.is_success:
            log.warning("%s: not accepted (%s %s)", path, response.status_code, answer)
            self.is_registered = self.is_registered and response.status_code != HTTPStatus.NOT_FOUND
            return again
        if self.is_registered:
            self.is_registered = not answer.get("register_again")
            return float(answer["next_heartbeat_seconds"]) if self.is_registered else 0.0
        self.is_registered = True
        tier, reason = answer.get("effective_tier"), answer.get("reason")
        log.info("registered as %s, effective tier %s (%s)", self.worker_id, tier, reason)
        return 0.0

    def signed(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Return the manifest with a signature over its canonical JSON that is valid for an hour, if there is a key."""
        if self.key is None:
            return manifest
        unsigned = {**manifest, "trust": {**manifest["trust"], "key_id": self.key.kid}}
        now = int(time.time())
        header = {"alg": "Ed25519", "kid": self.key.kid, "iat": now, "exp": now + SIGNATURE_SECONDS}
        signature = jws.serialize_compact(header, rfc8785.dumps(unsigned), self.key, registry=SIGNATURES)
        return {**unsigned, "trust": {**unsigned["trust"], "signature": signature}}


def hub() -> httpx2.AsyncClient:
    """Return a client of the hub. It ignores an ambient proxy: the hub is most often on loopback."""
    url, token = os.environ.get("GATEHOUSE_URL", ""), os.environ.get("GATEHOUSE_TOKEN", "")
    return httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=10, trust_env=False)


async def resolve(pointer: str | dict[str, Any], model: type[Document], *, code: str) -> Document:
    """Return the document behind an `artifact:` pointer of the hub; a document stands for itself.

    :raises ToolError: if the pointer is of another kind, or the hub doesn't deliver it; `code`, if the content is no
        such document.
    """
    document: Any = pointer
    if isinstance(pointer, str):
        if (artifact := ARTIFACT.fullmatch(pointer)) is None:
            raise refused("unknown_pointer", f"Pointers such as {pointer[:40]!r} are not followed")
        try:
            async with hub() as http:
                answer = await http.get(f"/api/v1/artifacts/{artifact[1]}")
            answer.raise_for_status()
            document = answer.json()["content"]
        except (httpx2.HTTPError, ValueError) as away:
            raise refused("hub_away", f"The hub did not deliver {pointer}: {away}") from None
    try:
        return model.model_validate(document)
    except ValidationError as refusal:
        first = refusal.errors(include_url=False, include_input=False)[0]
        raise refused(code, f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}") from None
