"""What is asked of an inbox costs the same whatever stands in it: by index only, plans and pages asserted.

The volume of the `ci` tier is 200,000 receipts; by hand, with ten million, the report under docs/reports is written.
"""

import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction

from apps.core.sql import _PreparedCursor, database_now
from apps.digests import selectors, services, soundness
from apps.digests.models import Entry, Inbox, Thread
from apps.digests.states import FlushReason
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts import selectors as facts
from apps.receipts.models import Receipt
from tests.digests.makers import ack_through, flush, post, post_grouped, read, unsound
from tests.digests.volume import BIG, BLOCK, load, shares
from tests.factories import make_tenant

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """How one statement was carried out."""

    statement: str
    nodes: list[dict[str, Any]]

    @property
    def pages(self) -> int:
        return int(self.nodes[0]["Shared Hit Blocks"] + self.nodes[0]["Shared Read Blocks"])

    @property
    def scanned(self) -> set[str]:
        """Big tables that were read from end to end."""
        return {node["Relation Name"] for node in self.nodes if node["Node Type"] == "Seq Scan"} & set(BIG)

    @property
    def rows(self) -> int:
        """The most rows that any node went through in one of the big tables."""
        own = [node for node in self.nodes if node.get("Relation Name") in BIG]
        rows: int = max((_rows(node) for node in own), default=0)
        return rows


def _rows(node: dict[str, Any]) -> int:
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    gone_through: float = (node["Actual Rows"] + removed) * node["Actual Loops"]
    return round(gone_through)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from _nodes(part)


@contextmanager
def explained() -> Iterator[list[Plan]]:
    """The plans of all statements within, each as the product runs it: with literals, or prepared and generic."""
    plans: list[Plan] = []

    def explain(execute: Any, statement: str, given: Any, many: Any, context: dict[str, Any]) -> Any:
        if (
            re.match(r"\s*(with|select|insert|update|delete)\b", statement, re.IGNORECASE)
            and "set_config" not in statement
        ):
            hot = isinstance(context["cursor"].cursor, _PreparedCursor)
            with connection.execute_wrapper(lambda run, *asked: run(*asked)):
                plans.append(Plan(statement, _plan(statement, given, hot=hot)))
        return execute(statement, given, many, context)

    with connection.execute_wrapper(explain):
        yield plans


def _plan(statement: str, given: Any, *, hot: bool) -> list[dict[str, Any]]:
    """Really carried out, and taken back."""
    with transaction.atomic(), connection.connection.cursor() as cursor:
        cursor.execute("savepoint explained")
        if hot:
            named = isinstance(given, dict)
            order = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement))) if named else []
            for number, name in enumerate(order, 1):
                statement = statement.replace(f"%({name})s", f"${number}")
            for number in range(1, 1 if named else len(given) + 1):
                statement = statement.replace("%s", f"${number}", 1)
            values = [given[name] for name in order] if named else list(given)
            cursor.execute(f"prepare asked as {statement}".encode())
            marks = f"({', '.join(['%s'] * len(values))})" if values else ""
            literal = psycopg_literal(f"execute asked{marks}", values)
            cursor.execute(f"explain (analyze, buffers, format json) {literal}".encode())
        else:
            cursor.execute(f"explain (analyze, buffers, format json) {psycopg_literal(statement, given)}".encode())
        row = cursor.fetchone()
        # Before the rollback, at which psycopg forgets whatever was prepared.
        if hot:
            cursor.execute("deallocate asked")
        cursor.execute("rollback to savepoint explained")
    (answer,) = row
    (document,) = json.loads(answer) if isinstance(answer, str) else answer
    return list(_nodes(document["Plan"]))


def psycopg_literal(statement: str, given: Any) -> str:
    """A statement with its values in it, as Django's own cursor sends it."""
    with connection.cursor() as cursor:
        return str(cursor.cursor.mogrify(statement, given or None))


@dataclass(frozen=True, slots=True)
class Asked:
    """One thing that is asked of an inbox, within a transaction of its owner."""

    name: str
    run: Callable[[Caller], Any]
    pages: int = 400
    rows: int = 1_000
    times: int = 100


def _chain(kee: Caller) -> None:
    newest = Receipt.objects.filter(pk__in=read(kee, limit=20).entries[-1].receipt_pks).get()
    facts.chain_for(newest.receipt_id, principal_id=kee.principal_id)


def _flush(kee: Caller) -> None:
    post_grouped(kee, "pr:flush")
    thread = Thread.objects.get(closed_at=None, resource_ref="pr:flush")
    flush(inbox_id=thread.inbox_id, thread_ids=[thread.pk], reason=FlushReason.SIZE)


def _ack_five(kee: Caller) -> None:
    ack_through(kee, read(kee, limit=5).entries[-1].token)


def _replay(kee: Caller) -> None:
    since = database_now() - timedelta(days=100)
    assert selectors.replay(kee.principal_id, since=since, window=timedelta(minutes=1)).receipts > BLOCK


def _retention(kee: Caller) -> None:
    services.retain(patience=None)


ASKED: Final = (
    # Fifty digests name ten receipts each.
    Asked("read", read, pages=600),
    Asked("read the newest ten, as bootstrap does", lambda kee: selectors.newest_entries(kee.principal_id)),
    Asked("unread counts", lambda kee: selectors.unread_counts(kee.principal_id), pages=20),
    Asked("raw unread list", lambda kee: selectors.inbox_receipts(kee.principal_id)),
    Asked("raw list, all", lambda kee: selectors.inbox_receipts(kee.principal_id, unread_only=False)),
    Asked(
        "raw unread list of a rare source",
        lambda kee: selectors.inbox_receipts(kee.principal_id, source_system="pagerduty"),
    ),
    Asked("read of a rare source", lambda kee: read(kee, source_system="pagerduty")),
    Asked("history", lambda kee: selectors.history(kee.principal_id)),
    Asked("obligations", lambda kee: facts.obligations(owed_by=kee.principal_id)),
    Asked("chain", _chain),
    Asked("post an item", post),
    Asked("post into a thread", lambda kee: post_grouped(kee, "pr:new")),
    Asked("post into a thread and flush it", _flush),
    Asked("ack the five oldest", _ack_five),
    Asked("due inboxes", lambda kee: selectors.due_inboxes(), pages=20),
    Asked("replay of a policy", _replay, pages=60_000, rows=11_000, times=5),
    Asked("a pass of retention over nothing due", _retention, pages=20),
)


def check_plans(kee: Caller) -> dict[str, int]:
    """Nothing is read from end to end; each statement touches few rows and pages. Answers the pages of each question."""
    touched = {}
    for asked in ASKED:
        with acting_as(kee), explained() as plans:
            asked.run(kee)
            transaction.set_rollback(True)
        assert plans, asked.name
        for plan in plans:
            assert not plan.scanned, (asked.name, plan.statement)
            assert plan.rows <= asked.rows, (asked.name, plan.rows, plan.statement)
            assert plan.pages <= asked.pages, (asked.name, plan.pages, plan.statement)
        touched[asked.name] = sum(plan.pages for plan in plans)
    return touched


def check_self_check_goes_by_ranges(*, rows: int) -> None:
    for part in soundness.PARTS:
        with acting_as_system("test"), explained() as plans:
            highest = 0
            soundness.look(part, after=highest, limit=rows)
        for plan in plans:
            assert not plan.scanned, (part, plan.statement)


def p50(kee: Caller) -> dict[str, float]:
    """Milliseconds of each question, transaction included, as the application's role."""
    found = {}
    for asked in ASKED:
        taken = []
        for _ in range(asked.times):
            begun = time.perf_counter()
            with acting_as(kee):
                asked.run(kee)
            taken.append(1000 * (time.perf_counter() - begun))
        found[asked.name] = median(taken)
    return found


def seed(tenant: Tenant) -> Caller:
    """A young deployment: just so much that every page that is asked for is full there too."""
    return load(tenant, shares(240 * BLOCK, unread=120 * BLOCK, inboxes=2))


@pytest.mark.ci
def test_with_200_000_receipts_everything_goes_by_index() -> None:
    kee = load(make_tenant("acme"), shares(200_000, unread=20_000, inboxes=20))
    with acting_as(kee):
        assert selectors.unread_counts(kee.principal_id).total == 20_000
    check_plans(kee)
    check_self_check_goes_by_ranges(rows=1_000)
    with acting_as_system("test"):
        assert unsound() == {}
    with acting_as(kee):
        newest = selectors.newest_entries(kee.principal_id, limit=1).entries[0]
        acked = ack_through(kee, f"{newest.ref}@{newest.as_of}")
        assert (acked.acked_receipts, selectors.unread_counts(kee.principal_id).total) == (20_000, 0)
        assert not Entry.objects.filter(inbox__principal=kee.principal_id, acked_at=None).exists()
    with acting_as_system("test"):
        assert unsound() == {}


def _settle() -> None:
    """What loading has left to be written does not disturb what is measured next."""
    with connection.cursor() as cursor:
        cursor.execute("set role none")
        cursor.execute("vacuum analyze")
        cursor.execute("reset role")


REPORT: Final = Path(settings.BASE_DIR) / "docs" / "reports" / "inbox-at-ten-million.md"


@pytest.mark.long
def test_with_ten_million_receipts_everything_goes_by_index() -> None:
    many = int(os.environ.get("GATEHOUSE_MANY_RECEIPTS", "10000000"))
    begun = time.monotonic()
    kee = load(
        make_tenant("acme"), shares(many, unread=100_000, inboxes=100), told=lambda line: print(line, flush=True)
    )
    loaded = time.monotonic() - begun
    touched = check_plans(kee)
    check_self_check_goes_by_ranges(rows=10_000)
    _settle()
    large, busy = p50(kee), [os.getloadavg()[0]]
    begun = time.monotonic()
    found = services.self_check(patience=None)
    checked = time.monotonic() - begun
    assert not any(found.values()), found
    with acting_as(kee):
        unread = selectors.unread_counts(kee.principal_id).total
        newest = selectors.newest_entries(kee.principal_id, limit=1).entries[0]
        begun = time.monotonic()
        acked = ack_through(kee, f"{newest.ref}@{newest.as_of}").acked_receipts
        took = time.monotonic() - begun
        assert acked == unread
    with acting_as_system("test"), connection.cursor() as cursor:
        counted = Inbox.objects.count()
        cursor.execute("select pg_size_pretty(pg_database_size(current_database()))")
        (size,) = cursor.fetchone()
    # The same questions of the same server, emptied: minutes later, so that the machine is as busy as before.
    call_command("flush", interactive=False, verbosity=0)
    young = seed(make_tenant("young"))
    _settle()
    small = p50(young)
    busy.append(os.getloadavg()[0])
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(
        _report(
            many=many,
            inboxes=counted,
            size=size,
            busy=busy,
            small=small,
            large=large,
            touched=touched,
            seconds={"load": loaded, "check": checked, "ack": took},
            acked=acked,
        )
    )


def _report(
    *,
    many: int,
    inboxes: int,
    size: str,
    busy: list[float],
    small: dict[str, float],
    large: dict[str, float],
    touched: dict[str, int],
    seconds: dict[str, float],
    acked: int,
) -> str:
    with connection.cursor() as cursor:
        cursor.execute("select version()")
        (version,) = cursor.fetchone()
    lines = [
        "# The inbox at ten million receipts",
        "",
        (
            f"{many:,} receipts in {inboxes} inboxes, a tenth of them gathered into digests; 100,000 unread in the inbox that is asked."
            f" The database takes {size}. Written by `tests/digests/test_scale.py`, tier `long`."
        ),
        "",
        (
            f"Machine: {os.cpu_count()} cores, {_memory()}, {platform.system()} {platform.machine()}, Python {platform.python_version()},"
            f" {version.split(',')[0]}, embedded, shared_buffers 128 MB, not durable (`fsync` off)."
        ),
        f"Load of the machine at the end of either measurement: {busy[0]:.1f} full, {busy[1]:.1f} young.",
        "",
        (
            "Each figure is the median of 100 runs in process, through the product's services, as the application's role under"
            " row-level security, a transaction each. *Young* is the same server once it was emptied and given"
            " 24,000 receipts, so that every page that is asked for is full there too. Pages are those of 8 KB that the statements of one run touch in the full database; the test asserts"
            " that no big table is read from end to end."
        ),
        "",
        "| what is asked | young, ms | full, ms | times | pages |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {name} | {small[name]:.2f} | {large[name]:.2f} | {large[name] / small[name]:.2f} | {touched[name]} |"
            for name in large
        ),
        "",
        (
            f"Acking {acked:,} receipts by one token took {seconds['ack']:.1f} s; nothing of them leaves the database."
            f" A whole round of the self-check, of every receipt, entry, thread and inbox, took {seconds['check']:.0f} s;"
            " the product spreads it over an hour in steps of half a second."
            f" Loading took {seconds['load'] / 60:.0f} min."
        ),
        "",
    ]
    return "\n".join(lines)


def _memory() -> str:
    total = int(re.findall(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[0])
    return f"{total / 1024**2:.0f} GB of memory"
