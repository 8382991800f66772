"""How requests come from the event loop to the views of operations, with what every answer carries."""

import asyncio
from typing import Any

import pytest

from config.asgi import application
from config.handlers import OperationHandler, WaitingHandler
from tests.asgi import ask


def _ask(
    path: str, *, host: str = "localhost", method: str = "GET", query: str = "", accept: str = "*/*"
) -> tuple[int, dict[str, str], str]:
    """The status, the headers, the body."""
    said: list[Any] = []

    async def say(message: Any) -> None:
        said.append(message)

    asyncio.run(ask(path, say, method=method, host=host, query=query, accept=accept))
    headers = {name.decode().lower(): value.decode() for name, value in said[0]["headers"]}
    return said[0]["status"], headers, b"".join(message.get("body", b"") for message in said[1:]).decode()


@pytest.mark.parametrize("path", ["/api/v1/whoami", "/api/v1/nothing/of/the/kind", "/workers/nobody/tools"])
def test_every_answer_of_an_operation_carries_its_length_and_the_security_headers(path: str) -> None:
    status, headers, body = _ask(path)

    assert status in {401, 403, 404}
    assert headers["content-length"] == str(len(body.encode()))
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "set-cookie" not in headers


def test_an_unknown_address_among_operations_is_answered_as_everywhere() -> None:
    status, _, body = _ask("/api/v1/nowhere")

    assert status == 404
    assert '"code": "not_found"' in body


def test_an_operation_refuses_a_host_that_is_not_ours() -> None:
    status, _, body = _ask("/api/v1/whoami", host="elsewhere.example")

    assert status == 400
    assert '"code": "unknown_host"' in body


def test_an_operations_request_stands_in_the_log_under_the_id_that_a_refusal_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    _, _, body = _ask("/api/v1/nowhere")

    events = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    assert {event["event"] for event in events} >= {"request_started", "request_finished"}
    assert any(f'"trace_id": "{event.get("request_id")}"' in body for event in events)


def test_pages_go_through_all_middleware() -> None:
    status, headers, _ = _ask("/admin/login/")

    assert status == 200
    assert "csrftoken" in headers["set-cookie"]


@pytest.mark.parametrize(
    ("method", "query", "handler"),
    [
        ("GET", "", OperationHandler),
        ("GET", "limit=10", OperationHandler),
        ("HEAD", "after=3", OperationHandler),
        ("GET", "wait=0", WaitingHandler),
        ("GET", "limit=1&wait=0", WaitingHandler),
        ("GET", "w%61it=0", WaitingHandler),
    ],
)
def test_who_does_not_ask_to_wait_is_answered_at_once_and_alike(
    monkeypatch: pytest.MonkeyPatch, method: str, query: str, handler: type[Any]
) -> None:
    came: list[type[Any]] = []
    for one in (OperationHandler, WaitingHandler):

        async def called(self: Any, scope: Any, receive: Any, send: Any, *, inner: Any = one.__call__) -> None:
            came.append(type(self))
            await inner(self, scope, receive, send)

        monkeypatch.setattr(one, "__call__", called)
    status, headers, body = _ask("/api/v1/inbox", method=method, query=query, accept="text/event-stream")

    assert came == [handler]
    assert (status, headers["content-type"]) == (401, "application/problem+json")
    assert '"code":"not_authenticated"' in body


def test_a_stream_never_is() -> None:
    assert "/api/v1/inbox/stream" not in application._at_once
