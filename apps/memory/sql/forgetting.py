"""The statements by which something is forgotten."""

from collections.abc import Collection
from typing import Any, Final

from django.db import connection

_TURN: Final = "hashtextextended('memory.forgetting of ' || {tenant}, 0)"
# Those before may read whole tables.
_AWAIT: Final = f"""
select set_config('lock_timeout', '1h', true), pg_advisory_xact_lock({_TURN.format(tenant="%(tenant)s")}),
       set_config('lock_timeout', usual, true)
from (select current_setting('lock_timeout') as usual offset 0) s
"""
_TRY: Final = f"""
select pg_try_advisory_xact_lock({_TURN.format(tenant="tenant_id")}) from memory_subject where id = %(subject)s
"""
# By the key, memory_item_of_text and memory_item_by_newer.
LINEAGE: Final = """
with recursive lineage as (
    select same.id
    from memory_item i cross join lateral (
        select id from memory_item where subject_id = i.subject_id and text_digest = i.text_digest offset 0
    ) same
    where i.id = %(item)s and i.subject_id = %(subject)s
    union
    select other.id
    from lineage join memory_item i on i.id = lineage.id cross join lateral (
        select id from memory_item where superseded_by_id = i.id
        union all
        select id from memory_item where subject_id = i.subject_id and text_digest = i.text_digest offset 0
    ) other
)
select id from lineage
"""
_RESTING: Final = """
select id from {table}
where tenant_id = %(tenant)s and evidence <> '[]' and evidence <@ to_jsonb(%(refs)s::text[]) and {also}
"""
_DERIVED: Final = {"memory_observation": "session_id is null", "memory_pattern": "true"}
_DROP_EVIDENCE: Final = """
update {table} set {also}evidence = coalesce((
    select jsonb_agg(ref order by place) from jsonb_array_elements(evidence) with ordinality e(ref, place)
    where not ref <@ to_jsonb(%(refs)s::text[])), '[]')
where tenant_id = %(tenant)s and evidence ?| %(refs)s::text[]
"""
# An earlier revision may rest on forgotten rows alone where the pattern itself does not.
_REVISION: Final = "text = case when evidence <@ to_jsonb(%(refs)s::text[]) then '' else text end, "
_CITING: Final = {
    "memory_item": "", "memory_observation": "", "memory_pattern": "", "memory_patternrevision": _REVISION,
}  # fmt: skip


def await_turn(tenant_id: int) -> None:
    """Let one transaction at a time forget something of a tenant. Call it before anything is locked."""
    with connection.cursor() as cursor:
        cursor.execute(_AWAIT, {"tenant": tenant_id})


def try_turn(subject_pk: int) -> bool:
    """As :func:`await_turn` for the tenant of a subject; False if another has the turn, or the subject is gone."""
    return _column(_TRY, subject=subject_pk) == [True]


def lineage(*, subject_pk: int, item_pk: int) -> list[int]:
    """An item of a subject, all that say the same, and whatever these had superseded."""
    return _column(LINEAGE, subject=subject_pk, item=item_pk)


def resting_on(tenant_id: int, refs: Collection[str]) -> dict[str, set[int]]:
    """The observations outside of sessions, and the patterns, that cite these references and nothing else."""
    return {
        table: set(_column(_RESTING.format(table=table, also=also), tenant=tenant_id, refs=list(refs)))
        for table, also in _DERIVED.items()
    }


def drop_evidence(tenant_id: int, refs: Collection[str]) -> None:
    """Remove these references from the evidence of all memories."""
    with connection.cursor() as cursor:
        for table, also in _CITING.items():
            cursor.execute(_DROP_EVIDENCE.format(table=table, also=also), {"tenant": tenant_id, "refs": list(refs)})


def _column(statement: str, **given: Any) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
        return [value for (value,) in cursor.fetchall()]
