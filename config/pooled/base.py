"""A Django database engine: PostgreSQL, behind a pool that is back as soon as the database is where there is one."""

import select
from typing import Any, Final

import psycopg
from django.db.backends.postgresql import base
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

_TRIES: Final = 3


class DatabaseWrapper(base.DatabaseWrapper):
    """Looks itself whether a connection of the pool still stands; with one, settings ask for no `CONN_HEALTH_CHECKS`."""

    def _set_autocommit(self, autocommit: bool) -> None:  # noqa: FBT001  # Django's signature
        # Those of a pool are given back as they are taken. Outside of a transaction psycopg does no more than this.
        if self.connection.autocommit != autocommit:
            if self.connection.pgconn.transaction_status == TransactionStatus.IDLE:
                self.connection._autocommit = autocommit  # noqa: SLF001  # its own way takes a lock and a wait
            else:
                super()._set_autocommit(autocommit)  # type: ignore[misc]  # it has no stub

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """A connection that stands.

        The pool's own check finds those that have ended one by one, with a pause before each that doubles: after a
        restart of the database, request after request would spend its whole patience on them.

        :raises psycopg.Error: if there is none in time.
        """
        pool: Any = self.pool
        if pool is None:
            return super().get_new_connection(conn_params)
        left = _TRIES
        while True:
            connection = super().get_new_connection(conn_params)
            left -= 1
            try:
                if _has_heard(connection):
                    ConnectionPool.check_connection(connection)
            except psycopg.Error:
                pool.putconn(connection)
                if not left:
                    raise
                # What has ended this one has most likely ended others.
                pool.check()
            else:
                return connection


def _has_heard(connection: Any) -> bool:
    """Whether the server has said something since the connection was used, its end above all.

    Of a server that is gone without a word nothing can be known but by asking it, which the next statement does anyway.

    :raises psycopg.OperationalError: if the connection has no socket any more.
    """
    heard = select.poll()
    heard.register(connection.fileno(), select.POLLIN)
    return bool(heard.poll(0))
