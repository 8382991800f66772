"""Workers as processes, killed and told to end; and what the documents say, done as they say it."""

import os
import re
import shlex
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.db import connection

from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.tasks.models import Run, run_key
from gatehouse_client import Client
from gatehouse_client.outputs import QueuedTask
from tests.clients.test_worker import ends, has_ended
from tests.factories import make_token
from tests.server import Server
from tests.tasks.making import number
from tests.waiters import until

pytestmark = pytest.mark.ci

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "clients" / "python"
PATIENCE = 300


def environment(server: Server, token: str) -> dict[str, str]:
    """A stranger's: where the hub is, and nothing of the product."""
    ours = ("GATEHOUSE_", "DJANGO_", "PYTEST_", "DATABASE_URL", "REDIS_URL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "GATEHOUSE_URL": server.url, "GATEHOUSE_TOKEN": token}


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


def commands(document: Path) -> list[str]:
    """The blocks of a document that a shell is to run, with this Python in the place of the product's."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    return [block.replace(".venv/bin/python", shlex.quote(sys.executable)) for block in blocks]


def shell(script: str, env: Mapping[str, str]) -> str:
    """Run it as a person would, but stop at the first command that goes wrong."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env=dict(env),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


API = """api() { curl --fail-with-body -sS -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' "$@"; echo; }
"""


def test_curl_loop_of_the_docs_works(server: Server, acme: Tenant) -> None:
    blocks = commands(ROOT / "docs" / "tasks.md")
    env = environment(server, "") | {"URL": server.url, "TOKEN": make_token(acme, "Hexy")}

    said = shell(API + "\n".join(blocks), env)

    assert len(blocks) == 15
    assert "Greeted Ada" in said
    assert '"content":{"said":"Hello Ada"}' in said.replace(": ", ":")
    assert "\ncancel\n" in said
    assert '"status":"canceled"' in said.replace(": ", ":")


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """The Python of a virtual environment with nothing in it but pip."""
    venv.create(tmp_path / "empty", with_pip=True, symlinks=True)
    return tmp_path / "empty" / "bin" / "python"


def test_examples_run_on_the_package_alone(server: Server, token: str, client: Client, empty: Path) -> None:
    _, three = commands(ROOT / "examples" / "worker_python" / "README.md")
    (agents,) = commands(ROOT / "docs" / "agents.md")
    # One build for the wheel and the installation: what is installed is what would be given away.
    wheels = empty.parent.parent / "wheels"
    build = [str(empty), "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(wheels), str(KIT)]
    subprocess.run(build, check=True, timeout=PATIENCE, cwd=empty.parent)
    (wheel,) = wheels.glob("gatehouse_client-*.whl")
    alone = (three + agents).replace(shlex.quote(sys.executable), str(empty)).replace("./clients/python", str(wheel))

    # By their process ids: a job that has ended is forgotten.
    ended = "trap - EXIT; workers=$(jobs -p); kill $workers; for worker in $workers; do wait $worker; done"
    said = shell(f"trap 'kill $(jobs -p)' EXIT\n{alone}\n{ended}", environment(server, token))

    assert said.count("Counted: {") == 2
    assert re.search(r"\d+ lines in \d+ files of .*docs\n(?: .*\n)* +\d+ \.md$", said, re.MULTILINE)
    assert client.read().entries == []
    shown = subprocess.run([str(empty), "-m", "pip", "check"], check=False, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stdout
    typed = "import gatehouse_client, pathlib; print((pathlib.Path(gatehouse_client.__file__).parent / 'py.typed').exists())"
    assert subprocess.run([str(empty), "-c", typed], check=True, capture_output=True, text=True).stdout == "True\n"


@pytest.mark.usefixtures("transactional_db")
def test_token_of_the_example_is_issued() -> None:
    in_this_shell, _ = commands(ROOT / "examples" / "worker_python" / "README.md")
    database = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}").geturl()

    assert "ght_" in shell(f"{in_this_shell}\necho $GATEHOUSE_TOKEN", {**os.environ, "DATABASE_URL": database})
