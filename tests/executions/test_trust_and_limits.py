"""What bites at the moment of the call: lost trust, quarantine, the worker's limits."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from apps.core.sql import database_now
from apps.executions import calls
from apps.executions.calls import CallMode
from apps.executions.errors import WorkerUnavailable
from apps.executions.services import advancing
from apps.executions.services.steps import MAX_CLAIMS
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from apps.tasks import selectors as task_selectors
from apps.tasks.jobs.executor import work as execute_queue
from apps.tasks.models import LiveTask, Run, Task
from apps.tasks.services import QueuedTask
from apps.tasks.shapes import TaskStatus
from apps.workers import selectors as workers_seen
from apps.workers.models import Allowance, UnknownWorker, Worker, WorkerRateLimited
from apps.workers.services import health
from apps.workers.services import registry as workers
from tests.executions.making import (
    ANY,
    REPORT,
    TEXT,
    advance,
    begin,
    call_step,
    failure,
    later,
    make_worker,
    make_writing_worker,
    queue_step,
    refused,
    report,
    statuses,
)
from tests.executions.workers import WorkerServer
from tests.factories import make_caller, make_tenant

HOUR = timedelta(hours=1)
Act = Callable[[Caller], object]


def call(caller: Caller, worker_id: str = "writer", mode: CallMode = CallMode.DIRECT, text: str = "x") -> Any:
    return calls.call_worker(caller=caller, worker_id=worker_id, tool_name="echo", params={"text": text}, mode=mode)


def writer_step(step_id: str = "a", **more: Any) -> dict[str, Any]:
    return {**call_step(step_id), "worker_id": "writer", **more}


def revoke(caller: Caller) -> None:
    with caller.acting():
        workers.revoke_key(tenant_id=caller.tenant_id, key_id="bundled", why="stolen")


def let_the_signature_end(_caller: Caller) -> None:
    with acting_as_system("test"):
        Worker.objects.update(trust_ends_at=database_now())
        assert workers.lapse_trust() == 1


def come_back_unsigned(caller: Caller) -> None:
    with caller.acting():
        manifest = {**Worker.objects.get().manifest, "trust": {"tier": "trusted"}}
        workers.register(caller=caller, original=manifest)


def quarantine(caller: Caller, worker_id: str = "writer") -> None:
    with caller.acting():
        workers.quarantine(tenant_id=caller.tenant_id, worker_id=worker_id, why="odd answers")


LOSSES = [revoke, let_the_signature_end, come_back_unsigned]


@pytest.mark.parametrize("lose", LOSSES)
def test_lost_trust_bars_the_step(kee: Caller, server: WorkerServer, lose: Act) -> None:
    make_writing_worker(kee, server)
    execution = begin(kee, [writer_step(), REPORT])

    lose(kee)
    advance(execution)

    assert not server.calls
    error = failure(report(kee, execution))
    assert (error["code"], error["retryable"]) == ("worker_barred", False)
    assert "the tier untrusted does not allow read, write" in error["message"]


@pytest.mark.parametrize("lose", LOSSES)
def test_lost_trust_bars_the_next_call(kee: Caller, server: WorkerServer, lose: Act) -> None:
    make_writing_worker(kee, server)
    assert call(kee).payload["length"] == 1

    lose(kee)

    for mode in CallMode:
        with refused("worker_barred"):
            call(kee, mode=mode)
    assert server.calls == {"echo": 1}


@pytest.mark.parametrize("ends_by", ["heartbeat", "registration", "coming back"])
def test_quarantined_worker_is_not_called_until_released(kee: Caller, server: WorkerServer, ends_by: str) -> None:
    make_worker(kee, server)
    quarantine(kee, "texter")
    with kee.acting():
        if ends_by == "heartbeat":
            health.heartbeat(caller=kee, worker_id="texter", status="healthy", current_load=0, available=True)
        if ends_by == "coming back":
            workers.unregister(caller=kee, worker_id="texter")
    if ends_by != "heartbeat":
        make_worker(kee, server)

    with pytest.raises(WorkerUnavailable, match="texter is quarantined"):
        call(kee, "texter")
    execution = begin(kee, [call_step("a"), REPORT])
    advance(execution)
    assert failure(report(kee, execution))["code"] == "worker_unavailable"
    assert not server.calls

    with kee.acting():
        workers.release(tenant_id=kee.tenant_id, worker_id="texter", why="it was us")
    with pytest.raises(WorkerUnavailable, match="texter is offline"):
        call(kee, "texter")
    make_worker(kee, server)
    assert call(kee, "texter").payload["length"] == 1


def test_large_parameters_are_refused_before_the_call(kee: Caller, server: WorkerServer) -> None:
    whole = len('{"text":"xx"}')
    make_worker(kee, server, constraints={"max_payload_bytes": whole})

    assert call(kee, "texter", text="xx").payload["length"] == 2
    for mode in CallMode:
        for text in ("xxx", "é" + "x"):
            with refused("payload_too_large"):
                call(kee, "texter", mode, text)
    assert server.calls == {"echo": 1}
    with kee.acting():
        assert not Task.objects.exists()
        assert Allowance.objects.count() == 1


def test_direct_call_times_out_by_the_workers_limit(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server, constraints={"timeout_seconds": 0.5})

    with refused("worker_timed_out", match=r"within 0\.5 s"):
        calls.call_worker(caller=kee, worker_id="texter", tool_name="hold", params={"text": "x"}, mode=CallMode.DIRECT)


def test_direct_call_over_the_rate_names_the_wait(kee: Caller, server: WorkerServer) -> None:
    later(timedelta(0))
    make_worker(kee, server, constraints={"rate_limit_per_hour": 200})
    assert [call(kee, "texter").payload["length"] for _ in range(2)] == [1, 1]

    with pytest.raises(WorkerRateLimited) as refused:
        call(kee, "texter")

    assert refused.value.retry_after == 1800
    assert server.calls == {"echo": 2}
    later(timedelta(seconds=1800))
    assert call(kee, "texter").payload["length"] == 1


def test_steps_over_the_rate_wait_and_are_charged_once(kee: Caller, server: WorkerServer) -> None:
    later(timedelta(0))
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
            later(HOUR)

    assert report(kee, execution).status == "complete"


def test_answer_of_an_unregistered_worker_is_taken(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a", "say"), call_step("b", depends_on=["a"]), REPORT])
    with kee.acting():
        (claimed,) = advancing.look(execution.pk, may_call=True)
        workers.unregister(caller=kee, worker_id="texter")

    advancing._carry_out([claimed])

    assert statuses(kee, execution)["a"] == "complete"
    advance(execution)
    assert failure(report(kee, execution), 1)["code"] == "unknown_worker"
    with pytest.raises(UnknownWorker):
        call(kee, "texter")


def pinned(caller: Caller, step: dict[str, Any]) -> dict[str, Any]:
    """The step with the version of its tool that is there now, as planners write it."""
    with caller.acting():
        return {**step, "tool_uid": workers_seen.terms_of("texter", step["tool_name"]).tool.uid}


def let_it_write(caller: Caller, server: WorkerServer) -> None:
    make_writing_worker(caller, server, "texter")


def let_it_take_other_params(caller: Caller, server: WorkerServer) -> None:
    make_worker(caller, server, tools=[{"name": "echo", "description": "echo", "input_schema": ANY}])


def let_it_say_it_otherwise(caller: Caller, server: WorkerServer) -> None:
    tool = {"name": "echo", "description": "says it back", "input_schema": TEXT, "output_schema": ANY}
    make_worker(caller, server, tools=[tool])


CHANGES = [let_it_write, let_it_take_other_params]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_tool_is_not_called(
    kee: Caller, server: WorkerServer, change: Callable[[Caller, WorkerServer], None]
) -> None:
    make_worker(kee, server)
    execution = begin(kee, [pinned(kee, call_step("a", estimated_cost=0.5)), REPORT])

    change(kee, server)
    advance(execution)

    done = report(kee, execution)
    error = done.results[0].error or {}
    assert (error["code"], error["retryable"], float(done.total_cost)) == ("tool_changed", False, 0.0)
    assert not server.calls


def test_tool_with_a_new_description_is_called(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [pinned(kee, call_step("a")), REPORT])

    let_it_say_it_otherwise(kee, server)
    advance(execution)

    assert statuses(kee, execution)["a"] == "complete"


def test_target_is_read_by_one_statement(kee: Caller, server: WorkerServer, django_assert_num_queries: Any) -> None:
    make_worker(kee, server)
    with kee.acting():
        uid = workers_seen.terms_of("texter", "echo").tool.uid
        with django_assert_num_queries(1):
            calls.target_of(worker_id="texter", tool_name="echo", tool_uid=uid)


def test_call_goes_to_the_present_endpoint(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server, endpoint="http://127.0.0.1:9/mcp")
    execution = begin(kee, [call_step("a"), call_step("b", "shout"), REPORT])

    make_worker(kee, server, tools=[{"name": "echo", "description": "v2", "input_schema": TEXT}])
    advance(execution)

    found = {one.step_id: one for one in report(kee, execution).results}
    assert found["a"].status == "complete"
    assert (found["b"].error or {})["code"] == "unknown_tool"


class TestTasks:
    """Calls that are tasks: the run looks at the registry, not at what it was when the task was queued."""

    pytestmark = pytest.mark.django_db(transaction=True)

    @pytest.fixture
    def tenant(self, transactional_db: None) -> Tenant:
        return make_tenant("acme")

    @pytest.fixture
    def kee(self, tenant: Tenant) -> Caller:
        return make_caller(tenant, "Kee", Kind.AI)

    @staticmethod
    def ended(caller: Caller, task: QueuedTask) -> TaskStatus:
        with caller.acting():
            return task_selectors.status(task.task_id)

    @pytest.mark.parametrize("change", CHANGES)
    def test_changed_tool_is_not_called_by_a_task(
        self, kee: Caller, server: WorkerServer, change: Callable[[Caller, WorkerServer], None]
    ) -> None:
        make_worker(kee, server)
        execution = begin(kee, [pinned(kee, queue_step("a")), REPORT])
        advance(execution)

        change(kee, server)
        execute_queue(kee.tenant_id, "execute")
        advance(execution)

        assert failure(report(kee, execution))["code"] == "tool_changed"
        assert not server.calls

    @pytest.mark.parametrize("lose", LOSSES)
    def test_lost_trust_bars_a_waiting_task(self, kee: Caller, server: WorkerServer, lose: Act) -> None:
        make_writing_worker(kee, server)
        task = call(kee, mode=CallMode.ASYNC)

        lose(kee)
        execute_queue(kee.tenant_id, "execute")

        done = self.ended(kee, task)
        assert (done.status, done.run_id, (done.error or {})["code"]) == ("failed", 1, "worker_barred")
        assert not server.calls

    def test_run_times_out_by_the_workers_limit(self, kee: Caller, server: WorkerServer) -> None:
        make_worker(kee, server, constraints={"timeout_seconds": 0.5})
        calls.call_worker(caller=kee, worker_id="texter", tool_name="hold", params={"text": "x"}, mode=CallMode.ASYNC)
        # Or it would wait for the gate of the test's worker, which nobody opens.
        opening = threading.Timer(20, server.gate.set)
        opening.start()

        execute_queue(kee.tenant_id, "execute")

        opening.cancel()
        with kee.acting():
            assert LiveTask.objects.get().failures == 1
            assert (Run.objects.get().error or {})["code"] == "worker_timed_out"

    def test_task_over_the_rate_waits_without_an_attempt(self, kee: Caller, server: WorkerServer) -> None:
        make_worker(kee, server, constraints={"rate_limit_per_hour": 100})
        assert call(kee, "texter").payload["length"] == 1
        task = call(kee, "texter", CallMode.ASYNC)

        for runs in range(1, 6):
            execute_queue(kee.tenant_id, "execute")
            with kee.acting():
                (hot,) = LiveTask.objects.all()
                assert (hot.fence, hot.failures, hot.ready_at) == (runs, 0, None)
                assert hot.due_at is not None
                assert hot.due_at > database_now() + timedelta(minutes=50)
                assert Run.objects.order_by("-pk")[0].outcome == "released"
                LiveTask.objects.update(due_at=None, ready_at=database_now())
        with kee.acting():
            Allowance.objects.update(taken_until=database_now())
        execute_queue(kee.tenant_id, "execute")

        assert self.ended(kee, task).status == "succeeded"
        assert server.calls == {"echo": 2}

    def test_queued_step_over_the_rate_waits(self, kee: Caller, server: WorkerServer) -> None:
        make_worker(kee, server, constraints={"rate_limit_per_hour": 100})
        call(kee, "texter")
        execution = begin(kee, [queue_step("a"), REPORT])
        advance(execution)

        execute_queue(kee.tenant_id, "execute")
        advance(execution)
        assert statuses(kee, execution)["a"] == "queued"
        with kee.acting():
            Allowance.objects.update(taken_until=database_now())
            LiveTask.objects.update(due_at=None, ready_at=database_now())
        execute_queue(kee.tenant_id, "execute")
        advance(execution)

        assert report(kee, execution).status == "complete"
