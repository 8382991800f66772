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

# The newest passages of a word that are scored, and the number of passages of rarer words from which on a word only
# adds to their scores. A narrowed question knows no such bound: what it asks for may be old.
_SCORED: Final = 2_000

# A word is counted up to here; one that stands in more passages weighs too little for the difference to matter.
_COUNTED: Final = 20_000

# A question is answered with no more than these.
MOST: Final = 500

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
    (select a.name from principals_principal a where a.id = coalesce(o.author_id, t.author_id, c.author_id)) as author,
    p.recorded_at
"""

# One passage by its key; the limit keeps the planner from joining the tables as wholes.
_MEMORY: Final = f"""
    select {_SHOWN}
    from memory_passage p
    left join memory_observation o on o.id = p.observation_id
    left join memory_pattern t on t.id = p.pattern_id
    left join memory_concept c on c.id = p.concept_id
    where p.id = r.passage_id
      and (%(domain)s::text is null or p.domain = %(domain)s)
      and p.recorded_at <= %(as_of)s
      and (o.superseded_at is null or o.superseded_at > %(as_of)s)
      and coalesce(o.metadata, c.metadata, '{{}}'::jsonb) @> %(filters)s::jsonb
    limit 1
"""  # constants only

# Index-only scans of memory_posting_once (each word's passages to count and to choose, then the chosen ones' other
# words) and of memory_tally_of_tenant; then, best first and until there are enough, the memories by key.
# Six words at most: the rarest.
RECALL: Final = f"""
with asked as materialized (
    select w.term, n.passages
    from unnest(tsvector_to_array(to_tsvector('english', %(query)s))) as w(term)
    cross join lateral (
        select count(*) as passages
        from (select from memory_posting where tenant_id = %(tenant)s and term = w.term limit {_COUNTED}) counted
    ) n
    where n.passages > 0
    order by n.passages, w.term
    limit 6
), corpus as materialized (
    select coalesce(sum(passages), 0) as passages, greatest(sum(words) / nullif(sum(passages), 0), 1) as length
    from memory_tally where tenant_id = %(tenant)s
), weighed as materialized (
    select asked.term, asked.passages, corpus.length::float8,
           sum(asked.passages) over (
               order by asked.passages, asked.term rows between unbounded preceding and 1 preceding
           ) as of_rarer,
           ln(1 + greatest(corpus.passages - asked.passages + 0.5, 0) / (asked.passages + 0.5))::float8 as weight
    from asked cross join corpus
), chosen as materialized (
    select distinct g.passage_id
    from weighed
    cross join lateral (
        select passage_id from memory_posting
        where tenant_id = %(tenant)s and term = weighed.term
        order by passage_id desc
        limit %(scored)s
    ) g
    where coalesce(weighed.of_rarer < %(scored)s, true)
), scored as materialized (
    select chosen.passage_id, array_agg(weighed.term order by weighed.passages, weighed.term) as terms,
           sum(weighed.weight * g.frequency * 2.2
               / (g.frequency + 1.2 * (0.25 + 0.75 * g.length / weighed.length)))::float8 as score
    from chosen cross join weighed
    cross join lateral (
        select frequency, length from memory_posting
        where tenant_id = %(tenant)s and term = weighed.term and passage_id = chosen.passage_id
        limit 1
    ) g
    group by chosen.passage_id
)
select m.*, r.score, r.terms
from (select passage_id, score, terms from scored order by score desc, passage_id desc) r
cross join lateral ({_MEMORY}) m
order by r.score desc, r.passage_id desc
limit %(limit)s
"""  # constants only


def _newest(narrowed: str, order: str = "") -> str:
    # The planner must know that few rows are wanted, which a parameter does not tell it: hence the limit in between.
    # In the order of the domain too, which is named by an array lest that be void: of a domain with a large share of
    # all the planner expects some among the newest, where there may be none.
    return f"""
select *, 0::float8 as score, array[]::text[] as terms
from (
    select m.*
    from (
        select id as passage_id, recorded_at, domain from memory_passage
        where tenant_id = %(tenant)s and recorded_at <= %(as_of)s {narrowed}
        order by {order}recorded_at desc, id desc
    ) r
    cross join lateral ({_MEMORY}) m
    order by {order and "r."}{order}r.recorded_at desc, r.passage_id desc
    limit {MOST}
) newest
limit %(limit)s
"""  # constants only


# Ordered scans of memory_passage_newest and memory_passage_domain that stop at the limit.
NEWEST: Final = _newest("")

NEWEST_OF_DOMAIN: Final = _newest("and domain = any(array[%(domain)s::text])", "domain, ")


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


def find(
    *, query: str, tenant_id: int, domain: str | None, filters: Mapping[str, Any], as_of: datetime | None, limit: int
) -> list[Found]:
    """The memories that match best; with an empty query, the newest.

    Where a word stands in thousands of passages and nothing narrows the question, its newest are considered.
    """
    given = {
        "tenant": tenant_id,
        "domain": domain,
        "filters": json.dumps(filters),
        "as_of": as_of or "infinity",
        "limit": limit,
    }
    with hot_cursor() as cursor:
        if query.strip():
            narrowed = domain is not None or filters or as_of is not None
            cursor.execute(RECALL, given | {"query": query, "scored": None if narrowed else _SCORED})
        else:
            cursor.execute(NEWEST if domain is None else NEWEST_OF_DOMAIN, given)
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
