"""The statement that makes a memory findable: the words of its text, kept in the writing transaction."""

from typing import Final

from apps.core.sql import hot_cursor

_INDEX: Final = """
with passage as materialized (
    select id, tenant_id, length from memory_passage where id = %(passage)s
), words as materialized (
    select lexeme, least(coalesce(cardinality(positions), 1), 32767) as frequency
    from unnest(to_tsvector('english', %(text)s))
), total as materialized (
    select coalesce(sum(frequency), 0) as length from words
), kept as (
    insert into memory_posting (tenant_id, term, passage_id, frequency, length)
    select passage.tenant_id, words.lexeme, passage.id, words.frequency, total.length from words, passage, total
), tallied as (
    insert into memory_tally (tenant_id, observations, patterns, concepts, passages, words)
    select passage.tenant_id, %(observations)s, %(patterns)s, %(concepts)s, %(passages)s, total.length - passage.length
    from passage, total
)
update memory_passage set length = (select length from total) where id = %(passage)s
"""

_FORGET_WORDS: Final = "delete from memory_posting where passage_id = %(passage)s"


def index_words(
    passage_id: int, text: str, *, observations: int = 0, patterns: int = 0, concepts: int = 0, passages: int = 0
) -> None:
    """Make a passage findable by the words of this text and no others; and tally it.

    The numbers say how many of each the tenant remembers more than before.
    """
    with hot_cursor() as cursor:
        cursor.execute(_FORGET_WORDS, {"passage": passage_id})
        cursor.execute(
            _INDEX,
            {
                "passage": passage_id,
                "text": text,
                "observations": observations,
                "patterns": patterns,
                "concepts": concepts,
                "passages": passages,
            },
        )
