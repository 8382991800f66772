"""Jobs that a worker runs by itself are followed under one task, by whichever process has it."""

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
from apps.executions import calls, following, handlers, selectors, services, sql
from apps.executions.errors import JobOverdue
from apps.executions.models import BegunJob, Execution, ExecutionStep
from apps.executions.services import advancing
from apps.executions.states import Mode
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from apps.tasks import selectors as task_selectors
from apps.tasks import services as tasks
from apps.tasks.jobs import executor
from apps.tasks.jobs.executor import work as execute_queue
from apps.tasks.models import HotTask
from apps.tasks.services import QueuedTask, QueueRequest
from apps.workers.models import Allowance, Call
from apps.workers.services import heartbeat, register
from apps.workers.trust import CALLS_PER_HOUR, Tier, share_of_an_hour
from tests.executions.making import REPORT, advance, begin
from tests.executions.workers import WorkerServer
from tests.factories import make_caller, make_tenant
from tests.workers.factories import NOTHING, enroll, make_key, signed

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parents[2]
JOB_ID = {"type": "object", "properties": {"job_id": {"type": "string"}}, "required": ["job_id"]}
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS = {"start_count": NUMBER, "get_count_status": JOB_ID, "get_count_result": JOB_ID}
CANCELABLE = {**TOOLS, "cancel_count": JOB_ID}


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def kee(tenant: Tenant) -> Caller:
    return make_caller(tenant, "Kee", Kind.AI)


def make_counter(caller: Caller, server: WorkerServer, *, writes: bool = False, tools: Any = TOOLS) -> None:
    """Register the test server as one that counts in jobs of its own."""
    effects = {**NOTHING, "filesystem": "write"} if writes else NOTHING
    key = make_key()
    manifest = {
        "worker_id": "counter",
        "endpoint": server.endpoint,
        "tools": [{"name": name, "description": name, "input_schema": schema} for name, schema in tools.items()],
        "constraints": {"timeout_seconds": 20},
        "hints": {"expected_runtime": "long"},
        "side_effects": effects,
        "trust": {"tier": "trusted"},
    }
    with caller.acting():
        enroll(caller, key, ceiling=Tier.TRUSTED)
        register(caller=caller, original=signed(manifest, key))


def queue_count(caller: Caller, tool_name: str = "start_count") -> QueuedTask:
    params = {"worker_id": "counter", "tool_name": tool_name, "params": {"number": 3}}
    with caller.acting():
        return tasks.queue(requester=caller, request=QueueRequest(task_type="mcp_worker_call", params=params))


def seen(caller: Caller, task: QueuedTask) -> task_selectors.TaskStatus:
    with caller.acting():
        return task_selectors.status(task.task_id)


def lease_of(caller: Caller) -> datetime:
    """When the lease of the only task ends, which each heartbeat puts off."""
    with caller.acting():
        expires_at = HotTask.objects.values_list("lease_expires_at", flat=True).get()
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
def executing(caller: Caller, task: QueuedTask) -> Iterator[None]:
    """The queue being executed on a thread; the block ends when the task has ended."""

    def run() -> None:
        try:
            while not over.is_set():
                execute_queue(caller.tenant_id, "execute")
                over.wait(0.05)
        finally:
            connection.close()

    over = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
        until(lambda: seen(caller, task).status in {"succeeded", "failed", "canceled"}, "the task's end")
    finally:
        over.set()
        thread.join(60)
        assert not thread.is_alive()


def test_a_job_is_followed_to_its_result_under_one_task(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.calls["get_count_status"] >= 2, "the second look")
        assert seen(kee, task).status == "leased"
        server.jobs["job-1"] = {"status": "complete"}

    done = seen(kee, task)
    assert (done.status, done.run_id, server.calls["start_count"]) == ("succeeded", 1, 1)
    assert done.result_pointer is not None
    with kee.acting():
        opened = task_selectors.open_pointer(done.result_pointer, tenant_id=kee.tenant_id)
        assert Call.objects.get().ok
    assert task_selectors.shown(opened.content, opened.media_type) == server.counted


def test_a_pointer_that_the_job_answers_is_the_tasks_result(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server)
    server.counted = {"result_pointer": "s3://bucket/counted.json", "summary": "Counted"}
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.jobs, "the job's start")
        server.jobs["job-1"] = {"status": "complete"}

    assert seen(kee, task).result_pointer == "s3://bucket/counted.json"


def test_a_pointer_that_is_too_long_to_be_kept_fails_the_task_by_name(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server)
    server.counted = {"result_pointer": "s3://bucket/" + "y" * 2500, "summary": "Counted"}
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.jobs, "the job's start")
        server.jobs["job-1"] = {"status": "complete"}

    done = seen(kee, task)
    assert (done.status, done.run_id, (done.error or {})["code"]) == ("failed", 1, "unrecordable_result")


def test_a_process_that_was_killed_leaves_its_job_to_the_next(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, writes=True)
    task = queue_count(kee)
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    executor = (
        f"import django; django.setup()\nfrom apps.tasks.jobs.executor import work\nwork({kee.tenant_id}, 'execute')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", executor],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "config.settings"},
    )
    try:
        until(lambda: server.calls["get_count_status"] >= 1, "the first look of the process")
    finally:
        process.kill()
        process.wait()
    with kee.acting():
        HotTask.objects.update(lease_expires_at=database_now() - timedelta(seconds=1))
    server.jobs["job-1"] = {"status": "complete"}

    execute_queue(kee.tenant_id, "execute")

    done = seen(kee, task)
    assert (done.status, done.run_id, server.calls["start_count"]) == ("succeeded", 2, 1)


@pytest.mark.parametrize(("writes", "status", "starts"), [(False, "succeeded", 2), (True, "failed", 1)])
def test_a_job_that_the_worker_forgot_is_begun_again_only_where_that_does_no_harm(
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


def test_a_job_that_fails_fails_its_task_in_the_workers_words(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.jobs, "the job's start")
        server.jobs["job-1"] = {"status": "failed", "message": "no numbers left"}

    done = seen(kee, task)
    assert (done.status, done.run_id) == ("failed", 1)
    assert (done.error or {})["code"] == "job_failed"
    assert "no numbers left" in (done.error or {})["message"]
    with kee.acting():
        assert not Call.objects.get().ok


@pytest.mark.parametrize(
    ("broken", "code", "words"),
    [
        ({"counted": {"text": "a\x00b"}}, "worker_refused", "can't be kept"),
        ({"counted": {"number": 2**70}}, "worker_refused", "can't be kept"),
        ({"counted_refused": True}, "job_failed", "result_withheld"),
    ],
)
def test_a_job_whose_result_is_not_to_be_had_is_not_begun_again(
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
    with kee.acting():
        assert not Call.objects.get().ok


def test_a_canceled_task_stops_following(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.calls["get_count_status"], "the first look")
        with kee.acting():
            tasks.cancel(caller=kee, task_id=int(task.task_id.removeprefix("task_")))

    assert seen(kee, task).status == "canceled"
    assert server.calls["get_count_result"] == 0


def cancel(caller: Caller, task: QueuedTask) -> None:
    with caller.acting():
        tasks.cancel(caller=caller, task_id=int(task.task_id.removeprefix("task_")))


def tell_workers() -> int:
    """As the tick and the processes that it nudges: says of how many jobs."""
    with acting_as_system("a test"):
        unwanted = selectors.unwanted_jobs(limit=10)
    for tenant_id, begun_job_id in unwanted:
        services.cancel_job(tenant_id=tenant_id, begun_job_id=begun_job_id)
    return len(unwanted)


def come_due(caller: Caller) -> None:
    with caller.acting():
        BegunJob.objects.update(next_at=database_now())


def leave_a_job_behind(caller: Caller, server: WorkerServer, **changes: Any) -> None:
    """What is left of a canceled task whose job goes on: a run has begun it, and no other has had its turn."""
    with caller.acting():
        sql.begin_job(task_id=None, worker_id="counter", cancel_tool="cancel_count", job_id="job-1")
        BegunJob.objects.update(**changes)
    server.jobs["job-1"] = {"status": "running", "ends_when_told": True}


@pytest.mark.parametrize("obeys", [True, False])
def test_a_canceled_task_has_its_job_canceled_where_the_worker_can(
    kee: Caller, server: WorkerServer, obeys: bool
) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.calls["get_count_status"], "the first look")
        if obeys:
            server.jobs["job-1"]["ends_when_told"] = True
        before = tell_workers()
        cancel(kee, task)
    assert seen(kee, task).status == "canceled"

    told = [tell_workers(), tell_workers()]

    assert (before, told) == (0, [1, 0])
    assert server.calls["cancel_count"] == 1
    assert server.jobs["job-1"]["status"] == ("canceled" if obeys else "running")


def test_a_task_that_is_canceled_while_its_job_is_being_begun_has_it_canceled(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_BEATS_PER_LEASE", 50)
    make_counter(kee, server, writes=True, tools={**CANCELABLE, "start_held_count": NUMBER})
    task = queue_count(kee, "start_held_count")
    with executing(kee, task):
        assert server.entered.wait(20)
        cancel(kee, task)
        heard = lease_of(kee) + timedelta(seconds=1)
        until(lambda: lease_of(kee) > heard, "a run that has heard of it and still listens")
        server.gate.set()
    server.jobs["job-1"]["ends_when_told"] = True

    told = tell_workers()

    assert (seen(kee, task).status, seen(kee, task).run_id, told) == ("canceled", 1, 1)
    assert server.jobs["job-1"]["status"] == "canceled"
    assert (server.calls["start_count"], server.calls["cancel_count"]) == (1, 1)


def test_a_task_that_is_canceled_before_its_run_begins_nothing(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    cancel(kee, task)

    execute_queue(kee.tenant_id, "execute")

    assert (seen(kee, task).status, tell_workers(), server.calls) == ("canceled", 0, {})


@pytest.mark.parametrize("way", ["left to the next", "its worker is away", "cut off"])
def test_a_task_that_is_canceled_while_nobody_follows_its_job_has_it_canceled(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(handlers, "_FOLLOWED_FOR", timedelta(0))
    monkeypatch.setattr(executor, "_PATIENCE_SECONDS", 0.5)
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    for status in ("healthy", "offline") if way == "its worker is away" else ("healthy",):
        say(kee, status)
        execute_queue(kee.tenant_id, "execute")
    if way == "cut off":
        with kee.acting():
            tasks.lease(worker=kee, queues=["execute"])
    cancel(kee, task)
    if way == "cut off":
        with kee.acting():
            HotTask.objects.update(lease_expires_at=database_now() - timedelta(seconds=1))
        tasks.end_what_must()
    say(kee, "healthy")
    server.jobs["job-1"]["ends_when_told"] = True

    told = tell_workers()

    assert (seen(kee, task).status, told, server.jobs["job-1"]["status"]) == ("canceled", 1, "canceled")
    assert server.calls["start_count"] == 1


def begin_count(caller: Caller, tool_name: str, **more: Any) -> Execution:
    step = {"step_type": "call_worker", "worker_id": "counter", "tool_name": tool_name, "params": {"number": 3}}
    return begin(caller, [{**step, "step_id": "count"}, REPORT], **more)


def cancel_execution(caller: Caller, execution: Execution) -> str:
    with caller.acting():
        return services.cancel(caller=caller, execution_ref=execution.ref, reason=None).status


def test_an_execution_that_is_canceled_while_nobody_follows_its_job_has_it_canceled(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "_FOLLOWED_FOR", timedelta(0))
    monkeypatch.setattr(executor, "_PATIENCE_SECONDS", 0.5)
    make_counter(kee, server, tools=CANCELABLE)
    execution = begin_count(kee, "start_count")
    advance(execution)
    execute_queue(kee.tenant_id, "execute")
    server.jobs["job-1"]["ends_when_told"] = True

    status = cancel_execution(kee, execution)

    assert (status, tell_workers(), server.jobs["job-1"]["status"]) == ("canceled", 1, "canceled")


def test_an_execution_that_is_canceled_while_a_direct_call_begins_a_job_has_it_canceled(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []
    begins_jobs = following.begins_jobs

    def noted(target: calls.Target) -> bool:
        looks.append(begins_jobs(target))
        return looks[-1]

    monkeypatch.setattr(following, "begins_jobs", noted)
    monkeypatch.setattr(advancing, "_RENEW_SECONDS", 0.1)
    make_counter(kee, server, tools={**CANCELABLE, "start_held_count": NUMBER})
    execution = begin_count(kee, "start_held_count", mode=Mode.DIRECT_ONLY)
    with advancing_beside(execution):
        assert server.entered.wait(20)
        status = cancel_execution(kee, execution)
        until(lambda: len(looks) > 9, "a call that is listened to though nobody wants it any more")
        server.gate.set()
    server.jobs["job-1"]["ends_when_told"] = True

    assert (status, tell_workers(), server.jobs["job-1"]["status"]) == ("canceled", 1, "canceled")


@contextmanager
def advancing_beside(execution: Execution) -> Iterator[None]:
    """The execution being advanced on a thread; the block ends when that has come as far as it can."""

    def run() -> None:
        try:
            advance(execution)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)
        assert not thread.is_alive()


def test_a_job_that_only_a_run_without_its_lease_knows_is_canceled(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools={**CANCELABLE, "start_held_count": NUMBER})
    task = queue_count(kee, "start_held_count")
    with executing(kee, task):
        assert server.entered.wait(20)
        with kee.acting():
            tasks.revoke_lease(task_id=int(task.task_id.removeprefix("task_")))
        server.gate.set()
        until(lambda: len(server.jobs) == 2, "the second job's start")
        server.jobs["job-1"]["ends_when_told"] = True
        until(tell_workers, "the job that nobody follows")
        assert server.jobs["job-1"]["status"] == "canceled"
        server.jobs["job-2"]["status"] = "complete"

    assert (seen(kee, task).status, tell_workers()) == ("succeeded", 0)
    assert server.calls["cancel_count"] == 1


@pytest.mark.parametrize("status", ["complete", "failed"])
def test_a_job_that_is_over_is_canceled_no_more(kee: Caller, server: WorkerServer, status: str) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.jobs, "the job's start")
        server.jobs["job-1"] = {"status": status}

    with kee.acting():
        assert not BegunJob.objects.exists()
    assert tell_workers() == 0


def test_a_job_whose_task_failed_is_canceled(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    monkeypatch.setattr(following, "_LEAST", timedelta(0))
    monkeypatch.setattr(following, "_GENEROSITY", 0)
    execute_queue(kee.tenant_id, "execute")
    server.jobs["job-1"]["ends_when_told"] = True

    told = tell_workers()

    assert ((seen(kee, task).error or {})["code"], told) == ("job_overdue", 1)
    assert server.jobs["job-1"]["status"] == "canceled"


def test_a_job_that_a_later_run_follows_is_not_canceled_for_a_run_without_its_lease(
    kee: Caller, server: WorkerServer
) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.calls["get_count_status"], "the first look")
        server.jobs["job-1"]["ends_when_told"] = True
        # A run before this one hears of the same job only now, and that its lease is lost.
        with kee.acting():
            target = calls.target_of(worker_id="counter", tool_name="start_count")
            answer = {"job_id": "job-1", "estimated_duration_seconds": 3}
            _, kept = following.begin(target, answer, task_id=int(task.task_id.removeprefix("task_")))
            assert kept is not None
            sql.disown_job(row=kept)
        told, status = tell_workers(), server.jobs["job-1"]["status"]
        server.jobs["job-1"]["status"] = "complete"

    assert (told, status, seen(kee, task).status) == (0, "running", "succeeded")


def claims_of(caller: Caller) -> int:
    with caller.acting():
        return ExecutionStep.objects.get(step_id="count").attempts


def test_a_job_that_the_process_which_took_a_direct_call_over_has_begun_too_is_not_canceled(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing renews the claim, as in a process that is held up.
    monkeypatch.setattr(advancing, "_RENEW_SECONDS", 60.0)
    make_counter(kee, server, tools={**CANCELABLE, "start_held_count": NUMBER})
    server.same_job = True
    execution = begin_count(kee, "start_held_count", mode=Mode.DIRECT_ONLY)
    with advancing_beside(execution):
        assert server.entered.wait(20)
        with kee.acting():
            ExecutionStep.objects.filter(step_id="count").update(call_expires_at=database_now())
        with advancing_beside(execution):
            until(lambda: claims_of(kee) == 2, "the claim of another process")
            server.gate.set()

    assert server.calls["start_count"] == 2
    assert tell_workers() == 0
    assert server.jobs["job-1"]["status"] == "running"


def test_a_job_that_one_task_wants_is_not_canceled_for_another(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    leave_a_job_behind(kee, server)
    task = queue_count(kee)
    with kee.acting():
        task_id = int(task.task_id.removeprefix("task_"))
        sql.begin_job(task_id=task_id, worker_id="counter", cancel_tool="cancel_count", job_id="job-1")
    told = [tell_workers()]
    cancel(kee, task)

    told.append(tell_workers())

    assert (told, server.jobs["job-1"]["status"]) == ([0, 2], "canceled")


def test_a_job_that_tells_of_itself_what_can_not_be_kept_is_canceled(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.jobs, "the job's start")
        server.jobs["job-1"] = {"status": "running", "message": "a\x00b"}
    server.jobs["job-1"] = {"status": "running", "ends_when_told": True}

    told = tell_workers()

    assert (seen(kee, task).status, told, server.jobs["job-1"]["status"]) == ("failed", 1, "canceled")


def test_a_worker_that_is_away_is_told_of_an_unwanted_job_when_it_is_back(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    leave_a_job_behind(kee, server)
    say(kee, "offline")
    told = [tell_workers(), tell_workers()]
    say(kee, "healthy")
    come_due(kee)

    told += [tell_workers(), tell_workers()]

    assert told == [1, 0, 1, 0]
    assert server.jobs["job-1"]["status"] == "canceled"


def test_a_worker_that_stays_away_for_a_day_is_told_no_more(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    leave_a_job_behind(kee, server, tries=274)
    say(kee, "offline")

    assert tell_workers() == 1

    with kee.acting():
        assert not BegunJob.objects.exists()


def test_a_process_that_dies_while_it_tells_a_worker_is_followed_by_another(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    leave_a_job_behind(kee, server, next_at=database_now() + timedelta(seconds=60), tries=1)
    at_once = tell_workers()
    come_due(kee)

    assert (at_once, tell_workers(), server.jobs["job-1"]["status"]) == (0, 1, "canceled")


def test_tenants_take_turns_in_having_jobs_canceled(kee: Caller, tenant: Tenant) -> None:
    other = make_caller(make_tenant("other"), "Kay", Kind.AI)
    for caller, number in ((kee, 3), (other, 1)):
        for _ in range(number):
            with caller.acting():
                sql.begin_job(task_id=None, worker_id="counter", cancel_tool="cancel_count", job_id="job-1")

    with acting_as_system("a test"):
        unwanted = selectors.unwanted_jobs(limit=2)

    assert {tenant_id for tenant_id, _ in unwanted} == {kee.tenant_id, other.tenant_id}


def test_a_run_that_loses_its_lease_leaves_its_job_to_the_next(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.calls["get_count_status"], "the first look")
        with kee.acting():
            tasks.revoke_lease(task_id=int(task.task_id.removeprefix("task_")))
        until(lambda: seen(kee, task).run_id == 2, "the next run")
        server.jobs["job-1"]["status"] = "complete"

    assert (seen(kee, task).status, server.calls["cancel_count"], server.calls["start_count"]) == ("succeeded", 0, 1)


def test_without_tools_that_tell_of_it_a_jobs_id_is_the_result(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools={"start_count": NUMBER})
    task = queue_count(kee)

    execute_queue(kee.tenant_id, "execute")

    assert (seen(kee, task).status, server.calls["get_count_status"]) == ("succeeded", 0)


def test_a_job_is_left_to_others_when_patience_ends_and_given_up_when_it_is_overdue(
    kee: Caller, server: WorkerServer
) -> None:
    make_counter(kee, server)
    server.jobs["job-7"] = {"status": "running"}
    with kee.acting():
        target = calls.target_of(worker_id="counter", tool_name="start_count")
        job = following.started_job(target, {"job_id": "job-7", "estimated_duration_seconds": 1})
        assert job is not None
        watch = following.watch(target, job, on_progress=lambda *_: None, canceled=lambda: False)
        old = replace(job, began_at=job.began_at - 2 * job.allowed)
        late = following.watch(target, old, on_progress=lambda *_: None, canceled=lambda: False)

    assert following.kept_job(job.checkpoint()) == job
    assert following.kept_job(following.LOST) is None
    assert following.follow(watch, patience=timedelta(0)) is None
    with pytest.raises(JobOverdue):
        following.follow(late, patience=timedelta(0))


def test_each_absence_of_a_worker_is_waited_for_from_its_own_beginning(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(status: str) -> task_selectors.TaskStatus:
        say(kee, status)
        execute_queue(kee.tenant_id, "execute")
        with kee.acting():
            HotTask.objects.update(ready_at=database_now(), due_at=None)
        return seen(kee, task)

    # Left after each look, a job is looked at again as long as its message is worked on.
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
def test_a_job_is_asked_of_twenty_times_in_its_estimate_and_ever_more_rarely_afterwards(
    estimate: float, pause: float, age: float
) -> None:
    following_pause = following.pause_after(pause, estimate=estimate, age=age)

    assert 0.25 <= following_pause <= 10
    assert following_pause <= 2 * pause
    assert following_pause >= min(2 * pause, age / 20, 10)
    assert following_pause <= max(0.25, max(estimate, age) / 20)


def test_a_job_that_never_ends_is_asked_of_some_hundred_times_until_it_is_given_up() -> None:
    asked, age, pause = 0, 0.0, 0.25
    while age < 600:
        asked, age = asked + 1, age + pause
        pause = following.pause_after(pause, estimate=0, age=age)

    assert asked < 150


def test_questions_after_a_job_take_nothing_of_the_workers_hour(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server)
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.calls["get_count_status"] >= 3, "the third look")
        server.jobs["job-1"] = {"status": "complete"}

    with kee.acting():
        left = Allowance.objects.get().taken_until - database_now()
    assert left <= share_of_an_hour(CALLS_PER_HOUR)


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
def test_the_tools_that_tell_of_a_job_are_found_by_their_names(
    tool: str, names: list[str], pair: tuple[str, str] | None
) -> None:
    tools = [{"name": name, "input_schema": JOB_ID} for name in names]

    assert following.followers(tool, [{"name": "start", "input_schema": NUMBER}, *tools]) == pair


def test_a_tool_that_wants_more_than_a_job_tells_of_none() -> None:
    wants = {"properties": {"job_id": {}, "page": {}}, "required": ["job_id", "page"]}

    assert (
        following.followers("start", [{"name": f"get_{what}", "input_schema": wants} for what in ("status", "result")])
        is None
    )


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
def test_an_answer_that_only_looks_like_a_job_is_a_result(kee: Caller, server: WorkerServer, answer: Any) -> None:
    make_counter(kee, server)
    with kee.acting():
        target = calls.target_of(worker_id="counter", tool_name="start_count")

        assert following.started_job(target, answer) is None
