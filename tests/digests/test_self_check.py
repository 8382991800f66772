"""The self-check finds what must not be, mends it under the lock, says what was wrong, and touches nothing else."""

import json
import logging
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from apps.console import health
from apps.core.ticks import run
from apps.digests import selectors, services, soundness
from apps.digests.models import Entry, Inbox, ReceiptState, Round, Thread
from apps.digests.services import repairing
from apps.digests.states import FlushReason
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.models import Receipt
from tests.console.world import fill
from tests.digests import github_payloads as github
from tests.digests.makers import ack_through, flush, post, post_grouped, read, unsound
from tests.digests.test_database import execute
from tests.digests.test_sources import set_source
from tests.factories import T0, make_caller

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


def bytes_of_everything() -> list[Any]:
    """Every row with where it stands and who wrote it: an update that changes nothing shows too."""
    rows = []
    with acting_as_system("test"), connection.cursor() as cursor:
        for table in (*TABLES, "receipts_obligation", "receipts_receiptkey", "receipts_unmatchedcloser"):
            cursor.execute(f"select ctid::text, xmin::text, xmax::text, t::text from {table} t order by ctid")
            rows.append(cursor.fetchall())
    return rows


def fill_inbox(kee: Caller) -> None:
    """Something of everything: items and digests, acked, visible, superseded, pending."""
    for _ in range(2):
        post(kee)
        post_grouped(kee, flush_class="immediate")
    ack_through(kee, read(kee).entries[0].token)
    services.ack_receipt(principal_id=kee.principal_id, receipt_pk=read(kee).entries[-1].receipt_pks[0], now=T0)
    for number in range(3):
        post_grouped(kee, f"pr:{number}", flush_class="immediate")
        post_grouped(kee, f"pr:{number}")
        post(kee)
    post(kee, surface="ledger")


def unread(kee: Caller) -> set[int]:
    return set(
        ReceiptState.objects.filter(acked_at=None, inbox__principal=kee.principal_id).values_list("pk", flat=True)
    )


DAMAGE = {
    "an item's entry is acked and its receipt is not": (
        "lost_receipts",
        "update digests_entry set acked_at = now() where kind = 'item' and acked_at is null",
    ),
    "the state of a buffered receipt is gone": ("lost_receipts", "delete from digests_receiptstate where pending"),
    "the state of an item is gone": (
        "lost_receipts",
        "delete from digests_receiptstate where acked_at is null and entry_id is not null",
    ),
    "a live snapshot is acked and its receipts are not": (
        "lost_receipts",
        "update digests_entry set acked_at = now() where kind = 'digest_snapshot' and superseded_by_seq is null",
    ),
    "a live snapshot is gone": (
        "lost_receipts",
        (
            "update digests_entry set supersedes_id = null; delete from digests_entry where kind = 'digest_snapshot'"
            " and superseded_by_seq is null"
        ),
    ),
    "a thread with receipts was closed and its snapshot acked": (
        "lost_receipts",
        (
            "update digests_entry set acked_at = now() where kind = 'digest_snapshot' and superseded_by_seq is null;"
            " update digests_receiptstate set pending = false;"
            " update digests_thread set pending_count = 0, flush_due_at = null, closed_at = now()"
        ),
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
    "what an inbox shows is miscounted": (
        "miscounted_inboxes",
        "update digests_inbox set visible_unread = visible_unread + 7",
    ),
    "what waits in an inbox is miscounted": ("miscounted_inboxes", "update digests_inbox set pending_unread = 0"),
    "a sequence would be taken again": ("miscounted_inboxes", "update digests_inbox set last_seq = last_seq - 2"),
    "a visible item has nothing unacked": (
        "untrue_entries",
        "update digests_entry set acked_at = null where kind = 'item' and acked_at is not null",
    ),
    "a visible item misses what is there": (
        "untrue_entries",
        "update digests_entry set pruned = 1 where kind = 'item' and acked_at is null",
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
def test_damage_is_found_and_mended(
    tenant: Tenant, as_kee: Caller, kind: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill_inbox(as_kee)
    before, acked = unread(as_kee), ReceiptState.objects.exclude(acked_at=None).count()
    assert unsound() == {}
    break_rows(*damage.split(";"))
    broken = unsound()[kind]
    assert broken
    lowest = Inbox.objects.get().last_seq
    acked_by_damage = before - unread(as_kee) if kind == "missing_heads" else set()

    with caplog.at_level(logging.WARNING):
        found = services.self_check(patience=None)

    assert found[kind] >= len(broken)
    assert found["repaired"] == sum(count for name, count in found.items() if name != "repaired")
    assert f"{kind} {broken[0]} in inbox" in caplog.text
    flush(
        inbox_id=Inbox.objects.get().pk,
        thread_ids=Thread.objects.values_list("pk", flat=True),
        reason=FlushReason.WINDOW,
    )
    assert unsound() == {}
    # Nothing unacked was lost, nothing acked came back; all of it is read and acked as ever.
    assert unread(as_kee) == before - acked_by_damage
    page = read(as_kee, limit=500)
    assert {pk for entry in page.entries for pk in entry.receipt_pks} == unread(as_kee)
    assert page.visible == len(unread(as_kee))
    assert page.as_of >= lowest
    ack_through(as_kee, page.entries[-1].token)
    assert read(as_kee).unread == 0
    assert ReceiptState.objects.exclude(acked_at=None).count() == acked + len(before)
    settled = bytes_of_everything()
    assert not any(services.self_check(patience=None).values())
    assert bytes_of_everything() == settled


@pytest.mark.parametrize("damage", [damage for _, damage in DAMAGE.values()], ids=DAMAGE)
def test_what_was_mended_between_look_and_lock_is_left_as_it_is(as_kee: Caller, damage: str) -> None:
    fill_inbox(as_kee)
    break_rows(*damage.split(";"))
    with acting_as_system("test"):
        damages = [one for part in soundness.PARTS for one in soundness.look(part, after=0)[1]]
    assert damages
    while any(services.self_check(patience=None).values()):
        pass
    mended = contents()

    repairing._repair_all(damages)

    assert contents() == mended
    assert unsound() == {}


def contents() -> list[Any]:
    """Every row, wherever it stands."""
    rows = []
    with acting_as_system("test"), connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"select t::text from {table} t order by 1")
            rows.append(cursor.fetchall())
    return rows


def test_a_tombstone_that_has_kept_its_place_loses_it(as_kee: Caller) -> None:
    fill_inbox(as_kee)
    before = unread(as_kee)
    acked = "select receipt_id from digests_receiptstate where acked_at is not null"
    break_rows(f"update receipts_receipt set pruned_at = now() where id in ({acked})")
    stray = unsound()["stray_states"]
    assert stray

    assert services.self_check(patience=None)["stray_states"] == len(stray)

    assert not ReceiptState.objects.filter(pk__in=stray).exists()
    assert unsound() == {}
    assert unread(as_kee) == before
    assert {pk for entry in read(as_kee, limit=500).entries for pk in entry.receipt_pks} | set(
        ReceiptState.objects.filter(pending=True).values_list("pk", flat=True)
    ) == before


def test_one_inboxs_damage_does_not_touch_another(tenant: Tenant, as_kee: Caller) -> None:
    hexy = make_caller(tenant, "Hexy")
    for reader in (as_kee, hexy):
        fill_inbox(reader)
    theirs = list(Inbox.objects.filter(principal=hexy.principal_id).values())
    entries = list(Entry.objects.filter(inbox__principal=hexy.principal_id).order_by("pk").values())
    break_rows(
        "update digests_entry set acked_at = now() where kind = 'item' and inbox_id ="
        f" (select id from digests_inbox where principal_id = {as_kee.principal_id})"
    )
    assert services.self_check(patience=None)["repaired"] > 0
    assert list(Inbox.objects.filter(principal=hexy.principal_id).values()) == theirs
    assert list(Entry.objects.filter(inbox__principal=hexy.principal_id).order_by("pk").values()) == entries


def test_a_receipt_whose_recipient_has_no_inbox_gets_one(as_kee: Caller) -> None:
    posted = post(as_kee)
    break_rows("delete from digests_receiptstate", "delete from digests_entry", "delete from digests_inbox")
    assert services.self_check(patience=None) == {"lost_receipts": 1, "repaired": 1}
    assert read(as_kee).entries[0].receipt_ids == [posted.receipt_id]


def test_a_lost_receipt_is_gathered_again_as_it_was_when_it_was_posted(as_kee: Caller) -> None:
    set_source(as_kee, by_key=True)
    post(as_kee, source="github_repo_ci", event_type="check_run", metadata=github.check_run("build", "success"))
    post(as_kee, dedupe_key="github:ci:pr-1:v1")
    break_rows("delete from digests_receiptstate", "delete from digests_thread")
    assert services.self_check(patience=None)["lost_receipts"] == 2
    assert {entry.kind for entry in read(as_kee).entries} == {"digest_snapshot"}
    assert set(Thread.objects.values_list("source_system", "event_family")) == {
        ("github_repo_ci", "ci_updates"),
        ("github", "ci"),
    }


def test_a_lost_receipt_is_an_entry_of_its_own_where_the_inbox_does_not_gather(as_kee: Caller) -> None:
    services.set_policy(
        tenant_id=as_kee.tenant_id,
        principal_id=as_kee.principal_id,
        change=services.PolicyChange(enabled=False),
        now=T0,
    )
    posted = post_grouped(as_kee)
    break_rows("delete from digests_receiptstate", "delete from digests_entry")
    assert services.self_check(patience=None)["lost_receipts"] == 1
    assert [(entry.kind, entry.receipt_ids) for entry in read(as_kee).entries] == [("item", [posted.receipt_id])]


def test_what_is_sound_is_left_untouched_to_the_byte(db: None) -> None:
    kee = fill()
    with acting_as(kee):
        fill_inbox(kee)
    before = bytes_of_everything()
    assert not any(services.self_check(patience=None).values())
    assert bytes_of_everything() == before


def test_the_check_goes_round_in_steps_and_rests_for_an_hour(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundness, "_TABLES", {part: (table, 2) for part, (table, _) in soundness._TABLES.items()})
    fill_inbox(as_kee)
    break_rows("update digests_entry set acked_at = now() where kind = 'item' and acked_at is null")
    lost = len(unsound()["lost_receipts"])
    found: list[int] = []
    while not found or found[-1]:
        found.append(services.self_check(patience=timedelta(0)).get("lost_receipts", 0))
        assert len(found) < 50
    rest = [services.self_check().get("lost_receipts", 0) for _ in range(20)]
    assert sum(found) + sum(rest) == lost
    walked = Round.objects.get(name="check.receipts")
    assert (walked.position, walked.result["lost_receipts"]) == (0, lost)
    assert selectors.last_check().found == selectors.last_check().repaired == lost


def test_health_says_what_the_last_check_found_without_running_it(as_kee: Caller) -> None:
    assert health._inboxes().says == "not checked yet"
    fill_inbox(as_kee)
    assert run("digests.self_check")
    assert health._inboxes().says == "0 found and 0 mended at the check 0 min ago"
    break_rows("update digests_inbox set visible_unread = 0")
    assert health._inboxes().ok
    services.self_check(patience=None, repair=False)
    finding = health._inboxes()
    assert (finding.ok, finding.needed, finding.says[:22]) == (False, False, "1 found and 0 mended a")
    assert "inboxes" in {one.part for one in health.readiness()}
    assert run("digests.self_check")
    with connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', (now() + interval '7 hours')::text, true)")
    assert not health._inboxes().ok
    assert run("digests.self_check")
    assert health._inboxes().ok


def test_the_command_looks_or_mends_at_once(as_kee: Caller) -> None:
    fill_inbox(as_kee)
    break_rows("update digests_inbox set visible_unread = 0")
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("self_check", "--look-only", "--json", stdout=out)
    assert json.loads(out.getvalue()) == {"found": {"miscounted_inboxes": 1}, "repaired": 0}
    assert Inbox.objects.get().visible_unread == 0
    out = StringIO()
    call_command("self_check", stdout=out)
    assert "1 found, 1 mended" in out.getvalue()
    assert unsound() == {}


def test_receipts_themselves_are_never_changed_by_a_repair(as_kee: Caller) -> None:
    fill_inbox(as_kee)
    facts = list(Receipt.objects.order_by("pk").values())
    break_rows("delete from digests_receiptstate where acked_at is null")
    services.self_check(patience=None)
    assert list(Receipt.objects.order_by("pk").values()) == facts
