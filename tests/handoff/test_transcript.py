"""What docs/handoff.md shows is what the commands print, and what it says they cost is what they cost."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

from tests.handoff.repositories import PRODUCT, answered, environment, make_repository

DOCUMENT = PRODUCT / "docs" / "handoff.md"
_BLOCK = re.compile(r"```transcript\n(.*?)```", re.DOTALL)
_STAMP = re.compile(r"\b[0-9]{13}-[0-9a-f]{12}\b")


def commands() -> Iterator[tuple[str, str]]:
    """Each command of the transcript, and what it printed."""
    for block in _BLOCK.findall(DOCUMENT.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            # A here-document goes on until its end; the shell asks for each line of it with a `>`.
            typed = lines.index("> EOF") + 1 if "<<'EOF'" in lines[0] else 1
            command = "\n".join([lines[0], *(line.removeprefix("> ") for line in lines[1:typed])])
            yield command, "".join(f"{line}\n" for line in lines[typed:])


def run(command: str, root: Path) -> str:
    path = f"{PRODUCT / 'bin'}:{environment()['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=root, env=environment({"PATH": path}), capture_output=True, check=True, text=True
    )
    return done.stdout


def test_the_transcript_is_what_the_commands_print(root: Path) -> None:
    told = list(commands())
    assert len(told) >= 7
    printed = [(command, run(command, root)) for command, _ in told]
    assert [(command, _STAMP.sub("", text)) for command, text in printed] == [
        (command, _STAMP.sub("", text)) for command, text in told
    ]


def test_to_inherit_costs_what_the_document_promises(root: Path) -> None:
    assert answered("inherit", root=root)["tokens"] < 50
    for kind, session, text in (
        ("learning", "2026-01-10-auth", "JWT rotation pattern"),
        ("caution", "2026-01-10-auth", "Rate limiting on refresh endpoint required"),
        ("thread", "2026-01-09-migration", "Database migration paused at step 3, resume needed"),
    ):
        answered("leave", "--type", kind, "--session", session, text, root=root)
    assert answered("inherit", root=root)["tokens"] < 300


def test_it_is_less_than_the_last_five_files_of_a_real_repository(tmp_path: Path) -> None:
    """Each of the product's decisions is what one session has settled, written down for the ones that follow."""
    root = make_repository(tmp_path / "product")
    copytree(PRODUCT / "docs" / "decisions", root / "sessions", ignore=lambda _, names: {"README.md"} & set(names))
    told = answered("status", root=root)
    assert len(told["baseline_files"]) == 5
    assert told["baseline"] > 1000
    assert told["saved"] == told["baseline"] - told["tokens"] > 0.9 * told["baseline"]
