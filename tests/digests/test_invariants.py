"""The invariants of inboxes through one life in which everything happens once."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from django.db import connection, transaction

from apps.digests import services
from apps.digests.models import Entry, Thread
from apps.digests.services import PolicyChange, Poster
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller
from tests.digests.makers import ack_through, make_draft, pass_time, post, post_grouped, read
from tests.digests.model import CONTRADICTIONS
from tests.factories import T0, make_caller


def eventful_life(kee: Caller, hexy: Caller) -> Iterator[None]:
    """Whatever can happen to a receipt, pausing after each event."""
    one = kee.principal_id
    post(kee)
    yield
    first = post_grouped(kee)
    yield
    post_grouped(kee, resource="pr:2")
    post(hexy, poster=kee)
    post_grouped(hexy, poster=kee)
    yield
    pass_time(31)
    services.flush_due()
    yield
    old = read(kee).entries
    post_grouped(kee, flush_class="immediate")
    yield
    waiting = post_grouped(kee)
    yield
    ack_through(kee, old[-1].token)
    yield
    services.ack_receipts(principal_id=one, receipt_pks=[waiting.id], now=T0)
    yield
    drafts = [make_draft(owner, dedupe_key=f"batch:{number}") for number in range(4) for owner in (kee, hexy)]
    services.post_many(poster=Poster.of(kee), drafts=drafts, now=T0)
    yield
    post_grouped(kee, break_thread=True)
    yield
    services.ack_receipts(principal_id=one, receipt_pks=[first.id], now=T0, archive=True)
    services.ack(principal_id=one, entry_ids=[read(kee).entries[0].id], now=T0)
    yield
    services.set_policy(tenant_id=kee.tenant_id, principal_id=one, change=PolicyChange(enabled=False), now=T0)
    yield
    ack_through(kee, read(kee).entries[-1].token)
    yield


@pytest.fixture
def life(tenant: Tenant, as_kee: Caller) -> Iterator[None]:
    return eventful_life(as_kee, make_caller(tenant, "Hexy"))


def rows(statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


def contradictions(number: str) -> list[str]:
    return [name for name, statement in CONTRADICTIONS.items() if name.startswith(f"{number} ") and rows(statement)]


_CONTENT: Final = """
select 'receipt', id, to_jsonb(r) - '{caused_by_id, pairs_with_id}'::text[] from receipts_receipt r union all
select 'entry', id, to_jsonb(e) - '{superseded_by_seq, superseded_at, acked_at}'::text[] from digests_entry e
"""


def test_invariants_hold_after_each_event(life: Iterator[None]) -> None:
    written: dict[tuple[str, int], Any] = {}
    for _ in life:
        assert [name for name, statement in CONTRADICTIONS.items() if rows(statement)] == []
        # I4: content never changes.
        found = {(kind, key): content for kind, key, content in rows(_CONTENT)}
        assert {place: found[place] for place in written} == written
        written = found
    assert len(written) > 20
    assert Entry.objects.exclude(superseded_by_seq=None).exists()


def test_buffer_is_flushed_by_the_tick_after_its_window(as_kee: Caller) -> None:
    pass_time(0)  # stops the clock
    post_grouped(as_kee)
    pass_time(29)
    post_grouped(as_kee)
    post_grouped(as_kee, resource="pr:2")
    pass_time(1)
    services.flush_due()
    assert [entry.count for entry in read(as_kee).entries] == [2]
    pass_time(29)
    services.flush_due()
    assert (read(as_kee).pending, Thread.objects.exclude(flush_due_at=None).exists()) == (0, False)


def test_running_anything_twice_leaves_the_same_state(as_kee: Caller) -> None:
    one = as_kee.principal_id
    draft = make_draft(as_kee)
    post_grouped(as_kee, flush_class="immediate")
    post_grouped(as_kee)
    first = post(as_kee)
    page = read(as_kee)
    keys = [pk for entry in page.entries for pk in entry.receipt_pks]
    pass_time(31)
    policy = PolicyChange(enabled=False)
    commands: list[Callable[[], object]] = [
        # Before the post, which would publish what is due itself.
        services.flush_due,
        lambda: services.post_many(poster=Poster.of(as_kee), drafts=[draft], now=T0),
        lambda: services.mark_delivered(receipt_pks=keys, now=T0),
        lambda: services.ack_receipts(principal_id=one, receipt_pks=[first.id], now=T0, archive=True),
        lambda: services.ack(principal_id=one, entry_ids=[page.entries[0].id], now=T0),
        lambda: ack_through(as_kee, page.entries[-1].token),
        lambda: services.set_policy(tenant_id=as_kee.tenant_id, principal_id=one, change=policy, now=T0),
    ]
    for command in commands:
        fresh = everything()
        command()
        once = everything()
        assert once != fresh or command is commands[5]
        command()
        assert everything() == once


def everything() -> list[tuple[Any, ...]]:
    tables = ("digests_inbox", "digests_thread", "digests_entry", "digests_receiptstate", "receipts_receipt")
    return [row for table in tables for row in rows(f"select to_jsonb(t) from {table} t order by 1")]


@pytest.mark.parametrize(
    ("number", "damage"),
    [
        ("I1", "update digests_entry set acked_at = now() where kind = 'item'"),
        ("I2", "update digests_receiptstate set acked_at = now(), read_at = now() where not pending"),
        ("I2", "update digests_inbox set principal_id = {hexy}"),
        ("I5", "update digests_inbox set last_seq = last_seq + 1"),
        ("I8", "update digests_entry set superseded_by_seq = 99, superseded_at = now() where kind = 'item'"),
        ("rule 14", "update digests_inbox set visible_unread = visible_unread + 1"),
    ],
)
def test_contradictions_are_found(tenant: Tenant, as_kee: Caller, number: str, damage: str) -> None:
    post(as_kee)
    post_grouped(as_kee, flush_class="immediate")
    assert contradictions(number) == []
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(damage.format(hexy=make_caller(tenant, "Hexy").principal_id))
    assert contradictions(number)
