"""Posting many: what one post after another would bring, in a fixed number of statements."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from apps.core.errors import DomainError
from apps.digests import services
from apps.digests.models import Entry, Inbox, ReceiptState, Thread
from apps.digests.services import Posted
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Obligation, Receipt, ReceiptKey
from apps.receipts.services import Group, Poster, ReceiptDraft
from tests.digests.makers import make_draft, post, post_grouped, read, unsound
from tests.digests.test_races import check
from tests.factories import T0, make_caller
from tests.waiters import acting, at_once

CI = Group(resource_ref="pr:1", event_family="ci")


def post_many(poster: Caller, drafts: list[ReceiptDraft]) -> list[Posted | DomainError]:
    return services.post_many(poster=Poster.of(poster), drafts=drafts, now=T0)


@contextmanager
def counting() -> Iterator[list[str]]:
    spoken: list[str] = []
    with CaptureQueriesContext(connection) as captured:
        yield spoken
    spoken += [one["sql"] for one in captured.captured_queries if "SAVEPOINT" not in one["sql"]]


KINDS: dict[str, tuple[int, Callable[[int], dict[str, Any]]]] = {
    # fact and place
    "items": (1, lambda _: {}),
    # fact, lock, threads that are open, place
    "grouped": (4, lambda nth: {"group": replace(CI, resource_ref=f"pr:{nth}")}),
    # and: members, counters, superseded, written, surfaced
    "immediate": (9, lambda nth: {"group": replace(CI, resource_ref=f"pr:{nth}", flush_class="immediate")}),
    # fact, with what it opens
    "owed": (1, lambda _: {"surface": "ledger", "requires_action": True}),
    # what it refers to, meeting point, look again, receipts
    "early": (4, lambda nth: {"surface": "ledger", "pairs_with": f"unknown.{nth}", "caused_by": f"unknown.{nth}"}),
    # what it refers to, fact, holding the roots, closing, lock, place
    "closing": (6, lambda nth: {"pairs_with": f"R.{nth % 7}"}),
    # meeting point, what stands or waits, fact
    "named": (3, lambda nth: {"surface": "ledger", "receipt_id": f"R.{nth}"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_statements_of_a_batch_do_not_grow_with_its_size(as_kee: Caller, kind: str) -> None:
    expected, changes = KINDS[kind]
    for nth in range(7):
        post(as_kee, receipt_id=f"R.{nth}", requires_action=True)
    before = Receipt.objects.count()
    sizes = (2 if kind == "closing" else 1, 50, 500)
    for size in sizes:
        drafts = [make_draft(as_kee, **changes(1000 * size + nth)) for nth in range(size)]
        with counting() as spoken:
            answers = post_many(as_kee, drafts)
        assert all(isinstance(one, Posted) for one in answers)
        assert len(spoken) == expected, (size, spoken)
    assert Receipt.objects.count() == before + sum(sizes)
    assert unsound() == {}


def test_a_batch_for_many_inboxes_costs_as_much_as_for_two(tenant: Tenant, as_kee: Caller) -> None:
    owners = [make_caller(tenant, f"Agent {nth}") for nth in range(20)]
    post(as_kee)  # the rules of its source are known
    for among in (owners[:2], owners):
        drafts = [
            make_draft(owner, group=group)
            for owner in among
            for group in (None, CI, replace(CI, flush_class="immediate", resource_ref="pr:2"))
        ]
        post_many(as_kee, [replace(one, dedupe_key=f"first {one.dedupe_key}") for one in drafts])
        with counting() as spoken:
            post_many(as_kee, drafts)
        # fact, whose inbox is there, lock, items, open threads, receipts into them, five of the snapshots
        assert len(spoken) == 11, spoken
    for owner in owners:
        assert [entry.sequence for entry in read(owner).entries][-1] == Inbox.objects.get(
            principal_id=owner.principal_id
        ).last_seq
    assert unsound() == {}


def test_batch_makes_one_snapshot_of_a_thread(as_kee: Caller) -> None:
    answers = post_many(as_kee, [make_draft(as_kee, group=CI) for _ in range(70)])
    (entry,) = read(as_kee).entries
    assert (entry.count, entry.flush_reason, read(as_kee).pending) == (70, "size", 0)
    assert {one.entry_ref for one in answers if isinstance(one, Posted)} == {entry.ref}


def test_immediate_receipt_flushes_all_of_its_batch(as_kee: Caller) -> None:
    urgent = replace(CI, flush_class="immediate")
    groups = [CI, urgent, CI, replace(CI, resource_ref="pr:2"), None]
    answers = post_many(as_kee, [make_draft(as_kee, group=group) for group in groups])
    item, entry = read(as_kee).entries
    assert (item.kind, entry.count, entry.flush_reason, read(as_kee).pending) == ("item", 3, "immediate", 1)
    shown = [one.entry_ref for one in answers if isinstance(one, Posted)]
    assert shown == [entry.ref, entry.ref, entry.ref, None, item.ref]


def test_batch_rolls_over_full_and_broken_threads(as_kee: Caller) -> None:
    post_grouped(as_kee)
    broken = replace(CI, break_thread=True)
    first = [make_draft(as_kee, group=group) for group in [CI] * 2 + [broken] + [CI] * 4 + [broken]]
    answers = post_many(as_kee, first)
    assert [(entry.count, entry.flush_reason) for entry in read(as_kee).entries] == [(3, "rollover"), (5, "rollover")]
    old, new = (entry.ref for entry in read(as_kee).entries)
    assert [one.entry_ref for one in answers if isinstance(one, Posted)] == [old] * 2 + [new] * 5 + [None]
    post_many(as_kee, [make_draft(as_kee, group=CI) for _ in range(1210)])
    assert [entry.count for entry in read(as_kee).entries][2:] == [500, 500, 211]
    assert [entry.flush_reason for entry in read(as_kee).entries][2:] == ["rollover", "rollover", "size"]
    assert Thread.objects.filter(closed_at=None).count() == 1
    assert max(Thread.objects.values_list("receipt_count", flat=True)) == 500
    assert unsound() == {}


# --- as one after another ---------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "d"])
MAYBE = st.none() | NAMES
GROUPS = st.sampled_from(
    [None, CI, replace(CI, resource_ref="pr:2"), replace(CI, groupable=False), replace(CI, event_family=None)]
)


@st.composite
def drafts(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Drafts that meet: few keys, few ids, each of which names others."""
    one = st.fixed_dictionaries(
        {
            "dedupe_key": st.sampled_from([f"k{nth}" for nth in range(6)]),
            "summary": st.sampled_from(["s", "t"]),
            "receipt_id": MAYBE,
            "caused_by": MAYBE,
            "pairs_with": MAYBE,
            "requires_action": st.booleans(),
            "group": GROUPS,
            "surface": st.sampled_from(["inbox", "inbox", "ledger"]),
            "recipient": st.integers(0, 1),
        }
    )
    return draw(st.lists(one, min_size=1, max_size=9))


def _state(recipients: list[Caller]) -> dict[str, Any]:
    """All that posting leaves, told by keys and not by numbers."""
    receipts = list(Receipt.objects.order_by("pk").select_related("caused_by", "pairs_with"))
    key = {one.pk: one.dedupe_key for one in receipts}

    def of(pk: int | None) -> str | None:
        return key[pk] if pk is not None else None

    return {
        "facts": [
            (
                one.dedupe_key,
                one.summary,
                one.caused_by_ref,
                of(one.caused_by_id),
                one.pairs_with_ref,
                of(one.pairs_with_id),
            )
            for one in receipts
        ],
        "keys": ReceiptKey.objects.count(),
        "owed": [
            (of(one.receipt_id), of(one.closed_by_id), one.closed_at) for one in Obligation.objects.order_by("pk")
        ],
        "places": {
            key[one.receipt_id]: (
                one.inbox.principal_id,
                (one.thread.resource_ref if one.thread else None),
                one.pending,
                one.entry_id is not None,
            )
            for one in ReceiptState.objects.select_related("inbox", "thread")
        },
        "items": [
            [[key[pk] for pk in one.receipt_ids] for one in Entry.objects.filter(inbox=inbox).order_by("sequence")]
            for inbox in Inbox.objects.order_by("principal_id")
        ],
        "counters": [
            (one.last_seq, one.visible_unread, one.pending_unread) for one in Inbox.objects.order_by("principal_id")
        ],
        "unread": [len(read(one).entries) for one in recipients],
    }


def _tried(act: Callable[[], list[Any]], recipients: list[Caller]) -> tuple[list[Any], dict[str, Any]]:
    """What an act answers and leaves; then it is undone."""
    outcome: list[Any] = []
    with transaction.atomic():
        outcome += [act(), _state(recipients)]
        assert unsound() == {}
        transaction.set_rollback(True)
    return outcome[0], outcome[1]


def _verdict(answer: Any) -> tuple[type, Any]:
    if isinstance(answer, Posted):
        return Posted, (answer.dedupe_key, answer.entry_ref is not None)
    return type(answer), answer.extra.get("existing_receipt_id", "").startswith("rcpt_") or answer.extra.get(
        "existing_receipt_id"
    )


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a failing batch is small as it is
)
@given(given_drafts=drafts(), earlier=drafts())
def test_a_batch_leaves_what_one_post_after_another_would(
    tenant: Tenant, as_kee: Caller, given_drafts: list[dict[str, Any]], earlier: list[dict[str, Any]]
) -> None:
    recipients = [as_kee, make_caller(tenant, "Hexy")]

    def made(many: list[dict[str, Any]]) -> list[ReceiptDraft]:
        return [
            make_draft(
                recipients[one["recipient"]], **{name: value for name, value in one.items() if name != "recipient"}
            )
            for one in many
        ]

    batch, before = made(given_drafts), made(earlier[:4])

    def one_by_one() -> list[Any]:
        answers: list[Any] = []
        for draft in before + batch:
            answers += post_many(as_kee, [replace(draft, title="T")])
        return answers[len(before) :]

    def at_once() -> list[Any]:
        for draft in before:
            post_many(as_kee, [replace(draft, title="T")])
        return post_many(as_kee, [replace(draft, title="T") for draft in batch])

    singly, after_singly = _tried(one_by_one, recipients)
    together, after_together = _tried(at_once, recipients)
    assert [_verdict(one) for one in together] == [_verdict(one) for one in singly]
    assert after_together == after_singly


# --- rivals -----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("contents", "refusal"), [(1, "duplicate_receipt"), (20, "dedupe_conflict")])
def test_rival_posts_of_one_key_store_one(kee: Caller, contents: int, refusal: str) -> None:
    made = [make_draft(kee, dedupe_key="k", title="t", summary=str(nth % contents)) for nth in range(20)]
    singly: list[Callable[[], Any]] = [
        partial(services.post, poster=Poster.of(kee), draft=one, now=T0) for one in made[::2]
    ]
    batches: list[Callable[[], Any]] = [partial(post_many, kee, [one]) for one in made[1::2]]
    outcomes = at_once(*(acting(kee, rival) for rival in [*singly, *batches]))
    flat = [one[0] if isinstance(one, list) else one for one in outcomes]
    (posted,) = (one for one in flat if isinstance(one, Posted))
    refused = [(one.code, one.extra["existing_receipt_id"]) for one in flat if one is not posted]
    assert refused == [(refusal, posted.receipt_id)] * 19
    with acting_as(kee):
        assert (Receipt.objects.count(), ReceiptKey.objects.count(), ReceiptState.objects.count()) == (1, 1, 1)
    check()


@pytest.mark.django_db(transaction=True)
def test_rival_batches_and_single_posts_lose_nothing(tenant: Tenant, kee: Caller) -> None:
    owners = [kee, make_caller(tenant, "Hexy"), make_caller(tenant, "Lee")]
    made = [
        make_draft(
            owners[nth % 3],
            dedupe_key=f"k{nth}",
            receipt_id=f"R.{nth}",
            caused_by=f"R.{(nth + 1) % 60}" if nth % 7 else None,
            pairs_with=f"R.{(nth * 7) % 60}" if nth % 5 == 0 and nth else None,
            requires_action=nth % 2 == 0,
            group=replace(CI, flush_class="immediate" if nth % 11 == 0 else "normal") if nth % 4 else None,
        )
        for nth in range(60)
    ]

    def singly() -> list[Any]:
        answers: list[Any] = []
        for one in made:
            with acting_as(kee):
                answers += services.post_many(poster=Poster.of(kee), drafts=[one], now=T0)
        return answers

    def in_batches(order: list[ReceiptDraft]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, 60, 20):
            with acting_as(kee):
                answers += post_many(kee, order[start : start + 20])
        return answers

    outcomes = at_once(singly, partial(in_batches, made), partial(in_batches, made[::-1]), singly)

    assert not [one for one in outcomes if isinstance(one, Exception)]
    answers = [one for many in outcomes for one in many]
    refused = {one.code for one in answers if not isinstance(one, Posted)}
    assert refused <= {"duplicate_receipt", "chain_cycle"}
    posted = [one for one in answers if isinstance(one, Posted)]
    with acting_as(kee):
        assert len(posted) == Receipt.objects.count()
        arrived = set(Receipt.objects.values_list("receipt_id", flat=True))
        dangling = Receipt.objects.filter(caused_by=None, caused_by_ref__isnull=False)
        assert not arrived & set(dangling.values_list("caused_by_ref", flat=True))
        unpaired = Receipt.objects.filter(pairs_with=None, pairs_with_ref__isnull=False)
        assert not arrived & set(unpaired.values_list("pairs_with_ref", flat=True))
    check()


def test_batch_of_unknown_references_takes_few_locks(as_kee: Caller) -> None:
    drafts = [
        make_draft(as_kee, receipt_id=f"R.{n}", caused_by=f"before.{n}", pairs_with=f"beside.{n}") for n in range(500)
    ]
    services.post_many(poster=Poster.of(as_kee), drafts=drafts, now=T0)
    with connection.cursor() as cursor:
        cursor.execute("select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'")
        assert 0 < cursor.fetchone()[0] <= 129
