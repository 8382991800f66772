"""What the logs leave out: what comes for ever, so that an idle product writes next to nothing; and stored text."""

import logging
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from typing import Any, Final

import psycopg
import structlog

_ROUTINE: Final = ("/livez", "/readyz", "/metrics", "/heartbeat")
_REQUESTS: Final = frozenset({"request_started", "request_finished"})


def drop_routine(_logger: object, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Let requests pass unless they come for ever by the clock and were served: probes, scrapes and heartbeats.

    The first processor of all, so that nothing is done for what is left out.

    :raises structlog.DropEvent: to leave an event out.
    """
    if level == "info" and event.get("event") in _REQUESTS and is_routine(str(event.get("request", ""))):
        raise structlog.DropEvent
    return event


def is_routine(request: str) -> bool:
    return request.partition(" ")[2].partition("?")[0].endswith(_ROUTINE)


class Formatter(structlog.stdlib.ProcessorFormatter):
    """One JSON object a line. What structlog's processors have been through is written as it is."""

    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.msg, dict) and "event" in record.msg:
            return str(_json(None, "", record.msg))
        return super().format(record)


_json: Final = structlog.processors.JSONRenderer()


def tell_exception(_logger: object, _level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Write an exception out, without what the database says of the row or the value that it refused."""
    raised = event.pop("exc_info", None)
    exc = raised[1] if isinstance(raised, tuple) else raised if isinstance(raised, BaseException) else None
    if raised is True:
        exc = sys.exc_info()[1]
    if exc is None:
        return event
    event["exception"] = "".join(traceback.format_exception(exc)).rstrip()
    for told, kept in _cut(exc):
        for name in ("exception", "event"):
            event[name] = str(event.get(name, "")).replace(told, kept).replace(repr(told), repr(kept))
    return event


def _cut(exc: BaseException | None) -> Iterator[tuple[str, str]]:
    """What an exception and those behind it say that came from the database, and what may be told of it."""
    seen = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        if isinstance(exc, psycopg.Error):
            state = exc.sqlstate or ""
            # Of class 22, data exceptions, even the first line quotes.
            kept = f"({state})" if state.startswith("22") else str(exc).partition("\n")[0]
            yield str(exc), kept
        exc = exc.__cause__ or exc.__context__
