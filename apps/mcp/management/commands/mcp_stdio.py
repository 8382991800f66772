"""MCP over stdin and stdout, for hosts that only start processes: each line is one message for `/mcp`.

The bridge keeps nothing but what the handshake of older revisions agreed on.
"""

import json
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final, TextIO
from urllib.parse import urlencode

import httpx2
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from mcp_types import INTERNAL_ERROR, PARSE_ERROR, PROTOCOL_VERSION_META_KEY

from apps.mcp.protocol import ProtocolError, error

# Streams stay open, so there must be room beside them.
_AT_ONCE: Final = 32
# How long requests may take to end that are under way at the end of input: a minute's wait, and a little.
_LAST_SECONDS: Final = 75


class Command(BaseCommand):
    help = "Carry MCP between stdin/stdout and the endpoint, for hosts that only start processes."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--url", default=settings.PUBLIC_URL, help="of the hub or its /mcp; left out, the one that runs here"
        )
        parser.add_argument("--tools", metavar="GROUPS", help="groups to list besides, as memory,plans; or all")

    def handle(self, *args: Any, **options: Any) -> None:
        token = os.environ.get("GATEHOUSE_TOKEN")
        if not token:
            raise CommandError("Put the agent's token into GATEHOUSE_TOKEN (manage.py issue_token makes one).")
        if not options["url"]:
            raise CommandError("No hub runs here; say where one is with --url.")
        query = f"?{urlencode({'tools': options['tools']})}" if options["tools"] else ""
        Bridge(f"{options['url'].rstrip('/').removesuffix('/mcp')}/mcp{query}", token, sys.stdout).run(sys.stdin)
        # A stream that is still open must not keep the process, whose host is gone.
        sys.stdout.flush()
        os._exit(0)


class Bridge:
    """Carries messages between two pipes and the endpoint."""

    def __init__(self, url: str, token: str, out: TextIO) -> None:
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        self._url = url
        self._client = httpx2.Client(headers=headers, timeout=httpx2.Timeout(30, read=None))
        self._out = out
        self._writing = threading.Lock()
        self._agreed: dict[str, str] = {}
        self._under_way: set[Future[None]] = set()

    def run(self, lines: Iterable[str]) -> None:
        """Carry until the host closes its end and its requests are answered; streams of notifications are dropped."""
        workers = ThreadPoolExecutor(_AT_ONCE)
        try:
            for line in lines:
                self._take(line, workers)
            wait(self._under_way, timeout=_LAST_SECONDS)
        finally:
            self._client.close()
            workers.shutdown(wait=False, cancel_futures=True)

    def _take(self, line: str, workers: ThreadPoolExecutor) -> None:
        if not line.strip():
            return
        try:
            message = json.loads(line)
        except ValueError:
            self._write(error(None, ProtocolError(PARSE_ERROR, "Parse error")))
            return
        if not isinstance(message, dict):
            message = {}
        if message.get("method") == "initialize":
            self._carry(line, message)  # nothing else may be on its way before a revision is agreed on
            return
        carried = workers.submit(self._carry, line, message)
        if message.get("method") != "subscriptions/listen":
            self._under_way.add(carried)
            carried.add_done_callback(self._under_way.discard)

    def _carry(self, line: str, message: Mapping[str, Any]) -> None:
        try:
            with self._client.stream(
                "POST", self._url, content=line.encode(), headers=self._routing(message)
            ) as response:
                self._answer(response, message)
        except httpx2.HTTPError as exc:
            self._fail(message, f"{self._url} does not answer: {exc}")

    def _routing(self, message: Mapping[str, Any]) -> dict[str, str]:
        """The headers that a message of its revision must have."""
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        meta = params.get("_meta")
        modern = meta.get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None
        if not isinstance(modern, str):
            return self._agreed
        method = str(message.get("method"))
        headers = {MCP_PROTOCOL_VERSION_HEADER: modern, MCP_METHOD_HEADER: method}
        name = params.get(NAME_BEARING_METHODS.get(method, ""))
        return headers | ({MCP_NAME_HEADER: encode_header_value(name)} if isinstance(name, str) else {})

    def _answer(self, response: httpx2.Response, message: Mapping[str, Any]) -> None:
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            for line in response.iter_lines():
                if line.startswith("data:"):
                    self._write(json.loads(line.removeprefix("data:")))
            return
        body = json.loads(response.read() or b"null")
        if isinstance(body, dict) and "jsonrpc" in body:
            self._remember(message, body, response.headers.get(MCP_SESSION_ID_HEADER))
            self._write(body)
        elif not response.is_success:
            self._fail(message, f"{response.status_code}: {(body or {}).get('detail', response.reason_phrase)}")

    def _remember(self, message: Mapping[str, Any], body: Mapping[str, Any], session_id: str | None) -> None:
        if message.get("method") == "initialize" and (version := body.get("result", {}).get("protocolVersion")):
            session = {MCP_SESSION_ID_HEADER: session_id} if session_id else {}
            self._agreed = {MCP_PROTOCOL_VERSION_HEADER: version, **session}

    def _fail(self, message: Mapping[str, Any], sentence: str) -> None:
        if "id" in message and "method" in message:
            self._write(error(message["id"], ProtocolError(INTERNAL_ERROR, sentence)))

    def _write(self, body: Mapping[str, Any]) -> None:
        with self._writing:
            self._out.write(json.dumps(body) + "\n")
            self._out.flush()
