"""What the database itself refuses, what the hot paths cost, and which indexes they use."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.digests import selectors, services, sql
from apps.digests.models import Entry, ReceiptState, Thread
from apps.digests.services import posting
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from apps.receipts.selectors import obligations
from tests import ground
from tests.digests.makers import ack_through, make_draft, post, post_grouped, read, unsound
from tests.digests.test_scale import explained
from tests.factories import T0, make_caller, make_principal, make_tenant


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


def plan(statement: str, parameters: dict[str, Any]) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"explain {statement}", parameters)
        return "\n".join(line for (line,) in cursor.fetchall())


def read_whole(plan_of: str) -> set[str]:
    """The tables that a plan reads whole; inboxes and their owners aside, of which a test has few."""
    return set(re.findall(r"Seq Scan on (\w+)", plan_of)) - {"digests_inbox", "principals_principal"}


def indexes(plan_of: str, table: str) -> list[str]:
    """The indexes by which a plan comes to a table, one by one or as a bitmap."""
    return re.findall(rf"Index (?:Only )?Scan (?:Backward )?(?:using|on) ({table}_\w+)", plan_of)


def generic_plan(statement: str) -> str:
    """Of a statement that is prepared: without a look at its parameters."""
    names: dict[str, int] = {}
    numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${names.setdefault(found[1], len(names) + 1)}", statement)
    with connection.cursor() as cursor:
        cursor.execute(f"explain (generic_plan) {numbered}")
        return "\n".join(line for (line,) in cursor.fetchall())


def test_a_prepared_page_looks_up_what_it_shows_by_key_however_much_is_unread(as_kee: Caller) -> None:
    drafts = [make_draft(as_kee) for _ in range(1500)]
    services.post_many(poster=services.Poster.of(as_kee), drafts=drafts, now=T0)
    ground.analyzed("digests_entry", "digests_inbox", "digests_receiptstate", "receipts_receipt")
    for source, direction in (("", "asc"), (sql.OF_SOURCE, "desc")):
        page = generic_plan(sql.READ.format(source=source, direction=direction, most=500))
        assert indexes(page, "receipts_receipt") == ["receipts_receipt_pkey"] * 2, page
        assert "receipts_receipt" not in read_whole(page), page


def test_reads_and_acks_go_by_index(as_kee: Caller) -> None:
    drafts = [make_draft(as_kee, source="gitlab" if number % 50 else "github") for number in range(1500)]
    services.post_many(poster=services.Poster.of(as_kee), drafts=drafts, now=T0)
    ack_through(as_kee, read(as_kee, limit=500).entries[-1].token)
    for _ in range(3):
        post_grouped(as_kee, flush_class="immediate")
    post_grouped(as_kee)
    (thread,) = Thread.objects.all()
    # In one of twenty something waits.
    pending = (
        "'pending_count', (mod(n, 20) = 0)::int, 'flush_due_at', case when mod(n, 20) = 0 then one.flush_due_at end"
    )
    of_copy = f"'id', {thread.pk} + n, 'resource_ref', 'copy:' || n, {pending}"
    copies("digests_thread", thread.pk, 2000, of_copy)
    inbox = read(as_kee)
    ground.analyzed("digests_entry", "digests_inbox", "digests_receiptstate", "digests_thread", "receipts_receipt")
    given = {"principal": as_kee.principal_id, "after": 0, "source": "github", "limit": 10}
    whole = plan(sql.READ.format(source="", direction="asc", most=500), given)
    assert indexes(whole, "digests_entry") == ["digests_entry_live"], whole
    assert set(indexes(whole, "receipts_receipt")) == {"receipts_receipt_pkey"}, whole
    assert not read_whole(whole)
    by_source = plan(sql.READ.format(source=sql.OF_SOURCE, direction="desc", most=500), given)
    assert "digests_entry_live_by_source" in by_source
    assert not read_whole(by_source)
    boundary = plan(
        sql.BOUNDARY,
        {
            "inbox": thread.inbox_id,
            "as_of": inbox.as_of,
            "upto": inbox.as_of,
            "after": inbox.as_of - 20,
            "source": None,
            "ids": None,
            "anchor": None,
        },
    )
    assert "digests_entry_live" in boundary
    assert "digests_entry_superseded" in boundary
    assert not read_whole(boundary)
    members = plan(sql.MEMBERS, {"threads": [thread.pk], "with_pending": True})
    assert "digests_receiptstate_by_thread" in members
    assert "digests_thread_due" in plan(selectors._DUE_INBOXES, {})
    due_threads = plan(selectors._DUE_THREADS.replace("%s", str(thread.inbox_id)), {})
    # Of one inbox that has nearly all threads, either index serves.
    assert re.search(r"Scan .*digests_thread_(pending|due) ", due_threads), due_threads
    for placing in (
        *posting._ONE.statements_by_closing.values(),
        *posting._SEVERAL.statements_by_closing.values(),
        sql.POST_ITEMS,
    ):
        placed = generic_plan(placing)
        scan = re.search(r"Index (?:Only )?Scan (?:using|on) digests_thread_pending.*\n +Index Cond: (.*)", placed)
        assert scan, placed
        assert "flush_due_at <=" in scan[1]
        assert not read_whole(placed) & {"digests_thread", "digests_entry", "digests_receiptstate", "receipts_receipt"}


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


_LISTED = (
    *("receipts_receipt", "receipts_obligation", "digests_entry", "digests_receiptstate", "digests_inbox"),
    # Of whom a receipt is, and for whom: joined to each.
    "principals_principal",
)


@pytest.mark.parametrize("known", [ground.analyzed, ground.unanalyzed])
def test_lists_visit_what_they_show_and_no_more(tenant: Tenant, as_kee: Caller, known: Callable[..., None]) -> None:
    hexy = make_caller(tenant, "Hexy")
    # Each has half of all, and all of Hexy's are older.
    long_history(hexy)
    long_history(as_kee)
    known(*_LISTED)
    for reader in (as_kee, hexy):
        one = reader.principal_id
        for label, table, act in (
            ("history", "digests_entry", lambda: selectors.history(one, limit=10)),  # noqa: B023  # runs at once
            ("older", "digests_entry", lambda: selectors.history(one, before=2000, limit=10)),  # noqa: B023
            ("unread", "digests_receiptstate", lambda: selectors.inbox_receipts(one)),  # noqa: B023
            ("oldest", "digests_receiptstate", lambda: selectors.oldest_unacked(one, limit=10)),  # noqa: B023
            ("all", "digests_receiptstate", lambda: selectors.inbox_receipts(one, unread_only=False)),  # noqa: B023
            ("of a source", "receipts_receipt", lambda: of_source(one)),  # noqa: B023
            ("owed", "receipts_obligation", lambda: obligations(owed_by=one, limit=10)),  # noqa: B023
            ("awaited", "receipts_obligation", lambda: obligations(awaited_by=one, limit=10)),  # noqa: B023
            ("their facts", "receipts_receipt", lambda: obligations(owed_by=one, limit=10)),  # noqa: B023
            ("facts of the unread", "receipts_receipt", lambda: selectors.inbox_receipts(one)),  # noqa: B023
        ):
            if known is ground.unanalyzed and table == "digests_entry":
                continue  # of an inbox as small as it then seems, all that there ever was may be sorted
            assert rows_visited(act, table) == 10, (label, reader.name)


def of_source(principal_id: int) -> Sequence[Any]:
    """Without the facts, which are looked up by their keys."""
    given: dict[str, int | str] = {"recipient": principal_id, "source": "github", "before": 2**62, "limit": 10}
    with connection.cursor() as cursor:
        cursor.execute(sql.LISTED_OF_SOURCE, given)
        return list(cursor.fetchall())


@pytest.mark.parametrize("known", [ground.analyzed, ground.unanalyzed])
def test_what_is_left_unread_is_found_without_a_look_at_what_is_acked(
    tenant: Tenant, as_kee: Caller, known: Callable[..., None]
) -> None:
    hexy = make_caller(tenant, "Hexy")
    for reader in (hexy, as_kee):
        long_history(reader)
    # Nearly all is unread in one inbox, and nearly nothing in the other, which has its oldest left over.
    kept = ReceiptState.objects.filter(inbox__principal_id=hexy.principal_id).order_by("pk")[:3]
    acked = ReceiptState.objects.filter(inbox__principal_id=hexy.principal_id).exclude(pk__in=[one.pk for one in kept])
    acked.update(acked_at=T0, read_at=T0)
    known(*_LISTED)
    hexys = hexy.principal_id
    assert rows_visited(lambda: selectors.inbox_receipts(hexys), "digests_receiptstate") == 3
    assert rows_visited(lambda: selectors.oldest_unacked(hexys, limit=10), "digests_receiptstate") == 3
    both = rows_visited(lambda: selectors.inbox_receipts(hexys, unread_only=False), "digests_receiptstate")
    assert both == 3 + 10


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
    services.ack_receipt(principal_id=as_kee.principal_id, receipt_pk=acked.id, now=T0)
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


@pytest.mark.parametrize("known", [ground.analyzed, ground.unanalyzed])
def test_a_post_looks_at_its_recipient_among_all_who_could_live_elsewhere(
    tenant: Tenant, kee: Caller, known: Callable[..., None]
) -> None:
    for number in range(30):
        make_principal(tenant, f"agent-{number}")
    known("principals_principal", "receipts_residence")
    with acting_as(kee), explained() as plans:
        post(kee)

    looks = [
        node["Actual Rows"] * node["Actual Loops"] + node.get("Rows Removed by Filter", 0)
        for plan in plans
        for node in plan.nodes
        if node.get("Relation Name") == "principals_principal"
    ]
    assert looks
    assert max(looks) <= 1
