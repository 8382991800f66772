"""The inbox: posting, buffering, reading and acking, beside a bare INSERT and a view that does nothing."""

import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final

import psycopg
from django.conf import settings
from django.utils import timezone

from apps.digests import services
from apps.digests.formats import parse_through
from apps.digests.selectors import read_inbox
from apps.digests.services import Posted
from apps.principals.tenancy import Caller
from apps.receipts.services import Group, Poster, ReceiptDraft
from benchmarks import measure
from benchmarks.bench import SOURCE, Bench, Client
from benchmarks.measure import Operation, Row, Slice, Work
from benchmarks.urls import HELLO

_SUMMARY: Final = "What happened. " * 8
_BATCHES: Final = (10, 50, 500)
_INBOXES: Final = 50
_WINDOW: Final = timedelta(seconds=1)
_THINGS: Final = 50
_BARE: Final = "a bare INSERT"


def run(bench: Bench) -> Iterator[Row]:
    """Every case of the suite."""
    measure.apart(_make_table)
    yield from _posts(bench)
    yield from _reads(bench)
    yield from _over_http(bench)
    yield _visible(bench)


def _posts(bench: Bench) -> Iterator[Row]:
    scale, poster, agents = bench.scale, bench.poster, bench.agents
    several, few = agents[-_INBOXES:], min(scale.clients, 4)
    cases: list[tuple[str, list[Caller], int, int, int]] = [
        ("post, one inbox", agents[1:2], 1, 0, 1),
        ("post, one inbox", agents[1:2], 1, 0, scale.clients),
        (f"post, {_INBOXES} inboxes", several, 1, 0, 1),
        (f"post, {_INBOXES} inboxes", several, 1, 0, scale.clients),
        ("post, buffered in ten threads", agents[2:3], 1, 10, scale.clients),
        *((f"post in batches, {_INBOXES} inboxes", several, size, 0, few) for size in _BATCHES),
    ]
    for case, among, batch, things, clients in cases:
        work = posting(poster, among, batch=batch, things=things)
        about = {"clients": clients, "batch": batch, "statements": measure.statements(work)}
        yield bench.row(case, work, partial(_inserting, batch), _BARE, unit="posts/s", **about)


def _reads(bench: Bench) -> Iterator[Row]:
    reader = bench.agents[-1]
    measure.drive(posting(bench.poster, [reader], batch=500), times=2)
    for case, limit, acks in (("read 50 entries", 50, False), ("read and ack ten entries", 10, True)):
        work = partial(_reading, reader, limit, acks=acks)
        yield Row.of(case, [measure.drive(work, times=20)], statements=measure.statements(work))


def _over_http(bench: Bench) -> Iterator[Row]:
    given = partial(receipt, *[agent.name for agent in bench.agents[-_INBOXES:]], metadata={"n": 1})
    about: dict[str, Any] = {"unit": "requests/s", "clients": bench.scale.clients}
    post, hello = bench.asking("POST", "/api/v1/receipts", given), bench.asking("POST", HELLO, given)
    yield bench.row("post over HTTP", post, hello, "hello view", **about)
    read, hello = bench.asking("GET", "/api/v1/inbox?limit=10"), bench.asking("GET", HELLO)
    yield bench.row("read over HTTP", read, hello, "hello view", **about)


def _visible(bench: Bench) -> Row:
    """From the commit of a buffered receipt to the read that shows it, while writers keep its inbox busy."""
    scale, reader = bench.scale, bench.agents[0]
    bench.celery()
    policy = {"window_ms": _WINDOW // timedelta(milliseconds=1)}
    Client(bench.web(), bench.tokens[0]).ask("PUT", "/api/v1/inbox/policy", policy)
    # The Celery workers have started once they have published something.
    measure.side_by_side(partial(_writing, bench.poster, reader, 0.0), watch=partial(_seen, reader))
    until = time.monotonic() + 2 * _WINDOW.total_seconds() + scale.seconds * scale.rounds
    writing = partial(_writing, bench.poster, reader, until)
    seen, *written = measure.side_by_side(*[writing] * scale.clients, watch=partial(_seen, reader))
    committed = {receipt: at for one in written for receipt, at in one.items()}
    if lost := committed.keys() - seen.keys():
        raise measure.ClientFailed(f"{len(lost)} receipts were posted and never shown.")
    latencies = [seen[receipt] - at for receipt, at in committed.items()]
    row = Row.of("post to visible, buffered, one inbox", [Slice.of(latencies)], clients=scale.clients)
    limit = _WINDOW.total_seconds() * 1000 + 1000
    return row.judged(f"p99 under {limit:,.0f} ms", met=row.p99 is not None and row.p99 < limit)


def _writing(poster: Caller, reader: Caller, until: float) -> dict[str, float]:
    """When each receipt was committed."""
    post, committed = _posts_to(poster, [reader], things=_THINGS), dict[str, float]()
    while not committed or time.monotonic() < until:
        committed[post(1)[0].receipt_id] = time.monotonic()
    return committed


def _seen(reader: Caller, over: Any) -> dict[str, float]:
    """When each receipt was first shown. It ends when nobody writes and nothing waits, or nothing comes for long."""
    seen: dict[str, float] = {}
    patient_until = time.monotonic() + 60
    while True:
        # Asked before the read: what was committed until then is in it.
        ending = over.is_set()
        with reader.acting():
            page = read_inbox(reader.principal_id, limit=500)
        for entry in page.entries:
            for receipt in entry.receipt_ids:
                seen.setdefault(receipt, time.monotonic())
        if page.entries:
            _ack_through(reader, page.entries[-1])
            patient_until = time.monotonic() + 60
        elif (ending and not page.pending and seen) or time.monotonic() > patient_until:
            return seen
        time.sleep(0.02)


def _ack_through(reader: Caller, entry: Any) -> None:
    through = parse_through(entry.token or "")
    with reader.acting():
        services.ack_through(principal_id=reader.principal_id, through=through, now=timezone.now())


def _reading(reader: Caller, limit: int, _number: int, *, acks: bool = False) -> Operation:
    def read() -> None:
        with reader.acting():
            entries = read_inbox(reader.principal_id, limit=limit).entries
        if acks:
            _ack_through(reader, entries[-1])

    return read


def posting(poster: Caller, among: list[Caller], *, batch: int = 1, things: int = 0) -> Work:
    def work(number: int) -> Operation:
        start = number % len(among)
        post = _posts_to(poster, among[start:] + among[:start], things=things)
        return lambda: len(post(batch))

    return work


def _posts_to(poster: Caller, among: list[Caller], *, things: int) -> Callable[[int], list[Posted]]:
    """Receipts to each recipient in turn, about so many things, or about none."""
    recipients, numbers = itertools.cycle(among), itertools.cycle(range(max(things, 1)))

    def post(number: int) -> list[Posted]:
        drafts = [
            ReceiptDraft(
                recipient_id=next(recipients).principal_id,
                source_system=SOURCE,
                event_type="message",
                dedupe_key=_key(),
                title="A receipt",
                summary=_SUMMARY,
                metadata={"n": 1},
                group=Group(resource_ref=f"thing:{next(numbers)}", event_family="bench") if things else None,
            )
            for _ in range(number)
        ]
        with poster.acting():
            posted: Any = services.post_many(poster=Poster.of(poster), drafts=drafts, now=timezone.now())
        return list(posted)

    return post


def receipt(*recipients: str, **more: Any) -> dict[str, Any]:
    """A receipt to one of these, as it is posted over HTTP."""
    names = {"recipient_ai": secrets.choice(recipients), "source_system": SOURCE, "dedupe_key": _key()}
    return {**names, "title": "A receipt", "summary": _SUMMARY, **more}


def _key() -> str:
    return f"{SOURCE}:message:{secrets.token_hex(8)}:v1"


def _make_table() -> None:
    with psycopg.connect(settings.DATABASE_URL_OWNER, autocommit=True) as connection:
        connection.execute("set role none")
        connection.execute("create schema if not exists bench")
        connection.execute("create table if not exists bench.bare (id bigserial primary key, summary text)")


def _inserting(rows: int, _number: int) -> Operation:
    """What the database does for as many rows without anything else: one statement, one commit."""
    connection = psycopg.connect(settings.DATABASE_URL_OWNER, autocommit=True)
    connection.execute("set role none")
    statement = "insert into bench.bare (summary) select %s from generate_series(1, %s)"

    def insert() -> int:
        connection.execute(statement, [_SUMMARY, rows], prepare=True)
        return rows

    return insert
