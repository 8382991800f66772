"""The product's own programs, seen from outside: what to run, and which tokens each side needs."""

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from config.stack.folders import DataFolder
from config.stack.processes import Program
from config.typed import PRODUCT

BUNDLED_WORKERS = PRODUCT / "examples" / "workers"
# They come with the extra `demo`.
_LIBRARIES_OF_WORKERS = ("radon", "vulture", "pypdf", "yake", "textblob")

# Executions may be slow: they have a worker of their own, so that they never delay a flush or a delivery. Deliveries
# wait for others most of the time: in threads, so that a slow one costs a connection and no process.
_CELERY_WORKERS = {
    "core": ("notify,sweep", ("--concurrency", "2")),
    "deliver": ("deliver", ("--pool", "threads", "--concurrency", "32")),
    "execute": ("execute", ("--concurrency", "2")),
}
_AGENT_SCOPES = ("receipts:write", "inbox", "tasks:queue", "tasks:work", "workers:register", "plans", "memory")


def python_program(name: str, *argv: str, data: DataFolder, env: Mapping[str, str], fd: int | None = None) -> Program:
    return Program(
        name=name,
        argv=(sys.executable, *argv),
        env=env,
        cwd=PRODUCT,
        log=data.log(name),
        fd=fd,
    )


def web(data: DataFolder, env: Mapping[str, str], *, fd: int, count: int) -> list[Program]:
    """The web processes. They share a socket that the supervisor holds: a restart refuses no connection."""
    serving = ("--fd", str(fd), "--no-access-log", "--timeout-graceful-shutdown", "5")
    argv = ("-m", "uvicorn", "config.asgi:application", *serving)
    env = {**env, "GATEHOUSE_PROCESS": "web"}
    names = ["web", *(f"web-{number}" for number in range(2, count + 1))]
    return [python_program(name, *argv, data=data, env=env, fd=fd) for name in names]


def provision(data: DataFolder, env: Mapping[str, str], wanted: Mapping[str, list[str]]) -> Program:
    """What brings the database up to date: see :mod:`config.stack.provision`."""
    arguments = (str(data.path), json.dumps(wanted))
    return python_program("provision", "-m", "config.stack.provision", *arguments, data=data, env=env)


def celery_workers(data: DataFolder, env: Mapping[str, str]) -> list[Program]:
    """The Celery workers, by groups of queues."""
    return [
        python_program(
            f"worker-{name}",
            *("-m", "celery", "-A", "config", "worker", "--queues", queues, *hands),
            *("--hostname", f"{name}@%h", "--loglevel", "info", "--without-gossip", "--without-mingle"),
            data=data,
            env={**env, "GATEHOUSE_PROCESS": "worker"},
        )
        for name, (queues, hands) in _CELERY_WORKERS.items()
    ]


def beat(data: DataFolder, env: Mapping[str, str]) -> Program:
    """Beat; its schedules are rows, so that a second beat does no harm."""
    argv = ("-m", "celery", "-A", "config", "beat", "--pidfile", "", "--loglevel", "info")
    return python_program("beat", *argv, data=data, env={**env, "GATEHOUSE_PROCESS": "beat"})


def bundled_worker_scripts() -> list[Path]:
    """The MCP workers that come with the product: the scripts among the examples that can be run."""
    scripts = sorted(BUNDLED_WORKERS.glob("*.py"))
    return [path for path in scripts if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")]


def bundled_workers_can_run() -> bool:
    return all(importlib.util.find_spec(library) for library in _LIBRARIES_OF_WORKERS)


def bundled_worker(script: Path, data: DataFolder, env: Mapping[str, str], *, token: str) -> Program:
    """One MCP worker, on any free port; it tells the hub which."""
    return python_program(
        worker_name(script),
        str(script),
        "--port",
        "0",
        data=data,
        env={**env, "GATEHOUSE_TOKEN": token, "GATEHOUSE_WORKER_KEY": data.worker_key_file.read_text(encoding="utf-8")},
    )


def worker_name(script: Path) -> str:
    return script.stem.replace("_", "-")


def wanted_tokens(scripts: list[Path]) -> dict[str, list[str]]:
    """The tokens that a stack issues once, each as the arguments of ``issue_token``."""
    return {
        # For the person at the keyboard, and for the agent of the demo.
        "agent": _token("agent", "ai", *_AGENT_SCOPES),
        "kee": _token("Kee", "ai", *_AGENT_SCOPES),
        **{
            worker_name(script): _token(worker_name(script), "worker", "workers:register", "tasks:work")
            for script in scripts
        },
    }


def _token(principal: str, kind: str, *scopes: str) -> list[str]:
    arguments = ["--principal", principal, "--kind", kind, "--tenant", "default", "--source-system", principal]
    return arguments + [part for scope in scopes for part in ("--scope", scope)]
