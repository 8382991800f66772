"""The command lines of ``bin/up``, ``bin/demo`` and ``gatehouse``: ``python -m config.stack up|demo …``."""

import argparse
import json
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

from config.stack import programs
from config.stack.folders import KEYS, DataFolder
from config.stack.processes import MARK, Program, StackError, end_all, exit_code, marked
from config.stack.supervisor import Supervisor, readiness, say
from config.typed import PRODUCT, typed

_NOT_RUNNING = 3
_INTERRUPTED = 130
_LAST_PORT = 65535
# Each may open as many database connections as GATEHOUSE_POOL says; the embedded server has 200.
_MOST_WEB = 8
_NO_LIBRARIES = "The bundled MCP workers need libraries that are missing: pip install 'gatehouse[demo]'."


def main(arguments: list[str]) -> int:
    parser = _parser(arguments[0])
    options, unknown = parser.parse_known_args(arguments[1:])
    if unknown:
        parser.error(f"there is no option {' '.join(unknown)}")
    if options.command not in (commands := _commands_of(arguments[0])):
        parser.error(f"there is no command {options.command!r}; there are {', '.join(commands)}")
    data = DataFolder(_given(options.data or _default_folder()))
    if options.command in {"up", "demo", "restore"} and os.environ.get(MARK) != data.mark:
        # Forked processes are recognized by the environment that this process was started with.
        os.execve(sys.executable, [sys.executable, "-m", "config.stack", *arguments], os.environ | {MARK: data.mark})  # noqa: S606
    try:
        return _COMMANDS[options.command](options, data)
    except StackError as failure:
        sys.stderr.write(f"{failure}\n")
        return 1


def _parser(script: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=typed(script).removesuffix(" up"), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if script == "demo":
        parser.description = demo.__doc__
        parser.set_defaults(command="demo")
        parser.add_argument(
            "path", nargs="?", metavar="PATH", help="a Python code base (default: this product's own apps)"
        )
    else:
        parser.description = "Run Gatehouse on this machine:\n" + "\n".join(
            f"  {typed(name):<18} {_COMMANDS[name].__doc__}" for name in _commands_of(script)
        )
        parser.add_argument("command", nargs="?", metavar="COMMAND", default="up", help="(default: up)")
        parser.add_argument("backup", nargs="?", metavar="DIR", help="restore: what the command backup has written")
        parser.add_argument(
            "--web", metavar="N", type=_count, help="up: how many web processes (default: one a core, at most two)"
        )
        parser.add_argument("--no-workers", action="store_true", help="up: leave out the bundled MCP workers")
        parser.add_argument("--yes", action="store_true", help="reset: don't ask")
    shown = _default_folder().replace("%", "%%")
    parser.add_argument("--data", metavar="DIR", help=f"the data folder (default: {shown})")
    parser.add_argument(
        "--port", metavar="N", type=_port, help="the web port (default: the last one, 8080, or a free one)"
    )
    return parser


def _commands_of(script: str) -> list[str]:
    return [name for name in _COMMANDS if (name == "demo") == (script == "demo")]


def _default_folder() -> str:
    return os.environ.get("GATEHOUSE_DATA") or str(PRODUCT / "var")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _LAST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no port; ports are 1 to {_LAST_PORT}")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _MOST_WEB):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes; take 1 to {_MOST_WEB}")
    return int(text)


def up(options: argparse.Namespace, data: DataFolder) -> int:
    """Start everything and stay in the foreground until Ctrl-C."""
    data.create()
    if not data.claim():
        address = data.stack().get("url", "still starting")
        raise StackError(f"It runs already, with its data in {data.path}: {address}. To end it: {typed('down')}")
    first = not data.password_file.exists()
    web = options.web or min(2, os.cpu_count() or 1)
    workers = not options.no_workers and programs.bundled_workers_can_run()
    if not (workers or options.no_workers):
        say(_NO_LIBRARIES)
    supervisor = Supervisor(data=data, port=options.port, web=web, with_workers=workers)
    with _ended(supervisor):
        supervisor.start()
        url, password = supervisor.url, data.password_file.read_text(encoding="utf-8").strip()
        shown = f"password {password} (shown once, kept in {data.password_file})"
        say(f"Console {url}/admin/  user admin  {shown if first else f'password in {data.password_file}'}")
        say(f"API docs {url}/api/docs/  token in {data.token_file}  Agents: MCP at {url}/mcp")
        say(f"Try: {typed('demo')}  Stop: Ctrl-C")
        supervisor.run(until=lambda: False)
    return 0


def demo(options: argparse.Namespace, data: DataFolder) -> int:
    """Run the main job once on a Python code base and show it; what was started for it is ended."""
    path = _given(options.path or str(PRODUCT / "apps"))
    if not (str(path).isprintable() and path.is_dir() and next(path.rglob("*.py"), None)):
        raise StackError(f"There is no folder with Python code at {path}.")
    if not programs.bundled_workers_can_run():
        raise StackError(_NO_LIBRARIES)
    data.create()
    while not data.claim():
        # Another process runs the stack: use it when it is ready. It may also end before.
        if data.stack():
            say(f"Using what runs already at {data.stack()['url']}")
            program = _demo_program(path, data, stack="running")
            os.execve(program.argv[0], program.argv, program.env)  # noqa: S606
        time.sleep(0.1)
    supervisor = Supervisor(data=data, port=options.port)
    # The job is over by then: nothing is left that a process would have to finish.
    with _ended(supervisor, patience=0.5):
        supervisor.start()
        child = supervisor.launch(_demo_program(path, data, stack="own"))
        try:
            supervisor.run(until=lambda: exit_code(child) is not None)
        except KeyboardInterrupt:
            end_all([child], sign=signal.SIGTERM)
            raise
        return exit_code(child) or 0
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
    return 0 if ready else 1


def down(_options: argparse.Namespace, data: DataFolder) -> int:
    """End what runs, wherever it was started."""
    if _somebody_runs(data):
        # Whoever holds the lock wrote its process id there, so this id can't be another program's.
        os.kill(int((data.path / "lock").read_text()), signal.SIGTERM)
        while _somebody_runs(data):
            time.sleep(0.1)
    end_all(marked(data.mark))
    say(f"Nothing runs with its data in {data.path}.")
    return 0


def reset(options: argparse.Namespace, data: DataFolder) -> int:
    """Erase the data folder: database, broker, files, secrets."""
    if not data.path.is_dir():
        say(f"There is nothing in {data.path}.")
        return 0
    if not data.claim():
        raise StackError(f"It runs; end it first: {typed('down')}")
    if not options.yes and input(f"Erase everything in {data.path}? Type yes: ") != "yes":
        raise StackError("Nothing was erased.")
    data.clear()
    (data.path / "lock").unlink()
    if not any(data.path.iterdir()):
        data.path.rmdir()
    say(f"Erased {data.path}.")
    return 0


def restore(options: argparse.Namespace, data: DataFolder) -> int:
    """Make a new data folder from a backup DIR; then start it."""
    if options.backup is None:
        raise StackError(f"Name the folder that the command backup has written: {typed('restore')} DIR --data NEW")
    backup = _given(options.backup)
    if data.path.exists() and any(data.path.iterdir()):
        raise StackError(f"{data.path} is not empty. Name a new folder: {typed('restore')} DIR --data NEW")
    try:
        keys = {
            name: value for name, value in json.loads((backup / "secrets.json").read_bytes()).items() if name in KEYS
        }
    except (OSError, ValueError):
        raise StackError(f"{backup} is no complete backup: its secrets.json can't be read.") from None
    data.create()
    data.claim()
    data.keep_secrets({"tokens": {}} | keys)
    supervisor = Supervisor(data=data, environ=os.environ | keys | {"GATEHOUSE_DATA": str(data.path)})
    with _ended(supervisor):
        supervisor.environment = dict(supervisor.environ)
        supervisor.start_servers()
        arguments = (str(PRODUCT / "manage.py"), "restore", str(backup))
        program = programs.python_program("restore", *arguments, data=data, env=supervisor.environment)
        restored = supervisor.launch(replace(program, log=None)).wait() == 0
    if not restored:
        data.clear()
        return 1
    say(f"Start it: {typed('up')} --data {data.path}")
    return 0


_COMMANDS = {command.__name__: command for command in (up, status, down, reset, restore, demo)}


def _demo_program(path: Path, data: DataFolder, *, stack: str) -> Program:
    """The demo as an outsider: it gets an address and the token of an agent.

    :param stack: `own` if it was started for the demo, `running` if not.
    """
    written = data.stack()
    environment = {
        **os.environ,
        "DATABASE_URL": written["database_url"],
        "REDIS_URL": written["redis_url"],
        "GATEHOUSE_DATA": str(data.path),
        "GATEHOUSE_URL": written["url"],
        "GATEHOUSE_TOKEN": data.secrets()["tokens"][written["database_url"]]["kee"],
        "GATEHOUSE_DEMO_STACK": stack,
        "GATEHOUSE_DEMO_WORKERS": "bundled" if written["with_workers"] else "none",
    }
    arguments = (str(PRODUCT / "manage.py"), "demo", str(path))
    return replace(programs.python_program("demo", *arguments, data=data, env=environment), log=None)


def _given(text: str) -> Path:
    """A path as the caller meant it; the commands change the folder before they come here."""
    return (Path(os.environ.get("GATEHOUSE_CALLER_DIR", ".")) / Path(text).expanduser()).resolve()


@contextmanager
def _ended(supervisor: Supervisor, *, patience: float = 15) -> Iterator[None]:
    """End everything on the way out. A signal is a way out: it interrupts the block, which then ends quietly."""
    signs = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signs.remove(signal.SIGHUP)  # nohup stays in force

    def ignore() -> None:
        for sign in signs:
            signal.signal(sign, signal.SIG_IGN)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        ignore()
        raise KeyboardInterrupt

    for sign in signs:
        signal.signal(sign, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        say("\nEnding …")
    finally:
        ignore()
        supervisor.stop(patience=patience)


def _somebody_runs(data: DataFolder) -> bool:
    if not (data.path / "lock").exists():
        return False
    claimed = data.claim()
    data.release()
    return not claimed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
