"""Real git repositories, the commands run in them as processes of their own, and the API as one principal."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from django.test import Client

from apps.handoff import files
from apps.handoff.files import Inbox
from apps.handoff.items import Item, Kind, Priority
from apps.principals.models import Tenant
from tests.commands import run
from tests.factories import make_token

PRODUCT: Final = Path(__file__).resolve().parents[2]
NOON: Final = datetime(2026, 1, 10, 12, tzinfo=UTC)
_WITHOUT: Final = ("HANDOFF_SESSION", "DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE", "GATEHOUSE_DATA")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Without whatever says where a server is."""
    kept = {name: value for name, value in os.environ.items() if name not in _WITHOUT and not name.startswith("GIT_")}
    return {**kept, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **(extra or {})}


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    done = run("git", *identity, *arguments, cwd=folder, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_repository(folder: Path, *, origin: str | None = None) -> Path:
    """A repository with one commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "README").write_text("A repository\n")
    git(folder, "add", "README")
    git(folder, "commit", "-q", "-m", "Begin")
    if origin is not None:
        git(folder, "remote", "add", "origin", origin)
    return folder


def handoff(
    *arguments: str, root: Path, given: str | bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`bin/handoff`, called from somewhere else."""
    data = given.encode() if isinstance(given, str) else given
    done = subprocess.run(
        [PRODUCT / "bin" / "handoff", *arguments, "--root", str(root)],
        cwd=root.parent,
        input=data,
        env=environment(env),
        capture_output=True,
        check=False,
        timeout=60,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def answered(*arguments: str, root: Path, given: str | bytes = b"") -> dict[str, Any]:
    """What it answers as JSON."""
    done = handoff(*arguments, "--json", root=root, given=given)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def inbox_of(root: Path) -> Inbox:
    return Inbox(files.repository_of(root))


def item(body: str = "Do this next\n", **said: Any) -> Item:
    told = {"from_session": "2026-01-10-auth", "kind": Kind.LEARNING, "priority": Priority.MEDIUM, "created": NOON}
    return Item(**{**told, **said}, body=body)


def leave(root: Path, body: str = "Do this next\n", **said: Any) -> Path:
    return inbox_of(root).leave(item(body, **said), now=NOON)


def bodies(root: Path, *, now: datetime = NOON, max_tokens: int = 500) -> list[str]:
    """What a session is shown."""
    with inbox_of(root).inherit(max_tokens=max_tokens, now=now) as found:
        return [one.item.body for one in found.shown]


# Children of one process that do something at the same moment: the file's first argument says how many.
AT_ONCE: Final = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from apps.handoff import files
from apps.handoff.files import Inbox
from apps.handoff.items import Item, Kind, Priority

NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)
root, many = Path(sys.argv[1]), int(sys.argv[2])
inbox = Inbox(files.repository_of(root))
ready, started = os.pipe(), []
for number in range(many):
    child = os.fork()
    if child == 0:
        os.close(ready[1])
        os.read(ready[0], 1)
        DO
        os._exit(0)
    started.append(child)
os.close(ready[1])
sys.exit(sum(os.waitpid(child, 0)[1] for child in started) != 0)
"""


def at_once(root: Path, many: int, do: str) -> str:
    """Run a statement in many processes that are let go at the same moment; `number` is each one's own."""
    code = AT_ONCE.replace("        DO\n", "".join(f"        {line}\n" for line in do.strip().splitlines()))
    done = run(sys.executable, "-P", "-c", code, root, str(many), env=environment({"PYTHONPATH": str(PRODUCT)}))
    assert done.returncode == 0, done.stderr
    return done.stdout


BASE = "/api/v1/handoffs"


LEFT = {"session": "2026-01-10-auth", "type": "learning", "priority": "high", "body": "JWT rotation\n---\ntype: x\n"}


class Hub:
    """The API as one principal."""

    def __init__(self, token: str) -> None:
        self.token = token

    def ask(self, path: str, given: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        answer = Client().post(
            path, dict(given), content_type="application/json", headers={"Authorization": f"Bearer {self.token}"}
        )
        return answer.status_code, answer.json()

    def leave(self, **said: Any) -> dict[str, Any]:
        status, told = self.ask(BASE, {**LEFT, **said})
        assert status in {200, 201}, told
        return told

    def inherit(self, session: str | None = None, **said: Any) -> dict[str, Any]:
        status, told = self.ask(f"{BASE}/inherit", {**said, **({"session": session} if session else {})})
        assert status == 200, told
        return told

    def bodies(self, session: str | None = None, **said: Any) -> list[str]:
        return [one["body"] for one in self.inherit(session, **said)["items"]]


@pytest.fixture
def hub(tenant: Tenant) -> Hub:
    return Hub(make_token(tenant))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose path needs quoting."""
    return make_repository(tmp_path / "a räpository")
