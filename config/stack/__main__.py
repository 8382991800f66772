"""The command lines of ``bin/up`` and ``bin/demo``: ``python -m config.stack up|demo …``."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from types import FrameType

import psutil

from config.stack import programs
from config.stack.folders import DataFolder
from config.stack.processes import MARK, Program, StackError, exit_code, spawn
from config.stack.supervisor import Supervisor, end_leftovers, readiness, say

_PATIENCE = 120.0
_RUNNING, _NOT_RUNNING = 0, 3
_INTERRUPTED = 130
_LAST_PORT = 65535
_UNANALYZED = {"venv", "node_modules", "__pycache__", "site-packages"}


def main(arguments: list[str]) -> int:
    options = _parser(arguments[0]).parse_args(arguments[1:])
    run = _COMMANDS[options.command]
    data = DataFolder(_given(options.data or os.environ.get("GATEHOUSE_DATA") or str(programs.PRODUCT / "var")))
    if run in (up, demo) and os.environ.get(MARK) != data.mark:
        # Forked processes are recognized by the environment that this process was started with.
        os.execve(sys.executable, [sys.executable, "-m", "config.stack", *arguments], os.environ | {MARK: data.mark})  # noqa: S606
    try:
        return run(options, data)
    except StackError as failure:
        sys.stderr.write(f"{failure}\n")
        return 1


def _parser(script: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"bin/{script}", formatter_class=argparse.RawDescriptionHelpFormatter)
    if script == "demo":
        parser.description = demo.__doc__
        parser.set_defaults(command="demo")
        parser.add_argument(
            "path", nargs="?", metavar="PATH", help="a Python code base (default: this product's own apps)"
        )
    else:
        commands = [name for name in _COMMANDS if name != "demo"]
        parser.description = "Run Gatehouse on this machine:\n" + "\n".join(
            f"  bin/up {name:<7} {_COMMANDS[name].__doc__}" for name in commands
        )
        parser.add_argument("command", nargs="?", choices=commands, default="up", help="(default: up)")
        parser.add_argument("--no-workers", action="store_true", help="up: leave out the bundled MCP workers")
        parser.add_argument("--yes", action="store_true", help="reset: don't ask")
    parser.add_argument("--data", metavar="DIR", help="the data folder (default: var/ in the product's folder)")
    parser.add_argument(
        "--port", metavar="N", type=_port, help="the web port (default: the last one, 8080, or a free one)"
    )
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _LAST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no port; ports are 1 to {_LAST_PORT}")
    return int(text)


def up(options: argparse.Namespace, data: DataFolder) -> int:
    """Start everything and stay in the foreground until Ctrl-C."""
    with _claimed(data) as claimed:
        if not claimed:
            raise StackError(f"It runs already, with its data in {data.path}: {_address(data)}. To end it: bin/up down")
        supervisor = Supervisor(data=data, port=options.port, with_workers=not options.no_workers)
        with _supervised(supervisor):
            supervisor.start()
            if not supervisor.stopping.is_set():
                _introduce(supervisor)
            supervisor.run(until=lambda: False)
    return 0


def demo(options: argparse.Namespace, data: DataFolder) -> int:
    """Run the main job once on a Python code base and show it; what was started for it is ended."""
    path = programs.PRODUCT / "apps" if options.path is None else _code_base(_given(options.path))
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        with _claimed(data) as claimed:
            if claimed:
                return _own_demo(path, Supervisor(data=data, port=options.port))
        # Another process runs the stack: use it when it is ready. It may also be about to end.
        if data.stack().get("ready"):
            say(f"Using what runs already at {_address(data)}")
            child = spawn(_demo_program(path, data, stack="running"))
            try:
                return child.wait() or 0
            except KeyboardInterrupt:
                child.send_signal(signal.SIGTERM)
                child.wait()
                return _INTERRUPTED
        time.sleep(0.1)
    raise StackError(f"What runs already, with its data in {data.path}, does not become ready.")


def _own_demo(path: Path, supervisor: Supervisor) -> int:
    # The job is over by then: nothing is left that a process would have to finish.
    supervisor.farewell = ((signal.SIGTERM, 0.5), (signal.SIGKILL, 5))
    with _supervised(supervisor):
        supervisor.start()
        if supervisor.stopping.is_set():
            return _INTERRUPTED
        child: psutil.Process = supervisor.launch(_demo_program(path, supervisor.data, stack="own"))
        supervisor.run(until=lambda: exit_code(child) is not None)
        if exit_code(child) is None:
            child.send_signal(signal.SIGTERM)
        code = child.wait() or 0
        return _INTERRUPTED if supervisor.stopping.is_set() else code
    return _INTERRUPTED


def status(_options: argparse.Namespace, data: DataFolder) -> int:
    """Say what runs; the exit code is 0 when it is ready, 3 when nothing runs, 1 otherwise."""
    if not _somebody_runs(data):
        say(f"Nothing runs with its data in {data.path}.")
        return _NOT_RUNNING
    stack = data.stack()
    code, body = readiness(stack["url"]) if "url" in stack else (0, "still starting")
    ready = code == HTTPStatus.OK
    say(f"Ready: {stack['url']}" if ready else f"Not ready: {stack.get('url', '')} {body}")
    for name, pid in stack.get("processes", {}).items():
        say(f"  {name:<24} pid {pid:<8} {data.log(name)}")
    return _RUNNING if ready else 1


def down(_options: argparse.Namespace, data: DataFolder) -> int:
    """End what runs, wherever it was started."""
    if not _somebody_runs(data):
        end_leftovers(data.mark)
        say(f"Nothing runs with its data in {data.path}.")
        return 0
    # Whoever holds the lock wrote its process id there, so this id can't be another program's.
    os.kill(int((data.path / "lock").read_text()), signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
    while _somebody_runs(data):
        if time.monotonic() > deadline:
            raise StackError("It has been asked to end and still runs.")
        time.sleep(0.1)
    say("Ended.")
    return 0


def reset(options: argparse.Namespace, data: DataFolder) -> int:
    """Erase the data folder: database, broker, files, secrets."""
    if not data.path.is_dir():
        say(f"There is nothing in {data.path}.")
        return 0
    with _claimed(data) as claimed:
        if not claimed:
            raise StackError("It runs; end it first: bin/up down")
        if not options.yes and input(f"Erase everything in {data.path}? Type yes: ") != "yes":
            raise StackError("Nothing was erased.")
        end_leftovers(data.mark)
        data.erase()
    say(f"Erased {data.path}.")
    return 0


_COMMANDS = {command.__name__: command for command in (up, status, down, reset, demo)}


def _introduce(supervisor: Supervisor) -> None:
    data, url = supervisor.data, supervisor.url
    secret = supervisor.password()
    shown = "password in" if secret is None else f"password {secret} (shown once, kept in"
    say(f"Console {url}/admin/  user admin  {shown} {data.password_file}{'' if secret is None else ')'}")
    say(f"API docs {url}/api/docs/  token in {data.token_file}  Agents: MCP at {url}/mcp  Try: bin/demo  Stop: Ctrl-C")


def _demo_program(path: Path, data: DataFolder, *, stack: str) -> Program:
    """The demo as an outsider: it gets an address and the token of an agent.

    :param stack: `own` if it was started for the demo, `running` if not.
    """
    written = data.stack()
    token = next(tokens["kee"] for tokens in reversed(data.secrets().tokens.values()) if "kee" in tokens)
    environment = {
        **os.environ,
        "DATABASE_URL": written["database_url"],
        "REDIS_URL": written["redis_url"],
        "GATEHOUSE_DATA": str(data.path),
        "GATEHOUSE_URL": written["url"],
        "GATEHOUSE_TOKEN": token,
        "GATEHOUSE_DEMO_STACK": stack,
        "GATEHOUSE_DEMO_WORKERS": "bundled" if written.get("with_workers", True) else "none",
    }
    arguments = (str(programs.PRODUCT / "manage.py"), "demo", str(path))
    program = programs.python_program("demo", *arguments, data=data, env=environment)
    return replace(program, streams=(0, 1, 2), on_orphaned=signal.SIGTERM)


def _code_base(path: Path) -> Path:
    """
    :raises StackError: if there is no Python to analyse.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as fault:
        raise StackError(f"The name of {str(path)!r} is not text, which no request can hold.") from fault
    if not path.is_dir():
        raise StackError(f"There is no folder {path}; give the folder of a Python code base.")
    if not any(_python_files(path)):
        raise StackError(f"There is no Python in {path}: not one .py file, environments and hidden folders left out.")
    return path


def _python_files(folder: Path) -> Iterator[str]:
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _UNANALYZED]
        yield from (name for name in files if name.endswith(".py"))


def _given(text: str) -> Path:
    """A path as the caller meant it; the commands in bin/ change the folder before they come here."""
    return (Path(os.environ.get("GATEHOUSE_CALLER_DIR", ".")) / Path(text).expanduser()).resolve()


@contextmanager
def _claimed(data: DataFolder) -> Iterator[bool]:
    data.create()
    claim = data.claim()
    if claim is None:
        yield False
        return
    try:
        os.truncate(claim, 0)
        os.write(claim, str(os.getpid()).encode())
        yield True
    finally:
        os.close(claim)


@contextmanager
def _supervised(supervisor: Supervisor) -> Iterator[None]:
    """End everything on the way out, whatever the way out is; a signal is a way out."""

    def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
        if not supervisor.stopping.is_set():
            supervisor.stopping.set()
            say("\nEnding …")

    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(sign) is not signal.SIG_IGN or sign is signal.SIGINT:  # nohup stays in force
            signal.signal(sign, ask_to_stop)
    try:
        yield
    except StackError:
        # What breaks because it was asked to end is no failure.
        if not supervisor.stopping.is_set():
            raise
    finally:
        supervisor.stop()


def _somebody_runs(data: DataFolder) -> bool:
    if not (data.path / "lock").exists():
        return False
    claim = data.claim()
    if claim is not None:
        os.close(claim)
    return claim is None


def _address(data: DataFolder) -> str:
    return str(data.stack().get("url", "still starting"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
