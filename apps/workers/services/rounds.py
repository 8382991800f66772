"""Calls of many strangers at once: what is to be done is claimed, done without a transaction, and noted one by one.

Tenants take turns: one whose strangers hang may fill the rounds, but takes nobody else's place in them.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from datetime import timedelta
from typing import Final, TypeVar

from django.db.models import QuerySet, Window
from django.db.models.functions import RowNumber

from apps.core.outbound import CallFailed
from apps.principals.models import TenantModel

logger = logging.getLogger(__name__)

MOST_CLAIMED: Final = 64
CALL_DEADLINE: Final = timedelta(seconds=5)
# Longer than a round takes, so that only the claims of a dead process are taken over.
CLAIMED_FOR: Final = timedelta(seconds=60)
_AT_ONCE: Final = 32

C = TypeVar("C")
R = TypeVar("R")
M = TypeVar("M", bound=TenantModel)


class Unexpected(CallFailed):
    """The call, or the noting of what it brought, broke as nobody has foreseen; the log says how."""

    code = "unexpected"


def in_turn(due: QuerySet[M], *, by: str) -> list[int]:
    """The keys of what the next round takes of this: of each tenant what has been due longest, then of each the next.

    :param by: the field that says since when.
    """
    turn = Window(RowNumber(), partition_by="tenant_id", order_by=[by, "id"])
    return list(due.annotate(turn=turn).order_by("turn", by, "id").values_list("pk", flat=True)[:MOST_CLAIMED])


def do_all(claims: Sequence[C], call: Callable[[C], R], note: Callable[[C, R | CallFailed], None]) -> int:
    """Make the calls side by side, and note each as it comes back; returns how many there were.

    The calls run on threads of their own and must leave the database alone. What breaks at one of them unexpectedly is noted
    there as :class:`Unexpected`, and hinders no other.
    """

    def made(claim: C) -> R | CallFailed:
        try:
            return call(claim)
        except CallFailed as fault:
            return fault

    if not claims:
        return 0
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="workers") as pool:
        under_way = {pool.submit(made, claim): claim for claim in claims}
        for done in as_completed(under_way):
            _note(under_way[done], done, note)
    return len(claims)


def _note(claim: C, done: Future[R | CallFailed], note: Callable[[C, R | CallFailed], None]) -> None:
    try:
        note(claim, done.result())
    except Exception as exc:
        logger.exception("one of a round broke")
        note(claim, Unexpected(f"{type(exc).__name__}, as the log says."))
