"""Counters for Prometheus, kept by each process and summed where they are scraped.

With PROMETHEUS_MULTIPROC_DIR set, each process keeps its own in a file of that folder. Metrics stand in the `metrics`
module of their app; what a transaction has done is counted once it is committed.
"""

import os
import socket
from collections.abc import Callable
from functools import partial

from django.db import transaction
from prometheus_client import Counter, Histogram, values

__all__ = ["Counter", "Histogram", "once_committed"]

if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
    # Containers that share the folder may share process ids too.
    values.ValueClass = values.MultiProcessValue(lambda: f"{socket.gethostname()}-{os.getpid()}")  # type: ignore[no-untyped-call]  # the library leaves it so


def once_committed(record: Callable[[float], None], amount: float = 1) -> None:
    """Count when the transaction is committed: `once_committed(OPENED.inc)`."""
    transaction.on_commit(partial(record, amount), robust=True)
