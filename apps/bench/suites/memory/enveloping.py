"""Envelopes of a typical subject, among thousands: kept, made anew, laid out, over HTTP; beside what they can't beat."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

import redis
from django.conf import settings
from django.db import connection
from django.utils import timezone

from apps.bench import load
from apps.bench.bench import Bench
from apps.bench.load import Operation
from apps.bench.rows import Row
from apps.bench.web import Request
from apps.core.sql import hot_cursor
from apps.memory import services
from apps.memory.envelopes import format_envelope_for_llm
from apps.memory.services import ItemDraft, SubjectChange
from apps.memory.states import ItemType
from apps.principals.tenancy import Caller

_SUBJECT: Final = "USER:typical"
_OTHERS: Final = 2_000
_FACTS: Final = 15
_CACHED: Final = 10_240


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What is timed in one process, and what it is held against."""

    case: str
    work: Callable[[Caller, int], Operation]
    baseline: Callable[[Caller, int], Operation]
    baseline_is: str
    times: float
    """How many times its baseline it may take."""
    aim: float
    """The milliseconds that are worked towards."""
    note: str


def rows(bench: Bench) -> Iterator[Row]:
    """An envelope in the process, its text, and an envelope over HTTP."""
    size = load.apart(partial(_remember, bench.world.agents[0]))
    for case in (
        _Case(
            case="envelope",
            work=_misses,
            baseline=_one_get,
            baseline_is="Redis GET of 10 KB",
            times=16,
            aim=1,
            note=f"{size:,} bytes of JSON.",
        ),
        _Case(
            case="envelope, formatted",
            work=_layouts,
            baseline=_one_dump,
            baseline_is="json.dumps of it",
            times=2,
            aim=0.1,
            note="Five facts, patterns, narratives.",
        ),
    ):
        yield _timed(bench, case)
    yield from _over_http(bench)


def _timed(bench: Bench, case: _Case) -> Row:
    agent, seconds = bench.world.agents[0], bench.scale.seconds
    work = partial(case.work, agent)
    compared = load.in_turns(
        partial(load.drive, work, seconds=seconds),
        partial(load.drive, partial(case.baseline, agent), seconds=seconds),
        rounds=bench.scale.rounds,
    )
    row = Row.of_latencies(
        compared, case=case.case, baseline_is=case.baseline_is, statements=load.statements(work), note=case.note
    )
    return row.at_most(case.times, aim=f"p50 {case.aim:g} ms")


def _over_http(bench: Bench) -> Iterator[Row]:
    web, scale, token = bench.processes.web(), bench.scale, bench.world.token
    hello = Request(method="GET", path="/api/v1/hello", token=token)
    asked = Request(method="GET", path=f"/api/v1/subjects/{_SUBJECT}/envelope", token=token)
    ours, theirs = (web.slices(one, clients=1, seconds=scale.seconds) for one in (asked, hello))
    compared = load.in_turns(ours, theirs, rounds=scale.rounds)
    row = Row.of_latencies(compared, case="envelope over HTTP", baseline_is="hello view")
    yield row.at_most(3.5, aim="p50 2 ms")


def _remember(agent: Caller) -> int:
    """A subject with all that an envelope has, and many others; how large the envelope is."""
    now = timezone.now()
    with agent.acting():
        change = SubjectChange(
            given={"display_name": "Z8phyR", "domains": ["music production", "FL Studio"]},
            preferences={"communication_style": "casual", "detail_level": "high", "explanation_style": "step-by-step"},
        )
        services.add_subject(author=agent, subject_id=_SUBJECT, change=change, now=now)
        for number in range(_FACTS):
            for type_ in ItemType:
                text = (
                    f"In session {number} it turned out that number {number} is what they like most of all ({type_})."
                )
                draft = ItemDraft(subject_id=_SUBJECT, text=text, type=type_, source=f"session {number}")
                services.remember(author=agent, draft=draft, now=now - timedelta(hours=number))
        services.record_session(
            principal=agent, conversation_id="bench", subject_id=_SUBJECT, summary="We spoke of numbers.", now=now
        )
        with connection.cursor() as cursor:
            cursor.execute(_MANY, {"tenant": agent.tenant_id, "agent": agent.principal_id, "now": now, "many": _OTHERS})
        found = services.get_memory_envelope(viewer=agent, subject_id=_SUBJECT, now=now)
    with connection.cursor() as cursor:
        cursor.execute("set role none; analyze memory_subject, memory_item, memory_session")
    return len(found.model_dump_json())


_MANY: Final = """
with s as (
    insert into memory_subject (tenant_id, key, display_name, learning_level, domains, preferences, memory_enabled,
                                learn_patterns, anonymize_dates, rev, created_at, revised_at)
    select %(tenant)s, 'USER:' || i, '', '', '{}', '{}', true, true, false, 1, %(now)s, %(now)s
    from generate_series(1, %(many)s) i returning id
)
insert into memory_item (tenant_id, subject_id, author_id, type, text, text_digest, confidence, source, stated, evidence,
                         valid_from, said_at, recorded_at)
select %(tenant)s, s.id, %(agent)s, 'USER_FACT', 'fact ' || n, sha256(n::text::bytea), 0.5, '', false, '[]', %(now)s,
       %(now)s, %(now)s
from s, generate_series(1, 20) n
"""


def _misses(agent: Caller, _number: int) -> Operation:
    """As a process asks that is in a transaction: what beginning and ending one takes is in the figures over HTTP."""

    began = agent.acting()

    # The transaction lasts as long as somebody holds what began it.
    def ask(_held: object = began) -> int:
        services.get_memory_envelope(viewer=agent, subject_id=_SUBJECT, now=timezone.now())
        return 1

    with agent.acting():
        ask()
    began.__enter__()
    return ask


def _layouts(agent: Caller, _number: int) -> Operation:
    with agent.acting():
        found = services.get_memory_envelope(viewer=agent, subject_id=_SUBJECT, now=timezone.now())

    def lay_out() -> int:
        format_envelope_for_llm(found)
        return 1

    return lay_out


def _one_dump(agent: Caller, _number: int) -> Operation:
    with agent.acting():
        found = services.get_memory_envelope(viewer=agent, subject_id=_SUBJECT, now=timezone.now())
    document = found.model_dump(mode="json")

    def dump() -> int:
        json.dumps(document)
        return 1

    return dump


def _one_select(agent: Caller, _number: int) -> Operation:
    agent.acting().__enter__()

    def select() -> int:
        with hot_cursor() as cursor:
            cursor.execute(
                "select key from memory_subject where tenant_id = %s and key = %s", [agent.tenant_id, _SUBJECT]
            )
            cursor.fetchone()
        return 1

    return select


def _one_get(_agent: Caller, _number: int) -> Operation:
    client = redis.Redis.from_url(settings.REDIS_URL)
    client.set("bench:envelope", os.urandom(_CACHED))

    def get() -> int:
        client.get("bench:envelope")
        return 1

    return get
