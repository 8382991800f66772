"""The demo as a person starts it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2
import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0
SMALL = ROOT / "apps" / "executions"


@dataclass(frozen=True)
class Demo:
    """A demo that runs, with the stack that it has started."""

    child: subprocess.Popen[bytes]
    data: Path
    log: Path

    @property
    def stack(self) -> Mapping[str, Any]:
        found: dict[str, Any] = json.loads((self.data / "stack.json").read_text())
        return found

    def output(self) -> str:
        return self.log.read_text()

    def ended_well(self) -> str:
        """Wait for its end and answer what it has shown."""
        assert self.child.wait(timeout=PATIENCE) == 0, self.output()
        assert "The chain is complete" in self.output()
        return self.output()

    def until_step_1_is(self, status: str) -> None:
        """Wait until the plan's first task is in this status."""

        def reached() -> bool:
            assert self.child.poll() is None, self.output()
            return self._task().get("status") == status

        _wait(reached, why=self.output)

    def _task(self) -> Mapping[str, Any]:
        try:
            tokens = json.loads((self.data / "secrets.json").read_text())["tokens"]
            (token,) = [names["kee"] for names in tokens.values()]
            answer = httpx2.get(
                f"{self.stack['url']}/api/v1/tasks/task_1",
                headers={"Authorization": f"Bearer {token}"},
                trust_env=False,
            )
        except (OSError, ValueError, KeyError, httpx2.HTTPError):
            return {}  # the stack is still starting
        found: dict[str, Any] = answer.json() if answer.status_code == HTTPStatus.OK else {}
        return found


def _wait(until: Callable[[], bool], *, why: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)


def _stack_command(command: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "config.stack", command, *arguments]


def _environment() -> dict[str, str]:
    """A person's environment: without what the test run put there for itself."""
    ours = ("GATEHOUSE_", "DJANGO_", "PYTEST_", "DATABASE_URL", "REDIS_URL")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@contextmanager
def _demo(path: Path, folder: Path) -> Iterator[Demo]:
    data, log = folder / "data", folder / "demo.out"
    with log.open("w") as output:
        child = subprocess.Popen(
            _stack_command("demo", str(path), "--data", str(data)),
            env=_environment(),
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Demo(child=child, data=data, log=log)
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait(timeout=PATIENCE)
        reset = _stack_command("up", "reset", "--yes", "--data", str(data))
        subprocess.run(reset, env=_environment(), cwd=ROOT, check=False, capture_output=True, timeout=PATIENCE)


@pytest.mark.ci
def test_demo_ends_well_twice_on_the_same_data(tmp_path: Path) -> None:
    code, next_to_nothing = tmp_path / "it's my code", tmp_path / "tiny"
    shutil.copytree(SMALL, code)
    next_to_nothing.mkdir()
    (next_to_nothing / "one.py").write_text("x = 1\n")
    with _demo(code, tmp_path) as first:
        shown = first.ended_well()
        assert "digest_snapshot" in shown
        assert "start it with bin/up" in shown
        again = subprocess.run(
            _stack_command("demo", str(next_to_nothing), "--data", str(first.data)),
            env=_environment(),
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    assert again.returncode == 0, again.stdout + again.stderr
    assert "exec_2" in again.stdout
    assert "earlier run" not in again.stdout
    assert "1 Python file" in again.stdout


@pytest.mark.long
def test_interrupted_demo_ends_with_its_exit_code(tmp_path: Path) -> None:
    with _demo(ROOT, tmp_path) as demo:
        demo.until_step_1_is("leased")
        demo.child.send_signal(signal.SIGINT)

        assert demo.child.wait(timeout=PATIENCE) == 130, demo.output()

    assert "Traceback" not in demo.output()


@pytest.mark.ci
def test_missing_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "missing"

    refused = subprocess.run(
        [sys.executable, "manage.py", "demo", str(path)],
        env=_environment() | {"GATEHOUSE_URL": "http://127.0.0.1:9", "GATEHOUSE_TOKEN": "ght_none"},
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert refused.returncode != 0
    assert str(path) in refused.stderr
    assert "Traceback" not in refused.stderr
