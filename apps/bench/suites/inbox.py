"""The inbox: posting, gathering, reading, acking, and what growth does to them."""

import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.utils import timezone

from apps.bench import growth, load
from apps.bench.bench import Bench
from apps.bench.load import Operation, Work
from apps.bench.pgbench import BareInsert
from apps.bench.rows import Comparison, Row, Slice
from apps.bench.web import Request
from apps.bench.world import SOURCE
from apps.digests import services
from apps.digests.formats import Through
from apps.digests.selectors import EntryView, read_inbox
from apps.digests.services import Group, PolicyChange, Posted, Poster, ReceiptDraft
from apps.memory import services as memory
from apps.principals.tenancy import Caller
from apps.receipts.selectors import chain

_SUMMARY: Final = "What happened. " * 8
_BATCHES: Final = (10, 50, 500)
_INBOXES: Final = 50
_POSTS_GOAL: Final = 800
_BATCH_GOAL: Final = 10_000
_HTTP_GOAL: Final = 0.8
_GROWTH_GOAL: Final = 1.5
_WINDOW: Final = timedelta(seconds=1)
_PATIENCE: Final = 60.0
_FEW: Final = 1000
_MOST_UNREAD: Final = 100_000
_FSYNCS_SUPPOSED: Final = 1000


def run(bench: Bench) -> Iterator[Row]:
    """Every case of the suite."""
    yield from _posts(bench)
    yield from _batches(bench)
    yield from _burst(bench)
    yield from _over_http(bench)
    yield from _visible(bench)
    yield from _growth(bench)


def _posts(bench: Bench) -> Iterator[Row]:
    bare, scale, cores = BareInsert(), bench.scale, bench.machine["cores"]
    agents = bench.world.agents
    for case, among, goal in (
        ("post, one inbox", agents[1:2], True),
        (f"post, {_INBOXES} inboxes", agents[-_INBOXES:], False),
    ):
        for clients in sorted({1, cores, scale.clients}):
            work = _posting(bench.world.poster, among)
            compared = load.in_turns(
                partial(load.drive, work, clients=clients, seconds=scale.seconds),
                bare.slices(rows=1, clients=clients, seconds=scale.seconds),
                rounds=scale.rounds,
            )
            row = Row.of_rates(
                compared,
                case=case,
                unit="posts/s",
                baseline_is=bare.name,
                clients=clients,
                statements=load.statements(work),
            )
            # With more clients than processors the scheduler is measured too.
            if goal and clients == cores:
                fast = bench.fast_disk(_FSYNCS_SUPPOSED)
                row = row.judged(
                    f"{_POSTS_GOAL} at {_FSYNCS_SUPPOSED} fsync/s", met=row.ours >= _POSTS_GOAL if fast else None
                )
            yield row


def _batches(bench: Bench) -> Iterator[Row]:
    bare, scale = BareInsert(), bench.scale
    clients = min(scale.clients, 4)
    for size in _BATCHES:
        work = _posting_batches(bench.world.poster, bench.world.agents[-_INBOXES:], size)
        compared = load.in_turns(
            partial(load.drive, work, clients=clients, seconds=scale.seconds),
            bare.slices(rows=size, clients=clients, seconds=scale.seconds),
            rounds=scale.rounds,
        )
        row = Row.of_rates(
            compared,
            case="post in batches",
            unit="posts/s",
            baseline_is=bare.name,
            batch=size,
            clients=clients,
            statements=load.statements(work),
        )
        yield row.judged(f"{_BATCH_GOAL:,}", met=row.ours >= _BATCH_GOAL) if size == _BATCHES[-1] else row


def _burst(bench: Bench) -> Iterator[Row]:
    """Many receipts at once about ten things, gathered."""
    bare, scale = BareInsert(), bench.scale
    clients = scale.clients
    recipients = iter(bench.world.agents[2:])

    def burst() -> Slice:
        work = _posting(bench.world.poster, [next(recipients)], resources=10)
        return load.drive(work, clients=clients, times=scale.burst // clients)

    compared = load.in_turns(burst, bare.slices(rows=1, clients=clients, seconds=scale.seconds), rounds=scale.rounds)
    yield Row.of_rates(
        compared,
        case=f"burst of {scale.burst:,} into digests of ten threads",
        unit="posts/s",
        baseline_is=bare.name,
        clients=clients,
        statements=load.statements(_posting(bench.world.poster, [next(recipients)], resources=1)),
    )


def _over_http(bench: Bench) -> Iterator[Row]:
    scale, token = bench.scale, bench.world.token
    agents = [agent.name for agent in bench.world.agents[-_INBOXES:]]
    web = bench.processes.web()

    def receipt(_number: int) -> dict[str, Any]:
        return {
            "recipient_ai": secrets.choice(agents),
            "source_system": SOURCE,
            "dedupe_key": _key(),
            "title": "A receipt",
            "summary": _SUMMARY,
            "metadata": {"n": 1},
        }

    post = Request(method="POST", path="/api/v1/receipts", token=token, body=receipt, status=201)
    read = Request(method="GET", path="/api/v1/inbox?limit=10", token=token)
    hello = "/api/v1/hello"
    for case, request, greeting in (
        ("post over HTTP", post, Request(method="POST", path=hello, token=token, body=receipt, status=201)),
        ("read over HTTP", read, Request(method="GET", path=hello, token=token)),
    ):
        compared = load.in_turns(
            web.slices(request, clients=scale.clients, seconds=scale.seconds),
            web.slices(greeting, clients=scale.clients, seconds=scale.seconds),
            rounds=scale.rounds,
        )
        row = Row.of_rates(compared, case=case, unit="requests/s", baseline_is="hello view", clients=scale.clients)
        if request is post:
            met = row.ratio is not None and row.ratio >= _HTTP_GOAL
            row = row.judged(f"{_HTTP_GOAL:.0%} of hello", met=met)
        yield row


def _visible(bench: Bench) -> Iterator[Row]:
    """From the commit of a gathered receipt to the read that shows it, while writers keep its inbox busy."""
    scale, reader = bench.scale, bench.world.agents[0]
    bench.processes.worker()

    def settle() -> None:
        with reader.acting():
            services.set_policy(
                tenant_id=reader.tenant_id,
                principal_id=reader.principal_id,
                change=PolicyChange(window=_WINDOW),
                now=timezone.now(),
            )

    load.apart(settle)
    post = _posts_to(bench.world.poster, [reader], resources=scale.things)
    # The worker has started once it has published something.
    load.apart(lambda: _shown_all(reader, {post().receipt_id}))
    # Long enough for buffers to come due while others fill.
    until = time.monotonic() + 2 * _WINDOW.total_seconds() + scale.seconds * scale.rounds
    # A writer that began in time may commit long after it: the reader asks the writers, not the clock.
    writing = load.Countdown(scale.clients)
    committed: dict[str, float] = {}
    seen, *writers = load.side_by_side(
        [lambda: _reading(reader, writing), *(lambda: _writing(post, until, writing) for _ in range(scale.clients))]
    )
    for written in writers:
        committed |= written
    if lost := committed.keys() - seen.keys():
        raise load.ClientFailed(f"{len(lost)} receipts were posted and never shown.")
    latencies = [seen[receipt] - at for receipt, at in committed.items()]
    row = Row.of_latencies(
        Comparison(ours=[Slice(units=len(latencies), seconds=scale.seconds, latencies=latencies)]),
        case="post to visible, gathered, one inbox",
        clients=scale.clients,
        note=f"{len(latencies)} receipts about {scale.things} things, a window of {_WINDOW.total_seconds():.0f} s; "
        "a reader reads and acks every 20 ms.",
    )
    limit = _WINDOW.total_seconds() * 1000 + 1000
    yield row.judged(f"p99 under {limit:,.0f} ms", met=row.p99 is not None and row.p99 < limit)


def _shown_all(reader: Caller, receipts: set[str]) -> None:
    while receipts:
        receipts -= _reading(reader, load.Countdown(0)).keys()


def _writing(post: Callable[[], Posted], until: float, writing: load.Countdown) -> dict[str, float]:
    """When each receipt was committed."""
    committed = {}
    with writing.one():
        while time.monotonic() < until:
            receipt = post().receipt_id
            committed[receipt] = time.monotonic()
    return committed


def _reading(reader: Caller, writing: load.Countdown) -> dict[str, float]:
    """When each receipt was first shown; ends when nobody writes and nothing waits, or when nothing comes for long."""
    seen: dict[str, float] = {}
    patient_until = time.monotonic() + _PATIENCE
    while True:
        # Asked before the read: what was committed until then is in it.
        ending = writing.over
        with reader.acting():
            page = read_inbox(reader.principal_id, limit=500)
        for entry in page.entries:
            for receipt in entry.receipt_ids:
                seen.setdefault(receipt, time.monotonic())
        if page.entries:
            _ack_through(reader, page.entries[-1])
            patient_until = time.monotonic() + _PATIENCE
        elif (ending and not page.pending) or time.monotonic() > patient_until:
            return seen
        time.sleep(0.02)


def _ack_through(reader: Caller, entry: EntryView) -> None:
    through = Through(entry_id=entry.id, as_of=entry.as_of, bound=entry.bound)
    with reader.acting():
        services.ack_through(principal_id=reader.principal_id, through=through, now=timezone.now())


def _growth(bench: Bench) -> Iterator[Row]:
    """The same questions to a database that has grown, and to its copy from before, in turns."""
    scale, world = bench.scale, bench.world
    reader = world.agents[1]
    post = _posting(world.poster, world.agents)
    load.drive(post, times=len(world.agents))  # makes every inbox
    growth.fill(world.poster, [reader], receipts=_FEW, acked=False)
    # A database that is copied must have no visitors.
    bench.processes.end()
    grown, empty = growth.original(), growth.copy()
    unread = min(scale.receipts // 10, _MOST_UNREAD)
    growth.fill(world.poster, [reader], receipts=unread, acked=False)
    growth.fill(world.poster, world.agents, receipts=scale.receipts - unread, acked=True)
    for database in (grown, empty):
        growth.tidy(database)
    for case, work, times in (
        ("read 50 entries", _reads(reader), 40),
        ("ack one entry", _acks(reader), 20),
        ("ack ten entries through a token", _acks_through(reader), 5),
        ("bootstrap", _bootstraps(reader), 20),
        ("chain of ten receipts", _chains(world.poster, reader), 20),
        ("post", _posting(world.poster, [reader]), 40),
    ):
        compared = load.in_turns(
            partial(load.drive, growth.within(grown, work), times=times),
            partial(load.drive, growth.within(empty, work), times=times),
            rounds=scale.rounds,
        )
        row = Row.of_latencies(
            compared,
            case=f"{case}, grown",
            baseline_is="empty database",
            statements=load.statements(work),
            note=f"{scale.receipts:,} receipts, {unread:,} unread in this inbox; the other database has {_FEW}.",
        )
        met = row.ratio is not None and row.ratio <= _GROWTH_GOAL
        yield row.judged(f"{_GROWTH_GOAL} times or less", met=met)


def _reads(reader: Caller) -> Work:
    def work(_number: int) -> Operation:
        def read() -> int:
            with reader.acting():
                read_inbox(reader.principal_id, limit=50)
            return 1

        return _warm(read)

    return work


def _acks(reader: Caller) -> Work:
    def work(_number: int) -> Operation:
        entries = iter(_shown(reader))

        def ack() -> int:
            with reader.acting():
                services.ack(principal_id=reader.principal_id, entry_ids=[next(entries).id], now=timezone.now())
            return 1

        return _warm(ack)

    return work


def _acks_through(reader: Caller) -> Work:
    def work(_number: int) -> Operation:
        entries = iter(_shown(reader)[9::10])

        def ack() -> int:
            _ack_through(reader, next(entries))
            return 1

        return _warm(ack)

    return work


def _shown(reader: Caller) -> list[EntryView]:
    with reader.acting():
        return read_inbox(reader.principal_id, limit=100).entries


def _bootstraps(reader: Caller) -> Work:
    def work(_number: int) -> Operation:
        def bootstrap() -> int:
            with reader.acting():
                memory.bootstrap(principal_id=reader.principal_id, tenant_id=reader.tenant_id, now=timezone.now())
            return 1

        return _warm(bootstrap)

    return work


def _chains(poster: Caller, reader: Caller) -> Work:
    def work(_number: int) -> Operation:
        end = _posts_to(poster, [reader])().receipt_id
        for _ in range(9):
            draft = replace(_draft(reader, None), caused_by=end)
            with poster.acting():
                end = services.post(poster=Poster.of(poster), draft=draft, now=timezone.now()).receipt_id

        def walk() -> int:
            with poster.acting():
                chain(end)
            return 1

        return _warm(walk)

    return work


def _warm(operation: Operation) -> Operation:
    """Done twice already: what a first time costs is not what is asked."""
    operation()
    operation()
    return operation


def _posting(poster: Caller, among: list[Caller], *, resources: int = 0) -> Work:
    def work(number: int) -> Operation:
        post = _posts_to(poster, among[number % len(among) :] + among[: number % len(among)], resources=resources)

        def once() -> int:
            post()
            return 1

        return once

    return work


def _posts_to(poster: Caller, among: list[Caller], *, resources: int = 0) -> Callable[[], Posted]:
    """One receipt after the other, to each recipient in turn; about so many things, or about none."""
    recipients = itertools.cycle(among)
    things = itertools.cycle(range(resources)) if resources else None

    def post() -> Posted:
        group = None
        if things is not None:
            group = Group(resource_ref=f"thing:{next(things)}", event_family="bench")
        draft = _draft(next(recipients), group)
        with poster.acting():
            return services.post(poster=Poster.of(poster), draft=draft, now=timezone.now())

    return post


def _posting_batches(poster: Caller, among: list[Caller], size: int) -> Work:
    def work(_number: int) -> Operation:
        recipients = itertools.cycle(among)

        def post() -> int:
            drafts = [_draft(next(recipients), None) for _ in range(size)]
            with poster.acting():
                services.post_many(poster=Poster.of(poster), drafts=drafts, now=timezone.now())
            return size

        return post

    return work


def _draft(recipient: Caller, group: Group | None) -> ReceiptDraft:
    return ReceiptDraft(
        recipient_id=recipient.principal_id,
        source_system=SOURCE,
        event_type="message",
        dedupe_key=_key(),
        title="A receipt",
        summary=_SUMMARY,
        metadata={"n": 1},
        group=group,
    )


def _key() -> str:
    return f"{SOURCE}:message:{secrets.token_hex(8)}:v1"
