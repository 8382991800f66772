"""Jobs inside workers are followed under one task by any process, and canceled once with it."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core.sql import database_now
from apps.executions import calls, services
from apps.principals.tenancy import Caller
from apps.tasks import selectors as task_selectors
from apps.tasks.jobs import work as execute_queue
from apps.tasks.models import LiveTask
from apps.tasks.shapes import QueuedTask
from apps.workers.models import Allowance, Call
from apps.workers.trust import CALLS_PER_HOUR, share_of_an_hour
from tests.commands import ROOT, with_database
from tests.executions.making import (
    cancel_task,
    make_writing_worker,
)
from tests.executions.test_handler import queue_call, seen
from tests.executions.workers import WorkerServer
from tests.waiters import Other, until
from tests.workers.factories import NOTHING

pytestmark = pytest.mark.django_db(transaction=True)

JOB_ID = {"type": "object", "properties": {"job_id": {"type": "string"}}, "required": ["job_id"]}
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS = {"start_count": NUMBER, "get_count_status": JOB_ID, "get_count_result": JOB_ID}
CANCELABLE = {**TOOLS, "cancel_count": JOB_ID}


def make_counter(caller: Caller, server: WorkerServer, *, writes: bool = False, tools: Any = TOOLS) -> None:
    """Register the test server as a worker that counts in its own jobs."""
    offered = [{"name": name, "description": name, "input_schema": schema} for name, schema in tools.items()]
    effects = {} if writes else {"side_effects": NOTHING}
    make_writing_worker(caller, server, "counter", tools=offered, hints={"expected_runtime": "long"}, **effects)


def queue_count(caller: Caller, tool_name: str = "start_count") -> QueuedTask:
    return queue_call(caller, tool_name, {"number": 3}, worker_id="counter")


@contextmanager
def executing(caller: Caller, task: QueuedTask) -> Iterator[None]:
    """Execute the queue on a thread; the block ends when the task has ended."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            execute_queue(caller.tenant_id, "execute")
            over.wait(0.05)

    other = Other(run)
    try:
        yield
        until(lambda: seen(caller, task).status in {"succeeded", "failed", "canceled"}, "the task's end")
    finally:
        over.set()
        assert other.ends() is None


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
    assert json.loads(opened) == server.counted


def test_pointer_that_a_job_answers_is_the_tasks_result(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    server.counted = {"result_pointer": "s3://bucket/counted.json", "summary": "Counted"}
    task = queue_count(kee)
    with executing(kee, task):
        until(lambda: server.jobs, "the job's start")
        server.jobs["job-1"] = {"status": "complete"}

    assert (seen(kee, task).status, seen(kee, task).result_pointer) == ("succeeded", "s3://bucket/counted.json")


@pytest.mark.parametrize(
    ("broken", "code", "words"),
    [
        ({"counted": {"result_pointer": "s3://bucket/" + "y" * 2500}}, "unrecordable_result", ""),
        ({"counted": {"text": "a\x00b"}}, "worker_refused", "can't be stored"),
        ({"counted_refused": True}, "job_failed", "result_withheld"),
        ({}, "job_failed", "no numbers left"),
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
        server.jobs["job-1"] = {"status": "complete" if broken else "failed", "message": "no numbers left"}

    done = seen(kee, task)
    assert (done.status, done.run_id, server.calls["start_count"]) == ("failed", 1, 1)
    assert (done.error or {})["code"] == code
    assert words in (done.error or {})["message"]


@pytest.mark.ci
def test_next_run_follows_the_job_of_a_killed_process(kee: Caller, server: WorkerServer) -> None:
    make_counter(kee, server, writes=True, tools=CANCELABLE)
    task = queue_count(kee)
    code = f"import django; django.setup()\nfrom apps.tasks.jobs import work\nwork({kee.tenant_id}, 'execute')\n"
    env = with_database(DJANGO_SETTINGS_MODULE="config.settings")
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
    assert (done.status, done.run_id) == ("succeeded", 2)
    assert (server.calls["start_count"], server.calls["cancel_count"]) == (1, 0)


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
        before = server.calls["cancel_count"]
        cancel_task(kee)

    assert (seen(kee, task).status, server.calls["get_count_result"]) == ("canceled", 0)
    assert (before, server.calls["cancel_count"]) == (0, 1)
    assert server.jobs["job-1"]["status"] == ("canceled" if obeys else "running")


@pytest.mark.parametrize("fault", ["overdue", "unreadable"])
def test_running_job_of_a_failed_task_is_canceled(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    make_counter(kee, server, tools=CANCELABLE)
    task = queue_count(kee)
    if fault == "overdue":
        monkeypatch.setattr(services, "_LEAST", timedelta(0))
        monkeypatch.setattr(services, "_GENEROSITY", 0)
    with executing(kee, task):
        until(lambda: server.jobs, "the job's start")
        server.jobs["job-1"]["ends_when_told"] = True
        if fault == "unreadable":
            server.jobs["job-1"]["message"] = "a\x00b"

    assert (seen(kee, task).error or {})["code"] == ("job_overdue" if fault == "overdue" else "worker_refused")
    assert server.jobs["job-1"]["status"] == "canceled"


@given(st.floats(0, 86_400), st.floats(0.25, 10), st.floats(0, 86_400))
def test_poll_pause_is_a_twentieth_of_estimate_or_age(estimate: float, pause: float, age: float) -> None:
    next_pause = services.pause_after(pause, estimate=estimate, age=age)

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
        ("get_job_result", ["get_job_status", "get_job_result"], None),
    ],
)
def test_status_and_result_tools_are_found_by_name(tool: str, names: list[str], pair: tuple[str, str] | None) -> None:
    tools = [{"name": name, "input_schema": JOB_ID} for name in names]
    wants = {"properties": {"job_id": {}, "page": {}}, "required": ["job_id", "page"]}
    paged = [{"name": name, "input_schema": wants} for name in ("get_page_status", "get_page_result")]

    assert services.followers(tool, [{"name": "start", "input_schema": NUMBER}, *tools, *paged]) == pair


@pytest.mark.parametrize(
    ("tools", "answer"),
    [
        ({"start_count": NUMBER}, {"job_id": "j", "estimated_duration_seconds": 1}),
        (TOOLS, {"job_id": "", "estimated_duration_seconds": 1}),
        (TOOLS, {"job_id": "j"}),
        (TOOLS, {"job_id": "j", "estimated_duration_seconds": -1}),
        (TOOLS, {"job_id": "j", "estimated_duration_seconds": True}),
    ],
)
def test_answer_that_names_no_job_is_a_result(kee: Caller, server: WorkerServer, tools: Any, answer: Any) -> None:
    make_counter(kee, server, tools=tools)
    with kee.acting():
        target = calls.target_of(worker_id="counter", tool_name="start_count")

        assert services.begun(target, answer) is None
