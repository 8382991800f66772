"""The call of a worker over MCP: its answer, and each way to fail."""

import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pytest_django import Settings

from apps.core.outbound import ForbiddenEndpoint
from apps.executions import calls
from apps.executions.calls import Called, Target
from tests.executions.making import refused
from tests.executions.workers import WorkerServer
from tests.workers.servers import make_tool, serving


def call(
    endpoint: str,
    tool_name: str,
    params: dict[str, Any],
    *,
    seconds: float = 10,
    on_progress: Callable[[float | None, str | None], None] | None = None,
    canceled: Callable[[], bool] | None = None,
) -> Called:
    target = Target(
        worker_id="texter",
        tool_name=tool_name,
        endpoint=endpoint,
        input_schema={},
        deadline=timedelta(seconds=seconds),
        max_params_bytes=100_000,
        repeatable=True,
        runtime="fast",
        cost=Decimal(0),
    )
    return calls.call(
        target=target, params=params, deadline=target.deadline, on_progress=on_progress, canceled=canceled
    )


def test_call_returns_the_structured_answer(server: WorkerServer) -> None:
    answer = call(server.endpoint, "echo", {"text": "hello"})

    assert answer.payload == {"text": "hello", "length": 5, "items": [1, 2, 3]}
    assert server.calls["echo"] == 1


def test_progress_arrives_while_the_tool_runs(server: WorkerServer) -> None:
    heard: list[tuple[float | None, str | None]] = []

    def listen(percent: float | None, text: str | None) -> None:
        heard.append((percent, text))
        if percent == 100:
            server.gate.set()

    call(server.endpoint, "count_to", {"number": 4, "until_told": True}, on_progress=listen)

    assert heard == [(25.0, "at 1"), (50.0, "at 2"), (75.0, "at 3"), (100.0, "at 4")]


def test_summary_is_cut_to_its_limit(server: WorkerServer) -> None:
    assert call(server.endpoint, "sum_up", {"size": 20_000}).summary == "é" * (16 * 1024 // 2)


@pytest.mark.parametrize(
    ("tool", "params", "failure"),
    [
        ("hold", {"text": "x"}, ("worker_timed_out", "within 0.5 s", True)),
        ("break_down", {}, ("worker_refused", "out of paper", False)),
        ("no_such_tool", {}, ("worker_refused", "no_such_tool", False)),
        ("crash", {}, ("worker_broke", "does not say why", True)),
        ("crash_and_tell", {}, ("worker_broke", "SystemError: the parser is confused", True)),
        ("say", {"text": r'{"text": "a\u0000b"}'}, ("worker_refused", "NUL", False)),
        ("say", {"text": r'{"text": ["\ud800"]}'}, ("worker_refused", "surrogate", False)),
        ("say", {"text": '{"number": NaN}'}, ("worker_refused", "finite", False)),
        ("say", {"text": '{"number": 18446744073709551616}'}, ("worker_refused", "64 bits", False)),
        ("say", {"text": '{"list":' + "[" * 40 + "]" * 40 + "}"}, ("worker_refused", "32 levels", False)),
        ("echo", {"text": "a\0b"}, ("worker_refused", "'/text' holds a NUL", False)),
    ],
)
def test_failure_has_its_code_and_says_whether_to_retry(
    server: WorkerServer, tool: str, params: dict[str, Any], failure: tuple[str, str, bool]
) -> None:
    code, words, retryable = failure
    with refused(code, match=words) as refusal:
        call(server.endpoint, tool, params, seconds=0.5 if tool == "hold" else 10)

    assert (refusal.value.retryable, refusal.value.reached) == (retryable, True)


def test_refused_connection_has_not_reached_the_tool() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    with refused("worker_unreachable") as refusal:
        call(f"http://127.0.0.1:{port}/mcp", "echo", {"text": "x"})

    assert (refusal.value.retryable, refusal.value.reached) == (True, False)


def test_broken_connection_may_have_reached_the_tool() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.recv(65_536)
            connection.close()

        hanging = threading.Thread(target=hang_up)
        hanging.start()
        with refused("worker_disconnected") as refusal:
            call(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", "echo", {"text": "x"})
        hanging.join()

    assert refusal.value.reached


def test_words_of_a_worker_are_cleaned_and_cut(server: WorkerServer) -> None:
    heard: list[tuple[float | None, str | None]] = []
    with refused("worker_refused") as refusal:
        call(server.endpoint, "complain", {"text": "paper\0jam " + "x" * 50_000})
    with refused("worker_refused", match="NUL"):
        call(
            server.endpoint,
            "say",
            {"text": "paper\0jam " + "x" * 5_000},
            on_progress=lambda percent, message: heard.append((percent, message)),
        )

    assert "paper\ufffdjam" in refusal.value.detail
    assert "\0" not in refusal.value.detail
    assert len(refusal.value.detail) < 2_100
    ((percent, message),) = heard
    assert (percent, (message or "")[:12], len(message or "")) == (100.0, "paper\ufffdjam xx", 2_000)


def test_large_answer_is_not_read_to_its_end(server: WorkerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_ANSWER_BYTES", 50_000)

    with refused("answer_too_large"):
        call(server.endpoint, "flood", {"size": 300_000})


ENDLESS = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}


@pytest.mark.parametrize(
    "schema", [ENDLESS, {"type": "object", "required": ["more"]}, {"$ref": "http://127.0.0.1:9/schema"}]
)
def test_answer_is_not_checked_against_the_endpoints_schema(schema: dict[str, Any]) -> None:
    with serving() as hostile:
        hostile.tools = [make_tool(output_schema=schema)]
        hostile.structured = {"text": "a" * 28 + "!"}

        answer = call(hostile.endpoint, "shout", {"text": "x"})

    assert answer.payload == hostile.structured
    assert hostile.asked[-1] == "shout"


def test_redirect_is_not_followed(server: WorkerServer) -> None:
    with refused("worker_redirected"):
        call(server.redirecting, "echo", {"text": "x"})

    assert not server.calls


def test_canceled_call_is_given_up(server: WorkerServer) -> None:
    with refused("call_canceled"):
        call(server.endpoint, "hold", {"text": "x"}, canceled=server.entered.is_set)

    assert server.calls["hold"] == 1


@pytest.mark.parametrize(
    "endpoint", ["http://10.0.0.8/mcp", "http://169.254.169.254/latest", "ftp://127.0.0.1/x", "https://u:p@127.0.0.1/"]
)
def test_forbidden_address_is_not_called(endpoint: str) -> None:
    with pytest.raises(ForbiddenEndpoint):
        call(endpoint, "echo", {"text": "x"})


def test_loopback_is_called_only_if_the_deployment_allows_it(server: WorkerServer, settings: Settings) -> None:
    settings.ALLOW_LOOPBACK = False

    with pytest.raises(ForbiddenEndpoint):
        call(server.endpoint, "echo", {"text": "x"})

    assert not server.calls


def test_connection_goes_to_the_checked_address(server: WorkerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []
    real = socket.getaddrinfo

    def once(host: Any, *rest: Any, **options: Any) -> Any:
        if host == "worker.test":
            looked_up.append(host)
            if len(looked_up) > 1:
                raise OSError("a second look-up could lead elsewhere")
            host = "127.0.0.1"
        return real(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", once)

    # The server of the test accepts only its loopback name.
    with refused("worker_refused"):
        call(server.endpoint.replace("127.0.0.1", "worker.test"), "echo", {"text": "x"})

    assert looked_up == ["worker.test"]
