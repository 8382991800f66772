"""The product with one of its foundations taken out, for a judge that must notice. See tests.chaos.mutated."""

import re
import time
from collections.abc import Callable
from typing import Any

from django.db import transaction

from apps.digests import services as digests
from apps.principals.tenancy import acting_in
from apps.tasks import sql


def without_fence() -> None:
    """Any run of its holder's may act on a task."""
    _rewrite({"HEARTBEAT", "END", "LOCK_LEASES"}, r"\bh\.fence = \w+\.fence\b", "true")
    # And what a stale run ends is recorded as its own.
    _rewrite({"END"}, r"h\.task_type_id, h\.fence,", "h.task_type_id, coalesce(g.fence, h.fence) as fence,")


def without_lock_order() -> None:
    """Leases are locked in the order in which a caller names them, and waited for; slowly, so that callers meet."""
    _rewrite(
        {"HEARTBEAT"},
        r"select h\.task_id, h\.lease_seconds from",
        "select h.task_id, h.lease_seconds, pg_sleep(0.005) from",
    )
    _rewrite(
        {"HEARTBEAT"},
        r"order by h\.task_id for update of h skip locked",
        "order by array_position(%(tasks)s::bigint[], h.task_id) for update of h",
    )


def without_single_transaction() -> None:
    """The receipt of an end follows in a transaction of its own."""
    for name in ("post", "post_many"):
        setattr(digests, name, _afterwards(getattr(digests, name)))


MUTANTS = {mutant.__name__: mutant for mutant in (without_fence, without_lock_order, without_single_transaction)}


def _rewrite(wanted: set[str], pattern: str, instead: str) -> None:
    rewritten = set()
    for name, text in vars(sql).items():
        if isinstance(text, str) and not name.startswith("_"):
            mutated, count = re.subn(pattern, instead, text)
            if count:
                setattr(sql, name, mutated)
                rewritten.add(name)
    if missing := wanted - rewritten:
        raise AssertionError(f"{missing} look otherwise than this mutant thinks.")


def _afterwards(post: Callable[..., Any]) -> Callable[..., Any]:
    def posted(*, poster: Any, **given: Any) -> Any:
        drafts = given["drafts"] if "drafts" in given else [given["draft"]]
        if all(draft.pairs_with is None for draft in drafts):
            return post(poster=poster, **given)

        def later() -> None:
            time.sleep(0.05)
            with acting_in(poster.tenant_id, "mutant"):
                post(poster=poster, **given)

        transaction.on_commit(later)
        return []

    return posted
