"""The call of a worker: its answer and failures, and what limits it at that moment: trust, rate, tool version, pool."""

import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import storages

from apps.core.outbound import ForbiddenEndpoint
from apps.core.sql import database_now
from apps.executions import calls
from apps.executions.calls import Called, CallMode, Target
from apps.executions.errors import WorkerUnavailable
from apps.executions.services import MAX_CLAIMS
from apps.plans import services as planning
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from apps.tasks import selectors as stored_results
from apps.tasks.jobs import work as execute_queue
from apps.tasks.models import FinishedTask, LiveTask, Run, Task
from apps.tasks.results import artifact_digest
from apps.workers import selectors as workers_seen
from apps.workers import services as registry
from apps.workers.models import Allowance
from tests.executions.making import (
    ANY,
    REPORT,
    TEXT,
    advance,
    begin,
    call_step,
    failure,
    make_plan,
    make_worker,
    make_writing_worker,
    queue_step,
    report,
    run,
    statuses,
)
from tests.executions.test_handler import queue_call, seen
from tests.executions.workers import WorkerServer
from tests.factories import make_caller, pass_time, refused
from tests.workers.servers import make_tool, serving


def call_tool(
    endpoint: str,
    tool_name: str,
    params: dict[str, Any],
    *,
    seconds: float = 10,
    repeatable: bool = True,
    **more: Any,
) -> Called:
    target = Target(
        worker_id="texter",
        tool_name=tool_name,
        endpoint=endpoint,
        input_schema={},
        deadline=timedelta(seconds=seconds),
        max_params_bytes=100_000,
        repeatable=repeatable,
        runtime="fast",
        cost=Decimal(0),
    )
    return calls.call(target=target, params=params, deadline=target.deadline, **more)


def test_question_of_a_tool_is_answered_with_the_next_call(server: WorkerServer) -> None:
    with refused("worker_asks", match="Which rate for 100") as asked:
        call_tool(server.endpoint, "tax", {"amount": 100}, answers={"*": {}})
    (question,) = asked.value.extra["questions"]
    assert question["fields"]["properties"]["percent"]["type"] == "integer"
    key = question["key"]
    with refused("invalid_answers", match="integer"):
        call_tool(server.endpoint, "tax", {"amount": 100}, answers={key: {"percent": "many"}})
    with refused("worker_refused", match="was decline"):
        call_tool(server.endpoint, "tax", {"amount": 100}, answers={key: None})
    answered = call_tool(server.endpoint, "tax", {"amount": 100}, answers={key: {"percent": 20}})
    assert answered.payload == {"amount": 100, "percent": 20, "round_up": True}
    taken = call_tool(server.endpoint, "tax", {"amount": 100}, answers={"*": {"percent": 10}})
    assert taken.payload["percent"] == 10
    with refused("worker_asks"):  # an answer is for its question
        call_tool(server.endpoint, "tax", {"amount": 900}, answers={key: {"percent": 20}})


def test_progress_arrives_while_the_tool_runs(server: WorkerServer) -> None:
    heard: list[tuple[float | None, str | None]] = []

    def listen(percent: float | None, text: str | None) -> None:
        heard.append((percent, text))
        if percent == 100:
            server.gate.set()

    call_tool(server.endpoint, "count_to", {"number": 4, "until_told": True}, on_progress=listen)

    assert heard == [(25.0, "at 1"), (50.0, "at 2"), (75.0, "at 3"), (100.0, "at 4")]


@pytest.mark.parametrize(
    ("tool", "params", "failure"),
    [
        ("hold", {"text": "x"}, ("worker_timed_out", "within 0.5 s", True)),
        ("break_down", {}, ("worker_refused", "out of paper", False)),
        ("no_such_tool", {}, ("worker_refused", "no_such_tool", False)),
        ("crash", {}, ("worker_broke", "does not say why", True)),
        ("say", {"text": r'{"text": "a\u0000b"}'}, ("worker_refused", "NUL", False)),
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
        call_tool(server.endpoint, tool, params, seconds=0.5 if tool == "hold" else 10)

    assert (refusal.value.retryable, refusal.value.reached) == (retryable, True)


def test_refused_connection_has_not_reached_the_tool() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    with refused("worker_unreachable") as refusal:
        call_tool(f"http://127.0.0.1:{port}/mcp", "echo", {"text": "x"})

    assert (refusal.value.retryable, refusal.value.reached) == (True, False)


GATEWAY = b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(("answer", "code"), [(b"", "worker_disconnected"), (GATEWAY, "worker_broke")])
@pytest.mark.parametrize("repeatable", [True, False])
def test_broken_connection_may_have_reached_the_tool(answer: bytes, code: str, *, repeatable: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            for _ in range(2 if answer else 1):  # after a refusal the client tries an older revision
                connection, _ = listener.accept()
                connection.recv(65_536)
                connection.sendall(answer)
                connection.close()

        hanging = threading.Thread(target=hang_up)
        hanging.start()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        with refused(code if repeatable else "outcome_unknown") as refusal:
            call_tool(endpoint, "echo", {"text": "x"}, repeatable=repeatable)
        hanging.join()

    assert (refusal.value.retryable, refusal.value.reached) == (repeatable, True)
    assert ("may have done its work" in refusal.value.detail) is not repeatable


def test_words_of_a_worker_are_cleaned_and_cut(server: WorkerServer) -> None:
    with refused("worker_refused") as refusal:
        call_tool(server.endpoint, "complain", {"text": "paper\0jam " + "x" * 50_000})

    assert "paper\ufffdjam" in refusal.value.detail
    assert "\0" not in refusal.value.detail
    assert len(refusal.value.detail) < 2_100


def test_large_answer_is_not_read_to_its_end(server: WorkerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_ANSWER_BYTES", 50_000)

    with refused("answer_too_large"):
        call_tool(server.endpoint, "flood", {"size": 300_000})


ENDLESS = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}


@pytest.mark.parametrize("schema", [ENDLESS, {"$ref": "http://127.0.0.1:9/schema"}])
def test_answer_is_not_checked_against_the_endpoints_schema(schema: dict[str, Any]) -> None:
    with serving() as hostile:
        hostile.tools = [make_tool(output_schema=schema)]
        hostile.structured = {"text": "a" * 28 + "!"}

        answer = call_tool(hostile.endpoint, "shout", {"text": "x"})

    assert answer.payload == hostile.structured
    assert hostile.asked[-1] == "shout"


def test_canceled_call_is_given_up(server: WorkerServer) -> None:
    with refused("call_canceled"):
        call_tool(server.endpoint, "hold", {"text": "x"}, canceled=server.entered.is_set)

    assert server.calls["hold"] == 1


@pytest.mark.parametrize(
    "endpoint", ["http://10.0.0.8/mcp", "http://169.254.169.254/latest", "ftp://127.0.0.1/x", "https://u:p@127.0.0.1/"]
)
def test_forbidden_address_is_not_called(endpoint: str) -> None:
    with pytest.raises(ForbiddenEndpoint):
        call_tool(endpoint, "echo", {"text": "x"})


HOUR = timedelta(hours=1)


def call(caller: Caller, worker_id: str = "writer", mode: CallMode = CallMode.DIRECT, text: str = "x") -> Any:
    return calls.call_worker(caller=caller, worker_id=worker_id, tool_name="echo", params={"text": text}, mode=mode)


def writer_step(step_id: str = "a", **more: Any) -> dict[str, Any]:
    return {**call_step(step_id), "worker_id": "writer", **more}


def revoke(caller: Caller) -> None:
    with caller.acting():
        registry.revoke_key(tenant_id=caller.tenant_id, key_id="bundled", why="stolen")


@pytest.mark.usefixtures("own_artifacts")
def test_answer_of_a_writing_tool_counts_though_it_can_not_be_kept(kee: Caller, server: WorkerServer) -> None:
    make_writing_worker(kee, server)
    Path(storages["artifacts"].path("")).write_text("no directory")
    told = call(kee)
    execution = run(kee, [writer_step(), REPORT])

    assert (told.status, told.result["text"], told.result_pointer) == ("complete", "x", None)
    (done, *_) = report(kee, execution).steps
    assert (done.status, (done.envelope or {})["payload"]["length"], server.calls) == ("complete", 5, {"echo": 2})


@pytest.mark.parametrize(("own", "place"), [("", "content"), ("the same", "content"), ("a title", "other_content")])
def test_image_is_kept_and_a_link_is_passed_on(kee: Caller, server: WorkerServer, own: str, place: str) -> None:
    make_worker(kee, server, tools=[{"name": "draw", "description": "", "input_schema": {"type": "object"}}])
    drawn = calls.call_worker(
        caller=kee, worker_id="texter", tool_name="draw", params={"own": own}, mode=CallMode.DIRECT
    )

    assert drawn.result is not None
    image, link = drawn.result[place]
    assert (link["type"], link["uri"]) == ("resource_link", "https://example.com/plan.pdf")
    with kee.acting():
        kept = stored_results.artifact(tenant_id=kee.tenant_id, digest=artifact_digest(image["pointer"]))
    assert (stored_results.read(kept), kept.media_type) == (b"a picture", "image/png")


def test_call_over_its_limit_is_queued_and_then_made_once(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server, hints={}, constraints={"timeout_seconds": 1})
    queued = calls.call_worker(
        caller=kee, worker_id="texter", tool_name="hold", params={"text": "x"}, mode=CallMode.AUTO
    )
    execute_queue(kee.tenant_id, "execute")

    assert (queued.status, server.calls["hold"]) == ("queued", 2)
    with kee.acting():
        error = FinishedTask.objects.get().error
    assert error is not None
    assert error["code"] == "worker_timed_out"
    assert "within 1 s. A queued call may take 1 s: `timeout_seconds`" in error["message"]


def test_lost_trust_bars_the_step(kee: Caller, server: WorkerServer) -> None:
    make_writing_worker(kee, server)
    execution = begin(kee, [writer_step(), REPORT])

    revoke(kee)
    advance(execution)

    assert not server.calls
    error = failure(report(kee, execution))
    assert (error["code"], error["retryable"]) == ("worker_barred", False)
    assert "the tier untrusted does not allow read, write" in error["message"]


def test_quarantined_worker_is_not_called(kee: Caller, texter: WorkerServer) -> None:
    with kee.acting():
        registry.quarantine(tenant_id=kee.tenant_id, worker_id="texter", why="odd answers")

    with pytest.raises(WorkerUnavailable, match="texter is quarantined"):
        call(kee, "texter")
    execution = run(kee, [call_step("a"), REPORT])

    assert failure(report(kee, execution))["code"] == "worker_unavailable"
    assert not texter.calls


def test_large_parameters_are_refused_before_the_call(kee: Caller, server: WorkerServer) -> None:
    whole = len('{"text":"xx"}')
    make_worker(kee, server, constraints={"max_payload_bytes": whole})

    assert call(kee, "texter", text="xx").result["length"] == 2
    for mode in CallMode:
        for text in ("xxx", "é" + "x"):
            with refused("payload_too_large"):
                call(kee, "texter", mode, text)
    assert server.calls == {"echo": 1}
    with kee.acting():
        assert not Task.objects.exists()
        assert Allowance.objects.count() == 1


def test_steps_over_the_rate_wait_and_are_charged_once(kee: Caller, server: WorkerServer) -> None:
    pass_time(timedelta(0))
    make_worker(
        kee,
        server,
        constraints={"rate_limit_per_hour": 100},
        hints={"expected_runtime": "fast", "cost_estimate": 0.25},
    )
    steps = [call_step(name) for name in "abcdefghijk"]
    assert len(steps) > MAX_CLAIMS
    execution = begin(kee, [*steps, REPORT])

    for done in range(1, len(steps) + 1):
        advance(execution)
        advance(execution)
        assert server.calls["echo"] == done
        with kee.acting():
            execution.refresh_from_db()
        assert float(execution.total_cost) == 0.25 * done
        assert list(statuses(kee, execution).values()).count("pending") == len(steps) - done + (done < len(steps))
        if done < len(steps):
            assert execution.wake_at == database_now() + HOUR
            pass_time(HOUR)

    assert report(kee, execution).status == "complete"


def pinned(caller: Caller, step: dict[str, Any]) -> dict[str, Any]:
    """The step with the version of its tool that is there now, as planners write it."""
    with caller.acting():
        return {**step, "tool_uid": workers_seen.terms_of("texter", step["tool_name"]).tool.uid}


def let_it_write(caller: Caller, server: WorkerServer) -> None:
    make_writing_worker(caller, server, "texter")


def let_it_take_other_params(caller: Caller, server: WorkerServer) -> None:
    make_worker(caller, server, tools=[{"name": "echo", "description": "echo", "input_schema": ANY}])


CHANGES = [let_it_write, let_it_take_other_params]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_tool_is_not_called_by_a_step(
    kee: Caller, texter: WorkerServer, change: Callable[[Caller, WorkerServer], None]
) -> None:
    execution = begin(kee, [pinned(kee, call_step("a", estimated_cost=0.5)), REPORT])

    change(kee, texter)
    advance(execution)

    done = report(kee, execution)
    error = done.results[0].error or {}
    assert (error["code"], error["retryable"], float(done.total_cost)) == ("tool_changed", False, 0.0)
    assert not texter.calls


def test_tool_with_a_new_description_is_called(kee: Caller, texter: WorkerServer) -> None:
    execution = begin(kee, [pinned(kee, call_step("a")), REPORT])

    make_worker(kee, texter, tools=[{"name": "echo", "description": "v2", "input_schema": TEXT, "output_schema": ANY}])
    advance(execution)

    assert statuses(kee, execution)["a"] == "complete"


def test_target_is_read_by_one_statement(kee: Caller, texter: WorkerServer, django_assert_num_queries: Any) -> None:
    with kee.acting():
        uid = workers_seen.terms_of("texter", "echo").tool.uid
        with django_assert_num_queries(1):
            calls.target_of(worker_id="texter", tool_name="echo", tool_uid=uid)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("change", CHANGES)
def test_changed_tool_is_not_called_by_a_task(
    kee: Caller, texter: WorkerServer, change: Callable[[Caller, WorkerServer], None]
) -> None:
    execution = run(kee, [pinned(kee, queue_step("a")), REPORT])

    change(kee, texter)
    execute_queue(kee.tenant_id, "execute")
    advance(execution)

    assert failure(report(kee, execution))["code"] == "tool_changed"
    assert not texter.calls


@pytest.mark.django_db(transaction=True)
def test_lost_trust_bars_a_waiting_task(kee: Caller, server: WorkerServer) -> None:
    make_writing_worker(kee, server)
    task = call(kee, mode=CallMode.ASYNC)

    revoke(kee)
    execute_queue(kee.tenant_id, "execute")

    done = seen(kee, task)
    assert (done.status, done.run_id, (done.error or {})["code"]) == ("failed", 1, "worker_barred")
    assert not server.calls


@pytest.mark.django_db(transaction=True)
def test_task_over_the_rate_waits_without_an_attempt(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server, constraints={"rate_limit_per_hour": 100})
    assert call(kee, "texter").result["length"] == 1
    task = call(kee, "texter", CallMode.ASYNC)

    for runs in range(1, 6):
        execute_queue(kee.tenant_id, "execute")
        with kee.acting():
            (hot,) = LiveTask.objects.all()
            assert (hot.fencing_token, hot.failures, hot.ready_at) == (runs, 0, None)
            assert hot.due_at is not None
            assert hot.due_at > database_now() + timedelta(minutes=50)
            assert Run.objects.order_by("-pk")[0].outcome == "released"
            LiveTask.objects.update(due_at=None, ready_at=database_now())
    with kee.acting():
        Allowance.objects.update(taken_until=database_now())
    execute_queue(kee.tenant_id, "execute")

    assert seen(kee, task).status == "succeeded"
    assert server.calls == {"echo": 2}


@pytest.fixture
def code(tenant: Tenant) -> Caller:
    return make_caller(tenant, "code", Kind.DELEGATE)


@pytest.fixture
def data(tenant: Tenant, server: WorkerServer) -> Caller:
    """A sibling, with a worker of its own."""
    actor = make_caller(tenant, "data", Kind.DELEGATE)
    make_worker(actor, server)
    return actor


@pytest.mark.parametrize("mode", [*CallMode])
def test_delegate_may_not_call_a_siblings_worker(
    code: Caller, data: Caller, server: WorkerServer, mode: CallMode
) -> None:
    with refused("outside_pool"):
        call(code, "texter", mode)

    assert server.calls == {}
    with acting_as_system("test"):
        assert not Task.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_task_of_a_delegate_may_not_call_a_siblings_worker(code: Caller, data: Caller, server: WorkerServer) -> None:
    asked = ((code, "texter"), (code, "nobody"), (data, "texter"))
    tasks = [queue_call(actor, "echo", {"text": "hello"}, worker_id=worker_id) for actor, worker_id in asked]

    execute_queue(code.tenant_id, "execute")

    *others, called = (seen(actor, task) for (actor, _), task in zip(asked, tasks, strict=True))
    for stopped, told in zip(others, ("outside_pool", "unknown_worker"), strict=True):
        assert (stopped.status, stopped.run_id, (stopped.error or {})["code"]) == ("failed", 1, told)
    assert called.status == "succeeded"
    assert server.calls == {"echo": 1}


def test_delegate_calls_its_own_pool(tenant: Tenant, code: Caller, data: Caller, server: WorkerServer) -> None:
    for caller in (data, make_caller(tenant)):
        assert call(caller, "texter").result["length"] == 1


def test_plan_with_a_worker_outside_the_pool_is_not_begun(tenant: Tenant, kee: Caller, server: WorkerServer) -> None:
    # A DeleGate that registers itself is in the pool of the one above it.
    make_worker(make_caller(tenant, "texter", Kind.DELEGATE), server)
    make_caller(tenant, "code", Kind.DELEGATE)
    with kee.acting():
        plan_id = make_plan(kee, [call_step("a"), REPORT])
        planning.set_delegate(tenant_id=tenant.pk, delegate_id="texter", parent="code")

    with refused("outside_pool", "texter"):
        begin(kee, [], plan_id=plan_id)
    with kee.acting():
        planning.set_delegate(tenant_id=tenant.pk, delegate_id="texter", parent="delegate")
    assert begin(kee, [], plan_id=plan_id).plan_id == plan_id
