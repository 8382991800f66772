"""The statements behind recall by words.

Words are PostgreSQL's own: its English dictionary drops stop words and stems the others, on the way in and on the
way out alike. The ranking is BM25 over the postings, which the writing transaction keeps, and what stands around a
passage adds to it: the turns before and after it, its session, who said it and when.
"""

from typing import Final

from apps.memory.models import COMMON, OUTSIDE, TURN_BITS

# The number of passages of rarer words from which on a word only adds to their scores; one that stands in more than are
# scored itself, from fewer on.
_ENOUGH: Final = 100
# As many terms of a word, itself first, are scored in full; all others it stands for are scored in as many passages together.
_IN_FULL: Final = 4
# The best that are looked through for words that follow each other as they do in the question.
_LOOKED_THROUGH: Final = 24

# A question is answered with no more than these.
MOST: Final = 500
# The newest of those a question is narrowed to in which its words are looked for, and the newest of each of its words of
# which each is looked at, whether it is one of those: what is beyond both is one of many, and of a common word.
REACHED: Final = COMMON

# Of a word's newest passages as many are read at most to find those that stand.
_READ: Final = 10_000

# What a memory looks like to whoever recalls it.
_SHOWN: Final = """
    case when o.id is not null then 'observation:' || o.id
         when t.id is not null then 'pattern:' || t.id
         when i.id is not null then 'item:' || i.id
         else 'concept:' || c.key end as ref,
    coalesce(o.text, t.name || ': ' || coalesce(w.text, t.text), i.text,
             c.name || coalesce(' (' || nullif(coalesce(d.type, c.type), '') || ')', '')
                    || coalesce(': ' || nullif(coalesce(d.description, c.description), ''), '')) as text,
    coalesce(d.type, p.domain) as domain,
    coalesce(o.confidence, w.confidence, t.confidence, i.confidence, 1) as confidence,
    coalesce(o.metadata, d.metadata, c.metadata, '{}'::jsonb)::text as metadata,
    (select a.name from principals_principal a
     where a.id = coalesce(o.author_id, w.author_id, t.author_id, d.author_id, c.author_id, i.author_id)) as author,
    p.recorded_at, coalesce(o.occurred_at, i.said_at) as occurred_at, coalesce(o.speaker, '') as speaker,
    coalesce((select s.conversation_id from memory_session s where s.id = o.session_id), '') as conversation_id
"""

# That nothing stands in the place of what a passage `p` is of, the observation `o` or the item `i`, that the item is so at that
# time, and that it has not had its days. As in envelopes, what was recorded as so from then on is so at once, though the clock
# of who wrote it is ahead.
_STANDS: Final = """(o.superseded_at is null or o.superseded_at > %(as_of)s)
      and (i.id is null or ((i.superseded_at is null or i.superseded_at > %(as_of)s)
                            and i.valid_from <= greatest(least(%(as_of)s, gatehouse_now()), i.recorded_at)
                            and (i.valid_to is null or i.valid_to > least(%(as_of)s, gatehouse_now()))))
      and coalesce(i.said_at, least(o.occurred_at, p.recorded_at)) > %(since)s"""

# One passage by its place; the limit keeps the planner from joining the tables as wholes. As of before its latest
# revision a pattern reads as `w` has it, and a concept as `d` has it; where those words are forgotten, it is not found.
MEMORY: Final = f"""
    select {_SHOWN}, p.words
    from memory_passage p
    left join memory_observation o on o.id = p.observation_id
    left join memory_pattern t on t.id = p.pattern_id
    left join memory_concept c on c.id = p.concept_id
    left join memory_item i on i.id = p.item_id
    left join lateral (
        select text, confidence, author_id from memory_patternrevision
        where pattern_id = t.id and t.revised_at > %(as_of)s and recorded_at <= %(as_of)s
        order by recorded_at desc, number desc
        limit 1
    ) w on true
    left join lateral (
        select type, description, metadata, author_id, is_forgotten from memory_conceptrevision
        where concept_id = c.id and c.revised_at > %(as_of)s and superseded_at > %(as_of)s
        order by superseded_at, id
        limit 1
    ) d on true
    where p.id = r.place
      and p.tenant_id = %(tenant)s and p.scope = %(scope)s
      and (%(domain)s::text is null or p.domain = %(domain)s)
      and p.recorded_at <= %(as_of)s
      and {_STANDS}
      and w.text is distinct from '' and d.is_forgotten is not true
      and coalesce(o.metadata, d.metadata, c.metadata, '{{}}'::jsonb) @> %(filters)s::jsonb
    limit 1
"""  # constants only

_ANSWERED: Final = "ref, text, domain, confidence, metadata, author, recorded_at, occurred_at, speaker, conversation_id"

_OF_SCOPE: Final = "tenant_id = %(tenant)s and scope = %(scope)s"
# By memory_passage_newest and memory_passage_domain. The domain is named by an array, and sorted by, lest that be void: of
# one with a large share of all the planner expects some among the newest, where there may be none.
_OF_TIME: Final = f"memory_passage where {_OF_SCOPE} and recorded_at <= %(as_of)s"
_OF_DOMAIN: Final = f"{_OF_TIME} and domain = any(array[%(domain)s::text])"


def _reached(*, of_domain: bool, most: int) -> str:
    """The places that a narrowed question looks at first.

    The newest that have the rarest of the marks of what the metadata must hold, from memory_posting_once alone, and,
    unless these are all there are, the newest of the domain or of the time.
    """
    newest = f"{_OF_DOMAIN} order by domain, " if of_domain else f"{_OF_TIME} order by "
    return f"""marks as materialized (
    select mark, n.passages
    from unnest(memory_marks(%(filters)s::jsonb)) as f(mark)
    cross join lateral (
        select count(*) as passages from (
            select from memory_posting g where {_OF_SCOPE} and g.term = f.mark limit {most}) found
    ) n
), reached as materialized (
    select g.passage_id as place
    from (select mark from marks order by passages, mark limit 1) rarest
    cross join lateral (
        select passage_id from memory_posting where {_OF_SCOPE} and term = rarest.mark order by passage_id desc limit {most}
    ) g
    union
    select id from (
        select id from {newest}recorded_at desc, id desc limit {most}
    ) newest
    where not exists(select from marks where passages < {most})
)"""  # constants only


# Whether one that was known by then is one of those the question is narrowed to: by the keys and memory_posting_once. What
# only has the marks goes when it is looked up as a memory; what does not stand must not stand before it.
_JUDGED: Final = f"""
    select (%(domain)s::text is null or p.domain = %(domain)s)
           and not exists(select from marks where not exists(
               select from memory_posting g
               where g.tenant_id = %(tenant)s and g.scope = %(scope)s and g.term = marks.mark and g.passage_id = p.id
           ))
           and {_STANDS} as fits
    from memory_passage p
    left join memory_observation o on o.id = p.observation_id
    left join memory_item i on i.id = p.item_id
    where p.id = r.place and p.tenant_id = %(tenant)s and p.scope = %(scope)s and p.recorded_at <= %(as_of)s
    limit 1
"""  # constants only
# One that stands: no posting tells of an item that it has ended, or is yet to come.
STANDING: Final = f"""
    select from memory_passage p
    left join memory_observation o on o.id = p.observation_id
    left join memory_item i on i.id = p.item_id
    where p.id = r.place and {_STANDS}
    limit 1
"""  # constants only

# Index-only scans of memory_posting_once (each word's passages to count and to choose, then the leading ones' other
# words), of memory_commonword_once and memory_tally_of_tenant; then, best first and until there are enough, the
# memories by key. Six words at most: the rarest.
#
# A word of the question stands for its other forms and, where it is a name, for the other names of the same concept.
# A passage has its own score; half of that of the turns next to it and 0.3 of those after these are added, twice the
# weight of a word that says who spoke or when, and a fifth of what the session's words score as one text.
_CHOSEN: Final = f"""chosen as materialized (
    select g.passage_id as place, w.word, w.term, w.weight, g.of_context, w.share * g.frequency as frequency,
           1.2 * (0.25 + 0.75 * g.length / w.length) as damping
    from weighed w
    cross join lateral (
        select passage_id, frequency, length, of_context
        from (
            select passage_id, frequency, length, of_context, superseded from memory_posting
            where {_OF_SCOPE} and term = w.term
            order by passage_id desc
            limit {_READ}
        ) g
        where not superseded
        order by passage_id desc
        limit ceil(%(scored)s * w.part)::bigint
    ) g
    where w.chooses
"""  # constants only
_BY_PLACE: Final = """
    select place, sum(score) as score, sum(around) as around, sum(weight) filter (where frequency > 0) as has
    from matched
    group by place"""
_OWN: Final = f"""own as materialized ({_BY_PLACE}
    order by sum(score) + 2 * sum(around) desc, place desc
    limit %(leading)s
"""  # constants only
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
"""  # constants only
# A rarer word that has found enough does not choose alone.
_CHOOSES: Final = f"""coalesce(of_rarer.passages, 0)
               < case when asked.passages > %(scored)s then {_ENOUGH} else %(scored)s end"""  # constants only
_CHOSEN_NARROWLY: Final = f"""within as materialized (
    select place from reached r cross join lateral ({_JUDGED}) judged where fits
), chosen as materialized (
    select g.passage_id as place, w.word, w.term, w.weight, g.of_context, w.share * g.frequency as frequency,
           1.2 * (0.25 + 0.75 * g.length / w.length) as damping
    from weighed w
    cross join lateral (
        select passage_id, frequency, length, of_context from memory_posting
        where {_OF_SCOPE} and term = w.term
        order by passage_id desc
        limit ceil({REACHED} * w.part)::bigint
    ) g
    union
    select r.place, w.word, w.term, w.weight, g.of_context, w.share * g.frequency as frequency,
           1.2 * (0.25 + 0.75 * g.length / w.length) as damping
    from weighed w
    cross join (select place from within order by place desc limit {2 * REACHED}) r
    cross join lateral (
        select frequency, length, of_context from memory_posting
        where {_OF_SCOPE} and term = w.term and passage_id = r.place
        limit 1
    ) g
    where w.is_common
"""  # constants only
_OWN_NARROWLY: Final = f"""judged as materialized (
    select r.*, judged.fits from ({_BY_PLACE}) r cross join lateral ({_JUDGED}) judged
), own as materialized (
    select place, score, around, has from judged where fits
    order by score + 2 * around desc, place desc
    limit %(leading)s
"""  # constants only
# What was said beside one of those that are asked for, whether or not it is one itself.
_BESIDE: Final = f"""
        union all
        (select place, score, 0, 0, false from judged where not fits and place & {OUTSIDE} = 0
         order by score desc, place desc limit %(leading)s)"""


def by_words(*, narrowed: bool = False, of_domain: bool = False, of_subject: bool = False, most: int = REACHED) -> str:
    """The beginning of each statement: what the words say.

    :param of_subject: items may be among them; a narrowed question supposes so always.
    """
    reached = _reached(of_domain=of_domain, most=most) + ", " if narrowed else ""
    # What a rarer word has found may not be what the question is narrowed to.
    chooses = "true" if narrowed else _CHOOSES
    chosen = _CHOSEN_NARROWLY if narrowed else _CHOSEN
    own = _OWN_NARROWLY if narrowed else _OWN_OF_SUBJECT if of_subject else _OWN
    beside = _BESIDE if narrowed else ""
    # What was said later adds nothing. Not joined, see _TOTAL: what is in a test of its own is looked up by hash.
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
    select word, term, max(share) as share, max(n.passages) as passages
    from meant
    cross join lateral (
        select coalesce(
            (select passages from memory_commonword c
             where c.tenant_id = %(tenant)s and c.scope = %(scope)s and c.term = meant.term),
            (select count(*) from (
                 select from memory_posting g
                 where g.tenant_id = %(tenant)s and g.scope = %(scope)s and g.term = meant.term
                 limit {COMMON}) found)) as passages
        offset 0  -- else it is counted anew wherever it is used
    ) n
    where n.passages > 0
    group by word, term
), asked as materialized (
    select word, greatest(sum(passages) filter (where share = 1), min(passages)) as passages
    from counted
    group by word
    order by 2, 1
    limit 6
), corpus as materialized (
    select coalesce(sum(passages), 0) as passages,
           greatest(sum(words) / nullif(sum(passages), 0), 1)::float8 as length
    from memory_tally where tenant_id = %(tenant)s and scope = %(scope)s
), weighed as materialized (
    select asked.word, counted.term, counted.share, corpus.length,
           counted.passages >= {REACHED} and counted.nth <= {_IN_FULL} as is_common,
           counted.nth > {_IN_FULL} or {chooses} as chooses,
           case when counted.nth <= {_IN_FULL} then 1 else {_IN_FULL}::float8 / counted.terms end as part,
           ln(1 + greatest(corpus.passages - asked.passages + 0.5, 0) / (asked.passages + 0.5))::float8 as weight
    from asked
    join (
        select *, count(*) over (partition by word) as terms,
               row_number() over (partition by word order by term = word desc, share desc, passages desc, term) as nth
        from counted
    ) counted using (word)
    cross join corpus
    cross join lateral (
        select sum(r.passages) as passages from asked r
        where (r.passages, r.word) < (asked.passages, asked.word)
    ) of_rarer
), {chosen}), matched as materialized (
    select place, word, min(term) as term, max(weight) as weight, sum(frequency) as frequency,
           max(weight) * sum(frequency) * 2.2 / (sum(frequency) + max(damping)) as score,
           max(weight) * bool_or(of_context)::int as around
    from chosen
    group by place, word
), {own}), common as materialized (
    select own.place, w.word, w.term, g.frequency,
           w.weight * w.share * g.frequency * 2.2
               / (w.share * g.frequency + 1.2 * (0.25 + 0.75 * g.length / w.length)) as score,
           w.weight * g.of_context::int as around, case when g.frequency > 0 then w.weight end as has
    from weighed w
    cross join own
    cross join lateral (
        select frequency, length, of_context from memory_posting
        where tenant_id = %(tenant)s and scope = %(scope)s and term = w.term and passage_id = own.place
        limit 1
    ) g
    where not w.chooses
), sessions as materialized (
    select session, sum(weight * frequency * 2.2 / (frequency + 1.2)) as score
    from (
        select place >> {TURN_BITS} as session, word, max(weight) as weight, sum(frequency) as frequency
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
"""  # constants only


# What words come to, of its own and of its session's.
SCORE: Final = "coalesce(spread.score + 2 * spread.around, 0) + 0.2 * coalesce(sessions.score, 0)"

# By words alone. A full join is none of each with each, as which the planner would join what it takes for one row; that
# each session's words stand in some place, and no place is 0, it does not know.
_TOTAL: Final = f""", total as materialized (
    select spread.place, {SCORE} as score, spread.is_among, false as is_alike
    from spread full join sessions on sessions.session = spread.place >> {TURN_BITS}
    where coalesce(spread.place, 0) <> 0
)
"""  # constants only
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
"""  # constants only
RECALL: Final = by_words() + _TOTAL + ANSWER
RECALL_OF_SUBJECT: Final = by_words(of_subject=True) + _TOTAL + ANSWER
RECALL_NARROWED: Final = by_words(narrowed=True) + _TOTAL + ANSWER
RECALL_OF_DOMAIN: Final = by_words(narrowed=True, of_domain=True) + _TOTAL + ANSWER


def _newest(places: str, order: str = "", reached: str = "") -> str:
    # The planner must know that few rows are wanted, which a parameter does not tell it: hence the limit in between.
    return f"""
{reached and "with "}{reached}
select {_ANSWERED}, 0::float8 as score, '' as terms, '' as told, false as is_among,
       false as has_phrase, false as is_alike
from (
    select m.*
    from (
        select id as place, recorded_at, domain from {places}
        order by {order}recorded_at desc, id desc
    ) r
    cross join lateral ({MEMORY}) m
    order by {order and "r."}{order}r.recorded_at desc, r.place desc
    limit {MOST}
) newest
limit %(limit)s
"""  # constants only


# Ordered scans of memory_passage_newest and memory_passage_domain that stop at the limit.
NEWEST: Final = _newest(_OF_TIME)
NEWEST_OF_DOMAIN: Final = _newest(_OF_DOMAIN, "domain, ")
# Of those that are reached, by the key.
_REACHED_ALL: Final = (
    "reached r cross join lateral (select id, recorded_at, domain from memory_passage where id = r.place limit 1) p"
)
NEWEST_FILTERED: Final = _newest(_REACHED_ALL, reached=_reached(of_domain=False, most=REACHED))
NEWEST_FILTERED_OF_DOMAIN: Final = _newest(_REACHED_ALL, reached=_reached(of_domain=True, most=REACHED))
