"""Memory: recall among few and many memories, envelopes, and what an agent begins with."""

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import psycopg
from django.conf import settings
from django.utils import timezone

from apps.core.sql import fetch
from apps.memory import search, services
from apps.memory.selectors import recall
from apps.memory.shapes import RememberFact
from apps.memory.states import ItemType
from apps.principals.tenancy import Caller
from benchmarks.bench import Bench
from benchmarks.measure import Operation, Row, Work, apart, side_by_side, statements
from benchmarks.urls import HELLO

# How many times its peer each may take.
_GOALS: Final = {200: 0, 1_000: 12, 10_000: 20, 100_000: 35}
# From so many memories on, the goal is the milliseconds of the median.
_MANY: Final = 1_000_000
_MANY_MS: Final = 10
SUBJECT: Final = "USER:typical"
_AT_ONCE: Final = 400
_WRITERS: Final = 2
_SPEAKERS: Final = ("Nadia", "Tom")


def run(bench: Bench) -> Iterator[Row]:
    """Every case of the suite."""
    yield from _recalls(bench)
    yield from _envelopes(bench)


def _recalls(bench: Bench) -> Iterator[Row]:
    """Questions of a few words that some memory has, one at a time."""
    reader, held = bench.agents[0], 0
    most = bench.scale.memories
    for size in [*(size for size in _GOALS if size < most), most]:
        parts = [range(start, min(start + _AT_ONCE, size)) for start in range(held, size, _AT_ONCE)]
        side_by_side(*[partial(_store, reader, parts[writer::_WRITERS]) for writer in range(_WRITERS)])
        apart(_settle)
        held = size
        row = _timed(bench, f"recall among {size:,} memories", partial(_recalling, reader))
        if size >= _MANY:
            row = row.judged(f"p50 under {_MANY_MS} ms", met=row.p50 is not None and row.p50 < _MANY_MS)
        yield row.at_most(_GOALS[size]) if _GOALS.get(size) else row


def _timed(bench: Bench, case: str, work: Work, note: str = "") -> Row:
    reader = bench.agents[0]
    one_row = partial(fetch, "select name from principals_principal where id = %s", [reader.principal_id], hot=True)
    peer = partial(_asking, reader, one_row)
    return bench.row(case, work, peer, "one row by its key", statements=statements(work), note=note)


def _texts(seed: int) -> Iterator[str]:
    """Sentences of ten to thirty words, common and rare as the words of a language are."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    words = [f"b{rank}x" for rank in range(20_000)]
    shares = list(itertools.accumulate(1 / (rank + 10) for rank in range(len(words))))
    while True:
        yield " ".join(chance.choices(words, cum_weights=shares, k=chance.randint(10, 30)))


def _store(author: Caller, parts: list[range]) -> None:
    """Store memories through the product's service; half of them are messages of conversations."""
    for part in parts:
        texts = _texts(part.start)
        with author.acting():
            for number in part:
                message: dict[str, Any] = {"speaker": _SPEAKERS[number % 4 // 2]}
                message["conversation_id"] = f"talk-{number // 40}"
                services.store_observation(
                    author=author, text=next(texts), now=timezone.now(), **(message if number % 2 else {})
                )


def _settle() -> None:
    """What ticks and autovacuum do after a while."""
    search.fold_totals()
    search.count_frequencies()
    with psycopg.connect(settings.DATABASE_URL_OWNER, autocommit=True) as owner:
        owner.execute("vacuum analyze")


def _recalling(reader: Caller, number: int) -> Operation:
    chance = random.Random(number)  # noqa: S311  # no secret
    texts = list(itertools.islice(_texts(0), 200))

    def ask() -> None:
        words = chance.sample(chance.choice(texts).split(), k=chance.randint(3, 5))
        words += chance.sample(_SPEAKERS, k=chance.randint(0, 1))
        with reader.acting():
            recall(" ".join(words), caller=reader)

    return ask


def _envelopes(bench: Bench) -> Iterator[Row]:
    """An envelope of a subject with many items, and what an agent begins with; in process and over HTTP."""
    agent = bench.agents[0]
    apart(partial(remember, agent))

    def envelope() -> object:
        return services.get_memory_envelope(viewer=agent, subject_id=SUBJECT, now=timezone.now())

    def bootstrap() -> object:
        return services.bootstrap(
            principal_id=agent.principal_id, tenant_id=agent.tenant_id, ai_name=agent.name, now=timezone.now()
        )

    for case, ask, aim in (("envelope", envelope, "aim: 1 ms"), ("bootstrap", bootstrap, "aim: 2 ms")):
        yield _timed(bench, case, partial(_asking, agent, ask), aim).at_most(16)
    over_http, hello = bench.asking("GET", f"/api/v1/subjects/{SUBJECT}/envelope"), bench.asking("GET", HELLO)
    yield bench.row("envelope over HTTP", over_http, hello, "hello view", note="aim: 2 ms").at_most(3.5)


def _asking(agent: Caller, ask: Callable[[], object], _number: int) -> Operation:
    def once() -> None:
        with agent.acting():
            ask()

    return once


def remember(agent: Caller) -> None:
    now = timezone.now()
    with agent.acting():
        given = {"display_name": "Z8phyR", "domains": ["music production", "FL Studio"]}
        preferences = {"communication_style": "casual", "detail_level": "high"}
        services.add_subject(author=agent, subject_id=SUBJECT, given=given, preferences=preferences, now=now)
        for number in range(15):
            for type_ in ItemType:
                text = f"In session {number} it turned out that {number} is what they like most ({type_})."
                draft = RememberFact(subject_id=SUBJECT, fact=text, type=type_, source=f"session {number}")
                services.remember(author=agent, draft=draft, now=now)
