"""The statement that makes a memory findable: the words of its text, kept in the writing transaction."""

from typing import Final

from apps.core.sql import hot_cursor

_INDEX: Final = """
with passage as materialized (
    select id, tenant_id, scope, length from memory_passage where id = %(passage)s
), said as materialized (
    select lexeme, least(coalesce(cardinality(positions), 1), 32767) as frequency
    from unnest(to_tsvector('english', %(text)s))
), around as materialized (
    select lexeme from unnest(to_tsvector('english', %(context)s))
), total as materialized (
    select coalesce(sum(frequency), 0) as length from said
), kept as (
    insert into memory_posting (tenant_id, scope, term, passage_id, frequency, length, of_context)
    select passage.tenant_id, passage.scope, lexeme, passage.id, coalesce(said.frequency, 0), total.length,
           around.lexeme is not null
    from said full join around using (lexeme) cross join passage cross join total
), tallied as (
    insert into memory_tally (tenant_id, scope, observations, patterns, concepts, passages, words)
    select passage.tenant_id, passage.scope, %(observations)s, %(patterns)s, %(concepts)s, %(passages)s,
           total.length - passage.length
    from passage, total
)
update memory_passage
set length = (select length from total), words = to_tsvector('english', %(text)s)
where id = %(passage)s
"""

_FORGET_WORDS: Final = "delete from memory_posting where passage_id = %(passage)s"


def index_words(
    passage_id: int,
    text: str,
    *,
    context: str = "",
    observations: int = 0,
    patterns: int = 0,
    concepts: int = 0,
    passages: int = 0,
) -> None:
    """Make a passage findable by the words of this text and of its context, and no others; and tally it.

    The numbers say how many of each the tenant remembers more than before.
    """
    with hot_cursor() as cursor:
        cursor.execute(_FORGET_WORDS, {"passage": passage_id})
        cursor.execute(
            _INDEX,
            {
                "passage": passage_id,
                "text": text,
                "context": context,
                "observations": observations,
                "patterns": patterns,
                "concepts": concepts,
                "passages": passages,
            },
        )
