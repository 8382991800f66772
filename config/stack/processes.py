"""Starting, recognising and ending operating-system processes.

Every process of a stack carries the stack's mark in its environment, and so do its descendants. A process belongs to
the stack exactly if it carries the mark; a process id that a file remembers proves nothing.
"""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

MARK = "GATEHOUSE_STACK"
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
LOG_LIMIT = 10_000_000


class StackError(Exception):
    """An anticipated failure, told to the person at the terminal in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One process to run: what, in which environment, and where it writes."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path | None
    """None: it has the terminal of this process."""
    server: bool = False
    """An embedded server. It runs as `servers_user`, and shuts down in order when this process is killed."""
    fd: int | None = None
    """A socket that it inherits."""


def servers_user() -> dict[str, Any]:
    """Who runs the embedded servers, as arguments of Popen: PostgreSQL refuses root, so root borrows ``nobody``."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def make_for_servers(folder: Path) -> Path:
    """Make a private folder of the servers' user."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if user := servers_user():
        os.chown(folder, user["user"], user["group"])
    return folder


def spawn(program: Program) -> psutil.Popen:
    """Start it in a session of its own, so that a Ctrl-C at the terminal reaches the supervisor alone.

    Call from a thread that lives as long as the stack: the kernel's death signal follows the thread.
    """
    with Path(program.log or os.devnull).open("ab") as log:
        output = log if program.log else None
        return psutil.Popen(
            program.argv,
            env=dict(program.env),
            cwd=program.cwd,
            stdin=subprocess.DEVNULL if program.log else None,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=() if program.fd is None else (program.fd,),
            preexec_fn=partial(die_with, os.getpid(), signal.SIGINT if program.server else signal.SIGKILL),
            **(servers_user() if program.server else {}),
        )


def die_with(parent: int, farewell: signal.Signals) -> None:
    """Ask Linux to end this process when its parent is gone, however it went. Only this runs between fork and exec.

    Elsewhere there is no such call; the next start ends what was left behind.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(farewell), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def exit_code(process: psutil.Process) -> int | None:
    """How a child ended, a negative number for a signal; None while it runs."""
    try:
        return process.wait(timeout=0)
    except psutil.TimeoutExpired:
        return None


def marked(mark: str) -> list[psutil.Process]:
    """Every live process that belongs to the stack with this mark, but for this one."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            ours = process.pid != os.getpid() and process.environ().get(MARK) == mark
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_all(processes: Iterable[psutil.Process], *, sign: signal.Signals = signal.SIGINT, patience: float = 15) -> None:
    """End all of them together, and reap those that are children. psutil never signals a process id that was reused.

    :param sign: SIGINT asks a database for its fast shutdown, a broker to save, and a Python process to end.
    :param patience: how many seconds to wait before they are killed.
    :raises StackError: if one survives that.
    """
    remaining = list(processes)
    for each, seconds in ((sign, patience), (signal.SIGKILL, 5.0)):
        for process in remaining:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(each)
        _, remaining = psutil.wait_procs(remaining, timeout=seconds)
    if remaining:
        raise StackError(f"These processes would not end: {', '.join(str(process.pid) for process in remaining)}.")


def bound_log(log: Path, limit: int = LOG_LIMIT) -> None:
    """Keep a log below its limit, with one predecessor. Whoever appends to it goes on at its new beginning."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > limit:
            shutil.copyfile(log, log.with_suffix(".old.log"))
            os.truncate(log, 0)


def last_lines(log: Path, count: int = 12) -> str:
    """The end of a log, for the message that says why something did not start."""
    text = log.read_text(errors="replace") if log.exists() else "(no log)"
    return "\n".join(f"    {line}" for line in text.splitlines()[-count:])
