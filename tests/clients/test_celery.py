"""A Celery app of somebody else: its worker, with beat, is a process, and so is whoever calls `delay`."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from django.conf import settings

from gatehouse_client import Client, Refused
from tests.clients.test_processes import KIT, PATIENCE, environment
from tests.server import Server
from tests.waiters import until

pytestmark = pytest.mark.ci

Run = Callable[..., "subprocess.Popen[str]"]
SHOP = """
import os
from celery import Celery
from gatehouse_client import Task
from gatehouse_client.celery import GatehouseTask

app = Celery("shop", broker=os.environ["BROKER"])
app.conf.broker_transport_options = {"global_keyprefix": "shop-"}
app.conf.beat_schedule = {"gatehouse": {"task": "gatehouse_client.celery.work", "schedule": 0.2}}


@app.task(name="greet", base=GatehouseTask)
def greet(name: str, times: int = 1) -> str:
    return " ".join([f"Hello {name}"] * times)


@app.task(name="shaky", bind=True, base=GatehouseTask, declares={"max_attempts": 2})
def shaky(self, task: Task) -> int:
    if task.run_id == 1:
        self.retry(countdown=0)
    return task.run_id


@app.task(name="endless", base=GatehouseTask)
async def endless(task: Task) -> None:
    task.progress(50, "half way")
    while True:
        task.wait(0.1)
"""


@pytest.fixture
def run(tmp_path: Path, server: Server, token: str) -> Iterator[Run]:
    """Runs Python in the shop's folder."""
    (tmp_path / "shop.py").write_text(SHOP)
    env = environment(server, token) | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(KIT / "src")])}
    env["BROKER"] = settings.CELERY_BROKER_URL
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> "subprocess.Popen[str]":
        started.append(
            subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=env, stdout=-1, text=True, process_group=0)
        )
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_tasks_of_a_celery_app_are_tasks_of_the_hub(run: Run, client: Client) -> None:
    delayed = run("-c", "from shop import greet; print(greet.delay('Ada', times=2).task_id); greet.delay(nam='Ada')")
    ada, _ = delayed.communicate(timeout=PATIENCE)
    assert delayed.returncode == 1  # what does not fit the function is refused before anybody is asked
    run("-m", "celery", "-A", "shop", "worker", "--beat", "--concurrency", "1", "--loglevel", "warning")

    until(lambda: client.status(ada.strip()).complete)
    assert client.result(ada.strip()).content == "Hello Ada Hello Ada"
    assert client.status(ada.strip()).terminal_receipt_id in client.read().entries[0].receipt_ids

    with pytest.raises(Refused, match="nam"):
        client.queue(task_type="greet", params={"nam": "Bob"})
    others = [client.queue(task_type="greet", params={"name": name}).task_id for name in ("Bob", "Eve")]
    again = client.queue(task_type="shaky").task_id
    until(lambda: all(client.status(task_id).complete for task_id in (*others, again)))
    assert [client.result(task_id).content for task_id in (*others, again)] == ["Hello Bob", "Hello Eve", 2]

    endless = client.queue(task_type="endless").task_id
    until(lambda: (client.status(endless).progress or {}) != {})
    assert client.cancel(endless) == "canceling"
    until(lambda: client.status(endless).status == "canceled")
