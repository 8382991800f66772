"""The machine that figures are true of."""

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import django
import psutil
import psycopg
import redis
from django.conf import settings

_BLOCK: Final = b"\0" * 8192
_TRYING: Final = 1.0


def facts(home: Path | None) -> dict[str, Any]:
    """Cores, memory, versions, and what the disk under the database does; no `home`: a database elsewhere."""
    with psycopg.connect(settings.DATABASE_URL, autocommit=True) as connection:
        server = connection.info.parameter_status("server_version")
        commits = _commits(connection)
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        broker = client.info("server")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "django": django.get_version(),
        "psycopg": version("psycopg"),
        "postgresql": server,
        "broker": f"Valkey {broker['valkey_version']}"
        if "valkey_version" in broker
        else f"Redis {broker['redis_version']}",
        "commits_per_second": round(commits),
        "fsyncs_per_second": None if home is None else round(_fsyncs(home)),
    }


def _commits(connection: "psycopg.Connection[Any]") -> float:
    """Durable commits of one connection, each with next to nothing in it."""
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < _TRYING:
        connection.execute("select pg_logical_emit_message(true, 'bench', 'x')", prepare=True)
        done += 1
    return done / (time.perf_counter() - began)


def _fsyncs(home: Path) -> float:
    """Flushed writes of one block, one after the other, where the database's log is written."""
    path = home / "fsync"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, _BLOCK, 0)
        os.fsync(descriptor)
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < _TRYING:
            os.pwrite(descriptor, _BLOCK, 0)
            _flush(descriptor)
            done += 1
        return done / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()


_flush = getattr(os, "fdatasync", os.fsync)
