"""Routes on which a request may wait: native async, so that nothing is held meanwhile."""

import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from pydantic import BaseModel
from rest_framework.exceptions import APIException
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import operations
from apps.core.api.views import OperationView, from_body, from_url
from apps.core.errors import DomainError, Invalid, pointer_to
from apps.core.http import authorize, renewed
from apps.core.operations import Operation, Reply, Route, Streams
from apps.core.schemas import parse, parse_strings
from apps.core.threads import in_thread
from apps.core.waiting import Wait, check_place

logger = logging.getLogger(__name__)

_EVENT_STREAM = "text/event-stream"
_RESUMES = "Last-Event-ID"


class WhateverIsAccepted(DefaultContentNegotiation):
    """Refuses no `Accept` header: a stream's client accepts events, and hears of a refusal in JSON."""

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        first = next(iter(renderers))
        return first, str(first.media_type)


class WaitingView(OperationView):
    """An operation that waits, or streams. What comes before it is DRF's: see :func:`apps.core.http.authorize`."""

    at_once: ClassVar[Callable[..., HttpResponseBase]]
    """The synchronous view of the same operations, for requests that don't wait."""

    view_is_async = True
    content_negotiation_class = WhateverIsAccepted

    async def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:  # type: ignore[override]  # DRF's is sync
        self.args, self.kwargs, self.headers = args, kwargs, self.default_response_headers
        self.request = self.initialize_request(request, *args, **kwargs)
        try:
            answer: Any = await self._answered(request)
        except Exception as exc:  # noqa: BLE001  # DRF's handler raises what it does not know
            answer = self.handle_exception(exc)
        self.response = self.finalize_response(self.request, answer, *args, **kwargs)
        if isinstance(self.response, Response):
            self.response.render()
        return self.response

    async def _answered(self, request: HttpRequest) -> HttpResponseBase:
        method = "GET" if request.method == "HEAD" else request.method or ""
        if method not in self.declared:
            return await in_thread(self._otherwise)
        declared, route = self.declared[method]
        caller = await authorize(self, self.request, declared)
        streams = declared.streams
        try:
            given = await self._given(declared, method)
            if streams:
                await in_thread(partial(operations.begin, declared, caller, given))
        except Invalid as refusal:
            raise self._as_sent(declared, refusal) from refusal
        patience = declared.patience(given)
        if request.method == "HEAD" and streams:
            return HttpResponse(content_type=_EVENT_STREAM)
        if declared.waits is None or request.method == "HEAD" or not (patience or streams):
            return _rendered(await in_thread(partial(operations.call, declared, caller, given)), route)
        check_place(caller)
        wait = Wait(declared.waits, caller, given, partial(self._look, request, declared))
        return _stream(wait, streams) if streams else _rendered(await _answer(wait, patience), route)

    async def _given(self, declared: Operation, method: str) -> BaseModel:
        if method == "GET":
            query: str = self.request.META["QUERY_STRING"]
            return parse_strings(declared.input, from_url(declared, query, self.kwargs | self._resumed(declared)))
        # Reads the body, which a thread may have to wait for.
        return parse(declared.input, await in_thread(partial(from_body, declared, self.request, self.kwargs)))

    def _otherwise(self) -> HttpResponseBase:
        """Any other method, as DRF does it."""
        self.initial(self.request)
        handler = self.options if self.request.method == "OPTIONS" else self.http_method_not_allowed
        return handler(self.request)

    def _resumed(self, declared: Operation) -> dict[str, str]:
        """Where a stream goes on: what its client says that it has seen stands over the address, which never changes."""
        last = self.request.headers.get(_RESUMES)
        return {declared.streams.resumes: last} if declared.streams and last else {}

    def _as_sent(self, declared: Operation, refusal: Invalid) -> Invalid:
        """The refusal, with its pointer to the header where that gave what is refused."""
        names = {pointer_to(name): pointer_to(_RESUMES) for name in self._resumed(declared)}
        errors = [replace(one, pointer=names.get(one.pointer, one.pointer)) for one in refusal.errors]
        detail = refusal.detail
        for member, header in names.items():
            detail = detail.replace(f"{member}:", f"{header}:")
        return type(refusal)(detail, errors=errors, **refusal.extra)

    async def _look(self, request: HttpRequest, declared: Operation, given: BaseModel) -> Reply:
        return await in_thread(lambda: operations.call(declared, renewed(self, request), given))


async def _answer(wait: Wait, patience: float) -> Reply:
    async with aclosing(wait.answer(patience)) as answers:
        return [reply async for reply in answers if isinstance(reply, Reply)][-1]


def _rendered(reply: Reply, route: Route) -> Response:
    body = reply.output.model_dump(mode="json") if reply.output is not None else None
    return Response(body, status=reply.status or route.status)


def _stream(wait: Wait, streams: Streams) -> StreamingHttpResponse:
    return StreamingHttpResponse(
        _events(wait, streams),
        content_type=_EVENT_STREAM,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(wait: Wait, streams: Streams) -> AsyncGenerator[bytes, None]:
    async with aclosing(wait.events(streams)) as events:
        try:
            async for event in events:
                yield event
        except (DomainError, APIException) as refusal:
            # The status is long sent. Whoever comes again hears the refusal itself.
            logger.info("stream_ended", extra={"reason": str(refusal)})
