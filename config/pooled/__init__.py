"""PostgreSQL behind a pool that is back as soon as the database is.

A Django database engine: :mod:`config.pooled.base` is what Django looks for in it.
"""

from typing import Any, Final

from psycopg_pool import ConnectionPool

# The pool doubles its pause after each attempt that failed: for as long again as the database was away, nobody would get
# a connection. So it gives up soon, and begins anew when it has.
PERSISTENT: Final[dict[str, Any]] = {"reconnect_timeout": 1.0, "reconnect_failed": ConnectionPool.check}
