"""How much each tenant remembers, summed up."""

from typing import Final

from django.db import connection

_FOLD: Final = """
with many as (
    select tenant_id from memory_tally group by tenant_id having count(*) > 1
), taken as (
    select id from memory_tally where tenant_id in (select tenant_id from many) for update skip locked
), gone as (
    delete from memory_tally where id in (select id from taken) returning *
)
insert into memory_tally (tenant_id, observations, patterns, concepts, passages, words)
select tenant_id, sum(observations), sum(patterns), sum(concepts), sum(passages), sum(words)
from gone group by tenant_id
"""


def fold_tallies() -> None:
    """Make one row of each tenant's tallies; what another transaction is folding is left to it."""
    with connection.cursor() as cursor:
        cursor.execute(_FOLD)
