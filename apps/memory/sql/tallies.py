"""How much each tenant remembers, summed up; and which words are so common that counting them takes long."""

from collections.abc import Collection
from typing import Final

from django.db import connection
from django.db.backends.utils import CursorWrapper

# What has been folded lies still until somebody adds to it. Indexes: memory_tally_fresh, memory_tally_of_tenant.
_FOLD: Final = """
with fresh as materialized (
    select distinct tenant_id, scope from memory_tally where not folded
), taken as (
    select t.id from fresh join memory_tally t using (tenant_id, scope) for update of t skip locked
), gone as (
    delete from memory_tally where id in (select id from taken) returning *
)
insert into memory_tally (tenant_id, scope, observations, patterns, concepts, passages, words, folded)
select tenant_id, scope, sum(observations), sum(patterns), sum(concepts), sum(passages), sum(words), true
from gone group by tenant_id, scope
"""

# The scopes that have grown or shrunk by a tenth since, the one with the most to count first. Only the large ones are
# looked at, and those that were. Indexes: memory_tally_large, memory_tally_of_tenant.
_OUTDATED: Final = """
select large.tenant_id, large.scope, t.passages
from (
    select tenant_id, scope from memory_tally where passages > %(common)s
    union
    select tenant_id, scope from memory_wordcount
) large
cross join lateral (
    select coalesce(sum(passages), 0)::bigint as passages
    from memory_tally where tenant_id = large.tenant_id and scope = large.scope
) t
left join memory_wordcount c using (tenant_id, scope)
where greatest(t.passages, c.passages) > %(common)s
  and abs(t.passages - coalesce(c.passages, 0)) >= 0.1 * coalesce(c.passages, 0)
  and t.passages is distinct from c.passages
order by t.passages desc
limit 1
"""

_COUNT: Final = """
with counted as materialized (
    select term, count(*) as passages from memory_posting
    where tenant_id = %(tenant)s and scope = %(scope)s
    group by term having count(*) > %(common)s
), gone as (
    delete from memory_commonword
    where tenant_id = %(tenant)s and scope = %(scope)s and term not in (select term from counted)
), noted as (
    insert into memory_wordcount (tenant_id, scope, passages) values (%(tenant)s, %(scope)s, %(passages)s)
    on conflict (tenant_id, scope) do update set passages = excluded.passages
)
insert into memory_commonword (tenant_id, scope, term, passages)
select %(tenant)s, %(scope)s, term, passages from counted
on conflict (tenant_id, scope, term) do update set passages = excluded.passages
"""

# By the key, then memory_posting_once for each: no further than it takes to know.
_DROP_RARE: Final = """
delete from memory_commonword c
where id = any(%(words)s::bigint[])
  and (select count(*) from (
           select from memory_posting g
           where g.tenant_id = c.tenant_id and g.scope = c.scope and g.term = c.term
           limit %(common)s + 1) found) <= %(common)s
"""


# Whoever sums up or counts what a scope has would write it again after it was forgotten.
_FORGETTING: Final = "hashtextextended('memory.forgetting', 0)"
_TRY_ALONE: Final = f"select pg_try_advisory_xact_lock({_FORGETTING})"
_FORGET: Final = f"select pg_advisory_xact_lock_shared({_FORGETTING})"


def keep_still() -> None:
    """Until this transaction ends, nothing is summed up or counted: for who removes all that a scope has."""
    with connection.cursor() as cursor:
        cursor.execute(_FORGET)


def drop_rare(words: Collection[int], *, common: int) -> None:
    """Of these common words, by their keys, note those no longer that now stand in no more passages than `common`.

    Who removes passages asks for it: a word that nobody else has said is not to outlast them. Call :func:`keep_still`
    before they are removed.
    """
    if words:
        with connection.cursor() as cursor:
            cursor.execute(_DROP_RARE, {"words": sorted(words), "common": common})


def _alone(cursor: CursorWrapper) -> bool:
    cursor.execute(_TRY_ALONE)
    return bool(cursor.fetchone()[0])


def fold_tallies() -> None:
    """Make one row of each scope's tallies that have grown, unless something is being forgotten."""
    with connection.cursor() as cursor:
        if _alone(cursor):
            cursor.execute(_FOLD)


def count_common_words(common: int) -> bool:
    """Count the words of one scope that stand in more passages than `common`; says whether there was one to count.

    A scope is found once its tallies have been folded, and none while something is being forgotten.
    """
    with connection.cursor() as cursor:
        if not _alone(cursor):
            return False
        cursor.execute(_OUTDATED, {"common": common})
        found = cursor.fetchone()
        if found is None:
            return False
        tenant, scope, passages = found
        cursor.execute(_COUNT, {"tenant": tenant, "scope": scope, "passages": passages, "common": common})
    return True
