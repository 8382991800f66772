"""The statements behind envelopes: all that an envelope says, and what ends it."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import connection

from apps.core.sql import hot_cursor
from apps.memory.envelopes import Constraints, Conversation, Known, Remembered, Windows
from apps.memory.sql.postings import COMMON_AMONG
from apps.memory.sql.tallies import drop_rare, keep_still
from apps.memory.states import ItemType

# The newest of each type that an envelope holds.
_MOST: Final = 100
_DEFAULT: Final = Windows()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


# Whom a subject is not shared with gets no row from any of these statements, and so does as little as for one that is
# not there.
def shared_with(viewer: str) -> str:
    """That a subject `s` of a tenant with the policy `p` is shared with one whose name this expression is."""
    return f"(coalesce(s.share_with, p.share_with) is null or {viewer} = any(coalesce(s.share_with, p.share_with)))"


_SHARED: Final = shared_with("%(viewer)s")

# By memory_subject_key_once and memory_memorypolicy_once. Hours, because a day of a calendar may have 23.
READABLE: Final = f"""
select s.id, s.memory_enabled, s.anonymize_dates,
       gatehouse_now() - make_interval(hours => 24 * s.delete_after_days)
from memory_subject s left join memory_memorypolicy p on p.tenant_id = s.tenant_id
where s.tenant_id = %(tenant)s and s.key = %(subject)s and {_SHARED}
"""  # constants only


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """A subject that is shared with somebody, and what of it may be shown."""

    pk: int
    memory_enabled: bool
    anonymize_dates: bool
    since: datetime | None
    """What was said at this moment or before is not shown; None: all is."""


def readable(*, tenant_id: int, subject_id: str, viewer: str) -> Readable | None:
    """A subject by its id; None if there is none, or it is not shared with the viewer."""
    with hot_cursor() as cursor:
        cursor.execute(READABLE, {"tenant": tenant_id, "subject": subject_id, "viewer": viewer})
        row: tuple[int, bool, bool, datetime | None] | None = cursor.fetchone()
    if row is None:
        return None
    return Readable(pk=row[0], memory_enabled=row[1], anonymize_dates=row[2], since=row[3])


def _micros(moment: str) -> str:
    return f"(extract(epoch from {moment}) * 1000000)::bigint"


_COUNTED: Final = "id, text, confidence, source, said_at, recorded_at, valid_from, valid_to"


# What of a type counts at this moment, if it has not ended.
_COUNTING: Final = f"""
        select {_COUNTED}
        from memory_item
        where tenant_id = s.tenant_id and subject_id = s.id and type = w.type and superseded_at is null
          and said_at > %(now)s::timestamptz - make_interval(hours => 24 * (w.days + 1))
          and valid_from <= greatest(recorded_at, %(now)s)"""


# By the same indexes, then memory_item_current and memory_item_ending once for each type, and memory_session_of_subject. No order is asked of what has an end: by that, what has ended would be read too. Hours, because a
# day of a calendar may have 23.
ENVELOPE: Final = f"""
select s.id, s.key, s.rev, s.display_name, s.learning_level, s.domains, s.preferences::text,
       s.memory_enabled, s.learn_patterns, coalesce(s.share_with, p.share_with), s.anonymize_dates, s.delete_after_days,
       coalesce(p.fact_days, {_DEFAULT.fact_days}), coalesce(p.pattern_days, {_DEFAULT.pattern_days}),
       coalesce(p.narrative_days, {_DEFAULT.narrative_days}), items.found::text, talk.found::text
from memory_subject s
left join memory_memorypolicy p on p.tenant_id = s.tenant_id
left join lateral (
    select jsonb_agg(jsonb_build_array(i.id, w.type, i.text, i.confidence, i.source, {_micros("i.said_at")},
                                       {_micros("i.recorded_at")}, {_micros("i.valid_from")}, {_micros("i.valid_to")}))
           as found
    from (values ('USER_FACT', coalesce(p.fact_days, {_DEFAULT.fact_days})),
                 ('USER_PATTERN', coalesce(p.pattern_days, {_DEFAULT.pattern_days})),
                 ('SHARED_NARRATIVE', coalesce(p.narrative_days, {_DEFAULT.narrative_days}))) w(type, days)
    cross join lateral (
        select {_COUNTED}
        from (({_COUNTING} and valid_to is null
        order by said_at desc, id desc
        limit {_MOST}
        ) union all ({_COUNTING} and valid_to > %(now)s
        offset 0
        )) counting
        order by said_at desc, id desc
        limit {_MOST}
    ) i
) items on s.memory_enabled
left join lateral (
    select jsonb_build_array(conversation_id, {_micros("last_active_at")}, summary, topics, tone) as found
    from memory_session
    where subject_id = s.id
      and (s.delete_after_days is null
           or last_active_at > %(now)s::timestamptz - make_interval(hours => 24 * s.delete_after_days))
    order by last_active_at desc, id desc
    limit 1
) talk on s.memory_enabled
where s.tenant_id = %(tenant)s and s.key = %(subject)s and {_SHARED}
"""  # constants only


def known(*, tenant_id: int, subject_id: str, viewer: str, now: datetime) -> Known | None:
    """What is known of a subject; None if there is none, or it is not shared with the viewer."""
    given: dict[str, Any] = {"tenant": tenant_id, "subject": subject_id, "viewer": viewer, "now": now}
    with hot_cursor() as cursor:
        cursor.execute(ENVELOPE, given)
        row = cursor.fetchone()
    if row is None:
        return None
    pk, key, rev, display_name, learning_level, domains, preferences, *rules = row[:-5]
    memory_enabled, learn_patterns, share_with, anonymize_dates, delete_after_days = rules
    *days, items, talk = row[-5:]
    return Known(
        subject_pk=pk,
        subject_id=key,
        rev=rev,
        display_name=display_name,
        learning_level=learning_level,
        domains=domains,
        preferences=json.loads(preferences),
        constraints=Constraints(
            memory_enabled=memory_enabled,
            learn_patterns=learn_patterns,
            share_with=share_with,
            anonymize_dates=anonymize_dates,
            delete_after_days=delete_after_days,
        ),
        windows=Windows(fact_days=days[0], pattern_days=days[1], narrative_days=days[2]),
        items=_items(json.loads(items or "[]")),
        conversation=_conversation(json.loads(talk)) if talk else None,
    )


_TYPES: Final = {type_.value: type_ for type_ in ItemType}


class _Moments(dict[int, datetime]):
    """Moments by their microseconds; most of an item's are the same one."""

    def __missing__(self, micros: int) -> datetime:
        moment = self[micros] = _at(micros)
        return moment


def _items(rows: list[list[Any]]) -> list[Remembered]:
    at = _Moments()
    return [
        Remembered(
            id=pk,
            type=_TYPES[type_],
            text=text,
            confidence=confidence,
            source=source,
            said_at=at[said_at],
            recorded_at=at[recorded_at],
            valid_from=at[valid_from],
            valid_to=None if valid_to is None else at[valid_to],
        )
        for pk, type_, text, confidence, source, said_at, recorded_at, valid_from, valid_to in rows
    ]


def _conversation(row: list[Any]) -> Conversation:
    conversation_id, last_active_at, summary, topics, tone = row
    return Conversation(
        conversation_id=conversation_id,
        last_active_at=_at(last_active_at),
        summary=summary,
        topics=topics,
        tone=tone,
    )


def _at(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


# As for sql.drop_passages(): its passages are held before they are removed with their vectors.
_HOLD: Final = """
select count(*) from (
    select from memory_subject s join memory_passage p on p.tenant_id = s.tenant_id and p.scope = s.id
    where s.id = %(subject)s order by p.id for update of p) held
"""
# All that is found of a subject, by the indexes that begin with tenant and scope; there may be much, and all of it goes.
# Answers of the common words that it held, in other scopes too: it may have come from there.
_UNINDEX: Final = f"""
with subject as materialized (
    select tenant_id as tenant, id as scope from memory_subject where id = %(subject)s
), words as (
    delete from memory_posting using subject where tenant_id = tenant and memory_posting.scope = subject.scope
    returning memory_posting.tenant_id, term
), vectors as (
    delete from memory_vector using subject where tenant_id = tenant and memory_vector.scope = subject.scope
), passages as (
    delete from memory_passage using subject where tenant_id = tenant and memory_passage.scope = subject.scope
), tallies as (
    delete from memory_tally using subject where tenant_id = tenant and memory_tally.scope = subject.scope
), common as (
    delete from memory_commonword using subject where tenant_id = tenant and memory_commonword.scope = subject.scope
), counted as (
    delete from memory_wordcount using subject where tenant_id = tenant and memory_wordcount.scope = subject.scope
)
{COMMON_AMONG}
"""  # constants only
# By memory_envelopeloaded_to, memory_item_of_subject and the key. An item refers to another of the same subject only.
_DROP: Final = {
    "memory_envelopeloaded": "delete from memory_envelopeloaded where subject_id = %(subject)s",
    "memory_item": "delete from memory_item where subject_id = %(subject)s",
    "memory_subject": "delete from memory_subject where id = %(subject)s",
}


def drop_subject(subject_pk: int, *, common: int) -> dict[str, int]:
    """Remove a subject with all that is remembered of it and what that is found by; answers of which tables how much.

    Its sessions are for the caller to part from it first. `common` is as for :func:`drop_passages`.
    """
    keep_still()
    with connection.cursor() as cursor:
        cursor.execute(_HOLD, {"subject": subject_pk})
        cursor.execute(_UNINDEX, {"subject": subject_pk})
        words = [pk for (pk,) in cursor.fetchall()]
        numbers: dict[str, int] = {}
        for table, statement in _DROP.items():
            cursor.execute(statement, {"subject": subject_pk})
            numbers[table] = cursor.rowcount
    drop_rare(words, common=common)
    return numbers


# The subject is held, lest it be forgotten before this transaction ends.
NOTE_LOAD: Final = """
insert into memory_envelopeloaded (tenant_id, subject_id, viewer_id, rev, digest, loaded_at)
select tenant_id, id, %(viewer)s, %(rev)s, %(digest)s, %(now)s from memory_subject where id = %(subject)s for key share
"""


def note_load(*, subject_pk: int, viewer_id: int, rev: int, digest: bytes, now: datetime) -> bool:
    """Record that a principal is given an envelope; False if the subject has just been forgotten."""
    given: dict[str, Any] = {"subject": subject_pk, "viewer": viewer_id, "rev": rev, "digest": digest, "now": now}
    with hot_cursor() as cursor:
        cursor.execute(NOTE_LOAD, given)
        return bool(cursor.rowcount)


# Subjects of which something may have had its days: by memory_subject_expiring.
EXPIRED: Final = """
select id from memory_subject where expires_at <= gatehouse_now() order by expires_at limit %(limit)s
"""
# By memory_observation_said: when the oldest turn of a session that is not forgotten was said.
_OLDEST_TURN: Final = """
(select least(occurred_at, recorded_at) from memory_observation
 where session_id = c.id and text <> '' order by least(occurred_at, recorded_at) limit 1)
"""
_HAS_HAD_ITS_DAYS: Final = "<= gatehouse_now() - make_interval(hours => 24 * s.delete_after_days)"
# Its sessions with something that has had its days, held, and whether they have had theirs as wholes: by
# memory_session_of_subject.
EXPIRED_SESSIONS: Final = f"""
select c.id, c.last_active_at {_HAS_HAD_ITS_DAYS}
from memory_session c join memory_subject s on s.id = c.subject_id
where s.id = %(subject)s and (c.last_active_at {_HAS_HAD_ITS_DAYS} or {_OLDEST_TURN} {_HAS_HAD_ITS_DAYS})
order by c.id for update of c
"""  # constants only
# The oldest turns of a session that goes on, by the same index.
EXPIRED_TURNS: Final = f"""
select t.id
from memory_session c join memory_subject s on s.id = c.subject_id
cross join lateral (
    select id, least(occurred_at, recorded_at) as said_at from memory_observation
    where session_id = c.id and text <> '' order by least(occurred_at, recorded_at) limit %(limit)s
) t
where c.id = any(%(sessions)s::bigint[]) and t.said_at {_HAS_HAD_ITS_DAYS}
"""  # constants only
# By memory_item_of_subject.
EXPIRED_ITEMS: Final = f"""
select i.id from memory_item i join memory_subject s on s.id = i.subject_id
where s.id = %(subject)s and i.said_at {_HAS_HAD_ITS_DAYS}
order by i.said_at, i.id
limit %(limit)s
"""  # constants only
# When the oldest of what is left has had its days, by the same indexes. Says whether that is past.
NEXT_EXPIRY: Final = f"""
update memory_subject s set expires_at = least(
        (select min(said_at) from memory_item where subject_id = s.id),
        (select min(least(c.last_active_at, {_OLDEST_TURN})) from memory_session c where c.subject_id = s.id)
    ) + make_interval(hours => 24 * s.delete_after_days)
where id = %(subject)s
returning coalesce(expires_at <= gatehouse_now(), false)
"""  # constants only
# By memory_envelopeloaded_old.
DROP_OLD_LOADS: Final = """
delete from memory_envelopeloaded where id = any(array(
    select id from memory_envelopeloaded where loaded_at < gatehouse_now() - %(kept)s::interval limit %(limit)s))
"""
