"""The product, loaded once into the supervisor: its processes are forked from there and start in a fraction of the time.

Loading Django and the product takes some seconds of processor time; a dozen processes would each take them again.
Only Linux forks; elsewhere every process starts by itself, as in production.
"""

import atexit
import gc
import os
import runpy
import signal
import sys
import threading
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import psutil

from config.stack.processes import Program, die_with

# What the processes import, the largest first. A worker of the examples imports the last two.
_MODULES = (
    "config.asgi",
    "config.celery",
    "celery.bin.celery",
    "celery.apps.worker",
    "celery.apps.beat",
    "mcp",
    "uvicorn",
)


def load(environment: dict[str, str]) -> None:
    """Load the product with this environment, which says where its servers are."""
    os.environ.update(environment)
    for module in _MODULES:
        import_module(module)
    gc.collect()
    gc.freeze()


def fork(program: Program, *, locked: int | None) -> psutil.Process:
    """Start a Python program in a fork of this process. Call from the main thread: the kernel's death signal follows it.

    :param locked: a lock that is to go with this process, not with its children.
    """
    parent = os.getpid()
    sys.stdout.flush()
    if pid := os.fork():
        return psutil.Process(pid)
    code: int | str | None = 1
    try:
        die_with(parent, signal.SIGKILL)
        if locked is not None:
            os.close(locked)
        _become(program)
        _run(program.argv[1:])
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001  # this is the bottom of the new process
        traceback.print_exc()
    # As the interpreter would end, without the supervisor's own cleaning up.
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  # as multiprocessing ends its children
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _become(program: Program) -> None:
    """Take the place that `subprocess.Popen` would have given the program."""
    os.setsid()
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.SIG_DFL if sign != signal.SIGINT else signal.default_int_handler)
    if program.log is not None:
        with Path(os.devnull).open("rb") as nothing, program.log.open("ab") as log:
            for stream, file in enumerate((nothing, log, log)):
                os.dup2(file.fileno(), stream)
    os.environ.clear()
    os.environ.update(program.env)
    os.chdir(program.cwd)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the interpreter's own stream
    _connect_as(os.environ.get("GATEHOUSE_PROCESS", "command"))


def _connect_as(process: str) -> None:
    """Set the database connection for this kind of process; the supervisor loaded the settings of another."""
    from django.conf import settings  # noqa: PLC0415  # not before the product is loaded
    from django.db import connections  # noqa: PLC0415

    from config.settings import database  # noqa: PLC0415

    settings.PROCESS = process
    settings.DATABASES = {"default": database(process)}
    connections.__dict__["settings"] = connections.configure_settings(settings.DATABASES)
    connections.close_all()
    with suppress(AttributeError):  # no connection has been asked for yet
        del connections["default"]


def _run(arguments: tuple[str, ...]) -> None:
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")
