"""Operations over HTTP: one view per path, which parses, makes one call and renders.

DRF contributes what is around a call (authentication classes, exceptions, `OPTIONS`, OpenAPI); requests do not go
through its parsers and renderers, which cost several times what most operations do.
"""

import contextvars
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import cache, partial
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl

from asgiref.sync import async_to_sync
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import ResolverMatch, URLPattern, path
from pydantic import BaseModel
from rest_framework.exceptions import (
    APIException,
    MethodNotAllowed,
    NotAcceptable,
    NotAuthenticated,
    UnsupportedMediaType,
)
from rest_framework.views import APIView

from apps.core import operations, strict_json
from apps.core.errors import DomainError, FieldError, Invalid, Malformed, TooLarge, pointer_to
from apps.core.notifications import MustWait, Wait, check_place, in_thread
from apps.core.operations import Credential, Operation, Reply, Route
from apps.core.schemas import parse, parse_strings, parse_text

logger = logging.getLogger(__name__)

_JSON: Final = "application/json"
_JSON_ACCEPTS: Final = frozenset({"*/*", "application/*", _JSON})
_EVENT_STREAM: Final = "text/event-stream"
_WITHOUT_BODY: Final = frozenset({"GET", "DELETE"})
_MOST_PARAMETERS: Final = 1000
ON_LOOP: Final = "gatehouse.on_loop"
"""In the scope of a request whose view, which this is, is called by the event loop itself, and so must not block."""


class PendingResponse(HttpResponse):
    """A response whose status and content come later, from a coroutine.

    `config.handlers` awaits it, outside any thread. Django's own handlers call `render`, which blocks.
    """

    def __init__(self, answer: Callable[[], Awaitable[HttpResponse]]) -> None:
        super().__init__()
        del self["Content-Type"]
        self.answer = answer
        self.is_pending = True
        self.when_ready: list[Callable[[], None]] = []
        self.own_context = contextvars.copy_context()

    async def finish(self) -> None:
        """Become the answer, and keep the headers that middleware has set. An answer that waits is to be finished too."""
        answer = await self.answer()
        if isinstance(answer, PendingResponse):
            self.answer = answer.answer
            return
        self.status_code, self.content = answer.status_code, answer.content
        self.headers = {**self.headers, **answer.headers, "Content-Length": str(len(answer.content))}  # type: ignore[assignment]  # any mapping does
        self.is_pending = False
        for listener in self.when_ready:
            listener()

    def render(self) -> "PendingResponse":
        async_to_sync(self.finish)()
        return self


class TokenView(APIView):
    """A view for clients with a token. What it raises is answered as a problem document."""

    def dispatch(self, request: HttpRequest, *args: Any, **parameters: str) -> HttpResponseBase:
        if request.method == "OPTIONS":
            return super().dispatch(request, *args, **parameters)
        if request.method not in self.allowed_methods:
            return self.handle_exception(MethodNotAllowed(request.method or ""))
        try:
            return self.answer(request, **parameters)
        except Exception as exc:  # noqa: BLE001  # DRF's handler raises what it does not know
            return self.handle_exception(exc)

    def answer(self, request: HttpRequest, **parameters: str) -> HttpResponseBase:
        raise NotImplementedError

    def credential(self, request: HttpRequest) -> Credential:
        """What the request presents.

        :raises NotAuthenticated: if that is nothing.
        """
        for authentication in self.get_authenticators():
            presented: Credential | None = authentication.presented(request)  # type: ignore[attr-defined]  # all of ours have it
            if presented is not None:
                return presented
        raise NotAuthenticated


class OperationView(TokenView):
    """All operations of one path."""

    declared: ClassVar[Mapping[str, tuple[Operation, Route]]] = {}
    """By HTTP method."""

    @property
    def manner(self) -> str:
        return next(iter(self.declared.values()))[1].manner

    def answer(self, request: HttpRequest, **parameters: str) -> HttpResponseBase:
        # A HEAD is answered as the GET whose headers it asks for.
        declared, route = self.declared["GET" if request.method == "HEAD" else request.method or ""]
        # A stream's client accepts events, and reads of a refusal in JSON.
        if declared.waits is None and not _accepts_json(request.META.get("HTTP_ACCEPT", "*/*")):
            raise NotAcceptable

        def read(caller: operations.BaseCaller) -> BaseModel:
            request.user = caller  # type: ignore[assignment]  # for the log
            given = _given(request, declared, route, parameters)
            if declared.waits and (declared.streams or (declared.patience(given) and request.method != "HEAD")):
                raise MustWait(declared, Wait(declared.waits, caller, given, partial(_look, declared, credential)))
            return given

        credential = self.credential(request)
        if declared.coalesces and on_loop(request):
            # Read now: its stream ends with this call.
            body_within(request, route.max_body)
            ask = partial(operations.answer_awaited, declared, declared.coalesces, credential, read)
            return PendingResponse(partial(self._awaited, ask, declared, route))
        try:
            return _rendered(operations.answer(declared, credential, read), route)
        except MustWait as asks:
            wait = asks.wait
        if not declared.streams:
            return PendingResponse(partial(self._waited, wait, declared, route))
        operations.begin(declared, wait.caller, wait.given)
        if request.method == "HEAD":
            return HttpResponse(content_type=_EVENT_STREAM)
        check_place(wait.caller)
        return StreamingHttpResponse(
            _events(wait, declared.streams),
            content_type=_EVENT_STREAM,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _awaited(self, ask: Callable[[], Awaitable[Reply]], declared: Operation, route: Route) -> HttpResponse:
        try:
            return _rendered(await ask(), route)
        except MustWait as asks:
            return PendingResponse(partial(self._waited, asks.wait, declared, route))
        except Exception as exc:  # noqa: BLE001  # DRF's handler raises what it does not know
            return self.handle_exception(exc)

    async def _waited(self, wait: Wait, declared: Operation, route: Route) -> HttpResponse:
        try:
            check_place(wait.caller)
            async with aclosing(wait.answer(declared.patience(wait.given))) as answers:
                return _rendered([reply async for reply in answers if isinstance(reply, Reply)][-1], route)
        except (DomainError, APIException) as refusal:
            return self.handle_exception(refusal)


def on_loop(request: HttpRequest) -> ResolverMatch | None:
    """The view of a request that the event loop calls; None in a thread."""
    match: ResolverMatch | None = getattr(request, "scope", {}).get(ON_LOOP)
    return match


def _accepts_json(header: str) -> bool:
    # By type alone: a client that asks for JSON with parameters takes it without.
    return any(part.partition(";")[0].strip().lower() in _JSON_ACCEPTS for part in header.split(","))


async def _look(declared: Operation, credential: Credential, given: BaseModel) -> Reply:
    if declared.coalesces:
        return await operations.answer_awaited(declared, declared.coalesces, credential, lambda _: given)
    return await in_thread(lambda: operations.answer(declared, credential, lambda _: given))


async def _events(wait: Wait, streams: operations.Streams) -> AsyncGenerator[bytes, None]:
    async with aclosing(wait.events(streams)) as events:
        try:
            async for event in events:
                yield event
        except (DomainError, APIException) as refusal:
            # The status is long sent. Whoever comes again reads the refusal itself.
            logger.info("stream_ended", extra={"reason": str(refusal)})


def _rendered(reply: Reply, route: Route) -> HttpResponse:
    if reply.output is None:
        bare = HttpResponse(status=reply.status)
        del bare["Content-Type"]
        return bare
    return HttpResponse(reply.output.model_dump_json(), content_type=_JSON, status=reply.status or route.status)


def _given(request: HttpRequest, declared: Operation, route: Route, parameters: Mapping[str, str]) -> BaseModel:
    """The input in an address or a body. A path's parameters stand over the body's members; a missing body is empty."""
    if route.method in _WITHOUT_BODY:
        given = from_url(declared, request.META["QUERY_STRING"], {**parameters, **_resumed(request, declared)})
        return parse_strings(declared.input, given)
    body = body_within(request, route.max_body)
    if body and request.content_type != _JSON:
        raise UnsupportedMediaType(request.content_type or "")
    document = strict_json.loads(body) if body else {}
    if not isinstance(document, dict):
        raise Invalid("The body must be a JSON object.")
    if body and not parameters:
        return parse_text(declared.input, body)
    return parse(declared.input, {**document, **parameters})


def body_within(request: HttpRequest, limit: int) -> bytes:
    """A request's body.

    :raises TooLarge: if it is over so many bytes.
    """
    try:
        body = request.body  # read from the stream once and kept, bounded by the setting
    except RequestDataTooBig as exc:
        raise TooLarge(f"The body is over {limit} bytes.", code="body_too_large") from exc
    if len(body) > limit:
        raise TooLarge(f"The body is over {limit} bytes.", code="body_too_large")
    return body


def _resumed(request: HttpRequest, declared: Operation) -> dict[str, str]:
    """Where a stream goes on: the header of a client that comes again stands over the address."""
    if declared.streams is None or not (last := request.headers.get("Last-Event-ID")):
        return {}
    return {declared.streams.resumes: last}


def from_url(declared: Operation, query: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Query and path as one mapping; the members of a list repeat its name, and nothing else may.

    :raises Malformed: if the query can't be read as text.
    :raises Invalid: if a parameter comes more than once.
    """
    try:
        # Django's own reading puts another character in the place of bytes that are none.
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS)
    except UnicodeDecodeError as exc:
        raise Malformed("The query is not UTF-8.") from exc
    except ValueError as exc:
        raise Malformed(f"The query has more than {_MOST_PARAMETERS} parameters.") from exc
    given: dict[str, Any] = {}
    lists = _lists(declared.input)
    for name, value in pairs:
        if name in lists:
            given.setdefault(name, []).append(value)
        elif name in given:
            pointer = pointer_to(name)
            raise Invalid(f"{pointer}: Given more than once.", errors=[FieldError(pointer, "Given more than once.")])
        else:
            given[name] = value
    return {**given, **parameters}


@cache
def _lists(model: type[BaseModel]) -> frozenset[str]:
    properties = model.model_json_schema().get("properties", {})
    return frozenset(
        name
        for name, schema in properties.items()
        if any(one.get("type") == "array" for one in [schema, *schema.get("anyOf", [])])
    )


def patterns() -> list[URLPattern]:
    """Every declared route. The longest literal paths stand first, so that parameters never shadow them."""
    by_path: dict[str, dict[str, tuple[Operation, Route]]] = {}
    for declared in operations.all_operations():
        for route in declared.routes:
            by_path.setdefault(route.path, {})[route.method] = (declared, route)
    return [
        _pattern(route_path, by_path[route_path])
        for route_path in sorted(by_path, key=lambda route_path: (route_path.count("{"), route_path))
    ]


def _pattern(route_path: str, methods: dict[str, tuple[Operation, Route]]) -> URLPattern:
    members: dict[str, Any] = {"declared": methods, "__doc__": None}
    # DRF and OpenAPI take the names of methods for what the view answers.
    members |= {method.lower(): OperationView.answer for method in methods}
    if "GET" in methods:
        members["head"] = OperationView.answer
    names = [declared.name for declared, _ in methods.values()]
    view: type[OperationView] = type(
        "".join(name.title().replace("_", "") for name in names) + "View", (OperationView,), members
    )
    django_path = route_path.lstrip("/").replace("{", "<str:").replace("}", ">")
    return path(django_path, view.as_view(), name="-".join(names))
