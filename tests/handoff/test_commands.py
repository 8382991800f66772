"""The commands as they are typed: what they print, what they refuse, and what docs/handoff.md shows of them."""

import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apps.handoff.files import Outbox
from tests.commands import Ended, run
from tests.handoff.conftest import NOON, PRODUCT, answered, environment, handoff, inbox_of, leave

pytestmark = pytest.mark.ci
EMPTY = "◈ INHERIT\nNo inheritance items\n"


def test_command_starts_without_django_and_servers(root: Path) -> None:
    code = "import sys; from apps.handoff.cli import main; main(sys.argv[1:]); sys.stderr.write(' '.join(sys.modules))"
    leave(root)
    env = environment({"PYTHONPATH": str(PRODUCT), "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"})
    done = run(sys.executable, "-P", "-c", code, "inherit", "--root", root, env=env)
    assert "Do this next" in done.stdout
    loaded = set(done.stderr.split())
    assert not loaded & {"django", "pydantic", "config", "apps.core", "psycopg", "httpx2", "redis", "asyncio"}


def test_modules_of_the_current_folder_are_not_loaded(root: Path) -> None:
    for name in ("apps.py", "json.py", "argparse.py", "yaml.py"):
        (root / name).write_text("raise SystemExit('loaded from here')")
    leave(root)
    done = run(PRODUCT / "bin" / "handoff", "inherit", cwd=root, env=environment())
    assert "Do this next" in done.stdout


def test_command_works_through_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "handoff").symlink_to(PRODUCT / "bin" / "handoff")
    assert run(tmp_path / "handoff", "inherit", cwd=root, env=environment()).stdout == EMPTY


def test_output_is_utf_8_in_every_locale(root: Path) -> None:
    leave(root, "Größe\n")
    odd = {"LC_ALL": "en_US.ISO-8859-1", "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    assert handoff("inherit", root=root, env=odd).stdout.endswith("> Größe\n")


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (("leave", "--type", "learning", "--session", "a"), b" \n", "empty"),
        (("leave", "--type", "learning", "--session", "a"), b"\xff", "not UTF-8"),
        (("leave", "--type", "learning", "--session", "a"), b"x" * 70_000, "64 KiB"),
        (("leave", "--type", "learning", "--session", "../a"), b"x", "can't name a session"),
        (("leave", "--type", "learning"), b"x", "HANDOFF_SESSION"),
        (("leave", "--type", "learning", "--session", "a", "--file", "/nowhere/x"), b"", "No such file"),
        (("inherit", "--max-tokens", "0"), b"", "number from 1"),
        (("outbox", "put", "--type", "../x", "--session", "a"), b"x", "can't name a type"),
        (("outbox", "take", "nothing.md"), b"", "has no nothing.md"),
        (("clean", "--keep-days", "nan"), b"", "number from 0"),
        (("status", "--baseline", "/etc/*.md"), b"", "within the repository"),
        (("outbox", "put", "--type", "x", "--session", "a", "--topic", os.fsdecode(b"\xff")), b"x", "not UTF-8"),
    ],
)
def test_refusal_is_one_sentence_and_changes_nothing(
    root: Path, arguments: tuple[str, ...], given: bytes, said: str
) -> None:
    done = handoff(*arguments, root=root, given=given)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert inbox_of(root).waiting() == []


def test_folder_outside_a_repository_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    done = handoff("inherit", root=folder)
    assert (done.returncode, done.stderr) == (2, f"{folder} is in no git repository.\n")


def test_command_works_without_stdin_and_stderr(root: Path) -> None:
    closed = "<&- 2>&-"
    done = in_shell(f'"$HANDOFF" leave --type thread --session a --root "$ROOT" "At step 3" {closed}', root)
    assert (done.returncode, done.stdout[:5]) == (0, "Left ")
    assert in_shell(f'"$HANDOFF" inherit --root "$ROOT" {closed}', root).stdout.endswith("> At step 3\n")


@pytest.mark.parametrize(("closed", "said"), [(">&-", "no standard output"), (">/dev/full", "No space left")])
def test_failed_output_does_not_count_as_shown(root: Path, closed: str, said: str) -> None:
    leave(root)
    done = in_shell(f'"$HANDOFF" inherit --root "$ROOT" {closed}', root)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert len(answered("inherit", root=root)["items"]) == 1


def in_shell(line: str, root: Path) -> Ended:
    env = environment({"HANDOFF": str(PRODUCT / "bin" / "handoff"), "ROOT": str(root)})
    return run("bash", "-c", line, env=env)


def test_interrupt_prints_nothing(root: Path) -> None:
    # Where the tests run in a shell's background, interruptions are ignored, by what they start too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [PRODUCT / "bin" / "handoff", "leave", "--type", "learning", "--session", "a", "--root", root],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdin is not None
    # A body that is larger than the pipe holds, and never ends: it is being read when this returns, and goes on to be.
    held = fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, 4096)
    process.stdin.write(b"x" * (held + 1))
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    assert (process.communicate()[1], process.returncode) == (b"", 130)


def test_manage_py_has_the_same_commands(root: Path) -> None:
    leave(root)
    (root / ".git" / "handoff" / "outbox").write_text("in the way")
    command = (sys.executable, PRODUCT / "manage.py", "handoff")
    shown = run(*command, "inherit", "--root", root)
    refused = run(*command, "outbox", "put", "--type", "r", "--session", "a", "Text", "--root", root)
    assert "Do this next" in shown.stdout
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_session_comes_from_the_environment(root: Path) -> None:
    env = {"HANDOFF_SESSION": "2026-01-10-auth"}
    assert handoff("leave", "--type", "learning", "text", root=root, env=env).returncode == 0
    assert "[learning from 2026-01-10-auth]" in handoff("inherit", root=root, env=env).stdout


def test_report_is_put_listed_and_taken(root: Path) -> None:
    put = answered(
        "outbox", "put", "--type", "governance-report", "--session", "s-1", "--topic", "Login", "-",
        root=root, given="All is well.\n",
    )  # fmt: skip
    assert put["name"].startswith("governance-report-")
    text = Path(put["path"]).read_text()
    heading, _, rest = text.partition("\n\n")
    assert heading == "# Governance Report: Login"
    assert rest.startswith("**Session:** s-1\n**Date:** ")
    assert rest.endswith("\n\nAll is well.\n")
    assert handoff("inherit", root=root).stdout == EMPTY
    assert answered("outbox", "list", root=root) == {"reports": [put["name"]]}
    assert answered("outbox", "take", root=root) == {"report": text}
    assert handoff("outbox", "take", root=root).stdout == "The outbox is empty\n"
    (taken,) = Outbox(inbox_of(root).repository).past.glob("*.md")
    assert taken.name.endswith(put["name"])


def test_report_waits_again_after_an_error(root: Path) -> None:
    put = answered("outbox", "put", "--type", "report", "--session", "s", "Text", root=root)
    outbox = Outbox(inbox_of(root).repository)
    with pytest.raises(RuntimeError), outbox.take(None, now=NOON):
        raise RuntimeError
    assert [path.name for path in outbox.waiting()] == [put["name"]]
    with outbox.take(put["name"], now=NOON) as report:
        assert report is not None
        assert report.endswith(b"Text")


def test_report_is_taken_once(root: Path) -> None:
    outbox = Outbox(inbox_of(root).repository)
    for number in range(4):
        outbox.put(report_type="report", session="s", topic="Login", body=f"Number {number}", now=NOON)
    with ThreadPoolExecutor(4) as takers:
        taken = list(takers.map(lambda _: answered("outbox", "take", root=root)["report"], range(4)))
    assert sorted(text[-1] for text in taken) == ["0", "1", "2", "3"]
    assert answered("outbox", "take", root=root) == {"report": None}


def test_status_compares_the_cost_with_session_files(root: Path) -> None:
    sessions = root / "shared" / "sessions"
    sessions.mkdir(parents=True)
    for number in range(7):
        path = sessions / f"session-{number}.md"
        path.write_text("word " * 400)
        os.utime(path, (number, number))
    leave(root, "Do this next\n")
    told = answered("status", root=root)
    assert told["baseline"] == 5 * 500
    assert told["baseline_files"] == [f"shared/sessions/session-{number}.md" for number in (6, 5, 4, 3, 2)]
    assert told["tokens"] == answered("inherit", root=root)["tokens"]
    assert told["saved"] == told["baseline"] - told["tokens"]
    assert [one["tokens"] > 0 for one in told["items"]] == [True]
    chosen = answered("status", "--baseline", "shared/*/session-1.md", "--baseline", "README", root=root)
    assert sorted(chosen["baseline_files"]) == ["README", "shared/sessions/session-1.md"]


def test_harvest_asks_the_questions(root: Path) -> None:
    text = handoff("harvest", "--session", "s-1", root=root).stdout
    assert text.startswith("◈ HARVEST\n")
    for word in ("Learning:", "Caution:", "Context:", "Thread:", "thank", "--session s-1"):
        assert word in text


DOCUMENT = PRODUCT / "docs" / "handoff.md"
_BLOCK = re.compile(r"```transcript\n(.*?)```", re.DOTALL)
_STAMP = re.compile(r"\b[0-9]{13}-[0-9a-f]{12}\b|\b20\d{6}T\d{6}\.\d{3}Z|(?<=Date:\*\* )20\S+")


def commands() -> Iterator[tuple[str, str]]:
    """Each command of the transcript, and what it printed."""
    for block in _BLOCK.findall(DOCUMENT.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            # A here-document goes on until its end; the shell asks for each line of it with a `>`.
            typed = lines.index("> EOF") + 1 if "<<'EOF'" in lines[0] else 1
            command = "\n".join([lines[0], *(line.removeprefix("> ") for line in lines[1:typed])])
            yield command, "".join(f"{line}\n" for line in lines[typed:])


def test_the_transcript_is_what_the_commands_print(root: Path) -> None:
    told = list(commands())
    assert len(told) >= 7
    env = environment({"PATH": f"{PRODUCT / 'bin'}:{environment()['PATH']}"})
    printed = [(command, run("bash", "-c", command, cwd=root, env=env).stdout) for command, _ in told]
    seen, written = ([(command, _STAMP.sub("", text).rstrip()) for command, text in one] for one in (printed, told))
    assert seen == written


def test_to_inherit_costs_what_the_document_promises(root: Path) -> None:
    assert answered("inherit", root=root)["tokens"] < 50
    for kind, session, text in (
        ("learning", "2026-01-10-auth", "JWT rotation pattern"),
        ("caution", "2026-01-10-auth", "Rate limiting on refresh endpoint required"),
        ("thread", "2026-01-09-migration", "Database migration paused at step 3, resume needed"),
    ):
        answered("leave", "--type", kind, "--session", session, text, root=root)
    assert answered("inherit", root=root)["tokens"] < 300
