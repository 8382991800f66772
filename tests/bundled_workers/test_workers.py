"""The bundled MCP workers alone; tests/journeys has a hub register, plan with and call all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bundled_workers.processes import refusal_of, result_of, running

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
