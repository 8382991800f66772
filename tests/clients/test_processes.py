"""Workers as processes, killed and told to end; and what the documents say, done as they say it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from apps.principals.tenancy import Caller, acting_as
from apps.tasks.models import Run, run_key
from gatehouse_client import Client
from gatehouse_client.outputs import QueuedTask
from tests.clients.test_worker import ends, has_ended
from tests.commands import ROOT, of_a_person
from tests.server import Server
from tests.tasks.making import number
from tests.waiters import until

pytestmark = pytest.mark.ci

KIT = ROOT / "clients" / "python"
PATIENCE = 300


def environment(server: Server, token: str) -> dict[str, str]:
    """A stranger's: where the hub is, and nothing of the product."""
    return of_a_person(GATEHOUSE_URL=server.url, GATEHOUSE_TOKEN=token)


@contextmanager
def counting(server: Server, token: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.clients.counting"],
        cwd=ROOT,
        env=environment(server, token) | {"PYTHONPATH": str(KIT / "src")},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def is_resting(kee: Caller, task: QueuedTask) -> bool:
    """Whether its first run has saved what it had, and rests."""
    with acting_as(kee):
        return Run.objects.filter(pk=run_key(number(task.task_id), 1), message="resting").exists()


def test_task_of_a_killed_worker_continues_from_its_checkpoint(
    server: Server, token: str, client: Client, kee: Caller
) -> None:
    client.register_type(name="counting", lease_seconds=1)
    task = client.queue(task_type="counting", params={"rests_at": 6})

    with counting(server, token) as first:
        until(lambda: is_resting(kee, task))
        first.kill()
        with counting(server, token):
            until(has_ended(client, task))

    status = client.status(task.task_id)
    assert (status.status, status.run_id, status.expiries) == ("succeeded", 2, 1)
    assert client.result(task.task_id).content == {"began_at": 7}
    assert ends(kee, task) == ["task_complete"]


def test_terminated_worker_releases_its_tasks(server: Server, token: str, client: Client, kee: Caller) -> None:
    client.register_type(name="counting", lease_seconds=600)
    task = client.queue(task_type="counting", params={"rests_at": 6})

    with counting(server, token) as worker:
        until(lambda: client.status(task.task_id).status == "leased")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=PATIENCE) == 0

    status = client.status(task.task_id)
    assert (status.status, status.run_id, status.expiries, status.failures) == ("queued", 1, 0, 0)
    with counting(server, token):
        until(has_ended(client, task))
    assert ends(kee, task) == ["task_complete"]
