"""How much each tenant remembers, summed up; and which words are so common that counting them takes long."""

from typing import Final

from django.db import connection

_FOLD: Final = """
with many as (
    select tenant_id, scope from memory_tally group by tenant_id, scope having count(*) > 1
), taken as (
    select id from memory_tally where (tenant_id, scope) in (select tenant_id, scope from many) for update skip locked
), gone as (
    delete from memory_tally where id in (select id from taken) returning *
)
insert into memory_tally (tenant_id, scope, observations, patterns, concepts, passages, words)
select tenant_id, scope, sum(observations), sum(patterns), sum(concepts), sum(passages), sum(words)
from gone group by tenant_id, scope
"""

# The scopes that have grown or shrunk by a tenth since, the one with the most to count first.
_OUTDATED: Final = """
select t.tenant_id, t.scope, t.passages
from (select tenant_id, scope, sum(passages)::bigint as passages from memory_tally group by tenant_id, scope) t
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


def fold_tallies() -> None:
    """Make one row of each tenant's tallies; what another transaction is folding is left to it."""
    with connection.cursor() as cursor:
        cursor.execute(_FOLD)


def count_common_words(common: int) -> bool:
    """Count the words of one scope that stand in more passages than `common`; says whether there was one to count."""
    with connection.cursor() as cursor:
        cursor.execute(_OUTDATED, {"common": common})
        found = cursor.fetchone()
        if found is None:
            return False
        tenant, scope, passages = found
        cursor.execute(_COUNT, {"tenant": tenant, "scope": scope, "passages": passages, "common": common})
    return True
