"""The statements that make memories findable, or no more: the words of their texts, kept in the writing transaction."""

from collections.abc import Collection
from typing import Final

from apps.core.sql import hot_cursor
from apps.memory.sql.tallies import drop_rare, keep_still
from apps.memory.texts import as_sought, beginning

# Letters composed or not are alike, so one sign may become eighteen. A vector of words holds a mebibyte of them, with their
# parts, where they are compounds, and places: of text no longer than this, whatever it says, all are held.
_INDEXED: Final = 1 << 18

_INDEX: Final = """
with passage as materialized (
    select p.id, p.tenant_id, scope, length, observation_id, concept_id,
           coalesce(i.valid_to <= gatehouse_now(), false) as is_over
    from memory_passage p left join memory_item i on i.id = item_id
    where p.id = %(passage)s
), said as materialized (
    select lexeme, least(coalesce(cardinality(positions), 1), 32767) as frequency
    from unnest(to_tsvector('english', %(text)s))
), around as materialized (
    select lexeme from unnest(to_tsvector('english', %(context)s))
), total as materialized (
    select coalesce(sum(frequency), 0) as length from said
), kept as (
    insert into memory_posting (tenant_id, scope, term, passage_id, frequency, length, of_context, superseded)
    select passage.tenant_id, passage.scope, lexeme, passage.id, coalesce(said.frequency, 0), total.length,
           around.lexeme is not null, passage.is_over
    from said full join around using (lexeme) cross join passage cross join total
), marked as (
    insert into memory_posting (tenant_id, scope, term, passage_id, frequency, length, of_context)
    select passage.tenant_id, passage.scope, mark, passage.id, 0, total.length, false
    from passage
    cross join total
    left join memory_observation o on o.id = observation_id
    left join memory_concept c on c.id = concept_id
    cross join lateral unnest(memory_marks(nullif(coalesce(o.metadata, c.metadata), '{}'))) m(mark)
), tallied as (
    insert into memory_tally (tenant_id, scope, observations, patterns, concepts, passages, words)
    select passage.tenant_id, passage.scope, %(observations)s, %(patterns)s, %(concepts)s, %(passages)s,
           total.length - passage.length
    from passage, total
)
update memory_passage
set length = (select length from total), words = to_tsvector('english', %(text)s), embedder = null
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
    """Make a passage findable by the words of this text and of its context, by what its metadata has, and by no others;
    and tally it.

    Of a text that is longer than :data:`_INDEXED` bytes as its words are looked for, the beginning counts.
    The numbers say how many of each the tenant remembers more than before.
    """
    with hot_cursor() as cursor:
        cursor.execute(_FORGET_WORDS, {"passage": passage_id})
        cursor.execute(
            _INDEX,
            {
                "passage": passage_id,
                "text": beginning(as_sought(text), _INDEXED),
                "context": beginning(as_sought(context), _INDEXED),
                "observations": observations,
                "patterns": patterns,
                "concepts": concepts,
                "passages": passages,
            },
        )


_SUPERSEDE: Final = """
update memory_posting set superseded = true
where passage_id = any(array(
    select id from memory_passage where observation_id = any(%(observations)s::bigint[])
    union all
    select id from memory_passage where item_id = any(%(items)s::bigint[])
))
"""


def supersede_passages(*, observations: Collection[int] = (), items: Collection[int] = ()) -> None:
    """Let these memories stand behind those that nothing stands in the place of; as of before they are found as ever."""
    with hot_cursor() as cursor:
        cursor.execute(_SUPERSEDE, {"observations": list(observations), "items": list(items)})


# Those of `words` that are common, in whatever scope: passages are moved from one to another. By memory_commonword_of_term,
# word for word: the planner would compare them with the common words of all tenants.
COMMON_AMONG: Final = """
select c.id
from (select distinct tenant_id, term from words) w
cross join lateral (select id from memory_commonword where tenant_id = w.tenant_id and term = w.term offset 0) c
"""
# The embedder's tick holds passages until it has kept their vectors. Whoever waited for it in the statement that removes or
# moves both would not see those, so passages are held first, all in the order of their keys.
_HOLD: Final = """
select count(*) from (select from memory_passage where id = any(%(places)s::bigint[]) order by id for update) held
"""
# By the keys of passages and the index on the passages of postings.
_DROP: Final = f"""
with gone as (
    delete from memory_passage where id = any(%(places)s::bigint[])
    returning tenant_id, scope, length, observation_id, pattern_id, concept_id
), words as (
    delete from memory_posting where passage_id = any(%(places)s::bigint[])
    returning tenant_id, term
), vectors as (
    delete from memory_vector where passage_id = any(%(places)s::bigint[])
), tallied as (
    insert into memory_tally (tenant_id, scope, observations, patterns, concepts, passages, words)
    select gone.tenant_id, gone.scope, -count(o.id), -count(gone.pattern_id), -count(gone.concept_id), -count(*),
           -sum(gone.length)
    from gone left join memory_observation o on o.id = gone.observation_id and o.superseded_at is null
    group by gone.tenant_id, gone.scope
)
{COMMON_AMONG}
"""  # constants only


def drop_passages(places: Collection[int], *, common: int) -> None:
    """Make passages findable by nothing, and count them no more.

    :param common: a word of theirs that stands in no more passages than this is noted as a common one no longer.
    """
    keep_still()
    with hot_cursor() as cursor:
        given = {"places": list(places)}
        cursor.execute(_HOLD, given)
        cursor.execute(_DROP, given)
        words = [pk for (pk,) in cursor.fetchall()]
    drop_rare(words, common=common)


# By the same. A turn that is written meanwhile waits for its session, which the caller holds.
_HOLD_BETWEEN: Final = """
select count(*) from (
    select from memory_passage where id between %(first)s and %(last)s order by id for no key update) held
"""
_MOVE: Final = """
with moved as (
    update memory_passage set scope = %(scope)s
    where id between %(first)s and %(last)s and scope <> %(scope)s
    returning id, tenant_id, old.scope as former, length, observation_id
), words as (
    update memory_posting set scope = %(scope)s from moved where passage_id = moved.id
), vectors as (
    update memory_vector set scope = %(scope)s from moved where passage_id = moved.id
), counted as (
    select moved.tenant_id, former, count(o.id) as observations, count(*) as passages, sum(length) as words
    from moved left join memory_observation o on o.id = observation_id and o.superseded_at is null
    group by moved.tenant_id, former
)
insert into memory_tally (tenant_id, scope, observations, patterns, concepts, passages, words)
select tenant_id, place.scope, sign * observations, 0, 0, sign * passages, sign * words
from counted cross join lateral (values (former, -1), (%(scope)s::bigint, 1)) place(scope, sign)
"""


def move_passages(first: int, last: int, *, scope: int) -> None:
    """Let the passages at these places be about another subject, or about none."""
    with hot_cursor() as cursor:
        cursor.execute(_HOLD_BETWEEN, {"first": first, "last": last})
        cursor.execute(_MOVE, {"first": first, "last": last, "scope": scope})
