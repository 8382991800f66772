"""What the database refuses, how many statements the hot paths cost, and the damage that doctor finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.console import health
from apps.core import sql
from apps.digests import selectors, services
from apps.digests.models import Inbox, ReceiptState
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from apps.receipts.services import Poster
from tests.console.world import fill
from tests.digests.makers import ack_receipts, ack_through, make_draft, post, post_grouped, read, unsound
from tests.factories import T0, make_caller


def execute(statement: str, parameters: list[Any] | dict[str, Any] | None = None) -> None:
    with transaction.atomic():
        sql.execute(statement, parameters)


@pytest.mark.parametrize(
    "change",
    [
        "receipt_ids = array[1::bigint], count = 1 where count = 2",
        "sequence = sequence + 100",
        "title = 'x' where kind = 'digest_snapshot'",
    ],
)
def test_the_database_refuses_to_change_an_entry(as_kee: Caller, change: str) -> None:
    post(as_kee)
    post_grouped(as_kee)
    post_grouped(as_kee, flush_class="immediate")
    with pytest.raises(IntegrityError, match="immutable"):
        execute(f"update digests_entry set {change}")


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
    root = post(as_kee, surface="ledger", requires_action=True).receipt_id
    with statements(5):  # what it refers to, fact, what it closes, lock, place
        post(as_kee, caused_by=root, pairs_with=root)
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


def test_unread_receipts_of_a_source_cost_nothing_for_those_of_others(as_kee: Caller) -> None:
    fetched = "select sum(idx_tup_fetch), set_config('enable_seqscan', 'off', true) from pg_stat_xact_user_tables"
    for number in range(30):
        post_grouped(as_kee, f"pr:{number}", source="mail")
        post(as_kee, source="mail")
    with connection.cursor() as cursor:
        cursor.execute(fetched)
        before = cursor.fetchone()[0]
        assert selectors.unread_of_source(as_kee.principal_id, "github") == 0
        cursor.execute(fetched)
        assert cursor.fetchone()[0] - before < 10


@pytest.mark.parametrize("role", ["gatehouse_app", "gatehouse_operator", "gatehouse_system"])
def test_nothing_is_deleted_but_by_the_system_that_prunes(as_kee: Caller, role: str) -> None:
    for _ in range(2):
        post_grouped(as_kee, flush_class="immediate")
    kept, acked = post(as_kee), post(as_kee)
    ack_receipts(as_kee, acked.id)
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
    for table, held in (("receipts_receipt", "id = %s"), ("digests_entry", "receipt_ids = array[%s::bigint]")):
        with pytest.raises(IntegrityError, match="rows of digests_receiptstate refer to this row"):
            execute(f"delete from {table} where {held}", [acked.id])
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


TABLES = ("digests_inbox", "digests_thread", "digests_entry", "digests_receiptstate", "receipts_receipt")


def break_rows(*statements: str) -> None:
    """As the owner of the tables, past every trigger."""
    execute("set constraints all immediate; set local role none")
    for table in TABLES:
        execute(f"alter table {table} disable trigger user, no force row level security")
    for statement in statements:
        execute(statement)
    for table in TABLES:
        execute(f"alter table {table} enable trigger user, force row level security")
    execute("set local role gatehouse_app")


def fill_inbox(kee: Caller) -> None:
    """Something of everything: items and digests, acked, visible, superseded, pending."""
    for _ in range(2):
        post(kee)
        post_grouped(kee, flush_class="immediate")
    ack_through(kee, read(kee).entries[0].token)
    ack_receipts(kee, read(kee).entries[-1].receipt_pks[0])
    for number in range(3):
        post_grouped(kee, f"pr:{number}", flush_class="immediate")
        post_grouped(kee, f"pr:{number}")
        post(kee)
    post(kee, surface="ledger")


DAMAGE = {
    "an item's entry is acked and its receipt is not": (
        "lost_receipts",
        "update digests_entry set acked_at = now() where kind = 'item' and acked_at is null",
    ),
    "the state of a buffered receipt is gone": ("lost_receipts", "delete from digests_receiptstate where pending"),
    "a live snapshot holds what is acked": (
        "missing_heads",
        (
            "update digests_receiptstate set acked_at = now() where receipt_id in"
            " (select receipt_ids[1] from digests_entry where kind = 'digest_snapshot' and acked_at is null"
            "  and superseded_by_seq is null)"
        ),
    ),
    "a buffer is overdue": (
        "overdue_threads",
        "update digests_thread set flush_due_at = gatehouse_now() - interval '2 minutes' where pending_count > 0",
    ),
    "an inbox is miscounted": (
        "miscounted_inboxes",
        "update digests_inbox set visible_unread = visible_unread + 7, pending_unread = 0",
    ),
    "a snapshot counts what does not exist": (
        "untrue_entries",
        (
            "update digests_entry set receipt_ids = receipt_ids || 999999::bigint, count = count + 1"
            " where superseded_by_seq is not null"
        ),
    ),
    "a ledger receipt has a place": (
        "stray_states",
        (
            "insert into digests_receiptstate (receipt_id, tenant_id, inbox_id, entry_id, pending)"
            " select r.id, r.tenant_id, e.inbox_id, e.id, false from receipts_receipt r, digests_entry e"
            " where r.surface = 'ledger' and e.kind = 'item' and e.acked_at is not null"
        ),
    ),
    "a tombstone has a place": (
        "stray_states",
        (
            "update receipts_receipt set pruned_at = now() where id in"
            " (select receipt_id from digests_receiptstate where acked_at is not null)"
        ),
    ),
}


@pytest.mark.parametrize(("kind", "damage"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found(as_kee: Caller, kind: str, damage: str) -> None:
    fill_inbox(as_kee)
    assert unsound() == {}
    break_rows(*damage.split(";"))
    assert unsound()[kind]


def test_a_full_deployment_is_sound(db: None) -> None:
    kee = fill()
    with acting_as(kee):
        fill_inbox(kee)
    assert health._inboxes().ok


def test_doctor_reports_damage_and_changes_nothing(as_kee: Caller) -> None:
    fill_inbox(as_kee)
    break_rows("update digests_inbox set visible_unread = 0")
    finding = health._inboxes()
    assert (finding.ok, finding.needed, finding.says) == (
        False,
        False,
        f"1 miscounted inboxes (ids {Inbox.objects.get().pk})",
    )
    assert Inbox.objects.get().visible_unread == 0


def test_a_read_passes_over_what_is_acked(tenant: Tenant, as_kee: Caller) -> None:
    for reader in (as_kee, make_caller(tenant, "Max")):
        drafts = [make_draft(reader) for _ in range(400)]
        services.post_many(poster=Poster.of(as_kee), drafts=drafts, now=T0)
    ack_through(as_kee, read(as_kee, limit=500).entries[-1].token)
    with connection.cursor() as cursor:
        # The planner knows how many of all entries are acked, and nothing of this inbox.
        cursor.execute("set local role none; analyze digests_entry; set local role gatehouse_app")
        read(as_kee)
        cursor.execute(
            "select name from pg_prepared_statements where statement like '%from digests_inbox i\n%'"
            " and statement like '%order by e.sequence asc%' and statement not like '%source_system = %'"
        )
        ((name,),) = cursor.fetchall()
        cursor.execute(f"explain (analyze) execute {name}('{as_kee.principal_id}', '0', '500')")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Rows Removed by Filter: 400" not in plan, plan
    assert "digests_entry_live" in plan, plan
