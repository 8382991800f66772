"""Starting, recognising and ending operating-system processes.

Every process of a stack carries the stack's mark in its environment, and so do its descendants. A process belongs to
the stack exactly if it carries the mark; a process id that a file remembers proves nothing.
"""

import ctypes
import os
import pwd
import runpy
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkProcess
from pathlib import Path

import psutil

from config.typed import PRODUCT

MARK = "GATEHOUSE_STACK"
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOG_LIMIT = 10_000_000


class StackError(Exception):
    """An anticipated failure, told to the person at the terminal in one sentence."""


def servers_user() -> pwd.struct_passwd | None:
    """Who runs the embedded servers, unless we do: PostgreSQL refuses root, so root borrows ``nobody``."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def launch(
    *argv: str,
    env: Mapping[str, str],
    log: Path | None,
    server: bool = False,
    loaded: bool = False,
    lock: int | None = None,
) -> psutil.Process:
    """Start a program in a session of its own, so that a Ctrl-C at the terminal reaches the supervisor alone.

    On Linux it ends when this process does, however that went; elsewhere the next start ends what was left behind.
    Call from a thread that lives as long as the program: the kernel's death signal follows the thread.

    :param log: None: it has the terminal of this process.
    :param server: an embedded server: run as `servers_user`, and shut down in order when this process is killed.
    :param loaded: the program is Python, and run by this interpreter, which has loaded the product.
    :param lock: what is held by this process alone, and not by its children.
    """
    parent = os.getpid()

    def become() -> None:
        os.setsid()
        os.chdir("/" if server else PRODUCT)
        for sign in SIGNALS:
            signal.signal(sign, signal.SIG_DFL if sign != signal.SIGINT else signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if log is not None:
            with log.open("ab") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
        if server and (user := servers_user()):
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
        if sys.platform == "linux":
            _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT if server else signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:
                return
        if not loaded:
            os.execve(argv[0], argv, env)  # noqa: S606
        if lock is not None:
            os.close(lock)
        _run(argv, env)

    # An interrupt amid the fork would be lost.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        # Not by `start()`: multiprocessing would wait for it, and take its exit code from us.
        return psutil.Process(ForkProcess._Popen(ForkProcess(target=become)).pid)  # noqa: SLF001
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _run(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Run a Python program in this process, which has loaded the product for another kind of process."""
    from django.conf import settings  # noqa: PLC0415  # not before the product is loaded
    from django.db import connections  # noqa: PLC0415

    from config.settings import databases  # noqa: PLC0415

    os.environ.clear()
    os.environ.update(env)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the interpreter's own stream
    process = env.get("GATEHOUSE_PROCESS", "command")
    settings.PROCESS, settings.DATABASES = process, databases(process)
    # As if nothing had asked for a connection yet.
    vars(connections).clear()
    connections.__init__()  # type: ignore[misc]
    by, sys.argv = (runpy.run_module, [*argv[2:]]) if argv[1] == "-m" else (runpy.run_path, [*argv[1:]])
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    by(sys.argv[0], run_name="__main__")


def exit_code(process: psutil.Process) -> int | None:
    """How a child ended, a negative number for a signal; None while it runs."""
    try:
        return process.wait(timeout=0)
    except psutil.TimeoutExpired:
        return None


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended. A child of another has, though that one may not have noticed yet."""
    with suppress(psutil.NoSuchProcess):
        return exit_code(process) is None and process.status() != psutil.STATUS_ZOMBIE
    return False


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
        deadline = time.monotonic() + seconds
        while (remaining := list(filter(runs, remaining))) and time.monotonic() < deadline:
            time.sleep(0.05)
    if remaining:
        raise StackError(f"These processes would not end: {', '.join(str(process.pid) for process in remaining)}.")


def marked(mark: str) -> list[psutil.Process]:
    """Every live process that belongs to the stack with this mark, but for this one."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark and runs(process):
                found.append(process)
    return found


def bound_log(log: Path, limit: int = LOG_LIMIT) -> None:
    """Keep a log below its limit, with one predecessor. Whoever appends to it goes on at its new beginning."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > limit:
            with suppress(OSError):  # on a full disk it loses its past
                shutil.copyfile(log, log.with_suffix(".old.log"))
            os.truncate(log, 0)


def last_lines(log: Path, count: int = 12) -> str:
    """The end of a log, for the message that says why something did not start."""
    text = log.read_text(errors="replace") if log.exists() else "(no log)"
    return "\n".join(f"    {line}" for line in text.splitlines()[-count:])
