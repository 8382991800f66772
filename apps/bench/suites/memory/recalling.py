"""Recall at growing numbers of memories, beside one indexed SELECT."""

import itertools
import random
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from django.db import connection

from apps.bench import load
from apps.bench.bench import Bench
from apps.bench.load import Operation
from apps.bench.rows import Row
from apps.core.sql import hot_cursor
from apps.memory import services
from apps.memory.models import SPAN_BITS
from apps.memory.selectors import recall
from apps.principals.tenancy import Caller, acting_as_system

# How many times its baseline each may take, and the milliseconds that are worked towards.
_GOALS: Final = {1_000: (12, 3), 10_000: (20, 5), 100_000: (35, 10)}
_TURNS: Final = 20
_SPEAKERS: Final = ("Nadia", "Tom")
_VOCABULARY: Final = 20_000
_CHUNK: Final = 5_000
_ONE: Final = "select text from memory_observation where id = %(id)s"

# Rows as the services write them; half of them turns of sessions, the others single memories.
_FILL: Final = """
with given as materialized (
    select ordinality as n, text, to_tsvector('english', text) as words
    from unnest(%(texts)s::text[]) with ordinality as t(text, ordinality)
), talks as (
    insert into memory_session (tenant_id, principal_id, conversation_id, platform, title, summary, topics, tone, turns,
                                started_at, last_active_at)
    select %(tenant)s, %(author)s, %(chunk)s || '-' || talk, '', '', '', '{}', '', %(turns)s, now(), now()
    from generate_series(0, (select count(*) / 2 / %(turns)s from given)::int) talk
    returning id, conversation_id
), said as (
    insert into memory_observation (tenant_id, author_id, text, domain, confidence, evidence, metadata, occurred_at,
                                    recorded_at, speaker, session_id)
    select %(tenant)s, %(author)s, text, '', 0.8, '[]', '{}', now(), now(),
           case when n %% 2 = 0 then (array['Nadia', 'Tom'])[1 + n / 2 %% 2] else '' end, talks.id
    from given left join talks
        on n %% 2 = 0 and talks.conversation_id = %(chunk)s || '-' || (n / 2 / %(turns)s)
    order by n
    returning id, text, speaker, session_id, recorded_at
), placed as (
    select *, row_number() over (partition by session_id order by id) - 1 as turn from said
), passage as (
    insert into memory_passage (id, tenant_id, observation_id, domain, length, recorded_at, words)
    select case when session_id is null then (nextval(pg_get_serial_sequence('memory_passage', 'id')))
                else (session_id << %(span)s) + turn end,
           %(tenant)s, id, '', length(to_tsvector('english', text)), recorded_at, to_tsvector('english', text)
    from placed
    returning id, observation_id, words, length
), posting as (
    insert into memory_posting (tenant_id, term, passage_id, frequency, length, of_context)
    select %(tenant)s, w.lexeme, p.id, w.frequency, p.length, w.of_context
    from passage p
    join said on said.id = p.observation_id
    cross join lateral (
        select lexeme, coalesce(cardinality(i.positions), 0) as frequency, a.lexeme is not null as of_context
        from unnest(p.words) i
        full join unnest(to_tsvector('english', said.speaker || case when said.session_id is null then ''
                                                                     else ' January 2024' end)) a using (lexeme)
    ) w
)
insert into memory_tally (tenant_id, observations, patterns, concepts, passages, words)
select %(tenant)s, count(*), 0, 0, count(*), sum(length) from passage
"""


def rows(bench: Bench) -> Iterator[Row]:
    """Questions of a few words that some memory has, one at a time."""
    held = 0
    for size, (times, aim) in _GOALS.items():
        if size > bench.scale.memories:
            return
        reader = bench.world.agents[0]
        load.apart(partial(_fill, reader, held, size))
        held = size
        texts = list(itertools.islice(_texts(seed=0), _CHUNK))
        compared = load.in_turns(
            partial(load.drive, partial(_recalls, reader, texts), seconds=bench.scale.seconds),
            partial(load.drive, partial(_selects, reader), seconds=bench.scale.seconds),
            rounds=bench.scale.rounds,
        )
        row = Row.of_latencies(
            compared,
            case=f"recall among {size:,} memories",
            baseline_is="one row by its key",
            statements=load.statements(partial(_recalls, reader, texts)),
            note="Half of them turns of conversations; three to five words of one of them, with a speaker's name or not.",
        )
        yield row.at_most(times, aim=f"p50 {aim} ms")


def _texts(*, seed: int) -> Iterator[str]:
    """Sentences of ten to thirty words, common and rare as words of a language are."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    words = [f"{chance.choice('bdfgklmnprstvz')}{chance.choice('aeiou')}{rank}x" for rank in range(_VOCABULARY)]
    shares = list(itertools.accumulate(1 / (rank + 10) for rank in range(_VOCABULARY)))
    while True:
        yield " ".join(chance.choices(words, cum_weights=shares, k=chance.randint(10, 30)))


def _fill(reader: Caller, held: int, size: int) -> None:
    texts = itertools.islice(_texts(seed=0), held, size)
    while chunk := list(itertools.islice(texts, _CHUNK)):
        given: dict[str, Any] = {"tenant": reader.tenant_id, "author": reader.principal_id, "texts": chunk}
        with acting_as_system("measuring"), connection.cursor() as cursor:
            cursor.execute(_FILL, given | {"chunk": f"{held}", "turns": _TURNS, "span": SPAN_BITS})
        held += len(chunk)
    services.fold_tallies()
    services.count_common_words()
    with connection.cursor() as cursor:
        # As autovacuum does after so many rows, in its time.
        cursor.execute("set role none")
        cursor.execute("vacuum (analyze)")
        cursor.execute("reset role")


def _recalls(reader: Caller, texts: list[str], number: int) -> Operation:
    chance = random.Random(number)  # noqa: S311  # no secret

    def ask() -> int:
        words = chance.sample(chance.choice(texts).split(), k=chance.randint(3, 5))
        if chance.random() < 0.5:  # noqa: PLR2004  # half of them
            words.append(chance.choice(_SPEAKERS))
        with reader.acting():
            recall(" ".join(words), caller=reader)
        return 1

    return ask


def _selects(reader: Caller, number: int) -> Operation:
    with reader.acting(), connection.cursor() as cursor:
        cursor.execute("select id from memory_observation limit 1000")
        ids = [pk for (pk,) in cursor.fetchall()]
    turn = itertools.count(number)

    def select() -> int:
        with reader.acting(), hot_cursor() as cursor:
            cursor.execute(_ONE, {"id": ids[next(turn) % len(ids)]})
            cursor.fetchone()
        return 1

    return select
