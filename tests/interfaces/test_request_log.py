"""What the log says of requests: who asked; and nothing of those that come for ever by the clock and were served."""

from typing import Any

import pytest
import structlog
from django.http import HttpResponse
from django.test import RequestFactory

from config.logs import drop_routine
from config.request_log import RequestLog


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (0, None, "192.0.2.7"),
        (0, "198.51.100.1", "192.0.2.7"),
        (1, "203.0.113.9, 198.51.100.1", "198.51.100.1"),
        (2, "203.0.113.9, 198.51.100.1", "203.0.113.9"),
        (2, "198.51.100.1", "192.0.2.7"),
        (1, None, "192.0.2.7"),
    ],
)
def test_the_address_in_the_log_is_believed_from_as_many_proxies_as_there_are(
    settings: Any, proxies: int, forwarded: str | None, address: str
) -> None:
    settings.AXES_IPWARE_PROXY_COUNT = proxies
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
def test_what_comes_for_ever_and_was_served_is_not_told(
    level: str, event: str, request_line: str, is_told: bool
) -> None:
    told = {"event": event, "request": request_line}
    if is_told:
        assert drop_routine(None, level, told) is told
    else:
        with pytest.raises(structlog.DropEvent):
            drop_routine(None, level, told)
