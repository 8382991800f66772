"""Statements that are too hot for the ORM, or beyond it. Those of the search index are in `search.py`."""

import json
from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

from apps.core.sql import execute, fetch
from apps.memory.envelopes import DEFAULT_DAYS, Constraints, Conversation, Known, Remembered
from apps.memory.states import ItemType

# The newest of each type that an envelope holds.
_MOST: Final = 100
_FACT, _PATTERN, _NARRATIVE = DEFAULT_DAYS.values()


# A subject that is not shared with the viewer gives no row, and costs the same as one that does not exist.
def _shared_with(viewer: str) -> str:
    """That a subject `s` of a tenant with the policy `p` is shared with the principal whose name this expression is."""
    return f"(coalesce(s.share_with, p.share_with) is null or {viewer} = any(coalesce(s.share_with, p.share_with)))"


_SHARED: Final = _shared_with("%(viewer)s")

_COUNTED: Final = "id, text, confidence, source, occurred_at"


# The items of a type that are current, if they have not ended: the last day of a window counts as a whole. An item that is
# valid from its recording on is valid at once, even if its writer's clock is ahead.
_COUNTING: Final = f"""
        select {_COUNTED}
        from memory_memory
        where tenant_id = s.tenant_id and subject_id = s.id and kind = 'item' and domain = w.type and superseded_at is null
          and occurred_at > %(now)s::timestamptz - make_interval(hours => 24 * least(w.days + 1, s.delete_after_days))
          and valid_from <= greatest(recorded_at, %(now)s)"""


# By the same indexes, then memory_memory_current and memory_memory_ending once for each type, and memory_session_of_subject.
# Those with an end are read unordered: in order, those that have ended would be read too.
ENVELOPE: Final = f"""
select s.id, s.key, s.rev, s.display_name, s.learning_level, s.domains, s.preferences::text,
       -- in the order of Constraints and ItemType
       s.memory_enabled, s.learn_patterns, coalesce(s.share_with, p.share_with), s.anonymize_dates, s.delete_after_days,
       coalesce(p.fact_days, {_FACT}), coalesce(p.pattern_days, {_PATTERN}),
       coalesce(p.narrative_days, {_NARRATIVE}), items.found::text, talk.found::text
from memory_subject s
left join memory_memorypolicy p on p.tenant_id = s.tenant_id
left join lateral (
    select json_agg(json_build_array(i.id, w.type, i.text, i.confidence, i.source, i.occurred_at)) as found
    from (values ('USER_FACT', coalesce(p.fact_days, {_FACT})),
                 ('USER_PATTERN', coalesce(p.pattern_days, {_PATTERN})),
                 ('SHARED_NARRATIVE', coalesce(p.narrative_days, {_NARRATIVE}))) w(type, days)
    cross join lateral (
        select {_COUNTED}
        from (({_COUNTING} and valid_to is null
        order by occurred_at desc, id desc
        limit {_MOST}
        ) union all ({_COUNTING} and valid_to > %(now)s
        offset 0
        )) counting
        order by occurred_at desc, id desc
        limit {_MOST}
    ) i
) items on s.memory_enabled
left join lateral (
    select to_json(memory_session) as found
    from memory_session
    where subject_id = s.id
      and (s.delete_after_days is null
           or last_active_at > %(now)s::timestamptz - make_interval(hours => 24 * s.delete_after_days))
    order by last_active_at desc, id desc
    limit 1
) talk on s.memory_enabled
where s.tenant_id = %(tenant)s and s.key = %(subject)s and {_SHARED}
"""


def known(*, tenant_id: int, subject_id: str, viewer: str, now: datetime) -> Known | None:
    """What is known of a subject; None if there is none, or it is not shared with the viewer."""
    given: dict[str, Any] = {"tenant": tenant_id, "subject": subject_id, "viewer": viewer, "now": now}
    found = fetch(ENVELOPE, given, hot=True)
    if not found:
        return None
    row = found[0]
    pk, key, rev, display_name, learning_level, domains, preferences, *rules = row[:-5]
    *days, items, talk = row[-5:]
    return Known(
        subject_pk=pk,
        subject_id=key,
        rev=rev,
        display_name=display_name,
        learning_level=learning_level,
        domains=domains,
        preferences=json.loads(preferences),
        constraints=Constraints(**dict(zip(Constraints.model_fields, rules, strict=True))),
        days=dict(zip(ItemType, days, strict=True)),
        # PostgreSQL writes moments in JSON as ISO 8601.
        items=[
            Remembered(pk, _TYPES[type_], text, confidence, source, datetime.fromisoformat(said_at))
            for pk, type_, text, confidence, source, said_at in json.loads(items or "[]")
        ],
        conversation=Conversation.model_validate_json(talk) if talk else None,
    )


_TYPES: Final = {type_.value: type_ for type_ in ItemType}


# The subject is locked, so that it is not forgotten before this transaction ends.
NOTE_LOAD: Final = """
insert into memory_envelopeloaded (tenant_id, subject_id, viewer_id, rev, digest, loaded_at)
select tenant_id, id, %(viewer)s, %(rev)s, %(digest)s, %(now)s from memory_subject where id = %(subject)s for key share
"""


def note_load(*, subject_pk: int, viewer_id: int, rev: int, digest: bytes, now: datetime) -> bool:
    """Record that a principal is given an envelope; False if the subject has just been forgotten."""
    given: dict[str, Any] = {"subject": subject_pk, "viewer": viewer_id, "rev": rev, "digest": digest, "now": now}
    return bool(execute(NOTE_LOAD, given, hot=True))


# By memory_session_recent, each with its subject by its key.
RECENT: Final = f"""
select c.conversation_id, c.platform, c.title, c.summary, c.topics, c.tone, c.last_active_at,
       coalesce(s.anonymize_dates, false)
from principals_principal v
left join memory_memorypolicy p on p.tenant_id = v.tenant_id
join memory_session c on c.tenant_id = v.tenant_id and c.principal_id = v.id
left join memory_subject s on s.id = c.subject_id
where v.id = %(principal)s
  and (c.subject_id is null
       or (s.memory_enabled and {_shared_with("v.name")}
           and c.last_active_at
               > coalesce(%(now)s::timestamptz - make_interval(hours => 24 * s.delete_after_days), '-infinity')))
order by c.last_active_at desc, c.id desc
limit %(limit)s
"""


_HELD: Final = """
select coalesce(sum(observations), 0)::bigint, coalesce(sum(patterns), 0)::bigint, coalesce(sum(concepts), 0)::bigint,
       array(select name from principals_principal
             where tenant_id = %(tenant)s and kind = 'service' and disabled_at is null order by name)
from memory_searchtotals where tenant_id = %(tenant)s and scope = 0
"""


def held(*, tenant_id: int) -> tuple[int, int, int, list[str]]:
    """How many observations, patterns and concepts a tenant has that are about no subject, and its enabled services.

    Memories of a subject are not counted here: their number is only for those who may read the subject.
    """
    observations, patterns, concepts, services = fetch(_HELD, {"tenant": tenant_id}, hot=True)[0]
    return observations, patterns, concepts, services


# By the key, memory_memory_saying and memory_memory_by_newer.
_LINEAGE: Final = """
with recursive lineage as (
    select same.id
    from memory_memory i cross join lateral (
        select id from memory_memory where subject_id = i.subject_id and text_digest = i.text_digest offset 0
    ) same
    where i.id = %(item)s and i.subject_id = %(subject)s
    union
    select other.id
    from lineage join memory_memory i on i.id = lineage.id cross join lateral (
        select id from memory_memory where superseded_by_id = i.id
        union all
        select id from memory_memory where subject_id = i.subject_id and text_digest = i.text_digest offset 0
    ) other
)
select id from lineage
"""


def lineage(*, subject_pk: int, item_pk: int) -> list[int]:
    """An item of a subject, all items with the same text, and whatever these had superseded."""
    return [pk for (pk,) in fetch(_LINEAGE, {"subject": subject_pk, "item": item_pk})]


_RESTING: Final = """
select id from memory_memory
where tenant_id = %(tenant)s and kind in ('observation', 'pattern') and session_id is null
  and evidence <> '[]' and evidence <@ to_jsonb(%(refs)s::text[])
"""
_DROP_EVIDENCE: Final = """
update {table} set evidence = coalesce((
    select jsonb_agg(ref order by place) from jsonb_array_elements(evidence) with ordinality e(ref, place)
    where not ref <@ to_jsonb(%(refs)s::text[])), '[]')
where tenant_id = %(tenant)s and evidence ?| %(refs)s::text[]
"""
# An earlier reading may rest on these references alone where the pattern itself does not.
_DROP_RESTING: Final = """
delete from memory_revision
where tenant_id = %(tenant)s and evidence <> '[]' and evidence <@ to_jsonb(%(refs)s::text[])
"""


def resting_on(tenant_id: int, refs: Collection[str]) -> list[int]:
    """The observations outside of sessions, and the patterns, that cite these references and nothing else."""
    return [pk for (pk,) in fetch(_RESTING, {"tenant": tenant_id, "refs": list(refs)})]


def drop_evidence(tenant_id: int, refs: Collection[str]) -> None:
    """Remove these references from the evidence of all memories, and earlier readings that rest on nothing else."""
    given: dict[str, Any] = {"tenant": tenant_id, "refs": list(refs)}
    execute(_DROP_RESTING, given)
    for table in ("memory_memory", "memory_revision"):
        execute(_DROP_EVIDENCE.format(table=table), given)


# Those that are waited for may read whole tables.
_AWAIT: Final = """
select set_config('lock_timeout', '1h', true),
       pg_advisory_xact_lock(hashtextextended('memory.forgetting of ' || %(tenant)s, 0)),
       set_config('lock_timeout', usual, true)
from (select current_setting('lock_timeout') as usual offset 0) s
"""


def await_turn(tenant_id: int) -> None:
    """Let one transaction at a time forget something of a tenant. Call it before locking anything."""
    execute(_AWAIT, {"tenant": tenant_id})
