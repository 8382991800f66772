"""bin/up and bin/demo, as a person meets them: real processes in folders with awkward names."""

import base64
import hashlib
import json
import os
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import psutil
import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from config.stack.folders import DataFolder
from config.stack.processes import marked, runs
from config.stack.servers import LOGINS
from config.stack.supervisor import readiness
from tests.commands import PATIENCE, ROOT, Ended, of_a_person, run, up
from tests.waiters import until


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "Größe und Länge"
    yield folder
    _call("up", "reset", "--yes", "--data", str(folder))


def _call(command: str, *arguments: str, cwd: Path = ROOT) -> Ended:
    return run(ROOT / "bin" / command, *arguments, env=of_a_person(), cwd=cwd)


def _manage(data: Path, *arguments: str) -> Ended:
    return run(sys.executable, "manage.py", *arguments, env=of_a_person(GATEHOUSE_DATA=str(data)))


_wait = partial(until, seconds=PATIENCE)


def _stack(data: Path) -> dict[str, Any]:
    stack: dict[str, Any] = json.loads((data / "stack.json").read_text())
    return stack


def _works(data: Path) -> bool:
    """Ready, and a token from an earlier start is still known: the data is there."""
    url, headers = _stack(data)["url"], {"Authorization": f"Bearer {(data / 'api-token').read_text().strip()}"}
    if readiness(url)[0] != HTTPStatus.OK:
        return False
    return httpx2.get(f"{url}/api/v1/whoami", headers=headers, trust_env=False).status_code == HTTPStatus.OK


@pytest.mark.ci
def test_stack_survives_kills_and_leaves_nothing_behind(data: Path) -> None:
    with up(data, "--no-workers", "--web", "2") as child:
        assert _works(data)
        for name in ("stack.json", "secrets.json", "api-token", "admin-password"):
            assert stat.S_IMODE((data / name).stat().st_mode) == 0o600, name
        assert _call("up", "status", "--data", data.name, cwd=data.parent).returncode == 0

        _has_a_neighbour(data)
        for web in ("web", "web-2"):
            before = dict(_stack(data)["processes"])
            os.kill(before[web], signal.SIGKILL)
            assert all(_works(data) for _ in range(10)), "the other web process answers"
            _wait(lambda: _stack(data)["processes"][web] != before[web], lambda: _stack(data)["processes"])  # noqa: B023

        before = dict(_stack(data)["processes"])
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        _wait(
            lambda: not set(before.values()) & set(_stack(data)["processes"].values()),
            lambda: _stack(data)["processes"],
        )
        _wait(lambda: _works(data), lambda: readiness(_stack(data)["url"]))
        orphans = marked(DataFolder(data).mark)
        child.kill()
        child.wait()
        if sys.platform == "linux":  # it alone tells a process that its parent died; elsewhere the next start ends them
            _wait(lambda: not any(map(runs, orphans)), lambda: orphans)

    with up(data, "--no-workers") as child:
        assert _works(data)
        assert not any(map(runs, orphans))
        running = marked(DataFolder(data).mark)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=PATIENCE) == 0

    assert running
    # What has ended may have yet to be reaped by init, whose child it has become.
    assert [process for process in running if runs(process)] == []
    assert not (data / "stack.json").exists()
    assert _call("up", "status", "--data", str(data)).returncode == 3


def _has_a_neighbour(data: Path) -> None:
    """A second stack needs a folder of its own, and neither touches the other."""
    other = data.with_name("other")
    other.mkdir()
    # A restored or cloned folder holds the secrets of its original, whose processes are not its own.
    shutil.copy(data / "secrets.json", other)
    before = dict(_stack(data)["processes"])
    with up(other, "--no-workers") as neighbour:
        second = _call("up", "--data", str(data))
        assert second.returncode == 1
        assert _stack(data)["url"] in second.stderr
        assert _works(data)
        assert _works(other)
        assert _call("up", "down", "--data", str(other)).returncode == 0
        assert neighbour.wait(timeout=PATIENCE) == 0
    assert _works(data)
    assert _stack(data)["processes"] == before
    _call("up", "reset", "--yes", "--data", str(other))


def _long_result(hub: httpx2.Client) -> str:
    """A task whose result is an artifact."""
    assert hub.post("/api/v1/tasks", json={"task_type": "copy", "params": {}}).is_success
    (run,) = hub.post("/api/v1/tasks/lease", json={"queues": ["default"]}).json()["tasks"]
    done = {"lease_token": run["lease_token"], "result": {"text": "long " * 20_000}}
    assert hub.post(f"/api/v1/tasks/{run['task_id']}/complete", json=done).is_success
    return str(run["task_id"])


@pytest.mark.ci
def test_a_backup_under_load_is_restored_elsewhere(data: Path, tmp_path: Path) -> None:
    backup, elsewhere, acknowledged, over = tmp_path / "backup", tmp_path / "elsewhere", list[str](), threading.Event()

    def load(hub: httpx2.Client) -> None:
        def ask(path: str, **given: object) -> Any:
            return hub.post(f"/api/v1/{path}", json=given).raise_for_status().json()

        while not over.is_set():
            queued = ask("tasks/batch", tasks=[{"task_type": "copy", "params": {"n": n}} for n in range(50)])["results"]
            runs = ask("tasks/lease", queues=["default"], capacity=25)["tasks"]
            given = [{"task_id": run["task_id"], "lease_token": run["lease_token"], "result": {}} for run in runs]
            ended = ask("tasks/complete", completions=given)["results"]
            acknowledged.extend(one["task_id"] for one in queued)
            for one in ended:
                acknowledged.extend((f"end of {one['task_id']}", one["receipt_id"]))
            shown = hub.get("/api/v1/inbox", params={"limit": 10}).json()["entries"]
            ask("inbox/ack-through", through=shown[-1]["token"])
            acknowledged.extend(f"ack of {receipt}" for entry in shown for receipt in entry["receipt_ids"])

    with up(data, "--no-workers") as child:
        token = (data / "api-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx2.Client(base_url=_stack(data)["url"], headers=headers, trust_env=False) as hub:
            assert hub.post("/api/v1/task-types", json={"name": "copy"}).is_success
            long = _long_result(hub)
            with ThreadPoolExecutor(1) as pool:
                loading = pool.submit(load, hub)
                _wait(lambda: len(acknowledged) > 1_000 or loading.done(), loading.exception)
                before = set(acknowledged)
                written = _manage(data, "backup", str(backup))
                after = len(acknowledged)
                over.set()
        assert written.returncode == 0, written.stderr
        assert after > len(before)
        assert [path for path in (backup / "artifacts").rglob("*") if path.is_file()]
        assert _call("up", "restore", str(backup), "--data", str(data)).returncode == 1, "a folder that is in use"
        restored = _call("up", "restore", str(backup), "--data", str(elsewhere))
        assert restored.returncode == 0, restored.stderr
        with up(elsewhere, "--no-workers"):
            assert _works(elsewhere)
        assert _works(data), "the original goes on beside it"
        for process in [*marked(DataFolder(data).mark), psutil.Process(child.pid)]:
            process.kill()
    assert before <= _restored_into_a_named_server(backup, tmp_path / "named", token)
    assert {fact.partition("_")[0] for fact in before} == {"task", "rcpt", "end of task", "ack of rcpt"}

    with up(elsewhere, "--no-workers"):
        with httpx2.Client(base_url=_stack(elsewhere)["url"], headers=headers, trust_env=False) as hub:
            result = hub.get(f"/api/v1/tasks/{long}/result/content", params={"limit": 200_000}).json()
            assert json.loads(base64.b64decode(result["base64"])) == {"text": "long " * 20_000}
        assert before <= _facts(_stack(elsewhere)["database_url"], token)
        with psycopg.connect(_stack(elsewhere)["database_url"]) as requests, pytest.raises(InsufficientPrivilege):
            requests.execute("select * from principals_operator")
        examined = _manage(elsewhere, "doctor")
        assert examined.returncode == 0, examined.stdout
        assert "every receipt is acked, visible or pending" in examined.stdout
    _call("up", "reset", "--yes", "--data", str(elsewhere))


# What a client was told that it is so.
_FACTS: Final = """
    select 'task_' || task_id from task_live union select 'task_' || task_id from task_history
    union select 'end of task_' || task_id from task_history union select receipt_id from receipts_receipt
    union select 'ack of ' || r.receipt_id from receipts_receipt r join digests_receiptstate s on s.receipt_id = r.id
        and s.acked_at is not null
"""


def _facts(url: str, token: str) -> set[str]:
    """The facts that the application's login is shown, by the tenant of the token."""
    with psycopg.connect(url) as requests:
        digest = hashlib.sha256(token.encode()).digest()
        requests.execute(
            "select set_config('gatehouse.tenant', tenant_id::text, true) from gatehouse_token(%s)", [digest]
        )
        return {fact for (fact,) in requests.execute(_FACTS)}


def _restored_into_a_named_server(backup: Path, data: Path, token: str) -> set[str]:
    """The facts there. The server is backed up in its turn."""
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path="/stack_restored")
    logins = {variable: url._replace(netloc=f"{login}@").geturl() for variable, login in LOGINS.items()}
    with psycopg.connect(os.environ["DATABASE_URL"], user="postgres", autocommit=True) as server:
        server.execute("drop database if exists stack_restored")
        server.execute(
            "create database stack_restored owner gatehouse template template0"
            " encoding 'UTF8' locale_provider builtin builtin_locale 'C.UTF-8'"
        )
    with psycopg.connect(url.geturl(), user="postgres") as server:
        server.execute("create extension vector")
    environment = json.loads((backup / "secrets.json").read_text()) | logins | {"GATEHOUSE_DATA": str(data)}
    restored = run(sys.executable, "manage.py", "restore", str(backup), env=of_a_person(**environment))
    assert restored.returncode == 0, restored.stderr
    assert [path for path in (data / "artifacts").rglob("*") if path.is_file()]
    again = data.with_name("again")
    written = run(sys.executable, "manage.py", "backup", str(again), env=of_a_person(**environment))
    assert written.returncode == 0, written.stderr
    held = [{path.name for path in (one / "artifacts").rglob("*")} for one in (backup, again)]
    assert held[0] == held[1]
    return _facts(logins["DATABASE_URL"], token)


@pytest.mark.ci
def test_named_servers_are_used_in_place_of_embedded_ones(data: Path) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("SET ROLE NONE")
        connection.execute("DROP DATABASE IF EXISTS stack_elsewhere")
        connection.execute("CREATE DATABASE stack_elsewhere")
    elsewhere = urlsplit(os.environ["DATABASE_URL"])._replace(path="/stack_elsewhere").geturl()
    with up(data, "--no-workers", DATABASE_URL=elsewhere, REDIS_URL=os.environ["REDIS_URL"]):
        assert _works(data)
        assert not {"postgres", "valkey"} & set(_stack(data)["processes"])
        assert not (data / "postgres").exists()
        assert not (data / "valkey").exists()
