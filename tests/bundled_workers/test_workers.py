"""The bundled MCP workers alone; tests/journeys has a hub register, plan with and call all of them."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from config.stack.programs import bundled_worker_scripts
from tests.bundled_workers.processes import (
    SCRIPTS,
    WORKERS,
    refusal_of,
    result_of,
    running,
)
from tests.commands import ROOT, run, with_database
from tests.server import Server

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that may be read, beside one that may not."""
    ground = tmp_path_factory.mktemp("ground")
    inside, outside = ground / "inside", ground / "outside"
    (inside / "deeper" / ".hidden").mkdir(parents=True)
    outside.mkdir()
    for name in ("b.pdf", "a.PDF", "notes.txt", "deeper/c.pdf", "deeper/.hidden/d.pdf", ".e.pdf"):
        (inside / name).write_text("12345")
    (outside / "theirs.pdf").write_text("secret")
    (inside / "link.pdf").symlink_to(outside / "theirs.pdf")
    (inside / "linked").symlink_to(outside)
    os.mkfifo(inside / "pipe.pdf")
    return ground


@pytest.fixture(scope="module")
def scanner(ground: Path) -> Iterator[str]:
    with running("file_scanner.py", "--root", str(ground / "inside")) as worker:
        yield worker.endpoint


def test_product_starts_all_of_them() -> None:
    assert [path.name for path in bundled_worker_scripts()] == SCRIPTS


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ("--port 70000", ""),
        ("--port 0 --root /no/such/folder", ""),
        ("--port 0", "nonsense"),
        ("--port 0", '{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}'),
        ("", ""),
    ],
)
def test_start_that_can_not_work_ends_with_its_reason(arguments: str, key: str) -> None:
    script = WORKERS / "sentiment_analyzer.py"
    ended = run(sys.executable, script, *arguments.split(), env={**os.environ, "GATEHOUSE_WORKER_KEY": key})

    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert any(word in ended.stderr for word in ("cannot start", "usage:"))


def test_files_are_listed_by_type_without_links_and_hidden_ones(scanner: str, ground: Path) -> None:
    inside = ground / "inside"

    scan = result_of(scanner, "scan_directory", {"path": str(inside), "file_types": ["*.pdf"]})

    names = ("a.PDF", "b.pdf", "deeper/c.pdf")
    assert scan["files"] == [str(inside / name) for name in names]
    assert (scan["files_found"], scan["complete"]) == (3, True)
    assert result_of(scanner, "scan_directory", {"path": str(inside), "recursive": False})["files_found"] == 3


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("{outside}", "outside_root"),
        ("{inside}/../outside", "outside_root"),
        ("{inside}/linked", "outside_root"),
        ("{outside}/nothing", "outside_root"),
        ("/", "outside_root"),
        ("{inside}/nothing", "not_found"),
        ("{inside}/notes.txt", "not_found"),
        ("relative", "outside_root"),
        ("/nul\0byte", "unreadable"),
        ("/" + "long" * 2_000, "unreadable"),
    ],
)
def test_path_that_may_not_be_read_is_refused(scanner: str, ground: Path, path: str, code: str) -> None:
    named = path.format(inside=ground / "inside", outside=ground / "outside")

    assert f": {code}: " in refusal_of(scanner, "scan_directory", {"path": named})


def test_worker_registers_until_accepted_and_again_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of the hub, in their order: refusals, an acceptance, heartbeats, a wish to register, a lost registry."""
    beat = (200, {"status": "ready", "next_heartbeat_seconds": 9.0})
    answers = [
        (500, "broken"), (422, {"code": "invalid"}), (201, {}), beat, (503, {}), beat, (200, {"register_again": True}),
        (200, {}), beat, (404, {}), (200, {}), beat,
    ]  # fmt: skip
    asked: list[str] = []

    def hub(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path.rpartition("/")[2])
        status, body = answers[len(asked) - 1]
        return httpx2.Response(status, json=body)

    monkeypatch.syspath_prepend(WORKERS)
    worker: Any = importlib.import_module("worker_kit").Worker(worker_id="w", description="")

    async def live() -> list[float]:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(hub), base_url="http://hub") as client:
            return [await worker.report(client) for _ in answers]

    pauses = asyncio.run(live())
    assert [pause if pause in {0, 9} else "soon" for pause in pauses] == [
        "soon", "soon", 0, 9, "soon", 9, 0, 0, 9, "soon", 0, 9,
    ]  # fmt: skip
    assert asked == [*["register"] * 3, *["heartbeat"] * 4, "register", *["heartbeat"] * 2, "register", "heartbeat"]


def blocks() -> list[str]:
    text = (ROOT / "docs" / "workers.md").read_text(encoding="utf-8")
    return re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.ci
@pytest.mark.django_db(transaction=True)
def test_the_tutorial_goes_as_it_is_written(server: Server, tmp_path: Path) -> None:
    python = shlex.quote(sys.executable)
    script = re.sub(r'(?:"\$PRODUCT"/)?\.venv/bin/python', lambda _: python, "\n".join(blocks()))
    lines = f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"

    env = with_database(GATEHOUSE_URL=server.url, TMPDIR=str(tmp_path))
    done = run("bash", "-euo", "pipefail", "-c", lines, env=env)

    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.replace('": ', '":')
    assert '"summary":"7 words, 0.04 minutes"' in said
    assert '"worker_id":"reading-time"' in said
    assert '"effective_tier":"untrusted"' in said
    assert re.search(r'"matched":\[[^]]*"txet"', said)
    assert '"tool_name":"estimate_reading_time"' in said
    assert '"summary":"3 words, 0.01 minutes"' in said or '"words":3' in said
    assert "effective tier verified" in said
    assert '"status":"unregistered"' in said
    (folder,) = tmp_path.iterdir()
    assert {file.name for file in folder.iterdir()} >= {"worker_kit.py", "reading_time.py", "key.json"}
