"""Starting, recognising and ending operating-system processes.

Every process of a stack carries the stack's mark in its environment, and so do its descendants. A process belongs to
the stack exactly if it carries the mark; a process id that a file remembers proves nothing.
"""

import ctypes
import os
import pwd
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "GATEHOUSE_STACK"
_PR_SET_PDEATHSIG = 1
LOG_LIMIT = 10_000_000

# What to send and how many seconds to wait before the next, harsher one.
Farewell = Sequence[tuple[signal.Signals, float]]
POLITE: Farewell = ((signal.SIGTERM, 10), (signal.SIGKILL, 5))


class StackError(Exception):
    """An anticipated failure, told to the person at the terminal in one sentence."""


@dataclass(frozen=True, slots=True)
class Account:
    """The unprivileged user that servers run as when root starts the stack."""

    uid: int
    gid: int

    def own(self, path: Path) -> None:
        os.chown(path, self.uid, self.gid)


def server_account() -> Account | None:
    """The account for embedded servers: PostgreSQL refuses root, so root borrows ``nobody``."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return Account(uid=entry.pw_uid, gid=entry.pw_gid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One process to run: what, as whom, where it writes, and how it is asked to end."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    account: Account | None = None
    farewell: Farewell = POLITE
    # What the kernel sends it when the supervisor itself is killed.
    on_orphaned: signal.Signals = signal.SIGKILL
    pass_fds: tuple[int, ...] = ()
    # Standard input, output and error, in place of none and the log.
    streams: tuple[int, int, int] | None = None

    @contextmanager
    def opened_streams(self) -> Iterator[tuple[int, int, int]]:
        if self.streams is not None:
            yield self.streams
            return
        with Path(os.devnull).open("rb") as nothing, self.log.open("ab") as log:
            yield nothing.fileno(), log.fileno(), log.fileno()


def exit_code(process: psutil.Process) -> int | None:
    """How a child ended, a negative number for a signal; None while it runs."""
    try:
        return process.wait(timeout=0)
    except psutil.TimeoutExpired:
        return None


def server_environment(mark: str) -> dict[str, str]:
    """The whole environment of an embedded server; nothing of the caller's leaks into it."""
    return {"PATH": os.defpath, "LC_ALL": "C", MARK: mark}


def spawn(program: Program) -> psutil.Popen:
    """Start it in a session of its own, so that a Ctrl-C at the terminal reaches the supervisor alone.

    Call from a thread that lives as long as the stack: the kernel's death signal follows the thread.
    """
    account = program.account
    with program.opened_streams() as (given, output, errors):
        return psutil.Popen(
            program.argv,
            env=dict(program.env),
            cwd=program.cwd,
            stdin=given,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            pass_fds=program.pass_fds,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
            preexec_fn=die_with_parent(program.on_orphaned),  # only prctl and getppid run between fork and exec
        )


def bound_log(log: Path, limit: int = LOG_LIMIT) -> None:
    """Keep a log below its limit, with one predecessor. Whoever appends to it goes on at its new beginning."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > limit:
            shutil.copyfile(log, log.with_suffix(".old.log"))
            os.truncate(log, 0)


def die_with_parent(farewell: signal.Signals) -> Callable[[], None] | None:
    """A ``preexec_fn`` that asks Linux to end the child when its parent is gone, however it went.

    Elsewhere there is no such call; the next start ends what was left behind.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def request() -> None:
        prctl(_PR_SET_PDEATHSIG, int(farewell), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return request


def marked(mark: str) -> list[psutil.Process]:
    """Every live process that belongs to the stack with this mark, but for this one."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            ours = process.pid != os.getpid() and process.environ().get(MARK) == mark
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_all(processes: Iterable[psutil.Process], farewell: Farewell = POLITE) -> None:
    """End all of them together, and reap those that are children. psutil never signals a process id that was reused.

    :raises StackError: if one survives the last signal.
    """
    remaining = list(processes)
    for sign, patience in farewell:
        for process in remaining:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(sign)
        _, remaining = psutil.wait_procs(remaining, timeout=patience)
        if not remaining:
            return
    if remaining:
        raise StackError(f"These processes would not end: {', '.join(str(process.pid) for process in remaining)}.")


def last_lines(log: Path, count: int = 12) -> str:
    """The end of a log, for the message that says why something did not start."""
    try:
        return "\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-count:])
    except FileNotFoundError:
        return "    (no log)"
