"""Real Celery workers, killed and cut off in the middle of their work."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis
import structlog
from celery import current_app
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import SpanKind

from apps.core import notifications, tracing
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from apps.tasks.models import FinishedTask, IdempotencyKey, LiveTask, Run, Schedule, Task, run_key
from apps.tasks.services import queueing
from apps.tasks.shapes import QueuedTask, ScheduleTask
from tests.commands import ROOT, with_database
from tests.executions.making import make_worker
from tests.factories import make_caller, make_tenant, make_token
from tests.remote import Exchange, Remote
from tests.remote import serving as serving_remote
from tests.server import end_server, start_server
from tests.tasks.making import make_type, number, queue
from tests.waiters import until, until_nobody_else_is_in_a_transaction
from tests.workers.servers import A_TEXT, serving

pytestmark = [pytest.mark.ci, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def caller() -> Caller:
    tenant: Tenant = make_tenant("acme")
    return make_caller(tenant, "Kee")


@contextmanager
def _worker(log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with _celery(
        log,
        *("worker", "--include", "tests.tasks.slow_handler", "--queues", "execute,sweep", "--concurrency", "2"),
        *("--without-gossip", "--without-mingle", "--hostname", f"test-{time.monotonic_ns()}@%h"),
        **environment,
    ) as process:
        yield process


@contextmanager
def _celery(log: Path, what: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "config", what, *arguments],
            cwd=ROOT,
            env=with_database(GATEHOUSE_PROCESS=what, **environment),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the worker and its children at once, as the loss of a machine would."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ended(caller: Caller, task: QueuedTask) -> bool:
    with acting_as(caller):
        return FinishedTask.objects.filter(task_id=number(task)).exists()


def _broker() -> redis.Redis:
    return redis.Redis.from_url(os.environ["REDIS_URL"])


def _assert_ended_once(caller: Caller, task: QueuedTask, *, run: int) -> None:
    with acting_as(caller):
        assert FinishedTask.objects.get(task_id=number(task)).summary == f"Run {run} for Kee."
        assert not LiveTask.objects.filter(task_id=number(task)).exists()
        receipts = Receipt.objects.filter(source_system="asyncgate", metadata__task_id=task.task_id)
        assert sorted(receipts.values_list("event_type", flat=True)) == ["task_complete", "task_queued"]


def test_a_worker_that_is_asked_to_end_finishes_what_it_runs(caller: Caller, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    task = queue(caller, "slow_for_tests", {"folder": str(tmp_path)})
    with _worker(tmp_path / "log") as first:
        until((tmp_path / "running-1").exists)
        first.terminate()
        time.sleep(4)  # longer than the lease
        assert first.poll() is None
        (tmp_path / "go").touch()
        assert first.wait(timeout=30) == 0
    _assert_ended_once(caller, task, run=1)


def test_task_survives_the_kill_of_its_worker(caller: Caller, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    task = queue(caller, "slow_for_tests", {"folder": str(tmp_path)})
    others = notifications.heartbeats().keys()
    with _worker(tmp_path / "log") as first:
        until((tmp_path / "running-1").exists)
        _kill(first)
    with _worker(tmp_path / "log"):
        until((tmp_path / "running-2").exists)
        (tmp_path / "go").touch()
        until(lambda: _ended(caller, task))
        until(lambda: len(notifications.heartbeats().keys() - others) == 2)

    _assert_ended_once(caller, task, run=2)
    with acting_as(caller):
        assert Run.objects.get(pk=run_key(number(task), 1)).outcome == "expired"


def test_flushed_broker_costs_latency_only(caller: Caller, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with _worker(tmp_path / "log"):
        before = queue(caller, "slow_for_tests", {"folder": str(tmp_path)})
        until(lambda: _ended(caller, before))
        with _broker() as broker:
            broker.flushdb()
        after = queue(caller, "slow_for_tests", {"folder": str(tmp_path)}, priority=9)
        with _broker() as broker:
            broker.flushdb()
        until(lambda: _ended(caller, after))

    _assert_ended_once(caller, after, run=1)


def test_rival_clocks_queue_each_time_once(caller: Caller, tmp_path: Path) -> None:
    make_type(caller)
    with acting_as(caller):
        draft = ScheduleTask(name="s", task_type="index", every_seconds=2)
        made, _ = queueing.set_schedule(caller=caller, draft=draft)

    def queued() -> list[Task]:
        with acting_as(caller):
            return list(Task.objects.order_by("pk"))

    beats = [("beat", "--schedule", str(tmp_path / f"beat-{n}"), "--pidfile", str(tmp_path / f"{n}.pid")) for n in "12"]
    with _celery(tmp_path / "log", *beats[0]), _celery(tmp_path / "log", *beats[1]), _worker(tmp_path / "log"):
        until(lambda: len(queued()) >= 5)
    until_nobody_else_is_in_a_transaction()  # what a process that is gone has begun may yet be committed
    with acting_as(caller):
        found = Schedule.objects.get(pk=made.pk)
        keys = set(IdempotencyKey.objects.values_list("key", flat=True))
    assert found.last_at is not None
    moments = range(2, 1 + round((found.last_at - made.anchor_at).total_seconds()), 2)
    times = {f"schedule:{made.pk}:{(made.anchor_at + timedelta(seconds=n)).isoformat()}" for n in moments}
    # A busy machine may miss some, which become one task.
    assert keys <= times
    assert len(queued()) == len(keys)


def test_one_trace_leads_from_an_mcp_call_to_the_mcp_worker(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tenant = make_tenant("acme")
    caller = make_caller(tenant, "Kee")
    # Of each span its parent, name and service, by its id.
    spans: dict[str, tuple[str, str, str]] = {}
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

    def collect(exchange: Exchange) -> None:
        for of_process in ExportTraceServiceRequest.FromString(exchange.received.body).resource_spans:
            (service,) = (one.value.string_value for one in of_process.resource.attributes if one.key == "service.name")
            for span in (span for scope in of_process.scope_spans for span in scope.spans):
                if span.trace_id.hex() == trace:
                    spans[span.span_id.hex()] = (span.parent_span_id.hex(), span.name, service)
        exchange.answer(200, b"", {})

    def exported(collector: Remote) -> dict[str, Any]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}

    log = tmp_path / "log"
    with serving_remote(collect) as collector, serving() as shouter, _worker(log, **exported(collector)):
        offered = {"name": "shout", "description": "Will shout a text.", "input_schema": A_TEXT}
        make_worker(caller, shouter, tools=[offered])
        web, url = start_server(**exported(collector))
        try:
            # Once the worker is up: what waits for it for a second is announced by a tick, which belongs to no trace.
            current_app.send_task("tasks.release_dependants", args=("no number",), queue="execute")
            until(lambda: "tasks.release_dependants" in (tmp_path / "log").read_text(), (tmp_path / "log").read_text)
            named = {"traceparent": f"00-{trace}-{parent}-01"}
            arguments = {"worker_id": "texter", "tool_name": "shout", "params": {"text": "a"}, "mode": "async"}
            params = {"name": "call_worker_tool", "arguments": arguments, "_meta": named}
            answer = httpx2.post(
                f"{url}/mcp",
                json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
                headers={"Authorization": f"Bearer {make_token(tenant)}"},
            )
            assert not answer.json()["result"]["isError"], answer.text
            until(lambda: shouter.traces, (tmp_path / "log").read_text)
            _, _, found, _ = shouter.traces[0].split("-")
            until(
                lambda: {"tools/call", "tasks.execute"} <= {name for _, name, _ in spans.values()} and found in spans,
                lambda: spans,
            )
            with structlog.contextvars.bound_contextvars(), tracing.span("test", named, SpanKind.INTERNAL):
                # Which is logged as an error.
                current_app.send_task("tasks.release_dependants", args=("no number",), queue="execute")
            until(lambda: f'"request_id": "{trace}"' in (tmp_path / "log").read_text(), (tmp_path / "log").read_text)
        finally:
            end_server(web)
            logged = capfd.readouterr()
    asked = [line for line in (logged.out + logged.err).splitlines() if '"POST /mcp"' in line]
    assert [json.loads(line)["request_id"] for line in asked] == [trace]
    way = []
    while found in spans:
        found, *said = spans[found]
        way.append(said)
    assert way == [
        ["MCP send tools/call shout", "gatehouse-worker"],
        ["tasks.execute", "gatehouse-worker"],
        ["tools/call", "gatehouse-web"],
    ]
    assert (found, shouter.traces[0].split("-")[1]) == (parent, trace)
