"""Jobs inside workers are followed under one task by any process, and canceled when no task follows them."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from apps.core.sql import database_now
from apps.executions import calls, handlers
from apps.executions.models import Execution, ExecutionStep, WorkerJob
from apps.executions.services import advancing, answering, worker_jobs
from apps.executions.states import Mode
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller
from apps.tasks import selectors as task_selectors
from apps.tasks import services as tasks
from apps.tasks.jobs import executor
from apps.tasks.jobs.executor import work as execute_queue
from apps.tasks.models import LiveTask
from apps.tasks.services import QueuedTask, QueueRequest
from apps.tasks.shapes import TaskStatus
from apps.workers.models import Allowance, Call
from apps.workers.services.health import heartbeat
from apps.workers.services.registry import register
from apps.workers.trust import CALLS_PER_HOUR, Tier, share_of_an_hour
from tests.executions.making import REPORT, advance, begin, refused
from tests.executions.workers import WorkerServer
from tests.factories import make_caller, make_tenant
from tests.workers.factories import NOTHING, enroll, make_key, signed

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parents[2]
JOB_ID = {"type": "object", "properties": {"job_id": {"type": "string"}}, "required": ["job_id"]}
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS = {"start_count": NUMBER, "get_count_status": JOB_ID, "get_count_result": JOB_ID}
CANCELABLE = {**TOOLS, "cancel_count": JOB_ID, "start_held_count": NUMBER}


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def kee(tenant: Tenant) -> Caller:
    return make_caller(tenant, "Kee", Kind.AI)


def make_counter(caller: Caller, server: WorkerServer, *, writes: bool = False, tools: Any = TOOLS) -> None:
    """Register the test server as a worker that counts in its own jobs."""
    key = make_key()
    manifest = {
        "worker_id": "counter",
        "endpoint": server.endpoint,
        "tools": [{"name": name, "description": name, "input_schema": schema} for name, schema in tools.items()],
        "constraints": {"timeout_seconds": 20},
        "hints": {"expected_runtime": "long"},
        "side_effects": {**NOTHING, "filesystem": "write"} if writes else NOTHING,
        "trust": {"tier": "trusted"},
    }
    with caller.acting():
        enroll(caller, key, ceiling=Tier.TRUSTED)
        register(caller=caller, original=signed(manifest, key))


def queue_count(caller: Caller, tool_name: str = "start_count") -> QueuedTask:
    params = {"worker_id": "counter", "tool_name": tool_name, "params": {"number": 3}}
    with caller.acting():
        return tasks.queue(requester=caller, request=QueueRequest(task_type="mcp_worker_call", params=params))


def number_of(task: QueuedTask) -> int:
    return int(task.task_id.removeprefix("task_"))


def seen(caller: Caller, task: QueuedTask) -> TaskStatus:
    with caller.acting():
        return task_selectors.status(task.task_id)


def lease_of(caller: Caller) -> datetime:
    """The end of the only task's lease, which each heartbeat postpones."""
    with caller.acting():
        expires_at = LiveTask.objects.values_list("lease_expires_at", flat=True).get()
    assert expires_at is not None
    return expires_at


def say(caller: Caller, status: str) -> None:
    with caller.acting():
        heartbeat(caller=caller, worker_id="counter", status=status, current_load=0, available=True)


def until(happened: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


@contextmanager
def beside(run: Callable[[], object]) -> Iterator[None]:
    """Run it on a thread until the block ends."""

    def running() -> None:
        try:
            run()
        finally:
            connection.close()

    thread = threading.Thread(target=running)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def executing(caller: Caller, task: QueuedTask) -> Iterator[None]:
    """Execute the queue on a thread; the block ends when the task has ended."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            execute_queue(caller.tenant_id, "execute")
            over.wait(0.05)

    with beside(run):
        try:
            yield
            until(lambda: seen(caller, task).status in {"succeeded", "failed", "canceled"}, "the task's end")
        finally:
            over.set()


def cancel(caller: Caller, task: QueuedTask) -> None:
    with caller.acting():
        tasks.cancel(caller=caller, task_id=number_of(task))


def keep_job(caller: Caller, *, task_id: int | None = None, **changes: Any) -> None:
    """A job that a call has started."""
    now = database_now()
    WorkerJob.objects.create(
        tenant_id=caller.tenant_id,
        task_id=task_id,
        worker_id="counter",
        cancel_tool="cancel_count",
        job_id="job-1",
        **{"began_at": now, "next_at": now, **changes},
    )


def test_job_is_followed_to_its_result_under_one_task(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.calls["get_count_status"] >= 3, "the third look")
        assert seen(kee, task).status == "leased"
        server.jobs["job-1"] = {"status": "complete"}

    done = seen(kee, task)
    assert (done.status, done.run_id, server.calls["start_count"]) == ("succeeded", 1, 1)
    assert done.result_pointer is not None
    with kee.acting():
        opened = task_selectors.open_pointer(done.result_pointer, tenant_id=kee.tenant_id)
        assert Call.objects.get().ok
        # Polls don't count against the worker's rate limit.
        assert Allowance.objects.get().taken_until - database_now() <= share_of_an_hour(CALLS_PER_HOUR)
    assert task_selectors.shown(opened.content, opened.media_type) == server.counted


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"status": "complete"}, ("succeeded", None)),
        ({"status": "failed", "message": "no numbers left"}, ("failed", "job_failed")),
    ],
)
def test_pointer_or_failure_of_job_ends_the_task(
    kee: Caller, server: WorkerServer, answer: dict[str, Any], status: tuple[str, str | None]
) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    server.counted = {"result_pointer": "s3://bucket/counted.json", "summary": "Counted"}
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.jobs, "the job's start")
        server.jobs["job-1"] = answer

    done = seen(kee, task)
    assert (done.status, (done.error or {}).get("code"), done.run_id) == (*status, 1)
    assert done.result_pointer == ("s3://bucket/counted.json" if done.status == "succeeded" else None)
    assert done.status == "succeeded" or "no numbers left" in (done.error or {})["message"]
    with kee.acting():
        assert Call.objects.get().ok == (done.status == "succeeded")
        assert not WorkerJob.objects.exists()


@pytest.mark.parametrize(
    ("broken", "code", "words"),
    [
        ({"counted": {"result_pointer": "s3://bucket/" + "y" * 2500}}, "unrecordable_result", ""),
        ({"counted": {"text": "a\x00b"}}, "worker_refused", "can't be stored"),
        ({"counted": {"number": 2**70}}, "worker_refused", "can't be stored"),
        ({"counted_refused": True}, "job_failed", "result_withheld"),
    ],
)
def test_job_with_unusable_result_is_not_started_again(
    kee: Caller, server: WorkerServer, broken: dict[str, Any], code: str, words: str
) -> None:
    make_counter(kee, server)
    for name, value in broken.items():
        setattr(server, name, value)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.jobs, "the job's start")
        server.jobs["job-1"] = {"status": "complete"}

    done = seen(kee, task)
    assert (done.status, done.run_id, server.calls["start_count"]) == ("failed", 1, 1)
    assert (done.error or {})["code"] == code
    assert words in (done.error or {})["message"]


def test_next_run_follows_the_job_of_a_killed_process(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, writes=True)
    task = queue_count(kee)
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    code = (
        f"import django; django.setup()\nfrom apps.tasks.jobs.executor import work\nwork({kee.tenant_id}, 'execute')\n"
    )
    env = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "config.settings"}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env)
    try:
        until(lambda: server.calls["get_count_status"] >= 1, "the first look of the process")
    finally:
        process.kill()
        process.wait()
    with kee.acting():
        LiveTask.objects.update(lease_expires_at=database_now() - timedelta(seconds=1))
    server.jobs["job-1"] = {"status": "complete"}

    execute_queue(kee.tenant_id, "execute")

    done = seen(kee, task)
    assert (done.status, done.run_id, server.calls["start_count"]) == ("succeeded", 2, 1)


def test_next_run_follows_the_job_of_a_run_that_lost_its_lease(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.calls["get_count_status"], "the first look")
        with kee.acting():
            tasks.revoke_lease(task_id=number_of(task))
        until(lambda: seen(kee, task).run_id == 2, "the next run")
        server.jobs["job-1"]["status"] = "complete"

    assert (seen(kee, task).status, server.calls["cancel_count"], server.calls["start_count"]) == ("succeeded", 0, 1)


@pytest.mark.parametrize(("writes", "status", "starts"), [(False, "succeeded", 2), (True, "failed", 1)])
def test_lost_job_is_started_again_if_its_tool_may_run_twice(
    kee: Caller, server: WorkerServer, writes: bool, status: str, starts: int
) -> None:
    make_counter(kee, server, writes=writes)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.jobs, "the job's start")
        server.jobs.clear()
        if not writes:
            until(lambda: server.jobs, "the second job's start")
            server.jobs["job-2"] = {"status": "complete"}

    done = seen(kee, task)
    assert (done.status, server.calls["start_count"]) == (status, starts)
    assert writes is False or (done.error or {})["code"] == "job_lost"


@pytest.mark.parametrize("obeys", [True, False])
def test_job_of_a_canceled_task_is_canceled_once(kee: Caller, server: WorkerServer, obeys: bool) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.calls["get_count_status"], "the first look")
        if obeys:
            server.jobs["job-1"]["ends_when_told"] = True
        worker_jobs.cancel_unwanted()
        before = server.calls["cancel_count"]
        cancel(kee, task)

    worker_jobs.cancel_unwanted()
    worker_jobs.cancel_unwanted()

    assert (seen(kee, task).status, server.calls["get_count_result"]) == ("canceled", 0)
    assert (before, server.calls["cancel_count"]) == (0, 1)
    assert server.jobs["job-1"]["status"] == ("canceled" if obeys else "running")


def test_job_that_starts_after_the_cancel_of_its_task_is_canceled(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_BEATS_PER_LEASE", 50)
    make_counter(kee, server, writes=True, tools=CANCELABLE)
    task = queue_count(kee, "start_held_count")
    with executing(kee, task):
        assert server.entered.wait(20)
        cancel(kee, task)
        renewed = lease_of(kee) + timedelta(seconds=1)
        until(lambda: lease_of(kee) > renewed, "a run that knows of the cancel and still waits")
        server.gate.set()
    server.jobs["job-1"]["ends_when_told"] = True

    worker_jobs.cancel_unwanted()

    assert (seen(kee, task).status, server.jobs["job-1"]["status"]) == ("canceled", "canceled")


@pytest.mark.parametrize("way", ["queued", "worker away", "lease lost"])
def test_job_is_canceled_if_its_task_is_canceled_between_runs(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(handlers, "_FOLLOWED_FOR", timedelta(0))
    monkeypatch.setattr(executor, "_PATIENCE_SECONDS", 0.5)
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    for status in ("healthy", "offline") if way == "worker away" else ("healthy",):
        say(kee, status)
        execute_queue(kee.tenant_id, "execute")
    if way == "lease lost":
        with kee.acting():
            tasks.lease(worker=kee, queues=["execute"])
    cancel(kee, task)
    if way == "lease lost":
        with kee.acting():
            LiveTask.objects.update(lease_expires_at=database_now() - timedelta(seconds=1))
        tasks.end_what_must()
    say(kee, "healthy")
    server.jobs["job-1"]["ends_when_told"] = True

    worker_jobs.cancel_unwanted()

    assert (seen(kee, task).status, server.jobs["job-1"]["status"]) == ("canceled", "canceled")
    assert server.calls["start_count"] == 1


def begin_count(caller: Caller, tool_name: str) -> Execution:
    step = {"step_type": "call_worker", "worker_id": "counter", "tool_name": tool_name, "params": {"number": 3}}
    return begin(caller, [{**step, "step_id": "count"}, REPORT], mode=Mode.DIRECT_ONLY)


def test_job_is_canceled_if_its_execution_ends_during_the_direct_call(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []
    starts_jobs = worker_jobs.starts_cancelable_jobs

    def noted(target: calls.Target) -> bool:
        looks.append(starts_jobs(target))
        return looks[-1]

    monkeypatch.setattr(worker_jobs, "starts_cancelable_jobs", noted)
    monkeypatch.setattr(advancing, "_RENEW_SECONDS", 0.1)
    make_counter(kee, server, tools=CANCELABLE)
    execution = begin_count(kee, "start_held_count")
    with beside(lambda: advance(execution)):
        assert server.entered.wait(20)
        with kee.acting():
            answering.cancel(caller=kee, execution_ref=execution.ref, reason=None)
        until(lambda: len(looks) > 9, "a call that goes on after the cancel")
        server.gate.set()
    server.jobs["job-1"]["ends_when_told"] = True

    worker_jobs.cancel_unwanted()

    assert server.jobs["job-1"]["status"] == "canceled"


def test_job_that_only_a_run_without_lease_knows_is_canceled(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee, "start_held_count")

    def canceled() -> bool:
        worker_jobs.cancel_unwanted()
        return bool(server.jobs["job-1"]["status"] == "canceled")

    with executing(kee, task):
        assert server.entered.wait(20)
        with kee.acting():
            tasks.revoke_lease(task_id=number_of(task))
        server.gate.set()
        until(lambda: len(server.jobs) == 2, "the second job's start")
        server.jobs["job-1"]["ends_when_told"] = True
        until(canceled, "the cancel of the job that nobody follows")
        server.jobs["job-2"]["status"] = "complete"

    assert (seen(kee, task).status, server.calls["cancel_count"]) == ("succeeded", 1)


@pytest.mark.parametrize("fault", ["overdue", "unreadable"])
def test_running_job_of_a_failed_task_is_canceled(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    if fault == "overdue":
        monkeypatch.setattr(worker_jobs, "_LEAST", timedelta(0))
        monkeypatch.setattr(worker_jobs, "_GENEROSITY", 0)
    with executing(kee, task):
        until(lambda: server.jobs, "the job's start")
        if fault == "unreadable":
            server.jobs["job-1"] = {"status": "running", "message": "a\x00b"}
    server.jobs["job-1"] = {"status": "running", "ends_when_told": True}

    worker_jobs.cancel_unwanted()

    assert (seen(kee, task).error or {})["code"] == ("job_overdue" if fault == "overdue" else "worker_refused")
    assert server.jobs["job-1"]["status"] == "canceled"


def test_job_is_not_canceled_after_another_process_took_its_call_over(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def claims() -> int:
        with kee.acting():
            return ExecutionStep.objects.get(step_id="count").attempts

    # Nothing renews the claim, as in a process that is stopped.
    monkeypatch.setattr(advancing, "_RENEW_SECONDS", 60.0)
    make_counter(kee, server, tools=CANCELABLE)
    server.same_job = True
    execution = begin_count(kee, "start_held_count")
    with beside(lambda: advance(execution)):
        assert server.entered.wait(20)
        with kee.acting():
            ExecutionStep.objects.filter(step_id="count").update(call_expires_at=database_now())
        with beside(lambda: advance(execution)):
            until(lambda: claims() == 2, "the claim of another process")
            server.gate.set()

    worker_jobs.cancel_unwanted()

    assert (server.calls["start_count"], server.calls["cancel_count"]) == (2, 0)


def test_job_that_another_task_follows_is_not_canceled(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    server.jobs["job-1"] = {"status": "running", "ends_when_told": True}
    with kee.acting():
        keep_job(kee)
        keep_job(kee, task_id=number_of(task))
    worker_jobs.cancel_unwanted()
    before = server.jobs["job-1"]["status"]
    cancel(kee, task)

    worker_jobs.cancel_unwanted()

    assert (before, server.jobs["job-1"]["status"]) == ("running", "canceled")


def test_cancel_is_retried_while_the_worker_is_away_for_a_day(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    server.jobs["job-1"] = {"status": "running", "ends_when_told": True}
    with kee.acting():
        keep_job(kee)
    say(kee, "offline")
    worker_jobs.cancel_unwanted()
    with kee.acting():
        job = WorkerJob.objects.get()
        assert (job.tries, job.next_at > database_now()) == (1, True)
        WorkerJob.objects.update(next_at=database_now())
    say(kee, "healthy")
    worker_jobs.cancel_unwanted()
    assert server.jobs["job-1"]["status"] == "canceled"

    with kee.acting():
        keep_job(kee, tries=275)
    say(kee, "offline")
    worker_jobs.cancel_unwanted()

    with kee.acting():
        assert not WorkerJob.objects.exists()


def test_job_is_left_to_others_and_given_up_when_overdue(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server)
    server.jobs["job-7"] = {"status": "running"}
    answer = {"job_id": "job-7", "estimated_duration_seconds": 1}
    with kee.acting():
        target = calls.target_of(worker_id="counter", tool_name="start_count")
        job, row = worker_jobs.begin(target, answer, tenant_id=kee.tenant_id, task_id=None)
        assert (job is not None, row) == (True, None)
        assert job is not None
        watch = worker_jobs.watch(target, job, on_progress=lambda *_: None, canceled=lambda: False)
        old = replace(job, began_at=job.began_at - 2 * job.allowed)
        late = worker_jobs.watch(target, old, on_progress=lambda *_: None, canceled=lambda: False)

    assert worker_jobs.kept_job(job.checkpoint()) == job
    assert worker_jobs.kept_job(worker_jobs.LOST) is None
    assert worker_jobs.follow(watch, patience=timedelta(0)) is None
    with refused("job_overdue"):
        worker_jobs.follow(late, patience=timedelta(0))


def test_each_absence_of_the_worker_counts_from_its_own_start(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(status: str) -> TaskStatus:
        say(kee, status)
        execute_queue(kee.tenant_id, "execute")
        with kee.acting():
            LiveTask.objects.update(ready_at=database_now(), due_at=None)
        return seen(kee, task)

    monkeypatch.setattr(handlers, "_FOLLOWED_FOR", timedelta(0))
    monkeypatch.setattr(executor, "_PATIENCE_SECONDS", 0.5)
    make_counter(kee, server)
    task = queue_count(kee)
    for status in ("healthy", "offline", "healthy"):
        assert run(status).status == "queued"
    monkeypatch.setattr(calls, "WORKER_AWAY", timedelta(microseconds=1))

    away = run("offline")

    assert (away.status, away.failures, server.calls["start_count"]) == ("queued", 0, 1)


@given(st.floats(0, 86_400), st.floats(0.25, 10), st.floats(0, 86_400))
def test_poll_pause_is_a_twentieth_of_estimate_or_age(estimate: float, pause: float, age: float) -> None:
    next_pause = worker_jobs.pause_after(pause, estimate=estimate, age=age)

    assert 0.25 <= next_pause <= 10
    assert min(2 * pause, age / 20, 10) <= next_pause <= min(2 * pause, max(0.25, max(estimate, age) / 20))


@pytest.mark.parametrize(
    ("tool", "names", "pair"),
    [
        ("start_document_index", ["get_job_status", "get_job_result"], ("get_job_status", "get_job_result")),
        (
            "start_transcode",
            ["get_job_status", "get_job_result", "get_transcode_status", "get_transcode_result"],
            ("get_transcode_status", "get_transcode_result"),
        ),
        ("start", ["jobStatus", "jobResult"], ("jobStatus", "jobResult")),
        ("start", ["get_job_status", "get_index_result"], None),
        ("start", ["get_job_status"], None),
        ("get_job_result", ["get_job_status", "get_job_result"], None),
    ],
)
def test_status_and_result_tools_are_found_by_name(tool: str, names: list[str], pair: tuple[str, str] | None) -> None:
    tools = [{"name": name, "input_schema": JOB_ID} for name in names]
    wants = {"properties": {"job_id": {}, "page": {}}, "required": ["job_id", "page"]}
    paged = [{"name": name, "input_schema": wants} for name in ("get_page_status", "get_page_result")]

    assert worker_jobs.followers(tool, [{"name": "start", "input_schema": NUMBER}, *tools, *paged]) == pair


@pytest.mark.parametrize(
    "answer",
    [
        {"job_id": "", "estimated_duration_seconds": 1},
        {"job_id": 7, "estimated_duration_seconds": 1},
        {"job_id": "j"},
        {"job_id": "j", "estimated_duration_seconds": -1},
        {"job_id": "j", "estimated_duration_seconds": True},
        {"job_id": "j", "estimated_duration_seconds": "soon"},
    ],
)
def test_malformed_job_answer_is_a_result(kee: Caller, server: WorkerServer, answer: Any) -> None:
    make_counter(kee, server)
    with kee.acting():
        target = calls.target_of(worker_id="counter", tool_name="start_count")

        assert worker_jobs.begin(target, answer, tenant_id=kee.tenant_id, task_id=None) == (None, None)


def test_job_answer_without_status_tools_is_a_result(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools={"start_count": NUMBER})
    task = queue_count(kee)

    execute_queue(kee.tenant_id, "execute")

    assert (seen(kee, task).status, server.calls["get_count_status"]) == ("succeeded", 0)
