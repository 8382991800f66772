"""What workers that read files may read, and what they list."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bundled_workers.processes import WORKERS, refusal_of, result_of, running


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
    (inside / "here").symlink_to(inside / "deeper")
    os.mkfifo(inside / "pipe.pdf")
    return ground


@pytest.fixture(scope="module")
def scanner(ground: Path) -> Iterator[str]:
    with running("file_scanner.py", "--root", str(ground / "inside")) as worker:
        yield worker.endpoint


def test_files_are_listed_by_type_in_order_without_links_pipes_and_hidden_ones(scanner: str, ground: Path) -> None:
    inside = ground / "inside"

    scan = result_of(scanner, "scan_directory", {"path": str(inside), "file_types": ["pdf"]})

    assert scan["files"] == [str(inside / name) for name in ("a.PDF", "b.pdf", "deeper/c.pdf")]
    assert (scan["files_found"], scan["total_bytes"], scan["complete"]) == (3, 15, True)
    assert scan["summary"].startswith("3 PDF files in ")


@pytest.mark.parametrize("kind", ["pdf", ".pdf", "*.pdf", "PDF"])
def test_a_type_may_be_written_in_any_way(scanner: str, ground: Path, kind: str) -> None:
    found = result_of(scanner, "scan_directory", {"path": str(ground / "inside"), "file_types": [kind]})

    assert found["files_found"] == 3


def test_without_types_every_file_is_listed_and_folders_only_when_asked(scanner: str, ground: Path) -> None:
    found = result_of(scanner, "scan_directory", {"path": str(ground / "inside"), "recursive": False})

    assert [Path(file).name for file in found["files"]] == ["a.PDF", "b.pdf", "notes.txt"]


def test_a_link_that_stays_inside_is_followed_to_its_real_place(scanner: str, ground: Path) -> None:
    found = result_of(scanner, "scan_directory", {"path": str(ground / "inside" / "here")})

    assert found["path"] == str(ground / "inside" / "deeper")


def test_a_list_that_is_too_long_is_cut_and_says_so(tmp_path: Path) -> None:
    for number in range(5_003):
        (tmp_path / f"{number:05}.txt").touch()
    with running("file_scanner.py") as worker:
        found = result_of(worker.endpoint, "scan_directory", {"path": str(tmp_path)})

    assert (len(found["files"]), found["files_found"], found["complete"]) == (5_000, 5_003, False)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("{outside}", "outside_root"),
        ("{inside}/../outside", "outside_root"),
        ("{inside}/linked", "outside_root"),
        ("{outside}/nothing", "outside_root"),
        ("/", "outside_root"),
        ("{inside}/nothing", "not_found"),
        ("{inside}/notes.txt", "not_a_folder"),
        ("relative", "not_absolute"),
        ("F:/Documents", "not_absolute"),
        ("", "not_absolute"),
        ("/nul\0byte", "unreadable"),
        ("/" + "long" * 2_000, "unreadable"),
    ],
)
def test_a_path_that_may_not_be_scanned_is_refused_by_name(scanner: str, ground: Path, path: str, code: str) -> None:
    named = path.format(inside=ground / "inside", outside=ground / "outside")

    assert f": {code}: " in refusal_of(scanner, "scan_directory", {"path": named})


def test_the_code_analyzer_keeps_to_its_root_as_well(tmp_path: Path) -> None:
    with running("code_analyzer.py", "--root", str(tmp_path)) as worker:
        told = refusal_of(worker.endpoint, "analyze_repository", {"repo_path": str(WORKERS)})

    assert ": outside_root: " in told


# A folder gives way to a link between the moment in which its file's place is found out and that in which it is opened.
SWAPPED = """
import os, sys
from pathlib import Path
from mcp.server.mcpserver.exceptions import ToolError
from worker_kit import Root

ground = Path(sys.argv[1])
really = os.open

def swaps_first(*arguments, **named):
    (ground / "inside" / "folder").rename(ground / "inside" / "away")
    (ground / "inside" / "folder").symlink_to(ground / "outside")
    return really(*arguments, **named)

os.open = swaps_first
try:
    print(Root(ground / "inside").read(str(ground / "inside" / "folder" / "file"), limit=100))
except ToolError as refusal:
    print(refusal)
"""


def test_a_folder_that_becomes_a_link_while_its_file_is_opened_leads_nobody_outside(tmp_path: Path) -> None:
    for folder, content in (("inside/folder", "ours"), ("outside", "secret")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").write_text(content)

    done = subprocess.run(
        [sys.executable, "-c", SWAPPED, tmp_path], cwd=WORKERS, capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("outside_root: ")
