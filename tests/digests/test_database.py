"""What the database itself refuses, and how many statements the hot paths cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.digests import selectors, services
from apps.digests.models import ReceiptState
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from tests.digests.makers import ack_through, post, post_grouped, read, unsound
from tests.factories import T0, make_caller, make_tenant


def execute(statement: str, parameters: list[Any] | dict[str, Any] | None = None) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement, parameters)


@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        ("update digests_entry set receipt_ids = array[1::bigint], count = 1 where count = 2", "immutable"),
        ("update digests_entry set sequence = sequence + 100", "immutable"),
        ("update digests_entry set title = 'x' where kind = 'digest_snapshot'", "immutable"),
        (
            (
                "insert into digests_thread (tenant_id, inbox_id, source_system, resource_ref, event_family, receipt_count,"
                " pending_count, revision, opened_at) select tenant_id, inbox_id, source_system, resource_ref, event_family,"
                " 0, 0, 0, opened_at from digests_thread where closed_at is null"
            ),
            "digests_thread_one_open_per_key",
        ),
        ("update digests_thread set flush_due_at = null", "digests_thread_due_iff_pending"),
        ("update digests_thread set pending_count = 0", "digests_thread_due_iff_pending"),
        (
            (
                "insert into digests_entry (tenant_id, inbox_id, kind, sequence, thread_id, revision, source_system,"
                " receipt_ids, count, title, summary, first_at, last_at, flush_reason, published_at)"
                " select tenant_id, inbox_id, kind, 99, thread_id, 99, source_system, receipt_ids, count, title, summary,"
                " first_at, last_at, flush_reason, published_at from digests_entry where kind = 'digest_snapshot'"
            ),
            "digests_entry_one_live_per_thread",
        ),
        (
            (
                "insert into digests_entry (tenant_id, inbox_id, kind, sequence, source_system, receipt_ids, count,"
                " first_at, last_at, published_at) select tenant_id, inbox_id, kind, sequence, source_system, receipt_ids,"
                " count, first_at, last_at, published_at from digests_entry where kind = 'item'"
            ),
            "digests_entry_sequence_once",
        ),
        ("update digests_receiptstate set entry_id = (select max(id) from digests_entry)", "in_one_place"),
        ("update digests_receiptstate set thread_id = null where entry_id is null", "in_one_place"),
        ("update digests_receiptstate set acked_at = now(), read_at = now() where pending", "acked_is_not_pending"),
        ("update digests_receiptstate set read_at = now() where not pending", "read_iff_acked"),
        ("update digests_receiptstate set archived_at = now() where not pending", "archived_is_acked"),
        ("update digests_inbox set visible_unread = -1", "digests_inbox_counts_from_zero"),
        ("update digests_entry set superseded_by_seq = sequence, superseded_at = now()", "superseded_by_a_later_one"),
        ("update digests_entry set superseded_by_seq = 99", "superseded_has_a_time"),
    ],
)
def test_the_database_refuses_a_contradiction(as_kee: Caller, statement: str, constraint: str) -> None:
    post(as_kee)
    post_grouped(as_kee)
    post_grouped(as_kee, flush_class="immediate")
    post_grouped(as_kee)
    with pytest.raises(IntegrityError, match=constraint):
        execute(statement)
    assert unsound() == {}


@contextmanager
def statements(at_most: int) -> Iterator[None]:
    """Savepoints aside, which an outermost transaction does not have."""
    with CaptureQueriesContext(connection) as captured:
        yield
    spoken = [one["sql"] for one in captured.captured_queries if "SAVEPOINT" not in one["sql"]]
    assert len(spoken) == at_most, "\n".join(spoken)


def test_the_hot_paths_cost_a_fixed_number_of_statements(as_kee: Caller) -> None:
    post(as_kee)
    post_grouped(as_kee)
    with statements(1):  # fact and place
        post(as_kee)
    with statements(4):  # fact, lock, thread, place
        post_grouped(as_kee)
    root = post(as_kee, surface="ledger", requires_action=True).receipt_id
    with statements(2):  # what it refers to; fact, what it closes, place: nobody can have named a fresh id
        post(as_kee, receipt_id="rcpt_fresh", receipt_id_is_fresh=True, caused_by=root, pairs_with=root)
    with statements(5):  # meeting point, who waits, fact, lock, place
        post(as_kee, receipt_id="R.1")
    for number in range(20):
        post(as_kee)
        post_grouped(as_kee, resource=f"pr:{number}", flush_class="immediate")
    with statements(1):
        page = read(as_kee)
    newest = read(as_kee)
    assert newest == page
    with statements(1):
        selectors.unread_counts(as_kee.principal_id)
    post_grouped(as_kee, resource="pr:3", flush_class="immediate")
    # lock, entry, state; receipts, entries, threads, counters; heads, closing; supersede, write, revision
    with statements(12):
        ack_through(as_kee, newest.entries[-1].token)
    post(as_kee)
    with statements(5):  # lock, entry, state, receipts, entries: nothing that it has not acked
        ack_through(as_kee, newest.entries[-1].token)


@pytest.mark.django_db(transaction=True)
def test_gathering_touches_no_index_of_the_thread() -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee):
        post_grouped(kee)
    counted = """
        select pg_stat_get_tuples_updated(oid), pg_stat_get_tuples_hot_updated(oid), reloptions from pg_class
        where relname = 'digests_thread'
    """
    with connection.cursor() as cursor:
        cursor.execute("select pg_stat_force_next_flush()")
        cursor.execute(counted)
        updated, hot, options = cursor.fetchone()
        for _ in range(10):
            with acting_as(kee):
                post_grouped(kee)
        cursor.execute("select pg_stat_force_next_flush()")
        cursor.execute(counted)
        updated_then, hot_then, _ = cursor.fetchone()
    assert (updated_then - updated, hot_then - hot) == (10, 10)
    assert options == ["fillfactor=75"]


@pytest.mark.parametrize("role", ["gatehouse_app", "gatehouse_operator", "gatehouse_system"])
def test_nothing_is_deleted_but_by_the_system_that_prunes(as_kee: Caller, role: str) -> None:
    for _ in range(2):
        post_grouped(as_kee, flush_class="immediate")
    kept, acked = post(as_kee), post(as_kee)
    services.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[acked.id], now=T0)
    tables = ("digests_receiptstate", "digests_entry", "digests_thread", "receipts_receipt", "receipts_receiptkey")
    execute(f"select set_config('gatehouse.tenants', '{as_kee.tenant_id}', true); set local role {role}")
    for table in tables:
        with pytest.raises(IntegrityError, match=r"are kept|removed by retention alone"):
            execute(f"delete from {table}")
    execute("select set_config('gatehouse.pruning', 'on', true)")
    if role != "gatehouse_system":
        for table in tables:
            with pytest.raises(IntegrityError, match=r"are kept|removed by retention alone"):
                execute(f"delete from {table}")
        with pytest.raises(IntegrityError, match="immutable"):
            execute("update receipts_receipt set summary = '', pruned_at = now() where id = %s", [acked.id])
        return
    for statement in (
        "delete from digests_receiptstate where receipt_id = %s",
        "delete from receipts_receipt where id = %s",
        "update receipts_receipt set summary = '', pruned_at = now() where id = %s",
    ):
        with pytest.raises(IntegrityError, match="unacked receipts are kept"):
            execute(statement, [kept.id])
        execute(statement, [acked.id])
    assert ReceiptState.objects.count() == Receipt.objects.count() == 3
    assert Receipt.objects.filter(pk=kept.id, pruned_at=None).exists()
    with pytest.raises(IntegrityError, match="immutable"):
        execute("update receipts_receipt set event_type = 'x'")


def test_nothing_of_an_inbox_shows_in_another_tenant(as_kee: Caller) -> None:
    posted = post(as_kee)
    services.mark_delivered(receipt_pks=[posted.id], now=T0)
    execute("select set_config('gatehouse.tenant', '', true)")
    for table in ("digests_inbox", "digests_entry", "digests_receiptstate", "receipts_receipt", "receipts_receiptkey"):
        with connection.cursor() as cursor:
            cursor.execute(f"select count(*) from {table}")
            assert cursor.fetchone() == (0,), table
