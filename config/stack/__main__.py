"""The command lines behind ``bin/up`` and ``bin/demo``: ``python -m config.stack up|demo …``."""

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
from typing import Literal

from config.stack import programs
from config.stack.folders import DataFolder
from config.stack.processes import MARK, Child, StackError
from config.stack.supervisor import Supervisor, end_leftovers, readiness, say, start_program

_PATIENCE = 120.0
_RUNNING, _NOT_RUNNING = 0, 3
_INTERRUPTED = 130
_LAST_PORT = 65535
_UNANALYZED = {"venv", "node_modules", "__pycache__", "site-packages"}


def main(arguments: list[str]) -> int:
    options = _parse(arguments[0], arguments[1:])
    data = DataFolder(_given(options.data or os.environ.get("GATEHOUSE_DATA") or str(programs.PRODUCT / "var")))
    if options.run in (up, demo) and os.environ.get(MARK) != data.mark:
        # What this process forks is known by the environment that this process was started with.
        os.execve(sys.executable, [sys.executable, "-m", "config.stack", *arguments], os.environ | {MARK: data.mark})  # noqa: S606
    try:
        code: int = options.run(options, data)
    except StackError as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    return code


def _parse(door: str, arguments: list[str]) -> argparse.Namespace:
    """What a person typed after ``bin/up`` or ``bin/demo``; ``bin/up`` alone means ``bin/up up``."""
    if door == "demo":
        return _demo_parser().parse_args(arguments)
    helps = arguments[:1] in (["-h"], ["--help"])
    if not helps and (not arguments or arguments[0].startswith("-")):
        arguments = ["up", *arguments]
    return _up_parser().parse_args(arguments)


def _demo_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bin/demo", usage="bin/demo [PATH] [--port N] [--data DIR]", description=demo.__doc__
    )
    parser.set_defaults(run=demo)
    parser.add_argument("path", nargs="?", metavar="PATH", help="a Python code base (default: this product's own apps)")
    _add_place(parser)
    _add_port(parser)
    return parser


def _up_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bin/up",
        usage="bin/up [up|status|down|reset] [options]",
        description="Run Gatehouse on this machine. Without a command: up.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="up|status|down|reset", prog="bin/up")
    described = []
    for run in (up, status, down, reset):
        command = commands.add_parser(run.__name__, help=run.__doc__, description=run.__doc__)
        command.set_defaults(run=run)
        _add_place(command)
        if run is up:
            _add_port(command)
            command.add_argument("--no-workers", action="store_true", help="leave out the bundled MCP workers")
        if run is reset:
            command.add_argument("--yes", action="store_true", help="don't ask")
        described.append(command.format_help())
    parser.epilog = "\n".join(described)
    return parser


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help="the data folder (default: var/ in the product's folder)")


def _add_port(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", metavar="N", type=_port, help="the web port (default: the last one, 8080, or a free one)"
    )


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _LAST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no port; ports are 1 to {_LAST_PORT}")
    return int(text)


def up(options: argparse.Namespace, data: DataFolder) -> int:
    """Start everything and stay in the foreground until Ctrl-C."""
    with _claimed(data) as claimed:
        if not claimed:
            raise StackError(f"It runs already, with its data in {data.path}: {_address(data)}. To end it: bin/up down")
        supervisor = Supervisor.of(data, port=options.port, with_workers=not options.no_workers)
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
                return _own_demo(path, Supervisor.of(data, port=options.port, with_workers=True))
        # Somebody else's: use it when it is ready; it may also be about to end.
        if data.stack().get("ready"):
            say(f"Using what runs already at {_address(data)}")
            return _watched(_start_demo(path, data, stack="running"))
        time.sleep(0.1)
    raise StackError(f"What runs already, with its data in {data.path}, does not become ready.")


def _watched(child: Child) -> int:
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGTERM)
        child.wait()
        return _INTERRUPTED


def _own_demo(path: Path, supervisor: Supervisor) -> int:
    # The job is over by then: nothing is left that a process would have to finish.
    supervisor.farewell = ((signal.SIGTERM, 0.5), (signal.SIGKILL, 5))
    with _supervised(supervisor):
        supervisor.start()
        if supervisor.stopping.is_set():
            return _INTERRUPTED
        child = _start_demo(path, supervisor.data, stack="own")
        supervisor.run(until=lambda: child.poll() is not None)
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        code = child.wait()
        return _INTERRUPTED if supervisor.stopping.is_set() else code
    return _INTERRUPTED


def status(options: argparse.Namespace, data: DataFolder) -> int:
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


def down(options: argparse.Namespace, data: DataFolder) -> int:
    """End what runs, wherever it was started."""
    if not _somebody_runs(data):
        end_leftovers(data)
        say(f"Nothing runs with its data in {data.path}.")
        return 0
    # Whoever holds the lock wrote its process id there, so this id can't be a stranger's.
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
        end_leftovers(data)
        data.erase()
    say(f"Erased {data.path}.")
    return 0


def _introduce(supervisor: Supervisor) -> None:
    data, url = supervisor.data, supervisor.url
    secret = supervisor.password()
    password = (
        f"password in {data.password_file}"
        if secret is None
        else f"password {secret} (shown once, kept in {data.password_file})"
    )
    say(f"Console {url}/admin/  user admin  {password}")
    say(f"API docs {url}/api/docs/  token in {data.token_file}  Agents: MCP at {url}/mcp  Try: bin/demo  Stop: Ctrl-C")


def _start_demo(path: Path, data: DataFolder, *, stack: Literal["own", "running"]) -> Child:
    """The demo is an outsider: it gets an address and the token of an agent, and is told whose stack it is."""
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
    program = programs.python_program(
        "demo", str(programs.PRODUCT / "manage.py"), "demo", str(path), data=data, env=environment
    )
    return start_program(replace(program, streams=(0, 1, 2), on_orphaned=signal.SIGTERM))


def _code_base(path: Path) -> Path:
    """
    :raises StackError: if there is no Python to analyse.
    """
    if not path.exists():
        raise StackError(f"There is no folder {path}.")
    if not path.is_dir():
        raise StackError(f"{path} is a file; give the folder of a Python code base.")
    try:
        str(path).encode()
    except UnicodeEncodeError as fault:
        raise StackError(f"The name of {str(path)!r} is not text, which no request can hold.") from fault
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
    try:
        if claim is not None:
            os.truncate(claim, 0)
            os.write(claim, str(os.getpid()).encode())
        yield claim is not None
    finally:
        if claim is not None:
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
