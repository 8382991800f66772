"""Waking agents: a webhook is called when its principal's inbox has something new, once for a burst."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Exists, OuterRef

from apps.core.outbound import Answer, CallFailed
from apps.core.sql import database_now
from apps.delivery.models import Delivery, Kind, State, Target
from apps.delivery.notifications import MOST_AT_ONCE, notify
from apps.delivery.senders import Delivered, Payload, Refused, Sender, Verdict, webhook_body
from apps.digests import selectors
from apps.digests.selectors import Mark
from apps.digests.shapes import EntryOutput
from apps.principals.tenancy import acting_as_system

_NAMED: Final = 5
_STOPPING: Final = frozenset({404, 409, 410, 422})
"""Answers that ask not to be called again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What a wake tells."""

    mark: Mark
    receipt_pks: list[int]
    claimed_at: datetime


class WakeSender(Sender):
    """Wakes never die: they are sent again until the agent answers, there is nothing to tell, or the target is stopped.

    The inbox is looked up again right before each call, so that nobody is woken for nothing.
    """

    def prepare(self, target: Target, delivery: Delivery, now: datetime) -> Payload | None:
        if not _worth_a_wake([target], now):
            return None
        mark = _mark(target)
        page = selectors.newest_entries(mark.principal_id, limit=_NAMED)
        if page.visible < target.min_unacked:
            return None
        body = webhook_body(
            "inbox.changed",
            now,
            target=str(target),
            principal=_owner(target),
            as_of=page.as_of,
            unread=page.unread,
            visible=page.visible,
            pending=page.pending,
            newest=[_named(entry, with_titles=target.with_titles) for entry in page.entries],
        )
        # The id stays the same until there is something new to tell, so that a receiver can drop the repetition.
        return Payload(
            url=target.url,
            message_id=f"wake_{target.pk}_{page.as_of}",
            body=body,
            context=_Told(
                mark=Mark(tenant_id=mark.tenant_id, principal_id=mark.principal_id, sequence=page.as_of),
                receipt_pks=[pk for entry in page.entries for pk in entry.receipt_pks],
                claimed_at=now,
            ),
        )

    def judge(self, payload: Payload, outcome: Answer | CallFailed, *, seconds: float, now: datetime) -> Verdict:
        if isinstance(outcome, Answer) and outcome.status in _STOPPING:
            return Refused(code=f"http_{outcome.status}", said=f"Answered {outcome.status}.")
        return super().judge(payload, outcome, seconds=seconds, now=now)

    def settled(self, target: Target, delivery: Delivery, payload: Payload, verdict: Verdict, now: datetime) -> None:
        if isinstance(verdict, Refused):
            target.stopped_at, target.stopped_reason = now, target.result
        elif isinstance(verdict, Delivered):
            told: _Told = payload.context
            target.covered_seq, target.woken_at = max(target.covered_seq, told.mark.sequence), now
            # An agent that acks while it is being called was not woken in vain.
            acked_before = selectors.all_acked_by(told.receipt_pks, told.claimed_at)
            target.wasted += acked_before and not selectors.anything_left(told.mark)


def _owner(target: Target) -> str:
    return target.principal.name if target.principal is not None else ""


def _mark(target: Target) -> Mark:
    """What a target has been told of."""
    return Mark(tenant_id=target.tenant_id, principal_id=target.principal_id or 0, sequence=target.covered_seq)


def _worth_a_wake(targets: Sequence[Target], now: datetime) -> list[Target]:
    """The targets for which something new is waiting.

    A target that was woken within its lease is left alone while anything that it was woken for is unacked.
    """
    found = {news.mark: news for news in selectors.news(list({_mark(target) for target in targets}))}
    worth = []
    for target in targets:
        news = found.get(_mark(target))
        leased = target.woken_at is not None and target.woken_at + target.notify_lease > now
        if news and news.visible >= target.min_unacked and not (leased and news.leftover):
            worth.append(target)
    return worth


def queue_wakes(*, principals: Collection[int] | None = None) -> int:
    """Queue a delivery to each webhook that is to be woken now, of these principals or of all; answers how many.

    Opens its own transaction. A target that has a delivery pending gets no second one.
    """
    with acting_as_system("queue wakes"):
        pending = Delivery.objects.filter(target=OuterRef("pk"), state=State.PENDING)
        webhooks = Target.objects.filter(kind=Kind.WEBHOOK, stopped_at=None, principal__disabled_at=None)
        if principals is not None:
            webhooks = webhooks.filter(principal_id__in=principals)
        now = database_now()
        due = _worth_a_wake(list(webhooks.exclude(Exists(pending)).order_by("pk")), now)
        Delivery.objects.bulk_create(
            [Delivery(tenant_id=one.tenant_id, target=one, due_at=now, created_at=now) for one in due],
            ignore_conflicts=True,
        )
    for _ in range(min(len(due), MOST_AT_ONCE)):
        notify()
    return len(due)


def _named(entry: EntryOutput, *, with_titles: bool) -> dict[str, Any]:
    named = {"ref": entry.ref, "kind": entry.kind, "sequence": entry.sequence, "count": entry.count}
    return named | {"title": entry.title, "source_systems": entry.source_systems} if with_titles else named
