"""The statements about what passages mean: which have to be embedded, and recall with the help of vectors.

Vectors are arrays of length 1, read as pgvector's types where they are compared. Without the extension nothing here but
`has_vectors()` is said.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from django.db import connection

from apps.core.sql import hot_cursor
from apps.memory.models import TURN_BITS
from apps.memory.sql.recalling import ANSWER, MEMORY, SCORE, STANDING, by_words

# Among so many passages each vector is looked at; among more the nearest are read off an index.
LOOKED_AT: Final = 10_000
# The nearest that count.
_NEAREST: Final = 100
# So far an index is read for them, past those that stand no longer.
_READ_OFF: Final = 1_000
# The newest vectors, which tell how alike things are that have nothing to do with each other.
_SAMPLE: Final = 200
# The nearest tenth, were they spread as chance spreads.
_UNUSUAL: Final = 1.28
# What chance brings about once in several hundred times.
_STRIKING: Final = 3
# Of fewer nothing is usual.
_FEW: Final = 30
# What a like meaning is worth, of the words of the question that a passage has not.
_WORTH: Final = 0.3
# The best by their words, of which one has to be strikingly alike to the question if likeness is to say anything.
_LEADERS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """What a question means, to an embedder."""

    embedder: int
    dimensions: int
    vector: str


def index_name(embedder: int) -> str:
    """What an index of the vectors of one embedder is called."""
    return f"memory_vector_near_{embedder}"


def index_statements(embedder: int, dimensions: int) -> list[str]:
    """The statements that make that index anew, while others write; each outside of a transaction."""
    return [
        # What an attempt that was broken off has left counts as an index, and serves nobody.
        f"drop index concurrently if exists {index_name(embedder)}",
        f"""create index concurrently {index_name(embedder)} on memory_vector
            using hnsw ((embedding::halfvec({dimensions})) halfvec_ip_ops) where embedder = {embedder}""",
    ]


@lru_cache(maxsize=8)
def recall_by_meaning(
    embedder: int, dimensions: int, *, narrowed: bool, of_domain: bool = False, of_subject: bool = False
) -> str:
    """RECALL with the help of vectors.

    A passage that is alike to the question is worth a share of the words that it has not: likeness can stand for words
    that are missing, and for no others. It counts only where it can be relied upon: where one of the best by their words is
    as alike to the question as hardly anything is by chance; or where words have found nothing.

    The index may answer fewer than it should, as other tenants' vectors stand in it; then each vector is looked at, as
    it is where there are few. A narrowed question looks at each of the newest of those that are left, as many.
    """
    of_scope = f"v.tenant_id = %(tenant)s and v.scope = %(scope)s and v.embedder = {embedder}"
    among = "join within on within.place = v.passage_id" if narrowed else ""
    # Best first, until there are enough that are memories still; the marks of a narrowed question are not all it asks.
    known = f"cross join lateral ({MEMORY if narrowed else STANDING}) known"
    asked = by_words(narrowed=narrowed, of_domain=of_domain, of_subject=of_subject, most=LOOKED_AT)
    likeness = f"-(v.embedding::vector({dimensions}) <#> %(meant)s::vector({dimensions}))"
    few = "true" if narrowed else f"(select passages from corpus) <= {LOOKED_AT}"
    return f"""{asked}, quick as materialized (
    select r.place, r.likeness
    from (
        select v.passage_id as place, {likeness} as likeness
        from memory_vector v
        where {of_scope} and not ({few})
        order by v.embedding::halfvec({dimensions}) <#> %(meant)s::halfvec({dimensions})
        limit {_READ_OFF}
    ) r {known}
    limit {_NEAREST}
), each as materialized (
    select r.place, r.likeness
    from (
        select v.passage_id as place, {likeness} as likeness
        from memory_vector v {among}
        where {of_scope} and ({few} or (select count(*) from quick) < {_NEAREST})
        order by 2 desc, 1 desc
    ) r {known}
    order by 2 desc, 1 desc
    limit {_NEAREST}
), nearest as materialized (
    select * from each
    union all
    select * from quick where (select count(*) from quick) = {_NEAREST}
), usual as materialized (
    select case when count(*) < {_FEW} then avg(likeness) / 2
                else avg(likeness) + {_UNUSUAL} * stddev_samp(likeness) end as likeness,
           case when count(*) < {_FEW} then avg(likeness) / 2
                else avg(likeness) + {_STRIKING} * stddev_samp(likeness) end as striking
    from (
        select {likeness} as likeness from memory_vector v {among} where {of_scope} order by v.id desc limit {_SAMPLE}
    ) sampled
), led as materialized (
    select max({likeness}) as likeness
    from (select place from own order by score + 2 * around desc, place desc limit {_LEADERS}) first
    join memory_vector v on v.passage_id = first.place and v.embedder = {embedder}
), whole as materialized (
    select greatest(1,  -- a question of little words means something too
                    coalesce((select sum(weight) from (select max(weight) as weight from weighed group by word) w), 0)
                    + (select count(*) from spelled where word not in (select word from counted))
                      * ln(1 + (corpus.passages + 0.5) / 0.5)::float8) as weight
    from corpus
), alike as materialized (
    select place, {_WORTH} * (nearest.likeness - usual.likeness)
                  / nullif((select max(likeness) from nearest) - usual.likeness, 0) as share
    from nearest
    join memory_passage p on p.id = place and p.embedder = {embedder}  -- else it reads otherwise by now
    cross join usual
    where nearest.likeness > usual.likeness
      and ((select likeness from led) > usual.striking or not exists(select from own))
), total as materialized (
    select place,
           {SCORE}
           + coalesce(alike.share * greatest(whole.weight - coalesce(spread.has, 0), 0), 0) as score,
           coalesce(spread.is_among, false) as is_among, alike.share is not null as is_alike
    from spread full join alike using (place)
    full join sessions on sessions.session = place >> {TURN_BITS}
    cross join whole
    where coalesce(place, 0) <> 0
){ANSWER}"""


# Whether vectors can be compared here.
_EXTENSION: Final = "select exists(select from pg_extension where extname = 'vector')"


def has_vectors() -> bool:
    """Whether the database has pgvector."""
    with connection.cursor() as cursor:
        cursor.execute(_EXTENSION)
        found: bool = cursor.fetchone()[0]
    return found


# By memory_passage_embedded: of no embedder, of one with a smaller mark, of one with a larger. What is being written, or
# forgotten, is left for later.
_UNEMBEDDED: Final = """
select p.id,
       coalesce(o.text, t.category || ' ' || t.name || ' ' || t.text, i.text,
                concat_ws(' ', c.name, array_to_string(c.aliases, ' '), c.type, c.description))
from (
    (select id from memory_passage where embedder is null and id <> all(%(but)s::bigint[]) order by id limit %(limit)s)
    union all
    (select id from memory_passage where embedder < %(embedder)s and id <> all(%(but)s::bigint[])
     order by embedder, id limit %(limit)s)
    union all
    (select id from memory_passage where embedder > %(embedder)s and id <> all(%(but)s::bigint[])
     order by embedder, id limit %(limit)s)
    limit %(limit)s
) due
join memory_passage p on p.id = due.id
left join memory_observation o on o.id = p.observation_id
left join memory_pattern t on t.id = p.pattern_id
left join memory_concept c on c.id = p.concept_id
left join memory_item i on i.id = p.item_id
"""


def unembedded(embedder: int, *, but: Collection[int] = (), limit: int) -> dict[int, str]:
    """Texts that the embedder has not been told, or not as they read now, by the places of their passages, but for some."""
    with hot_cursor() as cursor:
        cursor.execute(_UNEMBEDDED, {"embedder": embedder, "but": list(but), "limit": limit})
        return dict(cursor.fetchall())


_HOLD: Final = """
select id from memory_passage where id = any(%(places)s::bigint[]) order by id for no key update skip locked
"""

# A new snapshot: what those who held the passages before have committed is read here.
_READ: Final = (
    _UNEMBEDDED.partition("from (")[0]
    + "from (select unnest(%(places)s::bigint[]) as id) due"
    + _UNEMBEDDED.partition(") due")[2]
)

_STORE: Final = """
with told as materialized (
    select * from unnest(%(places)s::bigint[], %(vectors)s::text[]) as t(place, vector)
), named as (
    update memory_passage p set embedder = %(embedder)s from told where p.id = told.place
    returning p.id, p.tenant_id, p.scope, told.vector
), refused as (
    delete from memory_vector using told where passage_id = place and vector is null
)
insert into memory_vector (tenant_id, passage_id, scope, embedder, embedding)
select tenant_id, id, scope, %(embedder)s, translate(vector, '[]', '{}')::real[] from named where vector is not null
on conflict (passage_id) do update
set scope = excluded.scope, embedder = excluded.embedder, embedding = excluded.embedding
"""


def keep_vectors(embedder: int, texts: Mapping[int, str], vectors: Mapping[int, str | None]) -> int:
    """Keep what these texts mean, of passages that still read so; None for a text that the embedder refuses.

    What is being changed just now is left out; it is unembedded still. Answers how many are embedded now.
    """
    with hot_cursor() as cursor:
        cursor.execute(_HOLD, {"places": sorted(vectors)})
        held = [place for (place,) in cursor.fetchall()]
        cursor.execute(_READ, {"places": held})
        same = [place for place, text in cursor.fetchall() if text == texts[place]]
        cursor.execute(_STORE, {"places": same, "vectors": [vectors[place] for place in same], "embedder": embedder})
    return len(same)


_COUNTED: Final = 100_000
_HELD: Final = """
select exists(select from pg_indexes where schemaname = current_schema() and indexname = %(index)s),
       coalesce((select max(vectors) from (
           select count(*) as vectors from memory_vector where embedder = %(embedder)s group by tenant_id) of_tenants), 0),
       (select count(*) from (
           select from memory_passage where embedder is distinct from %(embedder)s limit %(counted)s) waiting),
       (select count(*) from (
           select from memory_passage p where embedder = %(embedder)s
           and not exists(select from memory_vector v where v.passage_id = p.id) limit %(counted)s) refused)
"""


def vectors_held(embedder: int) -> tuple[bool, int, int, int]:
    """Whether an index holds this embedder's vectors, the most that a tenant has, how many passages it has not been told of,
    and how many it refused."""
    with connection.cursor() as cursor:
        cursor.execute(_HELD, {"index": index_name(embedder), "embedder": embedder, "counted": _COUNTED})
        row: tuple[bool, int, int, int] = cursor.fetchone()
    return row
