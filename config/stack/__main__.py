"""The command line of ``bin/up``, ``bin/demo`` and ``gatehouse``."""

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path

from config.stack.folders import KEYS, DataFolder
from config.stack.processes import MARK, SIGNALS, StackError, end_all, marked, servers_user
from config.stack.supervisor import BUNDLED_WORKERS, Supervisor, readiness, say
from config.typed import PRODUCT, typed

_NOT_RUNNING = 3
_INTERRUPTED = 130
_LAST_PORT = 65535
# Each may open a quarter more database connections than GATEHOUSE_POOL says; the embedded server has 300.
_MOST_WEB = 8
_WORKERS_CAN_RUN = find_spec("textblob") is not None
_NO_LIBRARIES = (
    "The bundled MCP workers need libraries that are missing: pip install radon vulture pypdf yake textblob."
)


def main(arguments: list[str]) -> int:
    commands = {one.__name__: one for one in (up, status, down, reset, restore, demo)}
    script = "demo" if arguments[:1] == ["demo"] else "up"
    listed = "\n".join(f"  {typed(name):<18} {command.__doc__}" for name, command in commands.items())
    parser = argparse.ArgumentParser(
        prog=typed(script).removesuffix(" up"),
        description=f"Run Gatehouse on this machine:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    folder = os.environ.get("GATEHOUSE_DATA") or str(PRODUCT / "var")
    add = parser.add_argument
    add("command", nargs="?", metavar="COMMAND", default="up", help="(default: up)")
    add("path", nargs="?", metavar="DIR", help="demo: a Python code base; restore: what the command backup has written")
    add("--data", metavar="DIR", default=folder, help="the data folder (default: %(default)s)")
    add("--port", metavar=f"1-{_LAST_PORT}", type=int, help="the web port (default: the last one, 8080, or a free one)")
    add("--web", metavar=f"1-{_MOST_WEB}", type=int, help="up: web processes (default: one a core, at most two)")
    add("--no-workers", action="store_true", help="up: leave out the bundled MCP workers")
    add("--watch", action="store_true", help="demo: open the console as well, and stay until Ctrl-C")
    add("--yes", action="store_true", help="reset: don't ask")
    options, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        parser.error(f"there is no option {' '.join(unknown)}")
    for name, given, most in (("port", options.port, _LAST_PORT), ("web", options.web, _MOST_WEB)):
        if given is not None and not 0 < given <= most:
            parser.error(f"--{name} is {given}; it can be 1 to {most}")
    if options.command not in commands:
        parser.error(f"there is no command {options.command!r}; there are {', '.join(commands)}")
    if options.path and options.command not in {"demo", "restore"}:
        parser.error(f"{options.command} takes no {options.path!r}")
    data = DataFolder(_given(options.data or folder))
    if options.command in {"up", "demo", "restore"} and os.environ.get(MARK) != data.mark:
        # Forked processes are recognized by the environment that this process was started with.
        os.execve(sys.executable, [sys.executable, "-m", "config.stack", *arguments], os.environ | {MARK: data.mark})  # noqa: S606
    if servers_user():
        os.umask(0o022)  # they must get into what root makes for them
    try:
        return commands[options.command](options, data)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (StackError, OSError) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1


def _given(text: str) -> Path:
    """A path as the caller meant it; the commands change the folder before they come here."""
    return (Path(os.environ.get("GATEHOUSE_CALLER_DIR", ".")) / Path(text).expanduser()).resolve()


def up(options: argparse.Namespace, data: DataFolder) -> int:
    """Start everything and stay in the foreground until Ctrl-C."""
    if not data.claim():
        address = data.read(data.stack_file).get("url", "still starting")
        raise StackError(f"It runs already, with its data in {data.path}: {address}. To end it: {typed('down')}")
    first = not data.password_file.exists()
    if not (options.no_workers or _WORKERS_CAN_RUN):
        say(_NO_LIBRARIES)
    workers = () if options.no_workers or not _WORKERS_CAN_RUN else BUNDLED_WORKERS
    web = options.web or min(2, os.cpu_count() or 1)
    supervisor = Supervisor(data=data, port=options.port, web=web, workers=workers)
    with _ended(supervisor):
        supervisor.start()
        url, password = supervisor.url, data.password_file.read_text(encoding="utf-8").strip()
        shown = f"password {password} (shown once, kept in {data.password_file})"
        say(f"Console {url}/admin/  user admin  {shown if first else f'password in {data.password_file}'}")
        say(f"API docs {url}/api/docs/  token in {data.token_file}  Agents: MCP at {url}/mcp")
        say(f"Try: {typed('demo')}  Stop: Ctrl-C")
        supervisor.watch()
    return 0


def demo(options: argparse.Namespace, data: DataFolder) -> int:
    """Run the main job once on a Python code base and show it; what was started for it is ended."""
    path = _given(options.path or str(PRODUCT / "apps"))
    if not (str(path).isprintable() and path.is_dir() and next(path.rglob("*.py"), None)):
        raise StackError(f"There is no folder with Python code at {path}.")
    if not _WORKERS_CAN_RUN:
        raise StackError(_NO_LIBRARIES)
    # Where another process runs the stack, that one is used when it is ready. It may also end before.
    while not data.claim() and not data.read(data.stack_file):
        time.sleep(0.1)
    supervisor, code = Supervisor(data=data, port=options.port, workers=BUNDLED_WORKERS), _INTERRUPTED
    # The job is over by then: nothing is left that a process would have to finish.
    with _ended(supervisor, patience=0.5):
        if data.lock:
            supervisor.start()
        stack = data.read(data.stack_file)
        if not data.lock:
            say(f"Using what runs already at {stack['url']}")
            if BUNDLED_WORKERS.keys() - stack["processes"].keys():
                raise StackError(
                    f"It runs without the bundled MCP workers. End it, and start it with them: {typed('up')}"
                )
        if options.watch:
            say(f"Console {stack['url']}/admin/  user admin  password in {data.password_file}")
        # An outsider: it gets an address and the token of an agent.
        code = supervisor.run(
            *("manage.py", "demo", str(path), *["--watch"] * options.watch),
            GATEHOUSE_DATA=str(data.path),
            GATEHOUSE_URL=stack["url"],
            GATEHOUSE_TOKEN=data.secrets()["tokens"][stack["database_url"]]["kee"],
            GATEHOUSE_DEMO_STACK="own" if data.lock and not options.watch else "running",
        )
        if options.watch and data.lock and not code:
            say("It stays for you to look around. Stop: Ctrl-C")
            supervisor.watch()
    return code


def status(_options: argparse.Namespace, data: DataFolder) -> int:
    """Say what runs; the exit code is 0 when it is ready, 3 when nothing runs, 1 otherwise."""
    if not marked(data.mark):
        say(f"Nothing runs with its data in {data.path}.")
        return _NOT_RUNNING
    stack = data.read(data.stack_file)
    code, body = readiness(stack["url"]) if stack else (0, "still starting")
    say(f"Ready: {stack['url']}" if code == HTTPStatus.OK else f"Not ready: {body}")
    for name, pid in stack.get("processes", {}).items():
        say(f"  {name:<24} pid {pid:<8} {data.log(name)}")
    return 0 if code == HTTPStatus.OK else 1


def down(_options: argparse.Namespace, data: DataFolder) -> int:
    """End what runs, wherever it was started."""
    ours = marked(data.mark)
    # The supervisor, whose parent is a stranger, ends its children in order.
    end_all([one for one in ours if one.is_running() and one.parent() not in ours], sign=signal.SIGTERM, patience=60)
    end_all(marked(data.mark))
    say(f"Ended what ran with its data in {data.path}." if ours else f"Nothing runs with its data in {data.path}.")
    return 0


def reset(options: argparse.Namespace, data: DataFolder) -> int:
    """Erase the data folder: database, broker, files, secrets."""
    if not data.path.is_dir():
        say(f"There is nothing in {data.path}.")
        return 0
    if not data.secrets_file.exists():
        raise StackError(f"{data.path} is no data folder of Gatehouse; nothing was erased.")
    if not data.claim():
        raise StackError(f"It runs; end it first: {typed('down')}")
    if not options.yes and input(f"Erase everything in {data.path}? Type yes: ") != "yes":
        raise StackError("Nothing was erased.")
    data.clear()
    (data.path / "lock").unlink()
    with suppress(OSError):  # other things are in it, or it lies in somebody else's folder
        data.path.rmdir()
    say(f"Erased {data.path}.")
    return 0


def restore(options: argparse.Namespace, data: DataFolder) -> int:
    """Make a new data folder from a backup DIR; then start it."""
    if options.path is None or (data.path.exists() and {one.name for one in data.path.iterdir()} - {"lock"}):
        raise StackError(f"Name a backup, and for its data a folder that is empty: {typed('restore')} DIR --data NEW")
    backup = _given(options.path)
    try:
        keys = json.loads((backup / "secrets.json").read_bytes())
        kept = {name: keys[name] for name in KEYS}
    except (OSError, ValueError, KeyError, TypeError):
        raise StackError(f"{backup} is no complete backup: its secrets.json can't be read.") from None
    if not data.claim():
        raise StackError(f"Another restore fills {data.path}.")
    data.write(data.secrets_file, kept | {"restoring": str(backup)})
    supervisor, code = Supervisor(data=data), _INTERRUPTED
    try:
        with _ended(supervisor):
            supervisor.start_servers()
            code = supervisor.run("manage.py", "restore", str(backup))
            if not code:
                data.write(data.secrets_file, kept)
                say(f"Start it: {typed('up')} --data {shlex.quote(str(data.path))}")
    finally:
        if code:
            data.clear()
    return code


@contextmanager
def _ended(supervisor: Supervisor, *, patience: float = 15) -> Iterator[None]:
    """End everything on the way out. A signal is a way out: it interrupts the block, which then ends quietly."""
    for sign in SIGNALS:
        # nohup stays in force.
        if sign != signal.SIGHUP or signal.getsignal(sign) is not signal.SIG_IGN:
            signal.signal(sign, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        say("\nEnding …")
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        supervisor.stop(patience=patience)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
