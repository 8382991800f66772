"""The search index of memories: BM25 in PostgreSQL.

The transaction that stores a memory also stores a row of SearchTerm for each of its words. PostgreSQL's English dictionary
drops stop words and stems the others, in memories and questions alike. Recall ranks by BM25. The context of a memory adds
to its score: the messages before and after it, its session, its speaker and its date.
"""

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from apps.core.sql import execute, fetch
from apps.memory.models import COMMON, MESSAGE_BITS, OUTSIDE, Memory, Session
from apps.memory.texts import Question, as_sought
from apps.principals.tenancy import acting_as_system

# Writing.

# The most signs of a text that are indexed, of four bytes each. A tsvector holds a mebibyte of words, with their parts and
# positions. Normalizing may make eighteen signs of one.
_INDEXED: Final = 1 << 16

_INDEX: Final = """
with memory as materialized (
    select place, tenant_id, scope, kind, length, metadata, coalesce(valid_to <= gatehouse_now(), false) as is_over
    from memory_memory where id = %(memory)s
), said as materialized (
    select lexeme, least(coalesce(cardinality(positions), 1), 32767) as frequency
    from unnest(to_tsvector('english', %(text)s))
), around as materialized (
    select lexeme from unnest(to_tsvector('english', %(context)s))
), total as materialized (
    select coalesce(sum(frequency), 0) as length from said
), kept as (
    insert into memory_searchterm (tenant_id, scope, term, place, frequency, length, of_context, superseded)
    select memory.tenant_id, memory.scope, lexeme, place, coalesce(said.frequency, 0), total.length,
           around.lexeme is not null, is_over
    from said full join around using (lexeme) cross join memory cross join total
), marked as (
    insert into memory_searchterm (tenant_id, scope, term, place, frequency, length, of_context)
    select memory.tenant_id, memory.scope, mark, place, 0, total.length, false
    from memory cross join total cross join lateral unnest(memory_marks(nullif(metadata, '{}'))) m(mark)
), counted as (
    insert into memory_searchtotals (tenant_id, scope, observations, patterns, concepts, memories, words)
    select memory.tenant_id, memory.scope, (kind = 'observation')::int * %(counted)s, (kind = 'pattern')::int * %(counted)s,
           (kind = 'concept')::int * %(counted)s, %(added)s, total.length - memory.length
    from memory, total
)
update memory_memory
set length = (select length from total), words = to_tsvector('english', %(text)s), embedder = null
where id = %(memory)s
"""


def index(memory: Memory, text: str, *, context: str = "", is_new: bool = True, replaces: bool = False) -> None:
    """Make a memory findable by the words of this text and of its context, and by its metadata, and by nothing else.

    :param replaces: a new observation supersedes another, so the number of observations stays the same.
    """
    if not is_new:
        execute("delete from memory_searchterm where place = %(place)s", {"place": memory.place}, hot=True)
    given = {
        "memory": memory.pk,
        "text": as_sought(text)[:_INDEXED],
        "context": as_sought(context)[:_INDEXED],
        "added": int(is_new),
        "counted": int(is_new and not replaces),
    }
    execute(_INDEX, given, hot=True)


def supersede(memories: Collection[int]) -> None:
    """Mark memories, by their keys, as superseded: recall finds them only as of before."""
    execute(
        "update memory_searchterm set superseded = true where place = any(array("
        "select place from memory_memory where id = any(%(memories)s::bigint[])))",
        {"memories": list(memories)},
        hot=True,
    )


_MOVE: Final = """
with moved as (
    update memory_memory set subject_id = %(subject)s
    where session_id = %(session)s and subject_id is distinct from %(subject)s
    returning place, tenant_id, old.scope as former, length, superseded_at
), words as (
    update memory_searchterm t set scope = %(subject)s from moved where t.place = moved.place
), vectors as (
    update memory_vector v set scope = %(subject)s from moved where v.place = moved.place
), counted as (
    select tenant_id, former, count(*) filter (where superseded_at is null) as observations, count(*) as memories,
           sum(length) as words
    from moved group by tenant_id, former
), frequencies as (
    delete from memory_termfrequency f using counted where f.tenant_id = counted.tenant_id and f.scope = former
)
insert into memory_searchtotals (tenant_id, scope, observations, patterns, concepts, memories, words)
select tenant_id, side.scope, sign * observations, 0, 0, sign * memories, sign * words
from counted cross join lateral (values (former, -1), (%(subject)s::bigint, 1)) side(scope, sign)
"""


def move(session: Session) -> None:
    """Make the messages of a session, which the caller has locked, memories about the session's subject.

    Term frequencies of the scope that they leave are counted anew by the next job, as for :func:`remove`.
    """
    # The embedder's job holds memories while it stores their vectors. A statement that waits for it would not see these.
    list(Memory.objects.filter(session=session).order_by("pk").select_for_update(no_key=True).values_list("pk"))
    execute(_MOVE, {"session": session.pk, "subject": session.subject_id}, hot=True)


_UNCOUNT: Final = """
with gone as materialized (
    select tenant_id, scope, kind, superseded_at, length from memory_memory where id = any(%(memories)s::bigint[])
), frequencies as (
    delete from memory_termfrequency f using (select distinct tenant_id, scope from gone) g
    where f.tenant_id = g.tenant_id and f.scope = g.scope
)
insert into memory_searchtotals (tenant_id, scope, observations, patterns, concepts, memories, words)
select tenant_id, scope, -count(*) filter (where kind = 'observation' and superseded_at is null),
       -count(*) filter (where kind = 'pattern'), -count(*) filter (where kind = 'concept'), -count(*), -sum(length)
from gone group by tenant_id, scope
"""
# A job that sums up or counts a scope meanwhile would write again what was removed.
_REMOVING: Final = "hashtextextended('memory.removing', 0)"


def remove(memories: Collection[int]) -> None:
    """Delete memories, by their keys, with their rows in the search index.

    Term frequencies of their scopes are deleted too, and counted anew by the next job, so that no word of them remains.
    """
    execute(f"select pg_advisory_xact_lock_shared({_REMOVING})")
    rows = Memory.objects.filter(pk__in=list(memories))
    list(rows.order_by("pk").select_for_update().values_list("pk"))
    execute(_UNCOUNT, {"memories": list(memories)}, hot=True)
    rows.delete()


# Counting. A sum stays as it is until a writer adds to the scope.

_FOLD: Final = """
with fresh as materialized (
    select distinct tenant_id, scope from memory_searchtotals where not folded
), taken as (
    select t.id from fresh join memory_searchtotals t using (tenant_id, scope) for update of t skip locked
), gone as (
    delete from memory_searchtotals where id in (select id from taken) returning *
)
insert into memory_searchtotals (tenant_id, scope, observations, patterns, concepts, memories, words, folded)
select tenant_id, scope, sum(observations), sum(patterns), sum(concepts), sum(memories), sum(words), true
from gone group by tenant_id, scope
"""

# The largest scope that has grown or shrunk by a tenth since it was counted. Only scopes that are large, or were, are read.
# Indexes: memory_searchtotals_large, memory_searchtotals_of_scope.
_OUTDATED: Final = """
select large.tenant_id, large.scope, t.memories
from (
    select tenant_id, scope from memory_searchtotals where memories > %(common)s
    union
    select tenant_id, scope from memory_termfrequency where term = ''
) large
cross join lateral (
    select coalesce(sum(memories), 0)::bigint as memories
    from memory_searchtotals where tenant_id = large.tenant_id and scope = large.scope
) t
left join memory_termfrequency c on c.tenant_id = large.tenant_id and c.scope = large.scope and c.term = ''
where greatest(t.memories, c.memories) > %(common)s
  and abs(t.memories - coalesce(c.memories, 0)) >= 0.1 * coalesce(c.memories, 0)
  and t.memories is distinct from c.memories
order by t.memories desc
limit 1
"""

_COUNT: Final = """
with counted as materialized (
    select term, count(*) as memories from memory_searchterm
    where tenant_id = %(tenant)s and scope = %(scope)s
    group by term having count(*) > %(common)s
    union all
    select '', %(memories)s
), gone as (
    delete from memory_termfrequency
    where tenant_id = %(tenant)s and scope = %(scope)s and term not in (select term from counted)
)
insert into memory_termfrequency (tenant_id, scope, term, memories)
select %(tenant)s, %(scope)s, term, memories from counted
on conflict (tenant_id, scope, term) do update set memories = excluded.memories
"""
_SCOPES_A_CALL: Final = 100


def fold_totals() -> None:
    """Replace the new rows of each scope's totals by one sum, so that a reader has few rows to add up."""
    with acting_as_system("search totals are summed up"):
        if _nothing_is_removed():
            execute(_FOLD)


def count_frequencies(common: int = COMMON) -> int:
    """Count the frequent terms of scopes that have changed by a tenth since they were counted; returns how many scopes."""
    for counted in range(_SCOPES_A_CALL):
        with acting_as_system("term frequencies are counted"):
            if not _nothing_is_removed() or not (found := fetch(_OUTDATED, {"common": common})):
                return counted
            tenant, scope, memories = found[0]
            execute(_COUNT, {"tenant": tenant, "scope": scope, "memories": memories, "common": common})
    return _SCOPES_A_CALL


def _nothing_is_removed() -> bool:
    return bool(fetch(f"select pg_try_advisory_xact_lock({_REMOVING})")[0][0])


# Recall.

# Once rarer words have found this number of memories, a word chooses no others: it only adds to their scores.
_ENOUGH: Final = 100
# A word that chooses no memories is read as far back as the chosen ones go, if it has no more memories than this. Of more
# frequent words, the best memories are looked up one by one: this number of them.
_JOINED: Final = 20_000
_PROBED: Final = 100
# The number of terms of a word, itself first, that are scored in full; all others share the memories of one of these.
_IN_FULL: Final = 4
# The number of best memories in which pairs of words that follow each other in the question are searched.
_LOOKED_THROUGH: Final = 24

# The most hits of an answer.
MOST: Final = 500
# A narrowed question looks at the newest memories of each of its words, whether they fit, and at the newest that fit, whether
# they have its words: this number of each.
REACHED: Final = COMMON

# The number of newest memories of a word that are read to find those that are not superseded.
_READ: Final = 10_000

# A memory as recall returns it. As of before its latest revision it reads as the earlier reading `w`; if that was forgotten,
# it is not found.
_SHOWN: Final = """
    m.kind || ':' || coalesce(m.key, m.id::text) as ref,
    case m.kind
        when 'pattern' then m.name || ': ' || coalesce(w.text, m.text)
        when 'concept' then m.name || coalesce(' (' || nullif(coalesce(w.domain, m.domain), '') || ')', '')
                                   || coalesce(': ' || nullif(coalesce(w.text, m.text), ''), '')
        else m.text end as text,
    coalesce(w.domain, m.domain) as domain,
    coalesce(w.confidence, m.confidence, 1) as confidence,
    coalesce(w.metadata, m.metadata)::text as metadata,
    (select a.name from principals_principal a where a.id = coalesce(w.author_id, m.author_id)) as author,
    m.recorded_at, m.occurred_at, m.speaker,
    coalesce((select s.conversation_id from memory_session s where s.id = m.session_id), '') as conversation_id
"""

# That a memory `m` is not superseded, that an item is true at that time, and that it is not due for deletion. As in envelopes,
# an item that is valid from its recording on is valid at once, though the clock of its writer is ahead.
_STANDS: Final = """(m.superseded_at is null or m.superseded_at > %(as_of)s)
      and (m.valid_from is null or m.valid_from <= greatest(least(%(as_of)s, gatehouse_now()), m.recorded_at))
      and (m.valid_to is null or m.valid_to > least(%(as_of)s, gatehouse_now()))
      and least(m.occurred_at, m.recorded_at) > %(since)s"""

# One memory by its place. The limit keeps the planner from joining whole tables.
MEMORY: Final = f"""
    select {_SHOWN}, m.words
    from memory_memory m
    left join lateral (
        select domain, text, confidence, metadata, author_id from memory_revision
        where memory_id = m.id and m.revised_at > %(as_of)s and superseded_at > %(as_of)s and recorded_at <= %(as_of)s
        order by superseded_at, id
        limit 1
    ) w on true
    where m.place = r.place
      and m.tenant_id = %(tenant)s and m.scope = %(scope)s
      and (%(domain)s::text is null or m.domain = %(domain)s)
      and m.recorded_at <= %(as_of)s
      and (m.revised_at is null or m.revised_at <= %(as_of)s or w.author_id is not null)
      and {_STANDS}
      and coalesce(w.metadata, m.metadata) @> %(filters)s::jsonb
    limit 1
"""

_ANSWERED: Final = "ref, text, domain, confidence, metadata, author, recorded_at, occurred_at, speaker, conversation_id"

_OF_SCOPE: Final = "tenant_id = %(tenant)s and scope = %(scope)s"
# By memory_memory_newest and memory_memory_domain. The domain is compared with an array, and sorted
# by: of a frequent domain the planner would expect some rows among the newest of all, where there may be none.
_OF_TIME: Final = f"memory_memory where {_OF_SCOPE} and recorded_at <= %(as_of)s"
_OF_DOMAIN: Final = f"{_OF_TIME} and domain = any(array[%(domain)s::text])"


def _reached(*, of_domain: bool, most: int) -> str:
    """The places that a narrowed question looks at first.

    These are the newest with the rarest mark of the metadata asked for, from memory_searchterm_once alone. Unless these are
    all there are, the newest of the domain or of the time are added.
    """
    newest = f"{_OF_DOMAIN} order by domain, " if of_domain else f"{_OF_TIME} order by "
    return f"""marks as materialized (
    select mark, n.memories
    from unnest(memory_marks(%(filters)s::jsonb)) as f(mark)
    cross join lateral (
        select count(*) as memories from (
            select from memory_searchterm g where {_OF_SCOPE} and g.term = f.mark limit {most}) found
    ) n
), reached as materialized (
    select g.place
    from (select mark from marks order by memories, mark limit 1) rarest
    cross join lateral (
        select place from memory_searchterm where {_OF_SCOPE} and term = rarest.mark order by place desc limit {most}
    ) g
    union
    select place from (
        select place from {newest}recorded_at desc, place desc limit {most}
    ) newest
    where not exists(select from marks where memories < {most})
)"""


# Whether a memory that was known by then is one that the question is narrowed to: by the keys and memory_searchterm_once. A
# memory that only has the same marks is left out later, when it is looked up.
_JUDGED: Final = f"""
    select (%(domain)s::text is null or m.domain = %(domain)s)
           and not exists(select from marks where not exists(
               select from memory_searchterm g
               where g.tenant_id = %(tenant)s and g.scope = %(scope)s and g.term = marks.mark and g.place = m.place
           ))
           and {_STANDS} as fits
    from memory_memory m
    where m.place = r.place and m.tenant_id = %(tenant)s and m.scope = %(scope)s and m.recorded_at <= %(as_of)s
    limit 1
"""
# One that stands: no term says that an item has ended, or is valid only later.
STANDING: Final = f"""
    select from memory_memory m where m.place = r.place and {_STANDS} limit 1
"""

# Index-only scans of memory_searchterm_once (each word's memories to count and to choose, then the leading ones' other
# words), of memory_termfrequency_once and memory_searchtotals_of_scope; then, best first and until there are enough, the
# memories by key. Six words at most: the rarest.
#
# A word of the question stands for its other forms and, where it is a name, for the other names of the same concept.
# A memory has its own score. Half of that of the messages next to it and 0.3 of those after these are added, twice the
# weight of a word that says who spoke or when, and a fifth of what the session's words score as one text.
_CHOSEN: Final = f"""rare as materialized (
    select w.*, g.place, g.frequency, g.length as words, g.of_context
    from weighed w
    cross join lateral (
        select place, frequency, length, of_context
        from (
            select place, frequency, length, of_context, superseded from memory_searchterm
            where {_OF_SCOPE} and term = w.term
            order by place desc
            limit {_READ}
        ) g
        where not superseded
        order by place desc
        limit ceil(%(scored)s * w.part)::bigint
    ) g
    where w.chooses
), chosen as materialized (
    select place, word, term, weight, of_context, share * frequency as frequency,
           1.2 * (0.25 + 0.75 * words / length) as damping
    from (
        select * from rare
        union all
        select w.*, g.place, g.frequency, g.length, g.of_context
        from weighed w
        cross join lateral (
            select place, frequency, length, of_context from memory_searchterm
            where {_OF_SCOPE} and term = w.term and place >= (select min(place) from rare)
            offset 0
        ) g
        where not w.chooses and w.memories <= {_JOINED} and g.place in (select place from rare)
    ) g
"""
_BY_PLACE: Final = """
    select place, sum(score) as score, sum(around) as around, sum(weight) filter (where frequency > 0) as has
    from matched
    group by place"""
_OWN: Final = f"""own as materialized ({_BY_PLACE}
    order by sum(score) + 2 * sum(around) desc, place desc
    limit %(leading)s
"""
# Best first, until enough of them stand.
_OWN_OF_SUBJECT: Final = f"""own as materialized (
    select place, score, around, has
    from (
        select place, sum(score) as score, sum(around) as around, sum(weight) filter (where frequency > 0) as has,
               sum(score) + 2 * sum(around) as rank
        from matched
        group by place
        order by rank desc, place desc
    ) r
    cross join lateral ({STANDING}) standing
    order by rank desc, place desc
    limit %(leading)s
"""
# A word chooses memories to score, unless rarer words have found enough.
_CHOOSES: Final = f"""coalesce(of_rarer.memories, 0)
               < case when asked.memories > %(scored)s then {_ENOUGH} else %(scored)s end"""
_CHOSEN_NARROWLY: Final = f"""within as materialized (
    select place from reached r cross join lateral ({_JUDGED}) judged where fits
), chosen as materialized (
    select g.place, w.word, w.term, w.weight, g.of_context, w.share * g.frequency as frequency,
           1.2 * (0.25 + 0.75 * g.length / w.length) as damping
    from weighed w
    cross join lateral (
        select place, frequency, length, of_context from memory_searchterm
        where {_OF_SCOPE} and term = w.term
        order by place desc
        limit ceil({REACHED} * w.part)::bigint
    ) g
    union
    select r.place, w.word, w.term, w.weight, g.of_context, w.share * g.frequency as frequency,
           1.2 * (0.25 + 0.75 * g.length / w.length) as damping
    from weighed w
    cross join (select place from within order by place desc limit {2 * REACHED}) r
    cross join lateral (
        select frequency, length, of_context from memory_searchterm
        where {_OF_SCOPE} and term = w.term and place = r.place
        limit 1
    ) g
    where w.is_common
"""
_OWN_NARROWLY: Final = f"""judged as materialized (
    select r.*, judged.fits from ({_BY_PLACE}) r cross join lateral ({_JUDGED}) judged
), own as materialized (
    select place, score, around, has from judged where fits
    order by score + 2 * around desc, place desc
    limit %(leading)s
"""
# A message next to one that fits adds to its score, whether or not it fits itself.
_BESIDE: Final = f"""
        union all
        (select place, score, 0, 0, false from judged where not fits and place & {OUTSIDE} = 0
         order by score desc, place desc limit %(leading)s)"""


def by_words(*, narrowed: bool = False, of_domain: bool = False, of_subject: bool = False, most: int = REACHED) -> str:
    """The beginning of each statement: scores by words.

    :param of_subject: items may be among them, as always in a narrowed question.
    """
    reached = _reached(of_domain=of_domain, most=most) + ", " if narrowed else ""
    # What a rarer word has found may not fit.
    chooses = "true" if narrowed else _CHOOSES
    chosen = _CHOSEN_NARROWLY if narrowed else _CHOSEN
    own = _OWN_NARROWLY if narrowed else _OWN_OF_SUBJECT if of_subject else _OWN
    beside = _BESIDE if narrowed else ""
    # What was stored after `as_of` adds nothing. A test of its own is looked up by hash, where a join would not be.
    known = " and (place in (select place from judged)) is true" if narrowed else ""
    return f"""
with {reached}spelled as materialized (
    select word, word as term, 1::float8 as share
    from unnest(tsvector_to_array(to_tsvector('english', %(query)s))) as q(word)
), meant as materialized (
    select word, term, share from spelled
    union all
    select w.word, other.term, 1
    from unnest(%(said)s::text[], %(also)s::text[]) as f(said, also)
    cross join lateral (select (ts_lexize('english_stem', f.said))[1] as word) w
    cross join lateral (select (ts_lexize('english_stem', f.also))[1] as term) other
    where w.word in (select word from spelled) and other.term <> w.word
    union all
    select coalesce(w.word, named.key), other.term, other.share
    from memory_conceptname named
    join memory_conceptname alias on alias.concept_id = named.concept_id and alias.key <> named.key
    left join lateral unnest(tsvector_to_array(to_tsvector('english', named.key))) as w(word) on true
    cross join lateral (
        select term, 1::float8 / count(*) over () as share
        from unnest(tsvector_to_array(to_tsvector('english', alias.key))) as l(term)
    ) other
    where named.tenant_id = %(tenant)s and named.key = any(%(names)s::text[])
      -- a name of stop words alone
      and (w.word is not null or named.key = any(%(proper)s::text[]))
), counted as materialized (
    select word, term, max(share) as share, max(n.memories) as memories
    from meant
    cross join lateral (
        select coalesce(
            (select memories from memory_termfrequency c
             where c.tenant_id = %(tenant)s and c.scope = %(scope)s and c.term = meant.term),
            (select count(*) from (
                 select from memory_searchterm g
                 where g.tenant_id = %(tenant)s and g.scope = %(scope)s and g.term = meant.term
                 limit {COMMON}) found)) as memories
        offset 0  -- else it is counted anew wherever it is used
    ) n
    where n.memories > 0
    group by word, term
), asked as materialized (
    select word, greatest(sum(memories) filter (where share = 1), min(memories)) as memories
    from counted
    group by word
    order by 2, 1
    limit 6
), corpus as materialized (
    select coalesce(sum(memories), 0) as memories,
           greatest(sum(words) / nullif(sum(memories), 0), 1)::float8 as length
    from memory_searchtotals where tenant_id = %(tenant)s and scope = %(scope)s
), weighed as materialized (
    select asked.word, counted.term, counted.share, counted.memories, corpus.length,
           counted.memories >= {REACHED} and counted.nth <= {_IN_FULL} as is_common,
           counted.nth > {_IN_FULL} or {chooses} as chooses,
           case when counted.nth <= {_IN_FULL} then 1 else {_IN_FULL}::float8 / counted.terms end as part,
           ln(1 + greatest(corpus.memories - asked.memories + 0.5, 0) / (asked.memories + 0.5))::float8 as weight
    from asked
    join (
        select *, count(*) over (partition by word) as terms,
               row_number() over (partition by word order by term = word desc, share desc, memories desc, term) as nth
        from counted
    ) counted using (word)
    cross join corpus
    cross join lateral (
        select sum(r.memories) as memories from asked r
        where (r.memories, r.word) < (asked.memories, asked.word)
    ) of_rarer
), {chosen}), matched as materialized (
    select place, word, min(term) as term, max(weight) as weight, sum(frequency) as frequency,
           max(weight) * sum(frequency) * 2.2 / (sum(frequency) + max(damping)) as score,
           max(weight) * bool_or(of_context)::int as around
    from chosen
    group by place, word
), {own}), common as materialized (
    select g.place, w.word, w.term, g.frequency,
           w.weight * w.share * g.frequency * 2.2
               / (w.share * g.frequency + 1.2 * (0.25 + 0.75 * g.length / w.length)) as score,
           w.weight * g.of_context::int as around, case when g.frequency > 0 then w.weight end as has
    from weighed w
    cross join lateral (
        select place, frequency, length, of_context from memory_searchterm
        where {_OF_SCOPE} and term = w.term and place = any(array(
            select place from own order by score + 2 * around desc, place desc limit {_PROBED}))
        offset 0
    ) g
    where not w.chooses and w.memories > {_JOINED}
), sessions as materialized (
    select session, sum(weight * frequency * 2.2 / (frequency + 1.2)) as score
    from (
        select place >> {MESSAGE_BITS} as session, word, max(weight) as weight, sum(frequency) as frequency
        from matched where place & {OUTSIDE} = 0 and frequency > 0{known}
        group by 1, 2
    ) said
    group by session
), spread as materialized (
    select place + distance as place, sum(score * share) as score,
           coalesce(sum(around) filter (where distance = 0), 0) as around,
           coalesce(sum(has) filter (where distance = 0), 0) as has,
           bool_or(distance <> 0) as is_among
    from (
        select place, score, around, has, true as fits from own
        union all
        select place, score, around, has, true from common{beside}
    ) found
    cross join (values (0, 1::float8), (-1, 0.5), (1, 0.5), (-2, 0.3), (2, 0.3)) n(distance, share)
    where (distance = 0 and fits) or (distance <> 0 and place & {OUTSIDE} = 0 and score > 0)
    group by 1
)
"""


# The score by words: its own and its session's.
SCORE: Final = "coalesce(spread.score + 2 * spread.around, 0) + 0.2 * coalesce(sessions.score, 0)"

# By words alone. The planner takes each side for one row and would join by a nested loop, which a full join can't be. It does
# not know that each session has a place, and that no place is 0.
_TOTAL: Final = f""", total as materialized (
    select spread.place, {SCORE} as score, spread.is_among, false as is_alike
    from spread full join sessions on sessions.session = spread.place >> {MESSAGE_BITS}
    where coalesce(spread.place, 0) <> 0
)
"""
# The end of each statement: what its `total` comes to.
ANSWER: Final = f""", best as materialized (
    select m.*, r.place, r.score, r.is_among, r.is_alike
    from (select * from total order by score desc, place desc) r
    cross join lateral ({MEMORY}) m
    order by r.score desc, r.place desc
    limit greatest(%(limit)s, {_LOOKED_THROUGH})
), reasons as materialized (
    select place, string_agg(case when term = word then term else term || ' (' || word || ')' end, ', ')
                      filter (where frequency > 0) as terms,
           string_agg(word, ', ') filter (where around > 0) as told
    from (select place, word, term, frequency, around from matched
          union all select place, word, term, frequency, around from common) m
    where place = any((select array_agg(place) from best)::bigint[])
    group by place
), phrases as materialized (
    select phrase from unnest(%(pairs)s::text[]) as q(pair)
    cross join lateral (select phraseto_tsquery('english', q.pair) as phrase) p
    where numnode(phrase) = 3
)
select {_ANSWERED}, best.score * (1 + 0.1 * found.phrases) as score, reasons.terms, reasons.told, is_among,
       found.phrases > 0 as has_phrase, is_alike
from best left join reasons using (place)
cross join lateral (select count(*) as phrases from phrases where best.words @@ phrase) found
order by 11 desc, recorded_at desc, best.place desc
limit %(limit)s
"""
RECALL: Final = by_words() + _TOTAL + ANSWER
RECALL_OF_SUBJECT: Final = by_words(of_subject=True) + _TOTAL + ANSWER
RECALL_NARROWED: Final = by_words(narrowed=True) + _TOTAL + ANSWER
RECALL_OF_DOMAIN: Final = by_words(narrowed=True, of_domain=True) + _TOTAL + ANSWER


def _newest(places: str, order: str = "", reached: str = "") -> str:
    # A constant limit in between tells the planner that few rows are wanted; a parameter does not.
    return f"""
{reached and "with "}{reached}
select {_ANSWERED}, 0::float8 as score, '' as terms, '' as told, false as is_among,
       false as has_phrase, false as is_alike
from (
    select m.*
    from (
        select place, recorded_at, domain from {places}
        order by {order}recorded_at desc, place desc
    ) r
    cross join lateral ({MEMORY}) m
    order by {order and "r."}{order}r.recorded_at desc, r.place desc
    limit {MOST}
) newest
limit %(limit)s
"""


# Ordered scans of memory_memory_newest and memory_memory_domain that stop at the limit.
NEWEST: Final = _newest(_OF_TIME)
NEWEST_OF_DOMAIN: Final = _newest(_OF_DOMAIN, "domain, ")
# Of those that are reached, by the key.
_REACHED_ALL: Final = (
    "reached r cross join lateral (select recorded_at, domain from memory_memory where place = r.place limit 1) p"
)
NEWEST_FILTERED: Final = _newest(_REACHED_ALL, reached=_reached(of_domain=False, most=REACHED))
NEWEST_FILTERED_OF_DOMAIN: Final = _newest(_REACHED_ALL, reached=_reached(of_domain=True, most=REACHED))

# The number of newest memories of a word that are scored, if not superseded (see also _ENOUGH); not if narrowed.
_SCORED: Final = 600
# The number of best memories to whose scores frequent words and the context are added.
_LEADING: Final = 250


def find(
    question: Question,
    *,
    tenant_id: int,
    scope: int = 0,
    domain: str | None = None,
    filters: Mapping[str, Any],
    as_of: datetime | None = None,
    since: datetime | None = None,
    limit: int,
    statement: str | None = None,
    meant: str | None = None,
) -> list[tuple[Any, ...]]:
    """The memories of a scope that match best, as rows of the columns of ANSWER; with an empty question, the newest.

    :param since: leave out what was said at this moment or before.
    :param statement: use this one, which compares vectors with that of the question, `meant`.
    """
    given: dict[str, Any] = {
        "tenant": tenant_id,
        "scope": scope,
        "domain": domain,
        "filters": json.dumps(filters),
        "as_of": as_of or "infinity",
        "since": since or "-infinity",
        "limit": limit,
    }
    if question.text.strip():
        given |= {
            "query": question.text,
            "said": [said for said, _ in question.forms],
            "also": [also for _, also in question.forms],
            "names": question.names,
            "proper": question.proper,
            "pairs": question.pairs,
            "scored": _SCORED,
            "leading": max(limit, _LEADING),
        }
        if statement is not None:
            given["meant"] = meant
        elif domain is None and not filters and as_of is None:
            statement = RECALL_OF_SUBJECT if scope else RECALL
        else:
            statement = RECALL_NARROWED if domain is None else RECALL_OF_DOMAIN
    elif filters:
        statement = NEWEST_FILTERED if domain is None else NEWEST_FILTERED_OF_DOMAIN
    else:
        statement = NEWEST if domain is None else NEWEST_OF_DOMAIN
    return list(fetch(statement, given, hot=True))
