"""Waiting for work over HTTP, against a running web process."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest

from apps.core import notifications
from apps.core.notifications import in_thread
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import services
from apps.tasks.signals import queue_topic, type_topic
from tests.asgi import ask
from tests.factories import T0, make_caller, make_token
from tests.mcp.conftest import Server
from tests.tasks.making import lease_one, make_type, queue
from tests.tasks.test_ending import release
from tests.waiters import until_heard

HOLDERS = 30


@dataclass
class Worker:
    """A worker with a token, and Kee who has work for it."""

    url: str
    token: str
    kee: Caller
    own: Caller

    async def leases(self, **asked: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=httpx2.Timeout(60)) as client:
            return await client.post("/api/v1/tasks/lease", json=asked)

    async def while_waiting(self, topic: str, action: Callable[[], Any], **asked: Any) -> httpx2.Response:
        async def act() -> None:
            await until_heard(topic)
            await in_thread(action)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(act)
            answer = await self.leases(**asked)
        return answer  # noqa: RET504  # a return inside would look as if a task group could end without one


@pytest.fixture
def worker(server: Server, acme: Tenant) -> Worker:
    kee = make_caller(acme)
    make_type(kee)
    return Worker(server.url, make_token(acme, "W", Kind.WORKER), kee, make_caller(acme, "W", Kind.WORKER))


def run(story: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        with anyio.fail_after(25):
            return await story()

    return anyio.run(bounded)


def test_work_that_is_there_is_leased_at_once(worker: Worker) -> None:
    task = queue(worker.kee)
    answer = run(lambda: worker.leases(queues=["default"], wait_seconds=30))
    assert [given["task_id"] for given in answer.json()["tasks"]] == [task.task_id]


@pytest.mark.parametrize("named", ["queues", "task_types"])
def test_a_lease_waits_until_there_is_work(worker: Worker, named: str) -> None:
    tenant_id = worker.kee.tenant_id
    topic = queue_topic(tenant_id, "default") if named == "queues" else type_topic(tenant_id, "index")
    asked = {named: ["default" if named == "queues" else "index"], "wait_seconds": 30}
    answer = run(lambda: worker.while_waiting(topic, partial(queue, worker.kee), **asked))
    assert (answer.status_code, len(answer.json()["tasks"])) == (200, 1)


def test_a_lease_waits_for_what_another_worker_gives_back(worker: Worker) -> None:
    queue(worker.kee)
    held = lease_one(worker.kee)
    answer = run(
        lambda: worker.while_waiting(
            queue_topic(worker.kee.tenant_id, "default"),
            partial(release, worker.kee, held),
            queues=["default"],
            wait_seconds=30,
        )
    )
    assert answer.json()["tasks"][0]["run_id"] == 2


@pytest.mark.parametrize("named", ["queues", "task_types"])
@pytest.mark.parametrize("paused", ["queue", "type"])
def test_a_lease_that_waits_hears_that_its_queue_or_type_is_resumed(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch, named: str, paused: str
) -> None:
    # Nobody looks again without a cue.
    monkeypatch.setattr(notifications, "LOOK_SECONDS", 3600.0)
    kee, token = make_caller(acme), make_token(acme, "W", Kind.WORKER)
    make_type(kee)
    task = queue(kee)
    topics = {"queues": queue_topic(acme.pk, "default"), "task_types": type_topic(acme.pk, "index")}
    asked = {named: ["default" if named == "queues" else "index"], "wait_seconds": 30}
    with acting_as(kee):
        if paused == "queue":
            services.pause_queue(caller=kee, name="default", now=T0)
        else:
            services.pause_type(caller=kee, name="index", now=T0)
    said: list[bytes] = []

    async def hear(message: Any) -> None:
        said.append(message.get("body", b""))

    def resume() -> None:
        with acting_as(kee):
            if paused == "queue":
                services.resume_queue(caller=kee, name="default")
            else:
                services.resume_type(caller=kee, name="index")

    async def story() -> None:
        async def resume_later() -> None:
            await until_heard(topics[named])
            await in_thread(resume)

        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resume_later)
            await ask("/api/v1/tasks/lease", hear, method="POST", body=json.dumps(asked).encode(), **headers)

    run(story)

    assert [given["task_id"] for given in json.loads(b"".join(said))["tasks"]] == [task.task_id]


def test_a_lease_that_waits_for_nothing_ends_empty(worker: Worker) -> None:
    answer = run(lambda: worker.leases(queues=["default"], wait_seconds=0.5))
    assert (answer.status_code, answer.content) == (204, b"")


def test_nobody_waits_longer_than_half_a_minute_or_for_nowhere(worker: Worker) -> None:
    assert run(lambda: worker.leases(queues=["default"], wait_seconds=31)).status_code == 422
    assert run(lambda: worker.leases(wait_seconds=5)).status_code == 422
    assert run(lambda: worker.leases(queues=["default"], wait_seconds="5")).status_code == 422


def test_many_wait_at_once_and_each_task_goes_to_one(worker: Worker) -> None:
    given: list[str] = []

    async def wait() -> None:
        answer = await worker.leases(queues=["default"], wait_seconds=20)
        given.extend(task["task_id"] for task in answer.json()["tasks"])

    def work() -> None:
        for _ in range(HOLDERS):
            queue(worker.kee)

    async def story() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(HOLDERS):
                tasks.start_soon(wait)
            await until_heard(queue_topic(worker.kee.tenant_id, "default"))
            await in_thread(work)

    run(story)
    assert (len(given), len(set(given))) == (HOLDERS, HOLDERS)
