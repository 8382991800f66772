"""The package for Node, built as its README says, and the README's worker and asker, each a process."""

import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.management import call_command

from gatehouse_client import Client
from tests.clients.test_processes import PATIENCE, environment
from tests.commands import ROOT
from tests.mcp.node import NODE, packages, run_node
from tests.server import Server
from tests.waiters import until

__all__ = ["packages"]
pytestmark = pytest.mark.ci

KIT = ROOT / "clients" / "typescript"
HANDLERS = """
import { Failed } from "gatehouse-client";
worker.handles("refusing", () => { throw new Failed("no_voice", "I have lost my voice.", { retryable: false }); });
worker.handles("broken", () => { throw new Error("the password is secret"); });
worker.handles("endless", async (task) => {
  if (task.checkpoint) task.progress(50, `at ${task.checkpoint.at}`);
  else await task.save({ at: task.runId });
  await new Promise((_, reject) => task.signal.addEventListener("abort", () => reject(task.signal.reason)));
});
"""


@pytest.fixture
def folder(tmp_path: Path, packages: Path) -> Path:
    """A folder in which the built package is installed."""
    home = tmp_path / "node_modules" / "gatehouse-client"
    shutil.copytree(KIT, home, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (home / "node_modules").symlink_to(packages / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    document = io.StringIO()
    call_command("spectacular", "--format", "openapi-json", stdout=document)
    (home / "openapi.json").write_text(document.getvalue())
    scripts = json.loads((home / "package.json").read_text())["scripts"]
    for line in (scripts["types"], scripts["build"]):
        program, *words = line.split()
        built = run_node(home / "node_modules" / ".bin" / program, *words, cwd=home, check=False)
        assert built.returncode == 0, built.stdout + built.stderr
    worker, asker = re.findall(r"```ts\n(.*?)```", (KIT / "README.md").read_text(), re.DOTALL)
    before, run = worker.replace("capacity: 4", "capacity: 4, grace: 0.1").split("const stop")
    (tmp_path / "worker.mjs").write_text(f"{before}{HANDLERS}const stop{run}")
    (tmp_path / "ask.mjs").write_text(asker)
    return tmp_path


@pytest.fixture
def start(folder: Path, server: Server, token: str) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    env = environment(server, token) | {"PATH": os.environ["PATH"]}
    started: list[subprocess.Popen[str]] = []

    def begin(script: str) -> "subprocess.Popen[str]":
        started.append(subprocess.Popen([NODE, script], cwd=folder, env=env, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_worker_and_asker_of_the_readme(start: Callable[[str], "subprocess.Popen[str]"], client: Client) -> None:
    for name in ("greeting", "refusing", "broken", "endless"):
        client.register_type(name=name, max_attempts=1, lease_seconds=2)
    worker = start("worker.mjs")
    said, _ = start("ask.mjs").communicate(timeout=PATIENCE)
    assert said == "{ said: 'Hello Ada' }\n"

    refused, broken, canceled, left = (
        client.queue(task_type=name).task_id for name in ("refusing", "broken", "endless", "endless")
    )
    until(lambda: client.status(refused).complete and client.status(broken).complete)
    assert [(client.status(one).error or {})["code"] for one in (refused, broken)] == ["no_voice", "handler_error"]
    assert "secret" not in str(client.status(broken).error)

    until(lambda: client.status(canceled).run_id == client.status(left).run_id == 1)
    client.cancel(canceled)
    until(lambda: client.status(canceled).status == "canceled")
    worker.terminate()
    assert worker.wait(timeout=PATIENCE) == 0
    (again,) = client.lease(task_types=["endless"], capacity=2)
    assert (again.task_id, again.checkpoint) == (left, {"at": 1})
