"""The self-check finds rows that break the rules of the inbox, and changes nothing."""

import json
from io import StringIO

import pytest
from django.core.management import call_command

from apps.console import health
from apps.digests import services
from apps.digests.models import Inbox
from apps.principals.tenancy import Caller, acting_as
from tests.console.world import fill
from tests.digests.makers import ack_through, post, post_grouped, read, unsound
from tests.digests.test_database import execute
from tests.factories import T0

TABLES = ("digests_inbox", "digests_thread", "digests_entry", "digests_receiptstate", "receipts_receipt")


def break_rows(*statements: str) -> None:
    """As the owner of the tables, past every trigger."""
    execute("set constraints all immediate; set local role none")
    for table in TABLES:
        execute(f"alter table {table} disable trigger user")
    for statement in statements:
        execute(statement)
    for table in TABLES:
        execute(f"alter table {table} enable trigger user")
    execute("set local role gatehouse_app")


def fill_inbox(kee: Caller) -> None:
    """Something of everything: items and digests, acked, visible, superseded, pending."""
    for _ in range(2):
        post(kee)
        post_grouped(kee, flush_class="immediate")
    ack_through(kee, read(kee).entries[0].token)
    services.ack_receipts(principal_id=kee.principal_id, receipt_pks=[read(kee).entries[-1].receipt_pks[0]], now=T0)
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
    "a live snapshot is acked and its receipts are not": (
        "lost_receipts",
        "update digests_entry set acked_at = now() where kind = 'digest_snapshot' and superseded_by_seq is null",
    ),
    "a live snapshot holds what is acked": (
        "missing_heads",
        (
            "update digests_receiptstate set acked_at = now(), read_at = now() where receipt_id in"
            " (select receipt_ids[1] from digests_entry where kind = 'digest_snapshot' and acked_at is null"
            "  and superseded_by_seq is null)"
        ),
    ),
    "a buffer is miscounted": (
        "missing_heads",
        "update digests_thread set pending_count = pending_count + 3 where pending_count > 0",
    ),
    "a buffer is forgotten": ("lost_receipts", "update digests_thread set pending_count = 0, flush_due_at = null"),
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
}


@pytest.mark.parametrize(("kind", "damage"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found(as_kee: Caller, kind: str, damage: str) -> None:
    fill_inbox(as_kee)
    assert unsound() == {}
    break_rows(*damage.split(";"))
    assert unsound()[kind]


def test_a_tombstone_with_a_state_is_found(as_kee: Caller) -> None:
    fill_inbox(as_kee)
    acked = "select receipt_id from digests_receiptstate where acked_at is not null"
    break_rows(f"update receipts_receipt set pruned_at = now() where id in ({acked})")
    assert unsound()["stray_states"]


def test_a_full_deployment_is_sound(db: None) -> None:
    kee = fill()
    with acting_as(kee):
        fill_inbox(kee)
    assert health._inboxes().ok


def test_doctor_and_the_command_report_and_change_nothing(as_kee: Caller) -> None:
    fill_inbox(as_kee)
    out = StringIO()
    call_command("self_check", stdout=out)
    assert out.getvalue().strip() == "0 faults found"
    break_rows("update digests_inbox set visible_unread = 0")
    inbox = Inbox.objects.get()
    finding = health._inboxes()
    assert (finding.ok, finding.needed, finding.says) == (False, False, "1 miscounted inboxes")
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("self_check", "--json", stdout=out)
    assert json.loads(out.getvalue()) == {"found": {"miscounted_inboxes": [inbox.pk]}}
    assert Inbox.objects.get().visible_unread == 0
