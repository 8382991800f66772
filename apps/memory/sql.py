"""The statements behind recall.

Words are PostgreSQL's own: its English dictionary drops stop words and stems the others, on the way in and on the
way out alike. The ranking is BM25 over the postings, which the writing transaction keeps.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from apps.core.sql import hot_cursor

_INDEX: Final = """
with passage as materialized (
    select id, tenant_id from memory_passage where id = %(passage)s
), words as materialized (
    select lexeme, least(coalesce(cardinality(positions), 1), 32767) as frequency
    from unnest(to_tsvector('english', %(text)s))
), kept as (
    insert into memory_posting (tenant_id, term, passage_id, frequency)
    select passage.tenant_id, words.lexeme, passage.id, words.frequency from words, passage
)
update memory_passage set length = (select coalesce(sum(frequency), 0) from words) where id = %(passage)s
"""

_FORGET_WORDS: Final = "delete from memory_posting where passage_id = %(passage)s"

# What a memory looks like to whoever recalls it.
_SHOWN: Final = """
    case when o.id is not null then 'observation:' || o.id
         when t.id is not null then 'pattern:' || t.id
         else 'concept:' || c.key end as ref,
    coalesce(o.text, t.name || ': ' || t.text,
             c.name || case when c.type = '' then '' else ' (' || c.type || ')' end
                    || case when c.description = '' then '' else ': ' || c.description end) as text,
    p.domain, coalesce(o.confidence, t.confidence, 1) as confidence,
    coalesce(o.metadata, c.metadata, '{}'::jsonb)::text as metadata,
    a.name as author, p.recorded_at
"""

_MEMORIES: Final = """
    left join memory_observation o on o.id = p.observation_id
    left join memory_pattern t on t.id = p.pattern_id
    left join memory_concept c on c.id = p.concept_id
    join principals_principal a on a.id = coalesce(o.author_id, t.author_id, c.author_id)
    where p.tenant_id = %(tenant)s
      and (%(domain)s::text is null or p.domain = %(domain)s)
      and p.recorded_at <= %(as_of)s
      and (o.superseded_at is null or o.superseded_at > %(as_of)s)
      and coalesce(o.metadata, c.metadata, '{}'::jsonb) @> %(filters)s::jsonb
"""

# Index-only scans of memory_posting_once (each word's passages, once to count and once to score) and of
# memory_passage_corpus; then memory_passage by key for what scored. Six words at most: the rarest.
RECALL: Final = f"""
with asked as materialized (
    select w.term, n.passages
    from unnest(tsvector_to_array(to_tsvector('english', %(query)s))) as w(term)
    cross join lateral (
        select count(*) as passages from memory_posting where tenant_id = %(tenant)s and term = w.term
    ) n
    where n.passages > 0
    order by n.passages, w.term
    limit 6
), corpus as materialized (
    select count(*) as passages, greatest(avg(length), 1) as length from memory_passage where tenant_id = %(tenant)s
), scored as materialized (
    select g.passage_id, array_agg(asked.term order by asked.passages, asked.term) as terms,
           sum(ln(1 + (corpus.passages - asked.passages + 0.5) / (asked.passages + 0.5))
               * g.frequency * 2.2
               / (g.frequency + 1.2 * (0.25 + 0.75 * q.length / corpus.length)))::float8 as score
    from asked
    join memory_posting g on g.tenant_id = %(tenant)s and g.term = asked.term
    join memory_passage q on q.id = g.passage_id
    cross join corpus
    group by g.passage_id
)
select {_SHOWN}, s.score, s.terms
from scored s join memory_passage p on p.id = s.passage_id
{_MEMORIES}
order by s.score desc, p.recorded_at desc, p.id desc
limit %(limit)s
"""  # constants only

# An ordered scan of memory_passage_newest, or of memory_passage_domain, that stops at the limit.
NEWEST: Final = f"""
select {_SHOWN}, 0::float8 as score, array[]::text[] as terms
from memory_passage p
{_MEMORIES}
order by p.recorded_at desc, p.id desc
limit %(limit)s
"""  # constants only


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A memory as a recall statement answers it."""

    ref: str
    text: str
    domain: str
    confidence: float
    metadata: dict[str, Any]
    author: str
    recorded_at: datetime
    score: float
    terms: tuple[str, ...]


def index_words(passage_id: int, text: str) -> None:
    """Make a passage findable by the words of this text and no others."""
    with hot_cursor() as cursor:
        cursor.execute(_FORGET_WORDS, {"passage": passage_id})
        cursor.execute(_INDEX, {"passage": passage_id, "text": text})


def find(
    *, query: str, tenant_id: int, domain: str | None, filters: Mapping[str, Any], as_of: datetime | None, limit: int
) -> list[Found]:
    """The memories that match best; with an empty query, the newest."""
    given = {
        "tenant": tenant_id,
        "domain": domain,
        "filters": json.dumps(filters),
        "as_of": as_of or "infinity",
        "limit": limit,
    }
    with hot_cursor() as cursor:
        if query.strip():
            cursor.execute(RECALL, given | {"query": query})
        else:
            cursor.execute(NEWEST, given)
        rows = cursor.fetchall()
    return [
        Found(
            ref=ref,
            text=text,
            domain=domain_,
            confidence=confidence,
            metadata=json.loads(metadata),
            author=author,
            recorded_at=recorded_at,
            score=score,
            terms=tuple(terms),
        )
        for ref, text, domain_, confidence, metadata, author, recorded_at, score, terms in rows
    ]
