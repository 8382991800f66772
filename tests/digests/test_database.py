"""What the database itself refuses, what the hot paths cost, and which indexes they use."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.digests import selectors, services, sql
from apps.principals.tenancy import Caller
from tests.digests.makers import ack_through, make_draft, post, post_grouped, read
from tests.factories import T0


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
        ("delete from digests_receiptstate where pending", "lost_receipts"),
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
    assert "digests_thread_due" in plan(selectors._DUE.replace("%s", "500"), {})


def test_nothing_of_an_inbox_shows_in_another_tenant(as_kee: Caller) -> None:
    posted = post(as_kee)
    services.mark_delivered(receipt_pks=[posted.id], now=T0)
    execute("select set_config('gatehouse.tenant', '', true)")
    for table in ("digests_inbox", "digests_entry", "digests_receiptstate", "receipts_receipt", "receipts_receiptkey"):
        with connection.cursor() as cursor:
            cursor.execute(f"select count(*) from {table}")
            assert cursor.fetchone() == (0,), table
