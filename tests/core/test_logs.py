"""The logs: who asked, no line for what is served by the clock, and no stored text."""

import json
import logging
from typing import Any

import pytest
import structlog
from django.db import DataError, IntegrityError, transaction
from django.http import HttpResponse
from django.test import Client, RequestFactory

from apps.core.sql import execute
from config.logs import drop_routine, tell_exception
from config.request_log import RequestLog


@pytest.mark.parametrize(
    ("asked", "events"),
    [
        ("/livez", []),
        ("/livez?from=probe", []),
        ("/api/schema", ["request_finished"]),
        ("/nothing/heartbeat", ["request_finished"]),
    ],
)
def test_probes_and_heartbeats_are_logged_only_if_refused(
    asked: str, events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        Client().get(asked)
    logged = [record.msg for record in caplog.records if record.name == "django_structlog.middlewares.request"]
    assert [event["event"] for event in logged if isinstance(event, dict)] == events


@pytest.mark.parametrize("name", ["celery.beat", "celery.worker.strategy", "celery.worker.request", "celery.app.trace"])
def test_celery_logs_no_line_for_a_served_message(name: str) -> None:
    logger = logging.getLogger(name)
    assert not logger.isEnabledFor(logging.INFO)
    assert logger.isEnabledFor(logging.WARNING)


def test_failure_is_logged_with_its_traceback() -> None:
    (handler,) = logging.getLogger().handlers[:1]
    with pytest.raises(ValueError, match="one") as failure:
        int("one")
    failed = (failure.type, failure.value, failure.tb)

    told = json.loads(handler.format(logging.LogRecord("any", logging.ERROR, __file__, 1, "it failed", (), failed)))

    assert 'int("one")' in told["exception"]
    assert "ValueError" in told["exception"]


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (0, None, "192.0.2.7"),
        (0, "198.51.100.1", "192.0.2.7"),
        (1, "203.0.113.9, 198.51.100.1", "198.51.100.1"),
        (2, "203.0.113.9, 198.51.100.1", "203.0.113.9"),
        (2, "198.51.100.1", "192.0.2.7"),
        (1, None, "192.0.2.7"),
        (1, "203.0.113.9, unknown", "192.0.2.7"),
    ],
)
def test_logged_address_is_taken_from_trusted_proxies(
    settings: Any, proxies: int, forwarded: str | None, address: str
) -> None:
    settings.PROXIES = proxies
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    seen = []

    def view(_request: object) -> HttpResponse:
        seen.append(structlog.contextvars.get_contextvars()["ip"])
        return HttpResponse()

    RequestLog(view)(RequestFactory().get("/livez", headers=headers, REMOTE_ADDR="192.0.2.7"))

    assert seen == [address]


@pytest.mark.parametrize(
    ("level", "event", "request_line", "is_told"),
    [
        ("info", "request_finished", "POST /workers/x/heartbeat", False),
        ("info", "request_started", "GET /readyz?verbose=1", False),
        ("warning", "request_finished", "POST /workers/x/heartbeat", True),
        ("info", "request_finished", "POST /workers/register", True),
        ("info", "task_finished", "POST /workers/x/heartbeat", True),
    ],
)
def test_served_routine_requests_are_not_logged(level: str, event: str, request_line: str, is_told: bool) -> None:
    told = {"event": event, "request": request_line}
    if is_told:
        assert drop_routine(None, level, told) is told
    else:
        with pytest.raises(structlog.DropEvent):
            drop_routine(None, level, told)


def test_query_string_is_not_logged() -> None:
    request = RequestFactory().get("/api/v1/memory/recall?q=Lives+in+zanzibar&subject=USER:alice")
    assert RequestLog.format_request(request) == "GET /api/v1/memory/recall"


SECRET = "zanzibar-quokka"


def refused(by: type[Exception], statement: str, *given: Any) -> Exception:
    with pytest.raises(by) as caught, transaction.atomic():
        execute(statement, given)
    assert SECRET in str(caught.value)
    return caught.value


@pytest.mark.parametrize("is_handled", [True, False])
def test_logged_exception_omits_the_refused_row(db: None, is_handled: bool) -> None:
    # Where there is no wall between tenants the database tells the row.
    execute("set local role none")
    execute("create temporary table kept (word text constraint said check (word is null)) on commit drop")
    exc = refused(IntegrityError, "insert into kept values (%s)", f"{SECRET}\n\nand {SECRET}")
    event: dict[str, Any] = {"event": f"it raised {exc.__cause__!r}", "exc_info": (type(exc), exc, exc.__traceback__)}
    try:
        raise exc
    except IntegrityError:
        told = tell_exception(None, "error", {**event, "exc_info": True} if is_handled else event)
    assert SECRET not in json.dumps(told)
    assert 'check constraint "said"' in told["exception"]
    assert "Traceback" in told["exception"]


def test_logged_exception_omits_the_refused_value(db: None) -> None:
    exc = refused(DataError, "select %s::int", SECRET)
    told = tell_exception(None, "error", {"event": "x", "exc_info": exc})
    assert (SECRET in json.dumps(told), "22P02" in told["exception"]) == (False, True)
