"""How requests come to views: pages through Django's own handler, clients with a token by a short way."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import IO, Any, Final

from asgiref.sync import sync_to_async
from csp.constants import HEADER
from csp.utils import build_policy
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.exception import convert_exception_to_response, response_for_exception
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.common import CommonMiddleware
from django.middleware.security import SecurityMiddleware
from django.template.response import SimpleTemplateResponse
from django.urls import ResolverMatch, resolve, set_script_prefix

from apps.core import operations
from apps.core.views import ON_LOOP, PendingResponse, on_loop
from config.request_log import RequestLog


class _Headers(SecurityMiddleware):
    """What it, CSPMiddleware and XFrameOptionsMiddleware do for a view that changes nothing of it, put together once."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        super().__init__(get_response)
        self._constant: dict[bool, list[tuple[str, str]]] = {}

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        is_secure = request.is_secure()
        if is_secure not in self._constant:
            bare = HttpResponse()
            del bare["Content-Type"]
            super().process_response(request, bare)
            XFrameOptionsMiddleware(self.get_response).process_response(request, bare)
            self._constant[is_secure] = [*bare.items(), (HEADER, build_policy())]
        for name, value in self._constant[is_secure]:
            response.headers.setdefault(name, value)
        return response


# Those of settings.MIDDLEWARE that concern a client with a token, the outermost first.
_MIDDLEWARE: Final = (_Headers, RequestLog, CommonMiddleware)
# A client that takes nothing for so long is gone, whatever its connection says.
_STALLED_AFTER: Final = 30.0
# More than there are connections to the database: some wait for another server, and hold none.
_THREADS: Final = 64
# A longer body is read in a thread.
_SMALL: Final = 65_536
# Longer paths are not asked again and again, and would only take room.
_LONGEST_KEPT_PATH: Final = 200

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Application:
    """The product's ASGI application."""

    def __init__(self, pages: ASGIHandler) -> None:
        self._pages, self._tokens = pages, TokenHandler()
        # Two parts tell an operation's address from a page's, the literal ones (`/api/v1`, `/workers/`).
        paths = [route.path for declared in operations.all_operations() for route in declared.routes]
        self._roots = ("/mcp", *{"/".join(path.split("/")[:3]).partition("{")[0] for path in paths})

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and scope["path"].startswith(self._roots):
            await self._tokens(scope, receive, send)
        else:
            await self._pages(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """From the server's start to its end."""
        while True:
            event = (await receive())["type"]
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return


class PageHandler(ASGIHandler):
    """For pages: all of settings.MIDDLEWARE and the view in one trip to a thread. Django makes one for each of them."""

    def load_middleware(self, is_async: bool = False) -> None:  # noqa: FBT001, FBT002  # Django's signature
        super().load_middleware()

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = await sync_to_async(self.get_response)(request)
        return response


class TokenHandler(ASGIHandler):
    """For views of clients with a token: one trip to a thread, with only the middleware that concerns them.

    Django's own handler changes between the loop and a thread made for the request at each middleware and signal,
    which costs several times what the view does. A response that waits or streams leaves its thread and goes on in
    the event loop.
    """

    def __init__(self) -> None:
        super().__init__()
        # Kept threads keep what Django makes for each thread anew.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="operation")

    def load_middleware(self, is_async: bool = False) -> None:  # noqa: FBT001, FBT002  # Django's signature
        chain: Callable[[HttpRequest], Any] = convert_exception_to_response(_call)
        for middleware in reversed(_MIDDLEWARE):
            chain = convert_exception_to_response(middleware(chain))
        self._chain = chain

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        match = _coalescing(scope["path"]) if scope["method"] == "POST" else None
        if match and body.seek(0, os.SEEK_END) <= _SMALL:
            body.seek(0)
            # The view does not block: threads ask the database for all such calls that have come meanwhile.
            request, response = self._viewed({**scope, ON_LOOP: match}, body)
            if isinstance(response, PendingResponse):
                response = await _finished(request, response)
        else:
            body.seek(0)
            answered = asyncio.get_running_loop().run_in_executor(self._threads, self._answered, scope, body)
            request, response = await answered
        if not response.streaming and not (isinstance(response, PendingResponse) and response.is_pending):
            await self.send_response(response, send)
            return
        async with asyncio.TaskGroup() as tasks:
            context = response.own_context if isinstance(response, PendingResponse) else None
            answer = tasks.create_task(self._finish(request, response, send), context=context)
            # The client has sent its request: the next message says that it is gone.
            gone = tasks.create_task(_receive(receive))
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            answer.cancel()
            gone.cancel()

    def _answered(self, scope: Any, body: IO[bytes]) -> tuple[Any, Any]:
        """The request, and the response that its view gives."""
        try:
            return self._viewed(scope, body)
        finally:
            # Gives the database connection back; content that waits or streams is made without it.
            close_old_connections()

    def _viewed(self, scope: Any, body: IO[bytes]) -> tuple[Any, Any]:
        with body:
            set_script_prefix(get_script_prefix(scope))
            request, refusal = self.create_request(scope, body)
            return request, refusal if request is None else self._chain(request)

    async def _finish(self, request: HttpRequest, response: Any, send: Send) -> None:
        async def send_on(message: Any) -> None:
            try:
                async with asyncio.timeout(_STALLED_AFTER):
                    await send(message)
            except TimeoutError:
                raise asyncio.CancelledError from None

        if isinstance(response, PendingResponse):
            response = await _finished(request, response)
        await self.send_response(response, send_on)


async def _finished(request: HttpRequest, response: PendingResponse) -> HttpResponseBase:
    try:
        await response.finish()
    except Exception as exc:  # noqa: BLE001  # a defect is logged, and answered as one
        defect: HttpResponseBase = await sync_to_async(response_for_exception, thread_sensitive=False)(request, exc)
        return defect
    return response


async def _receive(receive: Receive) -> None:
    await receive()


def _call(request: HttpRequest) -> HttpResponseBase:
    path = request.path_info
    match = on_loop(request) or (_kept_match(path) if len(path) <= _LONGEST_KEPT_PATH else resolve(path))
    request.resolver_match = match
    response: HttpResponseBase = match.func(request, *match.args, **match.kwargs)
    return response.render() if isinstance(response, SimpleTemplateResponse) else response


@cache
def _coalescing_paths() -> list[tuple[re.Pattern[str], str]]:
    paths = [one.path for declared in operations.all_operations() if declared.coalesces for one in declared.routes]
    return [(re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path)), path) for path in paths]


def _coalescing(path: str) -> ResolverMatch | None:
    """The view of a path whose calls may share a transaction."""
    for pattern, template in _coalescing_paths():
        if found := pattern.fullmatch(path):
            known = _kept_match(template)
            return ResolverMatch(known.func, (), found.groupdict(), url_name=known.url_name, route=known.route)
    return None


@lru_cache(maxsize=4096)
def _kept_match(path: str) -> ResolverMatch:
    """The view of a path: to find it among all patterns, one by one, takes longer than most views do."""
    match = resolve(path)
    match.tried = None  # a list of all patterns before it, 12 KB a path
    return match
