"""The outbound call: what it brings back, and each way in which it refuses."""

import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from apps.core.outbound import ForbiddenEndpoint
from apps.executions.errors import (
    AnswerTooLarge,
    CallCanceled,
    PayloadTooLarge,
    WorkerBroke,
    WorkerDisconnected,
    WorkerRedirected,
    WorkerRefused,
    WorkerTimedOut,
    WorkerUnreachable,
)
from apps.executions.mcp_client import Answer, call_tool
from tests.executions.workers import WorkerServer
from tests.workers.servers import make_tool, serving


def call(
    endpoint: str,
    tool_name: str,
    params: dict[str, Any],
    *,
    seconds: float = 10,
    max_answer_bytes: int = 1_000_000,
    max_params_bytes: int = 100_000,
    on_progress: Callable[[float | None, str | None], None] | None = None,
    canceled: Callable[[], bool] | None = None,
) -> Answer:
    return call_tool(
        endpoint=endpoint,
        tool_name=tool_name,
        params=params,
        deadline=timedelta(seconds=seconds),
        max_params_bytes=max_params_bytes,
        max_answer_bytes=max_answer_bytes,
        on_progress=on_progress,
        canceled=canceled,
    )


def test_a_call_brings_back_the_structured_answer(server: WorkerServer) -> None:
    answer = call(server.endpoint, "echo", {"text": "hello"})

    assert answer.payload == {"text": "hello", "length": 5, "items": [1, 2, 3]}
    assert server.calls["echo"] == 1


def test_progress_arrives_while_the_tool_runs(server: WorkerServer) -> None:
    told: list[tuple[float | None, str | None]] = []

    def listen(percent: float | None, text: str | None) -> None:
        told.append((percent, text))
        if percent == 100:
            server.gate.set()

    call(server.endpoint, "count_to", {"number": 4, "until_told": True}, on_progress=listen)

    assert told == [(25.0, "at 1"), (50.0, "at 2"), (75.0, "at 3"), (100.0, "at 4")]


def test_a_tool_that_does_not_answer_by_the_deadline_has_timed_out(server: WorkerServer) -> None:
    with pytest.raises(WorkerTimedOut) as refusal:
        call(server.endpoint, "hold", {"text": "x"}, seconds=0.5)

    assert (refusal.value.retryable, refusal.value.reached) == (True, True)


def test_nobody_listening_is_unreachable_and_nothing_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    with pytest.raises(WorkerUnreachable) as refusal:
        call(f"http://127.0.0.1:{port}/mcp", "echo", {"text": "x"})

    assert (refusal.value.retryable, refusal.value.reached) == (True, False)


def test_a_connection_that_breaks_may_have_reached_the_tool() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.recv(65_536)
            connection.close()

        hanging = threading.Thread(target=hang_up)
        hanging.start()
        with pytest.raises(WorkerDisconnected) as refusal:
            call(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", "echo", {"text": "x"})
        hanging.join()

    assert refusal.value.reached


def test_a_tool_that_reports_an_error_has_refused_for_good(server: WorkerServer) -> None:
    with pytest.raises(WorkerRefused, match="out of paper") as refusal:
        call(server.endpoint, "break_down", {})

    assert not refusal.value.retryable


@pytest.mark.parametrize(
    ("tool", "why"), [("crash", "does not say why"), ("crash_and_tell", "SystemError: the parser is confused")]
)
def test_a_tool_that_breaks_may_be_tried_again_and_the_cause_is_told(server: WorkerServer, tool: str, why: str) -> None:
    with pytest.raises(WorkerBroke, match=why) as refusal:
        call(server.endpoint, tool, {})

    assert refusal.value.retryable


UNSTORABLE = {
    "NUL": r'{"text": "a\u0000b"}',
    "surrogate": r'{"text": ["\ud800"]}',
    "finite": '{"number": NaN}',
    "64 bits": '{"number": 18446744073709551616}',
    "32 levels": '{"list":' + "[" * 40 + "]" * 40 + "}",
}


@pytest.mark.parametrize("fault", UNSTORABLE)
def test_an_answer_that_can_not_be_stored_is_refused_by_name_and_for_good(server: WorkerServer, fault: str) -> None:
    with pytest.raises(WorkerRefused, match=fault) as refusal:
        call(server.endpoint, "say", {"text": UNSTORABLE[fault]})

    assert not refusal.value.retryable


def test_a_structured_answer_is_checked_like_a_text(server: WorkerServer) -> None:
    with pytest.raises(WorkerRefused, match="'/text' holds a NUL"):
        call(server.endpoint, "echo", {"text": "a\0b"})


def test_what_a_worker_says_of_its_failure_is_made_legible_and_bounded(server: WorkerServer) -> None:
    with pytest.raises(WorkerRefused) as refusal:
        call(server.endpoint, "complain", {"text": "paper\0jam " + "x" * 50_000})

    assert "paper\ufffdjam" in refusal.value.detail
    assert "\0" not in refusal.value.detail
    assert len(refusal.value.detail) < 2_100


def test_what_a_worker_says_of_its_progress_is_made_legible_and_bounded(server: WorkerServer) -> None:
    told: list[tuple[float | None, str | None]] = []

    def listen(percent: float | None, message: str | None) -> None:
        told.append((percent, message))

    with pytest.raises(WorkerRefused, match="NUL"):
        call(server.endpoint, "say", {"text": "paper\0jam " + "x" * 5_000}, on_progress=listen)

    ((percent, message),) = told
    assert percent == 100.0
    assert message is not None
    assert message.startswith("paper\ufffdjam x")
    assert len(message) == 2_000


def test_a_tool_that_the_worker_does_not_have_is_refused(server: WorkerServer) -> None:
    with pytest.raises(WorkerRefused):
        call(server.endpoint, "no_such_tool", {})


def test_an_answer_over_the_limit_is_not_read_to_its_end(server: WorkerServer) -> None:
    with pytest.raises(AnswerTooLarge):
        call(server.endpoint, "flood", {"size": 300_000}, max_answer_bytes=50_000)


def test_parameters_over_the_limit_are_never_sent(server: WorkerServer) -> None:
    with pytest.raises(PayloadTooLarge):
        call(server.endpoint, "echo", {"text": "x" * 200}, max_params_bytes=100)

    assert not server.calls


ENDLESS = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}


@pytest.mark.parametrize(
    "schema", [ENDLESS, {"type": "object", "required": ["more"]}, {"$ref": "http://127.0.0.1:9/schema"}]
)
def test_no_schema_of_the_endpoints_own_is_run_over_its_answer(schema: dict[str, Any]) -> None:
    with serving() as hostile:
        hostile.tools = [make_tool(output_schema=schema)]
        hostile.structured = {"text": "a" * 28 + "!"}

        answer = call(hostile.endpoint, "shout", {"text": "x"})

    assert answer.payload == hostile.structured
    assert hostile.asked[-1] == "shout"


def test_a_redirect_is_not_followed(server: WorkerServer) -> None:
    with pytest.raises(WorkerRedirected):
        call(server.redirecting, "echo", {"text": "x"})

    assert not server.calls


def test_a_canceled_call_is_given_up(server: WorkerServer) -> None:
    with pytest.raises(CallCanceled):
        call(server.endpoint, "hold", {"text": "x"}, canceled=server.entered.is_set)

    assert server.calls["hold"] == 1


@pytest.mark.parametrize(
    "endpoint", ["http://10.0.0.8/mcp", "http://169.254.169.254/latest", "ftp://127.0.0.1/x", "https://u:p@127.0.0.1/"]
)
def test_an_address_that_this_deployment_does_not_call_is_refused(endpoint: str) -> None:
    with pytest.raises(ForbiddenEndpoint):
        call(endpoint, "echo", {"text": "x"})


def test_loopback_is_called_only_where_the_deployment_allows_it(server: WorkerServer, settings: Settings) -> None:
    settings.ALLOW_LOOPBACK = False

    with pytest.raises(ForbiddenEndpoint):
        call(server.endpoint, "echo", {"text": "x"})

    assert not server.calls


def test_the_address_that_was_checked_is_the_one_connected_to(
    server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    with pytest.raises(WorkerRefused):  # the server of the test knows itself by its loopback name only
        call(server.endpoint.replace("127.0.0.1", "worker.test"), "echo", {"text": "x"})

    assert looked_up == ["worker.test"]
