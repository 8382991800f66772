"""What the database itself refuses, what the hot paths cost, and which indexes they use."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.digests import selectors, services, sql
from apps.digests.models import Entry, ReceiptState
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from apps.receipts.selectors import obligations
from tests.digests.makers import ack_through, make_draft, post, post_grouped, read
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
    assert selectors.self_check().is_sound


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("update digests_thread set flush_due_at = gatehouse_now() - interval '2 minutes'", "overdue_threads"),
        ("update digests_entry set acked_at = now() where kind = 'digest_snapshot'", "missing_heads"),
        ("update digests_entry set acked_at = now() where kind = 'item'", "lost_receipts"),
        (
            (
                "set constraints all immediate; set local role none;"
                " alter table digests_receiptstate disable trigger digests_unacked_is_kept; set local role gatehouse_app;"
                " delete from digests_receiptstate where pending"
            ),
            "lost_receipts",
        ),
        ("update digests_inbox set visible_unread = visible_unread + 1", "miscounted_inboxes"),
    ],
)
def test_the_self_check_finds_damage(as_kee: Caller, damage: str, finding: str) -> None:
    post(as_kee)
    post_grouped(as_kee, flush_class="immediate")
    post_grouped(as_kee)
    assert selectors.self_check().is_sound
    execute(damage)
    assert getattr(selectors.self_check(), finding)


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
    with statements(3):  # fact, lock, place
        post(as_kee)
    with statements(4):  # fact, lock, thread, place
        post_grouped(as_kee)
    root = post(as_kee, surface="ledger", requires_action=True).receipt_id
    with statements(5):  # what it refers to, fact, obligation, lock, place: nobody can have named a fresh id
        post(as_kee, receipt_id="rcpt_fresh", receipt_id_is_fresh=True, caused_by=root, pairs_with=root)
    with statements(5):  # meeting point, who waits, fact, lock, place
        post(as_kee, receipt_id="R.1")
    for number in range(20):
        post(as_kee)
        post_grouped(as_kee, resource=f"pr:{number}", flush_class="immediate")
    with statements(2):  # the page, the names of its receipts
        page = read(as_kee)
    newest = read(as_kee)
    assert newest == page
    with statements(1):
        selectors.unread_counts(as_kee.principal_id)
    post_grouped(as_kee, resource="pr:3", flush_class="immediate")
    # lock, entry, state, boundary; receipts, entries, threads, counters; heads, closing; supersede, write, revision
    with statements(13):
        ack_through(as_kee, newest.entries[-1].token)
    post(as_kee)
    with statements(4):  # lock, entry, state, boundary: nothing that it has not acked
        ack_through(as_kee, newest.entries[-1].token)


def plan(statement: str, parameters: dict[str, Any]) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"explain {statement}", parameters)
        return "\n".join(line for (line,) in cursor.fetchall())


def test_reads_and_acks_go_by_index(as_kee: Caller) -> None:
    drafts = [make_draft(as_kee, source="gitlab" if number % 50 else "github") for number in range(1500)]
    services.post_many(poster=services.Poster.of(as_kee), drafts=drafts, now=T0)
    ack_through(as_kee, read(as_kee, limit=500).entries[-1].token)
    inbox = read(as_kee)
    execute("set local role none; analyze digests_entry, digests_inbox, digests_receiptstate, receipts_receipt")
    execute("set local role gatehouse_app; set local enable_seqscan = off")
    given = {"principal": as_kee.principal_id, "after": 0, "source": "github", "limit": 10}
    whole = plan(sql.READ.format(source="", direction="asc"), given)
    assert "Index Scan using digests_entry_live " in whole
    assert "Index Scan using receipts_receipt_pkey" in whole
    assert "Seq Scan" not in whole
    by_source = plan(sql.READ.format(source=sql.OF_SOURCE, direction="desc"), given)
    assert "digests_entry_live_by_source" in by_source
    assert "Seq Scan" not in by_source
    boundary = plan(
        sql.BOUNDARY,
        {"inbox": 1, "as_of": inbox.as_of, "upto": inbox.as_of, "after": inbox.as_of - 20, "source": None, "ids": None},
    )
    assert "digests_entry_live" in boundary
    assert "digests_entry_superseded" in boundary
    assert "Seq Scan" not in boundary
    members = plan(sql.MEMBERS, {"threads": [1], "with_pending": True})
    assert "digests_receiptstate_in_thread" in members
    for due in (selectors._DUE_INBOXES, selectors._DUE_THREADS.replace("%s", "1")):
        assert re.search("Scan .*digests_thread_(due|pending)", plan(due, {}))


def copies(table: str, row: int, number: int, changes: str, *, key: str = "id") -> None:
    """More rows like one, with what the changes (`name, value` pairs over `n`) say."""
    execute(
        f"insert into {table} select copy.* from {table} one, generate_series(1, {number}) n,"
        f" lateral jsonb_populate_record(one, jsonb_build_object({changes})) copy where one.{key} = {row}"
    )


def long_history(owner: Caller) -> None:
    """Thousands of receipts, each with an entry, a state and an open obligation."""
    posted = post(owner, requires_action=True)
    entry = Entry.objects.get(receipt_ids=[posted.id])
    first, most = Receipt.objects.latest("pk").pk, 4000
    copies(
        "receipts_receipt",
        posted.id,
        most,
        f"'id', {first} + n, 'uuid', uuidv7(), 'receipt_id', '{owner.principal_id}.' || n",
    )
    of_copy = f"'receipt_id', {first} + n"
    copies("receipts_obligation", posted.id, most, of_copy, key="receipt_id")
    copies("digests_receiptstate", posted.id, most, of_copy, key="receipt_id")
    copies(
        "digests_entry",
        entry.pk,
        most,
        f"'id', {Entry.objects.latest('pk').pk} + n, 'sequence', 1 + n, 'receipt_ids', jsonb_build_array({first} + n)",
    )
    for sequence in ("receipts_receipt_id_seq", "digests_entry_id_seq"):
        execute(f"select count(nextval('{sequence}')) from generate_series(1, {most})")


def rows_visited(act: Callable[[], Any], table: str) -> int:
    """How many rows of a table the statements of an act go through."""
    with CaptureQueriesContext(connection) as captured:
        act()
    visited = 0
    for one in captured.captured_queries:
        with connection.cursor() as cursor:
            cursor.execute("explain (analyze, format json) " + one["sql"])
            visited += _visited(cursor.fetchone()[0][0]["Plan"], table)
    return visited


def _visited(node: dict[str, Any], table: str) -> int:
    own = 0
    if node.get("Relation Name") == table:
        own = round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
    return own + sum(_visited(child, table) for child in node.get("Plans", []))


def test_lists_visit_what_they_show_and_no_more(tenant: Tenant, as_kee: Caller) -> None:
    hexy = make_caller(tenant, "Hexy")
    long_history(hexy)
    long_history(as_kee)
    execute("set constraints all immediate; set local role none; analyze; set local role gatehouse_app")
    for reader in (as_kee, hexy):
        one = reader.principal_id
        for label, table, act in (
            ("history", "digests_entry", lambda: selectors.history(one, limit=10)),  # noqa: B023  # runs at once
            ("older", "digests_entry", lambda: selectors.history(one, before=2000, limit=10)),  # noqa: B023
            ("unread", "digests_receiptstate", lambda: selectors.inbox_receipts(one)),  # noqa: B023
            ("all", "digests_receiptstate", lambda: selectors.inbox_receipts(one, unread_only=False)),  # noqa: B023
            ("owed", "receipts_obligation", lambda: obligations(owed_by=one, limit=10)),  # noqa: B023
            ("awaited", "receipts_obligation", lambda: obligations(awaited_by=one, limit=10)),  # noqa: B023
            ("their facts", "receipts_receipt", lambda: obligations(owed_by=one, limit=10)),  # noqa: B023
            ("facts of the unread", "receipts_receipt", lambda: selectors.inbox_receipts(one)),  # noqa: B023
        ):
            assert rows_visited(act, table) == 10, (label, reader.name)


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


@pytest.mark.parametrize("role", ["gatehouse_app", "gatehouse_system"])
def test_what_is_unacked_cannot_be_deleted(as_kee: Caller, role: str) -> None:
    kept, acked = post(as_kee), post(as_kee)
    services.ack_receipt(principal_id=as_kee.principal_id, receipt_pk=acked.id, now=T0)
    execute(f"set local role {role}")
    for statement in (
        "delete from digests_receiptstate where receipt_id = %s",
        "delete from receipts_receipt where id = %s",
    ):
        with pytest.raises(IntegrityError, match="unacked receipts are kept"):
            execute(statement, [kept.id])
        execute(statement, [acked.id])
    assert [state.receipt_id for state in ReceiptState.objects.all()] == [kept.id]
    assert [receipt.pk for receipt in Receipt.objects.all()] == [kept.id]


def test_nothing_of_an_inbox_shows_in_another_tenant(as_kee: Caller) -> None:
    posted = post(as_kee)
    services.mark_delivered(receipt_pks=[posted.id], now=T0)
    execute("select set_config('gatehouse.tenant', '', true)")
    for table in ("digests_inbox", "digests_entry", "digests_receiptstate", "receipts_receipt", "receipts_receiptkey"):
        with connection.cursor() as cursor:
            cursor.execute(f"select count(*) from {table}")
            assert cursor.fetchone() == (0,), table
