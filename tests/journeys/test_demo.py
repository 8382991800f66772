"""The demo as a person starts it."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.commands import ROOT, of_a_person, run
from tests.waiters import until

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

        until(reached, self.output, seconds=PATIENCE)

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


def _stack_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "config.stack", *arguments]


@contextmanager
def _demo(path: Path, folder: Path, *options: str) -> Iterator[Demo]:
    data, log = folder / "data", folder / "demo.out"
    with log.open("w") as output:
        child = subprocess.Popen(
            _stack_command("demo", str(path), "--data", str(data), *options),
            env=of_a_person(BROWSER="echo opened %s"),
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
        reset = _stack_command("reset", "--yes", "--data", str(data))
        run(*reset, env=of_a_person())


@pytest.mark.ci
def test_demo_ends_well_twice_on_the_same_data(tmp_path: Path) -> None:
    code, next_to_nothing = tmp_path / "it's my code", tmp_path / "tiny"
    shutil.copytree(SMALL, code)
    next_to_nothing.mkdir()
    (next_to_nothing / "one.py").write_text("x = 1\n")
    with _demo(code, tmp_path, "--watch") as first:
        until(
            lambda: "Stop: Ctrl-C" in first.output() or first.child.poll() is not None, first.output, seconds=PATIENCE
        )
        assert f"opened {first.stack['url']}/admin/executions/execution/1/change/" in first.output()
        first.child.send_signal(signal.SIGINT)
        shown = first.ended_well()
        assert "digest_snapshot" in shown
        again = run(*_stack_command("demo", str(next_to_nothing), "--data", str(first.data)), env=of_a_person())

    assert again.returncode == 0, again.stdout + again.stderr
    assert "exec_2" in again.stdout
    assert "start it with bin/up" in again.stdout
    assert "an earlier run" not in again.stdout
    assert "Python files: 1, functions: 0" in again.stdout


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

    env = of_a_person(GATEHOUSE_URL="http://127.0.0.1:9", GATEHOUSE_TOKEN="ght_none")
    refused = run(sys.executable, "manage.py", "demo", path, env=env)

    assert refused.returncode != 0
    assert str(path) in refused.stderr
    assert "Traceback" not in refused.stderr
