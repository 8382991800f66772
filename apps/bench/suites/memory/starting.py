"""What an agent asks for when it begins, while very much waits for it."""

import secrets
from collections.abc import Iterator
from functools import partial
from typing import Final

from django.db import connection
from django.utils import timezone

from apps.bench import growth, load
from apps.bench.bench import Bench
from apps.bench.load import Operation
from apps.bench.rows import Row
from apps.bench.world import SOURCE
from apps.digests import services as inboxes
from apps.digests.services import Poster, ReceiptDraft
from apps.memory import services
from apps.principals.tenancy import Caller

_MANY: Final = 100_000
_FEW: Final = 10
# How many times a bootstrap with few waiting one with very many may take.
_TIMES: Final = 1.5


def rows(bench: Bench) -> Iterator[Row]:
    """A bootstrap with many receipts waiting, beside that of an agent with few."""
    laden, idle = bench.world.agents[2:4]
    many = min(bench.scale.receipts, _MANY)
    for reader, waiting in ((laden, many), (idle, _FEW)):
        load.apart(partial(_post, bench.world.poster, reader))
        growth.fill(bench.world.poster, [reader], receipts=waiting - 1, acked=False)
    load.apart(_analyze)
    compared = load.in_turns(
        partial(load.drive, partial(_bootstraps, laden), seconds=bench.scale.seconds),
        partial(load.drive, partial(_bootstraps, idle), seconds=bench.scale.seconds),
        rounds=bench.scale.rounds,
    )
    row = Row.of_latencies(
        compared,
        case=f"bootstrap, {many:,} receipts waiting",
        baseline_is=f"the same, {_FEW} waiting",
        statements=load.statements(partial(_bootstraps, laden)),
    )
    yield row.at_most(_TIMES, aim="p50 2 ms")


def _post(poster: Caller, reader: Caller) -> None:
    """The first, which makes the inbox."""
    draft = ReceiptDraft(
        recipient_id=reader.principal_id,
        source_system=SOURCE,
        event_type="message",
        dedupe_key=f"{SOURCE}:message:{secrets.token_hex(8)}:v1",
        title="A receipt",
        summary="What happened.",
    )
    with poster.acting():
        inboxes.post(poster=Poster.of(poster), draft=draft, now=timezone.now())


def _analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("set role none; analyze; reset role")


def _bootstraps(reader: Caller, _number: int) -> Operation:
    def bootstrap() -> int:
        with reader.acting():
            services.bootstrap(principal_id=reader.principal_id, tenant_id=reader.tenant_id, now=timezone.now())
        return 1

    return bootstrap
