"""Recall by meaning: the embedder that a deployment names, the vectors of memories, and recall with their help.

The embedder is an endpoint of the OpenAI form. Calls to it leave the deployment: make them outside of transactions. Only
the ranking of recall depends on its answers. Vectors are arrays of length 1, read as pgvector's types where they are
compared; without the extension only `has_vectors()` may be called.
"""

import hashlib
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Final

import numpy as np
from django.conf import settings
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from apps.core import outbound
from apps.core.outbound import CallFailed
from apps.core.sql import execute, fetch
from apps.memory.models import MESSAGE_BITS
from apps.memory.search import ANSWER, MEMORY, SCORE, STANDING, by_words
from apps.principals.tenancy import acting_as_system

logger = logging.getLogger(__name__)

Numbers = NDArray[np.float32]
"""A vector of length 1."""

# Characters of a text that an embedder is given. A vector of a longer text says less of each part than of the whole.
_READ: Final = 8_000
_BYTES_A_NUMBER: Final = 40
_BYTES_BESIDES: Final = 65_536
_REFUSED: Final = frozenset({400, 413, 422})
_BUSY: Final = 429
_SHORTEST: Final = 1e-6


class NotEmbedded(Exception):
    """The endpoint gave nothing usable. `str()` says why, without the texts.

    `refused`: it refused the texts, not the call. `busy`: it refused the call, whatever the texts.
    """

    def __init__(self, why: str, *, refused: bool = False, busy: bool = False) -> None:
        super().__init__(why)
        self.refused = refused
        self.busy = busy


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    index: int
    embedding: list[float]


class _Answer(BaseModel):
    data: list[_Entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedder:
    """An endpoint, and the model that is asked for there."""

    url: str
    model: str
    dimensions: int
    token: str

    @property
    def mark(self) -> int:
        """Tells its vectors from those of other models; never 0."""
        digest = hashlib.blake2b(f"{self.model}\0{self.dimensions}".encode(), digest_size=4).digest()
        return int.from_bytes(digest) >> 1 or 1

    def embed(self, texts: Sequence[str], *, patience: timedelta) -> list[Numbers]:
        """A vector of each text, in their order, within `patience`.

        :raises NotEmbedded: if the endpoint does not give exactly that.
        """
        asked = {"model": self.model, "input": [text[:_READ] for text in texts]}
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self.token}"} if self.token else {}
        )
        try:
            answer = outbound.send(
                self.url,
                body=json.dumps(asked).encode(),
                headers=headers,
                deadline=patience,
                max_answer_bytes=_BYTES_BESIDES + _BYTES_A_NUMBER * self.dimensions * len(texts),
            )
        except CallFailed as exc:
            raise NotEmbedded(str(exc)) from exc
        if answer.status != 200:  # noqa: PLR2004  # the one status of such an answer
            raise NotEmbedded(
                f"It answered {answer.status}.", refused=answer.status in _REFUSED, busy=answer.status == _BUSY
            )
        return self._read(answer.body, len(texts))

    def _read(self, body: bytes, wanted: int) -> list[Numbers]:
        try:
            entries = _Answer.model_validate_json(body).data
            found = {entry.index: self._vector(entry.embedding) for entry in entries}
        except ValueError as exc:
            why = f"Its answer is not of the OpenAI form, or not of {self.dimensions} numbers."
            raise NotEmbedded(why) from exc
        if len(entries) != wanted or found.keys() != set(range(wanted)):
            why = f"It answered {len(entries)} vectors for {wanted} texts, or not one for each."
            raise NotEmbedded(why)
        return [found[place] for place in range(wanted)]

    def _vector(self, numbers: list[float]) -> Numbers:
        if len(numbers) != self.dimensions:
            raise ValueError("not the model's number of numbers")
        length = math.hypot(*numbers)
        if not math.isfinite(length) or length < _SHORTEST:
            raise ValueError("a vector without a direction")
        return np.array([number / length for number in numbers], dtype=np.float32)


def embedder() -> Embedder | None:
    """The embedder that this deployment names, if any."""
    if not settings.EMBEDDER_URL:
        return None
    return Embedder(
        url=settings.EMBEDDER_URL,
        model=settings.EMBEDDER_MODEL,
        dimensions=settings.EMBEDDER_DIMENSIONS,
        token=settings.EMBEDDER_TOKEN,
    )


def _written(vector: Numbers) -> str:
    """The vector as PostgreSQL reads it."""
    return f"[{','.join(map(repr, vector.tolist()))}]"


# Vectors in the database.

# Up to this number of memories each vector is compared; above it, the nearest are read from an index.
LOOKED_AT: Final = 10_000
# The nearest that count.
_NEAREST: Final = 100
# The number of vectors that are read from an index to find them, past superseded ones.
_READ_OFF: Final = 1_000
# The newest vectors: a sample of how alike unrelated memories are.
_SAMPLE: Final = 200
# In standard deviations: the nearest tenth of unrelated memories.
_UNUSUAL: Final = 1.28
# In standard deviations: one unrelated memory of several hundred.
_STRIKING: Final = 3
# Of fewer vectors there is no distribution.
_FEW: Final = 30
# The weight of likeness, as a share of the words of the question that a memory lacks.
_WORTH: Final = 0.3
# Likeness counts only if one of this number of best by words is strikingly alike to the question.
_LEADERS: Final = 5


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
def recall_statement(
    embedder: int, dimensions: int, *, narrowed: bool, of_domain: bool = False, of_subject: bool = False
) -> str:
    """RECALL with the help of vectors.

    Likeness adds a share of the weight of the words of the question that a memory lacks. It counts only if one of the
    best by words is as alike to the question as hardly any unrelated memory, or if words have found nothing.

    The index may return too few, since it holds other tenants' vectors; then each vector is compared, as in a small
    scope. A narrowed question compares each of the newest that fit.
    """
    of_scope = f"v.tenant_id = %(tenant)s and v.scope = %(scope)s and v.embedder = {embedder}"
    among = "join within on within.place = v.place" if narrowed else ""
    # Best first, until enough of them are memories that stand.
    known = f"cross join lateral ({MEMORY if narrowed else STANDING}) known"
    asked = by_words(narrowed=narrowed, of_domain=of_domain, of_subject=of_subject, most=LOOKED_AT)
    likeness = f"-(v.embedding::vector({dimensions}) <#> %(meant)s::vector({dimensions}))"
    few = "true" if narrowed else f"(select memories from corpus) <= {LOOKED_AT}"
    return f"""{asked}, quick as materialized (
    select r.place, r.likeness
    from (
        select v.place, {likeness} as likeness
        from memory_vector v
        where {of_scope} and not ({few})
        order by v.embedding::halfvec({dimensions}) <#> %(meant)s::halfvec({dimensions})
        limit {_READ_OFF}
    ) r {known}
    limit {_NEAREST}
), each as materialized (
    select r.place, r.likeness
    from (
        select v.place, {likeness} as likeness
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
    join memory_vector v on v.place = first.place and v.embedder = {embedder}
), whole as materialized (
    select greatest(1,  -- a question of little words means something too
                    coalesce((select sum(weight) from (select max(weight) as weight from weighed group by word) w), 0)
                    + (select count(*) from spelled where word not in (select word from counted))
                      * ln(1 + (corpus.memories + 0.5) / 0.5)::float8) as weight
    from corpus
), alike as materialized (
    select place, {_WORTH} * (nearest.likeness - usual.likeness)
                  / nullif((select max(likeness) from nearest) - usual.likeness, 0) as share
    from nearest
    join memory_memory m using (place)
    cross join usual
    where m.embedder = {embedder}  -- else its text has changed since
      and nearest.likeness > usual.likeness
      and ((select likeness from led) > usual.striking or not exists(select from own))
), total as materialized (
    select place,
           {SCORE}
           + coalesce(alike.share * greatest(whole.weight - coalesce(spread.has, 0), 0), 0) as score,
           coalesce(spread.is_among, false) as is_among, alike.share is not null as is_alike
    from spread full join alike using (place)
    full join sessions on sessions.session = place >> {MESSAGE_BITS}
    cross join whole
    where coalesce(place, 0) <> 0
){ANSWER}"""


# Whether vectors can be compared here.
_EXTENSION: Final = "select exists(select from pg_extension where extname = 'vector')"


def has_vectors() -> bool:
    """Whether the database has pgvector."""
    return bool(fetch(_EXTENSION)[0][0])


# The text of a memory `m`, as the embedder is given it.
_TEXT: Final = """case m.kind when 'pattern' then m.domain || ' ' || m.name || ' ' || m.text
    when 'concept' then concat_ws(' ', m.name, array_to_string(m.aliases, ' '), m.domain, m.text) else m.text end"""
# By memory_memory_embedded: those of no embedder, of one with a smaller mark, of one with a larger.
_UNEMBEDDED: Final = f"""
select m.place, {_TEXT}
from (
    (select place from memory_memory where embedder is null order by place limit %(limit)s)
    union all
    (select place from memory_memory where embedder < %(embedder)s order by embedder, place limit %(limit)s)
    union all
    (select place from memory_memory where embedder > %(embedder)s order by embedder, place limit %(limit)s)
    limit %(limit)s
) due
join memory_memory m using (place)
"""


def unembedded(embedder: int, *, limit: int) -> dict[int, str]:
    """Texts, by their places, of which this embedder has no current vector."""
    return dict(fetch(_UNEMBEDDED, {"embedder": embedder, "limit": limit}, hot=True))


_HOLD: Final = """
select place from memory_memory where place = any(%(places)s::bigint[]) order by id for no key update skip locked
"""
# In a new snapshot, which has what those who held the memories before have committed.
_CURRENT: Final = f"select m.place, {_TEXT} from memory_memory m where m.place = any(%(places)s::bigint[])"
_STORE: Final = """
with told as materialized (
    select * from unnest(%(places)s::bigint[], %(vectors)s::text[]) as t(place, vector)
), named as (
    update memory_memory m set embedder = %(embedder)s from told where m.place = told.place
    returning m.place, m.tenant_id, m.scope, told.vector
), refused as (
    delete from memory_vector v using told where v.place = told.place and vector is null
)
insert into memory_vector (tenant_id, place, scope, embedder, embedding)
select tenant_id, place, scope, %(embedder)s, translate(vector, '[]', '{}')::real[] from named where vector is not null
on conflict (place) do update
set scope = excluded.scope, embedder = excluded.embedder, embedding = excluded.embedding
"""


def keep_vectors(embedder: int, texts: Mapping[int, str], vectors: Mapping[int, str | None]) -> int:
    """Store the vectors of memories that still have these texts; None for a text that the embedder refuses.

    Memories that another transaction has locked are left for later. Returns how many were stored.
    """
    held = [place for (place,) in fetch(_HOLD, {"places": sorted(vectors)}, hot=True)]
    same = [place for place, text in fetch(_CURRENT, {"places": held}, hot=True) if text == texts[place]]
    execute(_STORE, {"places": same, "vectors": [vectors[place] for place in same], "embedder": embedder}, hot=True)
    return len(same)


_COUNTED: Final = 100_000
_STATE: Final = """
select not exists(select from pg_indexes where schemaname = current_schema() and indexname = %(index)s)
       and exists(select from memory_vector where embedder = %(embedder)s group by tenant_id having count(*) > %(few)s),
       (select count(*) from (
           select from memory_memory where embedder is distinct from %(embedder)s limit %(counted)s) waiting)
"""


def state_of(asked: Embedder) -> tuple[bool, int]:
    """Whether an index is missing for a tenant with more vectors than are compared one by one; and how many memories
    have no current vector, counted up to a bound. Runs as the system.
    """
    given = {"index": index_name(asked.mark), "embedder": asked.mark, "few": LOOKED_AT, "counted": _COUNTED}
    ((lacks_index, waiting),) = fetch(_STATE, given)
    return lacks_index, waiting


# Asking the embedder.


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """The vector of a question, by one embedder."""

    embedder: int
    dimensions: int
    vector: str


_QUESTION: Final = timedelta(seconds=1)
_MEMORIES: Final = timedelta(seconds=20)
_AT_ONCE: Final = 64
_BATCHES: Final = 50
# A text that no embedder refuses for its content.
_PLAIN: Final = "memory"
# The number of seconds after a failed call in which this process does not ask the embedder about questions.
_PAUSE: Final = 30.0
# By URL, when a pause ends.
_paused: Final[dict[str, float]] = {}


def asks_what_is_meant() -> bool:
    """Whether this deployment names an embedder, which is asked outside of transactions."""
    return embedder() is not None


def meaning_of(question: str, /, *, patience: timedelta = _QUESTION) -> Meant | None:
    """The vector of a question; None if there is none now. Call it outside of transactions.

    :param patience: the longest that the caller waits for the embedder.
    """
    asked = embedder()
    if asked is None or not question.strip() or time.monotonic() < _paused.get(asked.url, 0.0) or not has_vectors():
        return None
    try:
        (vector,) = asked.embed([question], patience=patience)
    except NotEmbedded as exc:
        logger.warning("A question is recalled by its words alone: the embedder failed. %s", exc)
        if not exc.refused:
            _paused[asked.url] = time.monotonic() + _PAUSE
        return None
    return Meant(embedder=asked.mark, dimensions=asked.dimensions, vector=_written(vector))


def embed_memories() -> int:
    """Ask the embedder for the vectors of memories that have no current one; returns how many were stored.

    Runs as the system, a bounded number at each call. If the embedder fails, the rest waits for the next call. A text
    that it refuses, or fails at twice while it answers for a plain word, is marked as refused: words alone find it.
    """
    asked = embedder()
    if asked is None or not has_vectors():
        return 0
    done = 0
    for _ in range(_BATCHES):
        with acting_as_system("memories without a vector are read"):
            texts = unembedded(asked.mark, limit=_AT_ONCE)
        if not texts:
            break
        try:
            vectors = _embedded(asked, texts)
        except NotEmbedded as exc:
            logger.warning("Memories wait for the embedder and are recalled by words until then. %s", exc)
            break
        with acting_as_system("vectors are stored"):
            kept = keep_vectors(asked.mark, texts, vectors)
        if not kept:
            break
        done += kept
    return done


def _embedded(asked: Embedder, texts: Mapping[int, str], *, again: bool = False) -> dict[int, str | None]:
    """A vector of each text; None for a text that the embedder refuses, or fails at twice.

    :raises NotEmbedded: if it is busy, or fails at a plain word too. Then nothing is known about these texts.
    """
    try:
        vectors = asked.embed(list(texts.values()), patience=_MEMORIES)
    except NotEmbedded as exc:
        if exc.busy:
            raise
        # Each time: an embedder that begins to fail at everything must not take the rest of the batch with it.
        asked.embed([_PLAIN], patience=_MEMORIES)
        if len(texts) > 1:
            alone = (_embedded(asked, {place: text}) for place, text in texts.items())
            return {place: vector for one in alone for place, vector in one.items()}
        return dict.fromkeys(texts) if exc.refused or again else _embedded(asked, texts, again=True)
    return {place: _written(vector) for place, vector in zip(texts, vectors, strict=True)}
