"""How requests come to views: each by the handler that holds the least for it, and does the least."""

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import IO, Any, Final

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from csp.middleware import CSPMiddleware
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.exception import convert_exception_to_response
from django.core.signals import request_started
from django.db import close_old_connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.common import CommonMiddleware
from django.middleware.security import SecurityMiddleware
from django.template.response import SimpleTemplateResponse
from django.urls import ResolverMatch, resolve, set_script_prefix, set_urlconf

from apps.core import operations
from config.request_log import RequestLog

# Those of settings.MIDDLEWARE that concern a client with a token, the outermost first.
_MIDDLEWARE: Final = (SecurityMiddleware, CSPMiddleware, XFrameOptionsMiddleware, RequestLog)
# A client that takes nothing for so long is gone, whatever its connection says.
_STALLED_AFTER: Final = 30.0
# More than there are connections to the database: some wait for another server, and hold none.
_THREADS: Final = 64
# Longer ones are none that clients ask again and again, and would only take room.
_KEPT_PATH: Final = 200


Receive = Callable[[], Awaitable[Any]]


class Application:
    """The product's ASGI application.

    Pages go the way of a Django project, through all middleware; operations go shorter ways of their own.
    """

    def __init__(self, others: ASGIHandler, *, at_start: Callable[[], None]) -> None:
        """:param at_start: what a process does first, beside its requests."""
        self._at_start = at_start
        self._others, self._operations = others, OperationHandler()
        self._by_path: dict[str, ASGIHandler] = {"/mcp": StreamingHandler()}
        waiting = WaitingHandler()
        self._at_once = set[str]()
        for declared in operations.all_operations():
            if declared.waits:
                addresses = [route.path for route in declared.routes]
                self._by_path |= dict.fromkeys(addresses, waiting)
                if not declared.streams:
                    self._at_once.update(addresses)
        self._with_parameters = [path for path in self._by_path if "{" in path]
        self._patterns = re.compile("|".join(f"({_pattern(path)})" for path in self._with_parameters) or r"(?!)")
        paths = [route.path for declared in operations.all_operations() for route in declared.routes]
        self._roots = tuple({_root(path) for path in paths})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        path = scope.get("path", "")
        address = self._address(path)
        handler = self._by_path.get(address)
        if handler is None:
            handler = self._operations if path.startswith(self._roots) else self._others
        elif address in self._at_once:
            if scope.get("method") == "POST":
                may_wait, receive = await _body_may_wait(receive)
            else:
                may_wait = _may_wait(scope.get("query_string", b""))
            handler = handler if may_wait else self._operations
        await handler(scope, receive, send)

    def _address(self, path: str) -> str:
        """A path as it is declared, if what is declared there may wait and has parameters; else the path."""
        found = self._patterns.fullmatch(path)
        return path if found is None or found.lastindex is None else self._with_parameters[found.lastindex - 1]

    async def _live(self, receive: Receive, send: Callable[[Any], Awaitable[None]]) -> None:
        """From the server's start to its end."""
        while True:
            what = (await receive())["type"]
            if what == "lifespan.startup":
                threading.Thread(target=self._at_start, name="at-start", daemon=True).start()
            await send({"type": f"{what}.complete"})
            if what == "lifespan.shutdown":
                return


def _may_wait(text: bytes) -> bool:
    """Whether a query, or JSON, may ask to wait: it names the member, or writes in a way that is not to be read here."""
    return b"wait" in text or b"%" in text or b"\\" in text


async def _body_may_wait(receive: Receive) -> tuple[bool, Receive]:
    """Whether a body may ask to wait, from its first part; and how to receive it from its beginning."""
    first = await receive()
    left = [first]

    async def again() -> Any:
        return left.pop() if left else await receive()

    return first.get("more_body", False) or _may_wait(first.get("body", b"")), again


def _pattern(path: str) -> str:
    """What a declared path with parameters looks like."""
    return "[^/]+".join(re.escape(part) for part in re.split(r"{\w+}", path))


def _root(path: str) -> str:
    """What tells an operation's address from a page's: two parts, the literal ones (`/api/v1`, `/workers/`)."""
    return "/".join(path.split("/")[:3]).partition("{")[0]


class OperationHandler(ASGIHandler):
    """For synchronous views of clients with a token: one trip to a thread, with only what concerns them around it.

    Who could wait and does not is answered here too.

    Django's own handler changes between the loop and a thread made for the request at each middleware and signal,
    which costs several times what the view does.
    """

    def __init__(self) -> None:
        super().__init__()
        # Kept threads keep what Django makes for each thread anew.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="operation")

    def load_middleware(self, is_async: bool = False) -> None:  # noqa: FBT001, FBT002  # Django's signature
        self._chain = _chained((*_MIDDLEWARE, CommonMiddleware), _call)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        response = await asyncio.get_running_loop().run_in_executor(self._threads, self._answered, scope, body)
        await self.send_response(response, send)

    def _answered(self, scope: Any, body: IO[bytes]) -> HttpResponseBase:
        set_script_prefix(get_script_prefix(scope))
        request_started.send(sender=self.__class__, scope=scope)
        with body:
            request, refusal = self.create_request(scope, body)
            set_urlconf(None)
            response: Any = refusal if request is None else self._chain(request)
            # Sends the signal that gives the database connection back; the content stays readable.
            response.close()
        return response  # type: ignore[no-any-return]  # the chain has no types


class StreamingHandler(ASGIHandler):
    """For views whose answer may be a stream: their thread ends with the view, not with the stream."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_on(message: Any) -> None:
            try:
                async with asyncio.timeout(_STALLED_AFTER):
                    await send(message)
            except TimeoutError:
                # Django takes this for a client that went away during the answer, and closes what belongs to it.
                raise asyncio.CancelledError from None

        await self.handle(scope, receive, send_on)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        async with ThreadSensitiveContext():
            try:
                return await super().get_response_async(request)
            finally:
                await sync_to_async(close_old_connections)()


class WaitingHandler(StreamingHandler):
    """For views that wait before they answer: native async, with only async things before them."""

    def load_middleware(self, is_async: bool = False) -> None:  # noqa: FBT001, FBT002  # Django's signature
        self._chain = _chained(_MIDDLEWARE, _answer)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        set_urlconf(None)
        response: Any = await self._chain(request)
        response._resource_closers.append(request.close)  # noqa: SLF001  # as Django's own handler does
        return response  # type: ignore[no-any-return]  # the chain has no types


def _chained(middleware: tuple[Any, ...], answer: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """A view behind middleware, async if the view is."""
    handler: Callable[[HttpRequest], Any] = convert_exception_to_response(answer)
    for one in reversed(middleware):
        handler = convert_exception_to_response(one(handler))
    return handler


def _resolved(path: str) -> ResolverMatch:
    return _kept_match(path) if len(path) <= _KEPT_PATH else resolve(path)


# To find a path among all patterns, one by one, takes longer than most views do.
_kept_match: Final = lru_cache(maxsize=4096)(resolve)


def _call(request: HttpRequest) -> HttpResponseBase:
    request.resolver_match = match = _resolved(request.path_info)
    # Beside a view that waits stands one for who does not.
    view = getattr(getattr(match.func, "view_class", None), "at_once", match.func)
    response = view(request, *match.args, **match.kwargs)
    return response.render() if isinstance(response, SimpleTemplateResponse) else response


async def _answer(request: HttpRequest) -> HttpResponseBase:
    request.get_host()  # refuses a Host header that is not ours
    request.resolver_match = match = resolve(request.path_info)
    response: HttpResponseBase = await match.func(request, *match.args, **match.kwargs)
    return response
