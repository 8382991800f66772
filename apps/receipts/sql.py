"""The statements behind recording a fact and walking its chain."""

from typing import Final

# Takes the keys and writes the facts in one go, with the obligations that they open, and the letters for recipients that live elsewhere; the ledger's facts
# are no business of a mere inbox. Answers the drafts whose keys were free. Numbers are drawn in the order of the
# drafts; keys are taken in an order that is everybody's: rivals wait there, never in a circle.
_RECORD: Final = """
with draft as materialized (
    select nextval('receipts_receipt_id_seq') as id, uuidv7() as uuid, given.*
    from jsonb_to_recordset(%(drafts)s::jsonb) as given(
        nth int, key_digest text, content_digest text, receipt_id text, recipient bigint, source_system text,
        event_type text, dedupe_key text, title text, summary text, metadata jsonb, artifact_pointer text,
        artifact_location text, requires_action boolean, suggested_next_step text, caused_by_ref text,
        pairs_with_ref text, caused_by bigint, pairs_with bigint, surface text, groupable boolean, resource_ref text,
        event_family text, flush_class text, summary_hint text, break_thread boolean, delivery_handle text,
        debtor bigint, creditor bigint
    )
), key as (
    insert into receipts_receiptkey
        (tenant_id, source_system, key_digest, content_digest, receipt_pk, receipt_id, uuid, created_at)
    select %(tenant)s::bigint, source_system, decode(key_digest, 'hex'), decode(content_digest, 'hex'), id, receipt_id,
           uuid, %(now)s::timestamptz
    from draft order by source_system, key_digest
    on conflict (tenant_id, source_system, key_digest) do nothing
    returning receipt_pk
), {stored} as materialized (
    select draft.*, home.target_id, home.name_there, home.door,
           case when draft.surface = 'inbox' and home.target_id is not null then 'remote' else draft.surface end as shown
    from draft join key on key.receipt_pk = draft.id
    left join (
        select r.principal_id, r.target_id, r.name_there, t.door
        from receipts_residence r join receipts_remotetarget t on t.id = r.target_id
        where r.principal_id = any(array(select recipient from draft))
    ) home on home.principal_id = draft.recipient
{closing}), fact as (
    insert into receipts_receipt
        (id, tenant_id, uuid, receipt_id, recipient_id, poster_id, source_system, event_type, dedupe_key, title,
         summary, metadata, artifact_pointer, artifact_location, requires_action, suggested_next_step,
         caused_by_ref, pairs_with_ref, caused_by_id, pairs_with_id, surface, groupable, resource_ref, event_family,
         flush_class, summary_hint, break_thread, delivery_handle, created_at)
    select d.id, %(tenant)s::bigint, d.uuid, d.receipt_id, d.recipient, %(poster)s::bigint, d.source_system,
           d.event_type, d.dedupe_key, d.title, d.summary, d.metadata, d.artifact_pointer, d.artifact_location,
           d.requires_action, d.suggested_next_step, d.caused_by_ref, d.pairs_with_ref, {caused_by}, {pairs_with},
           d.shown, d.groupable, d.resource_ref, d.event_family, d.flush_class, d.summary_hint, d.break_thread,
           d.delivery_handle, %(now)s::timestamptz
    from stored d {links}
), owed as (
    insert into receipts_obligation (tenant_id, receipt_id, debtor_id, creditor_id, opened_at)
    select %(tenant)s::bigint, id, debtor, creditor, %(now)s::timestamptz from stored where debtor is not null
), letter as (
    insert into receipts_letter
        (tenant_id, target_id, receipt_id, recipient_name, state, due_at, attempts, fence, created_at)
    select %(tenant)s::bigint, target_id, id, name_there, 'pending', gatehouse_now(), 0, 0, gatehouse_now()
    from stored where target_id is not null and (shown = 'remote' or door <> 'inbox')
    returning receipt_id, target_id
){placing}
select nth, stored.id, uuid, shown, letter.target_id{placed}
from stored left join letter on letter.receipt_id = stored.id {placed_by}
"""


# What was sent to another deployment is answered from there by whichever poster may post as the source that has the
# target's name. Index: receipts_letter_by_receipt.
_FROM_THERE: Final = """
    owed.debtor_id = root.recipient_id and closer.source_system = any(array(
        select t.name from receipts_letter l join receipts_remotetarget t on t.id = l.target_id where l.receipt_id = root.id
    ))
"""
# What a receipt may close: what its poster owes or is owed; a queued task ends by its gate's word, a plan by a plan's
# receipt. Who owes a queued task may also hand it on, by a task queued in its place.
_MAY_CLOSE: Final = f"""
    case root.event_type
        when 'task_queued' then (closer.poster_id in (owed.debtor_id, root.poster_id) or {_FROM_THERE})
                                and closer.event_type in ('task_complete', 'task_failed', 'task_canceled')
                                or closer.poster_id = owed.debtor_id and closer.event_type = 'task_queued'
        when 'plan_created' then (closer.poster_id in (owed.debtor_id, owed.creditor_id) or {_FROM_THERE})
                                 and starts_with(closer.event_type, 'plan_')
        else closer.poster_id in (owed.debtor_id, owed.creditor_id) or {_FROM_THERE} end
"""
# What the drafts close of receipts that were there before them; the first of several that may close does. Held after the
# keys, in the order of their ids; who reads `stored` comes after that. Primary keys only.
_CLOSING: Final = f"""
), closable as materialized (
    select receipt_id, debtor_id, creditor_id from receipts_obligation
    where receipt_id = any(array(select pairs_with from taken)) and closed_at is null
    order by receipt_id for no key update
), opener as materialized (
    select id, event_type, poster_id, recipient_id from receipts_receipt
    where id = any(array(select pairs_with from taken))
), closing as materialized (
    select distinct on (root.id) root.id as root, closer.id as closer
    from (select id, pairs_with, event_type, source_system, %(poster)s::bigint as poster_id from taken) closer
    join closable owed on owed.receipt_id = closer.pairs_with
    join opener root on root.id = closer.pairs_with
    where {_MAY_CLOSE}
    order by root.id, closer.id
), closed as (
    update receipts_obligation o set closed_by_id = closing.closer, closed_at = %(now)s::timestamptz
    from closing
    where o.receipt_id = any(array(select pairs_with from taken)) and o.receipt_id = closing.root
          and o.closed_at is null
), stored as materialized (
    select taken.* from taken where (select count(*) from closable) is not null
"""


def recording(*, closing: bool, placing: str = "", placed: str = "", placed_by: str = "") -> str:
    """The statement for drafts that do not refer to each other, with what a layer above adds to it."""
    return _RECORD.format(
        caused_by="d.caused_by",
        pairs_with="d.pairs_with",
        links="",
        stored="taken" if closing else "stored",
        closing=_CLOSING if closing else "",
        placing=placing,
        placed=placed,
        placed_by=placed_by,
    )


RECORD: Final = {closing: recording(closing=closing) for closing in (True, False)}
# As above, where drafts refer to each other, in whatever order.
RECORD_LINKED: Final = _RECORD.format(
    caused_by="coalesce(d.caused_by, cause.id)",
    pairs_with="coalesce(d.pairs_with, root.id)",
    links="""
    left join stored cause on cause.receipt_id = d.caused_by_ref
    left join stored root on root.receipt_id = d.pairs_with_ref
""",
    stored="taken",
    closing=_CLOSING,
    placing="",
    placed="",
    placed_by="",
)

# Whose a dedupe key is. Index: receipts_receiptkey_used_once.
TAKEN: Final = """
select key.source_system, key.key_digest, key.content_digest, key.receipt_id, key.uuid
from receipts_receiptkey key
join unnest(%s::text[], %s::bytea[]) asked(source_system, key_digest) using (source_system, key_digest)
where key.tenant_id = %s
"""

# Both unique indexes, one row at most per reference. What is found can't be pruned before it is linked to.
RESOLVE: Final = """
select id, receipt_id, uuid::text from receipts_receipt
where tenant_id = %s and (receipt_id = any(%s::text[]) or uuid = any(%s::uuid[]))
for key share
"""

# Whoever writes a reference to an unknown receipt and whoever brings that receipt meet here, so that one of them
# sees the other. Sorted, hence free of deadlocks. At few enough points for the server's table of locks, whatever a batch
# names; strangers who meet there wait for each other without need, which is rare.
MEET: Final = """
select pg_advisory_xact_lock(key) from (
    select distinct hashtextextended(%s::text, hashtextextended(reference, 0) & 127) as key
    from unnest(%s::text[]) reference
    order by 1
) keys
"""
# Taken after the points above, hence none of them.
TURN: Final = "select pg_advisory_xact_lock(hashtextextended(%s::text, 128))"

# Receipts with ids that arrive now, and what waits for each of them: so many that have it as their cause, and so many
# first ones that pair with it, however many there are. Indexes: receipts_receipt_id_once, receipts_receipt_dangling, receipts_unmatched_by_ref.
ARRIVING: Final = """
select id, receipt_id, uuid, false from receipts_receipt
where tenant_id = %(tenant)s and receipt_id = any(%(references)s)
union all
select waiting.id, awaited.reference, null::uuid, waiting.pairs from unnest(%(references)s::text[]) awaited(reference)
cross join lateral (
    (
        select id, false as pairs from receipts_receipt
        where tenant_id = %(tenant)s and caused_by_ref = awaited.reference and caused_by_id is null limit %(limit)s
    )
    union all
    (
        select receipt_id, true from receipts_unmatchedcloser u
        where tenant_id = %(tenant)s and u.reference = awaited.reference order by receipt_id limit %(limit)s
    )
) waiting
"""

# Locked in one order before anything else is.
HOLD_WAITING: Final = "select id from receipts_receipt where id = any(%s) order by id for no key update"

# Primary key only.
LINK_CONSEQUENCES: Final = """
update receipts_receipt r set caused_by_id = arrived.receipt
from unnest(%(references)s::text[], %(receipts)s::bigint[]) arrived(reference, receipt)
where r.id = any(%(waiting)s) and r.tenant_id = %(tenant)s and r.caused_by_ref = arrived.reference
      and r.caused_by_id is null
"""

# Primary key only.
MATCH: Final = """
delete from receipts_unmatchedcloser u
using unnest(%(references)s::text[], %(receipts)s::bigint[]) arrived(reference, receipt)
where u.receipt_id = any(%(closers)s) and u.tenant_id = %(tenant)s and u.reference = arrived.reference
returning arrived.receipt, u.receipt_id
"""
# A statement of its own: of how many the other has matched the planner knows nothing. Primary key only.
LINK_PAIRS: Final = """
update receipts_receipt r set pairs_with_id = pair.root
from unnest(%(roots)s::bigint[], %(closers)s::bigint[]) pair(root, closer)
where r.id = any(%(closers)s::bigint[]) and r.id = pair.closer
"""

# For which receipts more wait: each tenant's oldest before anybody's second. By lot among tenants, so that one whose
# crowds take long has no more turns than the others. Reads the whole table, which is small.
ARRIVALS: Final = """
select tenant_id, receipt_id from receipts_arrival where receipt_id <> all(%(passed_by)s::bigint[])
order by row_number() over (partition by tenant_id order by receipt_id), random() limit %(limit)s
"""

# Several are locked in one order first; an update alone would take them in any.
HOLD_OBLIGATIONS: Final = """
select receipt_id from receipts_obligation where receipt_id = any(%s::bigint[]) and closed_at is null
order by receipt_id for no key update
"""
# The first of several that may close does. Each table is looked at once, by its primary key, before anything is joined:
# a plan from a time when the tables were empty would join them whole.
CLOSE: Final = f"""
with pair as materialized (
    select * from unnest(%(roots)s::bigint[], %(closers)s::bigint[]) as pair(root, closer)
), open as materialized (
    select receipt_id, debtor_id, creditor_id from receipts_obligation
    where receipt_id = any(%(roots)s::bigint[]) and closed_at is null
), fact as materialized (
    select id, event_type, poster_id, recipient_id, source_system from receipts_receipt
    where id = any(%(roots)s::bigint[] || %(closers)s::bigint[])
), chosen as materialized (
    select distinct on (root.id) root.id as root, closer.id as closer
    from pair
    join open owed on owed.receipt_id = pair.root
    join fact root on root.id = pair.root
    join fact closer on closer.id = pair.closer
    where {_MAY_CLOSE}
    order by root.id, closer.id
)
update receipts_obligation o set closed_by_id = chosen.closer, closed_at = %(now)s::timestamptz
from chosen
where o.receipt_id = any(%(roots)s::bigint[]) and o.receipt_id = chosen.root and o.closed_at is null
"""
# The open ones of a side are cut off inside their own index before anything is joined to them: in the order of that side
# too, which is named by an array lest that be void, since the primary key would walk all that is closed. The limits keep
# the planner to one look for each.
# Indexes: receipts_obligation_owed or receipts_obligation_awaited, then primary keys.
OPEN_OBLIGATIONS: Final = """
with listed as materialized (
    select receipt_id, debtor_id, creditor_id, opened_at from receipts_obligation
    where closed_at is null and receipt_id > %(after)s {sides}
    order by {order}receipt_id limit %(limit)s
)
select listed.receipt_id, r.receipt_id, r.event_type, r.source_system, r.title, r.summary, debtor.name, creditor.name,
       r.suggested_next_step, listed.opened_at
from listed
cross join lateral (select * from receipts_receipt where id = listed.receipt_id limit 1) r
cross join lateral (select name from principals_principal where id = listed.debtor_id limit 1) debtor
cross join lateral (select name from principals_principal where id = listed.creditor_id limit 1) creditor
order by listed.receipt_id
"""
OWED_BY: Final = "and debtor_id = any(array[%(owed_by)s::bigint])"
AWAITED_BY: Final = "and creditor_id = any(array[%(awaited_by)s::bigint])"
BY_DEBTOR: Final = "debtor_id, "
BY_CREDITOR: Final = "creditor_id, "

# What a receipt `at` hangs from, and what hangs from it; also what is not linked yet, as long as there is any of it.
# Indexes upwards: primary keys, receipts_receipt_id_once; downwards: receipts_receipt_by_cause, receipts_receipt_by_pair,
# receipts_receipt_dangling, receipts_unmatched_by_ref.
_ANY_UNLINKED: Final = "(select exists (select from receipts_arrival))"
_CAUSES: Final = f"""
    select target as id from unnest(array[at.caused_by_id, at.pairs_with_id]) target where target is not null
    union all
    select arrived.id from receipts_receipt arrived
    where {_ANY_UNLINKED} and arrived.tenant_id = at.tenant_id
          and arrived.receipt_id = case when at.caused_by_id is null then at.caused_by_ref end
    union all
    select arrived.id from receipts_unmatchedcloser u
    join receipts_receipt arrived on arrived.tenant_id = u.tenant_id and arrived.receipt_id = u.reference
    where {_ANY_UNLINKED} and u.receipt_id = at.id
"""
_CONSEQUENCES: Final = f"""
    select c.id from receipts_receipt c where c.caused_by_id = at.id
    union all
    select p.id from receipts_receipt p where p.pairs_with_id = at.id
    union all
    select c.id from receipts_receipt c
    where {_ANY_UNLINKED} and c.tenant_id = at.tenant_id and c.caused_by_ref = at.receipt_id and c.caused_by_id is null
    union all
    select u.receipt_id from receipts_unmatchedcloser u
    where {_ANY_UNLINKED} and u.tenant_id = at.tenant_id and u.reference = at.receipt_id
"""

# Receipts with all their causes and roots: what each hangs from, and what it refers to in vain. As everywhere, the limit
# ends the walk.
ANCESTRY: Final = f"""
with recursive cause(id) as (
    select unnest(%(receipts)s::bigint[])
    union
    select target.id from cause join receipts_receipt at on at.id = cause.id cross join lateral ({_CAUSES}) target
), walked as materialized (
    select id from cause limit %(limit)s
)
select at.id, array({_CAUSES}),
       array_remove(array[
           case when at.caused_by_id is null then at.caused_by_ref end,
           case when at.pairs_with_id is null then at.pairs_with_ref end
       ], null)
from walked cross join lateral (select * from receipts_receipt r where r.id = walked.id limit 1) at
"""
# For each of these ids, which no receipt has, all receipts that hang from it, over however many links.
# Indexes: those downwards.
DESCENT: Final = f"""
with recursive hanging(reference, id) as (
    select awaited.reference, waiting.id from unnest(%(references)s::text[]) awaited(reference)
    cross join lateral (
        select r.id from receipts_receipt r
        where r.tenant_id = %(tenant)s and r.caused_by_ref = awaited.reference and r.caused_by_id is null
        union all
        select u.receipt_id from receipts_unmatchedcloser u
        where u.tenant_id = %(tenant)s and u.reference = awaited.reference
    ) waiting
    union
    select hanging.reference, next.id from hanging
    join receipts_receipt at on at.id = hanging.id cross join lateral ({_CONSEQUENCES}) next
)
select reference, id from hanging limit %(limit)s
"""

# The whole tree both ways; a link to what is not shown is told in the poster's own words, which tell it nothing new. `union`
# visits a receipt once; the limit ends the walk early. For a principal, the walk never enters what does not concern it:
# anybody may name any receipt, which must open no way to it.
_CHAIN: Final = f"""
with recursive link(id, tenant_id, receipt_id, caused_by_id, pairs_with_id, caused_by_ref) as (
    select r.id, r.tenant_id, r.receipt_id, r.caused_by_id, r.pairs_with_id, r.caused_by_ref
    from receipts_receipt r where r.id = %(receipt)s::bigint and {{concerns}}
    union
    select r.id, r.tenant_id, r.receipt_id, r.caused_by_id, r.pairs_with_id, r.caused_by_ref
    from link at cross join lateral ({_CAUSES} union all {_CONSEQUENCES}) next
    join receipts_receipt r on r.id = next.id where {{concerns}}
), shown as materialized (
    select * from link limit %(limit)s::bigint
)
select r.id, r.receipt_id, r.uuid, r.event_type, r.source_system, to_.name, r.title, r.surface, r.requires_action,
       r.created_at, coalesce(cause.receipt_id, r.caused_by_ref), coalesce(pair.receipt_id, r.pairs_with_ref),
       o.is_open, r.pruned_at is not null
from shown
cross join lateral (select * from receipts_receipt r where r.id = shown.id limit 1) r
cross join lateral (select name from principals_principal where id = r.recipient_id limit 1) to_
left join shown cause on cause.id = shown.caused_by_id
left join shown pair on pair.id = shown.pairs_with_id
left join lateral (
    select b.closed_at is null as is_open from receipts_obligation b where b.receipt_id = r.id limit 1
) o on true
order by r.id
"""
CHAIN: Final = _CHAIN.format(concerns="true")
CHAIN_FOR: Final = _CHAIN.format(
    concerns="""(
        %(principal)s::bigint in (r.recipient_id, r.poster_id) or exists (
            select from receipts_obligation o
            where o.receipt_id = r.id and %(principal)s::bigint in (o.debtor_id, o.creditor_id)
        )
    )"""
)

# What a target is asked next: nothing while its breaker is open, one letter when it has cooled down. The target's row
# is held until the claim is committed; letters that others hold are passed by. Index: receipts_letter_due.
HOLD_TARGET: Final = """
select base_url, door, known_as, sealed_token, timeout_seconds, breaker from receipts_remotetarget
where id = %(target)s and (breaker = 'closed' or retry_at <= gatehouse_now()) for no key update
"""
CLAIM_LETTER: Final = """
update receipts_letter
set fence = fence + 1, attempts = attempts + 1, due_at = gatehouse_now() + %(patience)s::interval, claimed = true,
    sent_as = coalesce(sent_as, %(known_as)s)
where id = (
    select id from receipts_letter
    where target_id = %(target)s and state = 'pending' and due_at <= gatehouse_now()
    order by due_at, id limit 1 for no key update skip locked
)
returning id, fence, attempts, receipt_id, recipient_name, sent_as, old.sent_as is null
"""
PROBE: Final = """
update receipts_remotetarget set breaker = 'half_open', retry_at = gatehouse_now() + %(patience)s::interval
where id = %(target)s and breaker <> 'closed'
"""

# That a remote has a letter is true whoever learns it, and however late.
DELIVERED: Final = """
update receipts_letter
set state = 'delivered', due_at = null, claimed = false, settled_at = gatehouse_now(),
    failure = null, said = null, remote_receipt_id = %(receipt_id)s, remote_uuid = %(uuid)s
where id = %(letter)s and state <> 'delivered'
returning extract(epoch from settled_at - created_at)::float
"""
# A failure counts only for whoever still holds the claim. What has only ever been turned away at the door is nowhere
# yet, and may be sent under another name the next time.
DEFERRED: Final = """
update receipts_letter
set due_at = gatehouse_now() + %(pause)s::interval, claimed = false, failure = %(failure)s, said = %(said)s,
    sent_as = case when not %(nowhere)s then sent_as end
where id = %(letter)s and state = 'pending' and fence = %(fence)s
"""
# The attempt was none, since the target takes nothing from anybody.
UNTRIED: Final = """
update receipts_letter
set due_at = gatehouse_now(), claimed = false, attempts = attempts - 1, failure = %(failure)s, said = %(said)s
where id = %(letter)s and state = 'pending' and fence = %(fence)s
"""
BURIED: Final = """
update receipts_letter
set state = 'dead', due_at = null, claimed = false, settled_at = gatehouse_now(), failure = %(failure)s, said = %(said)s,
    sent_as = case when not %(nowhere)s then sent_as end
where id = %(letter)s and state = 'pending' and fence = %(fence)s
returning id
"""

# What a call says of the target itself. An answer closes the breaker; a failure opens it at the limit, or again, and so
# does an answer that was long in coming.
TARGET_ANSWERED: Final = """
update receipts_remotetarget
set breaker = case when %(slow)s and (breaker <> 'closed' or failures_in_a_row + 1 >= %(limit)s)
                   then 'open' else 'closed' end,
    retry_at = case when %(slow)s and (breaker <> 'closed' or failures_in_a_row + 1 >= %(limit)s)
                    then gatehouse_now() + %(cool_down)s::interval end,
    failures_in_a_row = case when %(slow)s then failures_in_a_row + 1 else 0 end,
    delivered_count = delivered_count + %(delivered)s, delivery_seconds = delivery_seconds + %(seconds)s,
    failed_count = failed_count + %(failed)s, dead_count = dead_count + %(dead)s
where id = %(target)s
"""
TARGET_FAILED: Final = """
update receipts_remotetarget
set failures_in_a_row = failures_in_a_row + 1, failed_count = failed_count + 1, dead_count = dead_count + %(dead)s,
    breaker = case when breaker <> 'closed' or failures_in_a_row + 1 >= %(limit)s then 'open' else 'closed' end,
    retry_at = case when breaker <> 'closed' or failures_in_a_row + 1 >= %(limit)s
                    then gatehouse_now() + %(cool_down)s::interval end
where id = %(target)s
"""

# The first letter after the rest goes as a probe.
TARGET_RESTS: Final = """
update receipts_remotetarget
set breaker = 'open', retry_at = gatehouse_now() + %(wait)s::interval, failed_count = failed_count + 1
where id = %(target)s
"""

# Where a call could be made now, and no message says so yet. Index: receipts_letter_due, once per target.
ANNOUNCE: Final = """
update receipts_remotetarget set announced_until = gatehouse_now() + %(fresh)s::interval
where id in (
    select t.id from receipts_remotetarget t
    where (t.breaker = 'closed' or t.retry_at <= gatehouse_now())
          and (t.announced_until is null or t.announced_until <= gatehouse_now())
          and (t.busy_until is null or t.busy_until <= gatehouse_now())
          and exists (
              select from receipts_letter l
              where l.target_id = t.id and l.state = 'pending' and l.due_at <= gatehouse_now()
          )
    order by t.id for no key update of t skip locked
)
returning tenant_id, id
"""
# What a message says though no tick has: it waits for its turn too. One in trouble is left to the tick.
AWAIT_TURN: Final = """
update receipts_remotetarget set announced_until = gatehouse_now() + %(fresh)s::interval
where id = %(target)s and announced_until is null and failures_in_a_row = 0
"""
# Turns are given one after the other, so that nobody's share is counted twice at once.
TAKE_IN_TURN: Final = "select pg_advisory_xact_lock(hashtextextended('letters', 7))"
# The next target that waits for its turn: of the tenant for which the fewest are called, then who had none for the
# longest. There are few targets; what they have due is found when letters are claimed.
TAKE_TARGET: Final = """
with busy as materialized (select tenant_id from receipts_remotetarget where busy_until > gatehouse_now())
update receipts_remotetarget
set announced_until = null,
    busy_until = gatehouse_now() + %(patience)s::interval + make_interval(secs => timeout_seconds)
where id = (
    select t.id from receipts_remotetarget t
    where t.announced_until is not null and (t.busy_until is null or t.busy_until <= gatehouse_now())
          and (select count(*) from busy b where b.tenant_id = t.tenant_id) < %(of_tenant)s
    order by (select count(*) from busy b where b.tenant_id = t.tenant_id), t.busy_until nulls first, t.id
    limit 1 for no key update of t skip locked
)
returning tenant_id, id, busy_until
"""
# Unless it ran out, and another has it. With more to do the target waits for its next turn.
GIVE_BACK: Final = """
update receipts_remotetarget
set busy_until = gatehouse_now(),
    announced_until = case when %(again)s then gatehouse_now() + %(fresh)s::interval else announced_until end
where id = %(target)s and busy_until = %(until)s
"""

REPLAY: Final = """
with chosen as (
    select id from receipts_letter
    where target_id = %(target)s and state = 'dead' and (%(letters)s::bigint[] is null or id = any(%(letters)s))
    order by id limit %(limit)s for no key update skip locked
), revived as (
    update receipts_letter
    set state = 'pending', due_at = gatehouse_now(), settled_at = null, attempts = 0
    where id in (select id from chosen)
    returning id
)
select count(*) from revived
"""

# What retention removes. Rows that somebody holds are left to the next round, so that it waits for nobody.
HOLD_PRUNED: Final = "select id from receipts_receipt where id = any(%s) order by id for update skip locked"
# Of a receipt with links a tombstone stays. As an array of those that have some, since the planner reads whole tables for
# an `exists` behind an `or`. Indexes: the primary keys, receipts_receipt_by_cause, receipts_receipt_by_pair.
STRIP: Final = """
update receipts_receipt r
set title = null, summary = '', metadata = '{}', dedupe_key = '', artifact_pointer = null, artifact_location = null,
    suggested_next_step = null, resource_ref = null, summary_hint = null, delivery_handle = null,
    pruned_at = gatehouse_now()
where r.id = any(array(
    select id from receipts_receipt
    where id = any(%(receipts)s) and (caused_by_id is not null or pairs_with_id is not null)
    union select caused_by_id from receipts_receipt where caused_by_id = any(%(receipts)s)
    union select pairs_with_id from receipts_receipt where pairs_with_id = any(%(receipts)s)
    union select receipt_id from receipts_unmatchedcloser where receipt_id = any(%(receipts)s)
    union select receipt_id from receipts_arrival where receipt_id = any(%(receipts)s)
))
returning id
"""
# Index: receipts_obligation_by_closer.
FORGET_CLOSERS: Final = "update receipts_obligation set closed_by_id = null where closed_by_id = any(%s)"
DROP_OBLIGATIONS: Final = "delete from receipts_obligation where receipt_id = any(%s)"
DROP_ARRIVALS: Final = "delete from receipts_arrival where receipt_id = any(%s)"
DROP_UNMATCHED: Final = "delete from receipts_unmatchedcloser where receipt_id = any(%s)"
DROP_LETTERS: Final = "delete from receipts_letter where receipt_id = any(%s)"
DROP: Final = "delete from receipts_receipt where id = any(%s)"

# Of these the tombstones that have stood their time, held, and what each hangs from. Primary key only.
SPENT_TOMBSTONES: Final = """
select r.id, array_remove(array[r.caused_by_id, r.pairs_with_id], null)
from receipts_receipt r join principals_tenant t on t.id = r.tenant_id
where r.id = any(%(receipts)s) and r.pruned_at is not null
      and r.created_at <= gatehouse_now() - greatest(%(traces)s::interval, coalesce(t.keep_receipts, %(kept)s::interval))
order by r.id for update of r skip locked
"""
# What hangs from them now that nobody can link to them, as far as nobody else holds it.
# Indexes: receipts_receipt_by_cause, receipts_receipt_by_pair, the primary key.
HOLD_HANGING: Final = """
select id from receipts_receipt where id = any(array(
    select id from receipts_receipt where caused_by_id = any(%(going)s) and id <> all(%(going)s)
    union all
    select id from receipts_receipt where pairs_with_id = any(%(going)s) and id <> all(%(going)s)
    limit %(limit)s
))
order by id for no key update skip locked
"""
CUT_OFF: Final = """
update receipts_receipt
set caused_by_id = case when caused_by_id = any(%(going)s) then null else caused_by_id end,
    pairs_with_id = case when pairs_with_id = any(%(going)s) then null else pairs_with_id end
where id = any(%(hanging)s)
"""
# Which of them something still hangs from. The limits keep the planner to one look for each. Indexes as above.
STILL_HANGING: Final = """
select root from unnest(%(going)s::bigint[]) root cross join lateral (
    select from receipts_receipt where caused_by_id = root and id <> all(%(going)s) limit 1
) consequence
union
select root from unnest(%(going)s::bigint[]) root cross join lateral (
    select from receipts_receipt where pairs_with_id = root and id <> all(%(going)s) limit 1
) pair
"""

# The end of the next range of keys, if its first row is old enough to have served its time. Primary key only.
NEXT_KEYS: Final = """
select (select max(id) from (select id from receipts_receiptkey where id > %(after)s order by id limit %(limit)s) next)
where (select created_at from receipts_receiptkey where id > %(after)s order by id limit 1)
      <= gatehouse_now() - %(traces)s::interval
"""
DROP_KEYS: Final = """
delete from receipts_receiptkey k using principals_tenant t
where k.id > %(after)s and k.id <= %(upto)s and t.id = k.tenant_id
      and k.created_at <= gatehouse_now() - greatest(%(traces)s::interval, coalesce(t.keep_receipts, %(kept)s::interval))
      and not exists (select from receipts_receipt r where r.id = k.receipt_pk)
"""
