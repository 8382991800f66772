"""Hints: "something changed, look" on commit. Losing one costs latency and nothing else."""

from typing import Any

from django.db import transaction
from django.dispatch import Signal


def hint_on_commit(signal: Signal, **facts: Any) -> None:
    """Send a signal when the transaction has committed. A receiver that fails is logged and hinders nobody."""

    def send() -> None:
        signal.send_robust(sender=None, **facts)

    transaction.on_commit(send, robust=True)
