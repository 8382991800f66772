"""The ground that a measurement stands on: servers or a database of its own, and nothing of it left behind.

Embedded servers come with the run and are durable, so that a commit costs what it costs. Where the environment
names servers, the run makes a database of its own there and takes a numbered Redis database that is empty.
"""

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from urllib.parse import urlsplit

import psycopg
import redis
from psycopg import sql

from apps.bench import growth
from config.stack.folders import RuntimeFolder, sweep_abandoned
from config.stack.processes import MARK, Account, StackError, end_children, server_account, spawn
from config.stack.servers import Postgres, Valkey

_NUMBERS: Final = range(15, 0, -1)


@contextmanager
def prepared() -> Iterator[dict[str, str]]:
    """The environment of a process that may do as it likes; when it is over, nothing of it is there.

    :raises StackError: if a server does not start, or one that the environment names can't be used.
    """
    account = server_account()
    sweep_abandoned(account)
    folder = RuntimeFolder(account)
    with ExitStack() as stack:
        stack.callback(folder.remove)
        given, ours = os.environ, {}
        for variable, kind, borrow in (("DATABASE_URL", Postgres, _database), ("REDIS_URL", Valkey, _number)):
            url = given.get(variable)
            ours[variable] = stack.enter_context(borrow(url) if url else _server(kind, folder, account))
        yield {
            **given,
            **ours,
            MARK: folder.path.name,
            "DJANGO_SETTINGS_MODULE": "apps.bench.settings",
            "GATEHOUSE_DATA": str(folder.path / "data"),
            "GATEHOUSE_SECRET_KEY": secrets.token_urlsafe(48),
            "GATEHOUSE_LEASE_KEYS": secrets.token_urlsafe(48),
            # What sources may post in an hour is not what is measured.
            "SOURCE_RATE_LIMITS": '{"default": 1000000000}',
            **({} if given.get("DATABASE_URL") else {"GATEHOUSE_BENCH_HOME": str(folder.path)}),
        }


@contextmanager
def _server(kind: type[Postgres] | type[Valkey], folder: RuntimeFolder, account: Account | None) -> Iterator[str]:
    server = kind(
        home=folder.folder("servers"),
        sockets=folder.folder("sockets"),
        log=folder.path / f"{kind.__name__.lower()}.log",
        mark=folder.path.name,
        account=account,
        durable=True,
    )
    program = server.program()
    child: subprocess.Popen[bytes] = spawn(program)
    try:
        server.wait_ready(lambda: child.poll() is None)
        yield server.url
    finally:
        end_children([child], program.farewell)


@contextmanager
def _database(url: str) -> Iterator[str]:
    """A database of its own on somebody's server."""
    name = f"gatehouse_bench_{secrets.token_hex(4)}"
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            connection.execute("set role none")
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    except psycopg.Error as failure:
        raise StackError(f"No database for measurements can be made where DATABASE_URL points: {failure}") from failure
    try:
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set role none")
            for database in (name, growth.copy_of(name)):
                growth.drop(connection, database)


@contextmanager
def _number(url: str) -> Iterator[str]:
    """An empty numbered database of somebody's Redis."""
    for number in _NUMBERS:
        # Two of redis-py's forms: unix://path?db=N and redis://host:port/N.
        chosen = (
            f"{url.partition('?')[0]}?db={number}"
            if url.startswith("unix://")
            else urlsplit(url)._replace(path=f"/{number}").geturl()
        )
        try:
            with redis.Redis.from_url(chosen) as client:
                if client.dbsize():
                    continue
        except redis.RedisError as failure:
            raise StackError(f"The server that REDIS_URL names can't be used: {failure}") from failure
        try:
            yield chosen
        finally:
            with redis.Redis.from_url(chosen) as client:
                client.flushdb()
        return
    raise StackError("No numbered database of the Redis that REDIS_URL names is empty.")
