"""The statements behind recording a fact and walking its chain."""

from typing import Final

# Takes the keys and writes the receipts in one statement, with the obligations that they open, and the deliveries for
# recipients that have moved; an endpoint of the kind `inbox` gets nothing that belongs to the ledger only. Answers the
# drafts whose keys were free. Ids are drawn in the order of the drafts. Keys are taken in sorted order, so that concurrent
# batches wait there and don't deadlock.
_GIVEN: Final = """
draft as materialized (
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
)"""
_RECORD: Final = """
with {draft}, stored as materialized (
    select draft.*, home.target_id, home.remote_name,
           case when draft.surface = 'inbox' and home.target_id is not null then 'remote' else draft.surface end as shown
    from {drafts} draft
    left join lateral (
        select r.target_id, r.remote_name from delivery_remoteroute r join delivery_target t on t.id = r.target_id
        where r.principal_id = draft.recipient and (draft.surface <> 'ledger' or t.endpoint <> 'inbox') limit 1
    ) home on true
    where {free}
), fact as (
    insert into receipts_receipt
        (id, tenant_id, uuid, receipt_id, recipient_id, poster_id, source_system, event_type, dedupe_key, title,
         summary, metadata, artifact_pointer, artifact_location, requires_action, suggested_next_step,
         caused_by_ref, pairs_with_ref, caused_by_id, pairs_with_id, surface, groupable, resource_ref, event_family,
         flush_class, summary_hint, break_thread, delivery_handle, created_at)
    select d.id, %(tenant)s::bigint, d.uuid, d.receipt_id, d.recipient, %(poster)s::bigint, d.source_system,
           d.event_type, d.dedupe_key, d.title, d.summary, d.metadata, d.artifact_pointer, d.artifact_location,
           d.requires_action, d.suggested_next_step, d.caused_by_ref, d.pairs_with_ref, d.caused_by, d.pairs_with,
           d.shown, d.groupable, d.resource_ref, d.event_family, d.flush_class, d.summary_hint, d.break_thread,
           d.delivery_handle, %(now)s::timestamptz
    from stored d
), {owed}, delivery as (
    insert into delivery_delivery
        (tenant_id, target_id, object_id, reference, recipient, state, due_at, attempts, created_at)
    select %(tenant)s::bigint, target_id, id, receipt_id, remote_name, 'pending', gatehouse_now(), 0, gatehouse_now()
    from stored where target_id is not null
){statements}
select stored.nth, stored.id, stored.uuid, stored.shown, stored.target_id{columns}
from stored {join}
"""


_OWED: Final = """owed as (
    insert into receipts_obligation (tenant_id, receipt_id, debtor_id, creditor_id, opened_at)
    select %(tenant)s::bigint, id, debtor, creditor, %(now)s::timestamptz from stored where debtor is not null
)"""
# A receipt that was sent to another deployment is answered from there by whichever poster may post as the source that has
# the target's name. Index: delivery_delivery_by_object.
_FROM_THERE: Final = """
    owed.debtor_id = root.recipient_id and closer.source_system = any(array(
        select t.name from delivery_delivery d join delivery_target t on t.id = d.target_id where d.object_id = root.id
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
# Of receipts that are made: each closes what it pairs with, which is known to be its to close. That is locked before
# they are written, and so before any inbox.
_CLOSABLE: Final = """, closable as materialized (
    select receipt_id from receipts_obligation
    where receipt_id = any(array(select pairs_with from made)) and (closed_at is null) is true
    order by receipt_id for no key update
)"""
_CLOSED: Final = """closed as (
    update receipts_obligation o
    set closed_by_id = (select id from stored where pairs_with = o.receipt_id limit 1), closed_at = gatehouse_now()
    where o.receipt_id = any(array(select receipt_id from closable))
)"""
_MADE: Final = """(
    select nextval('receipts_receipt_id_seq') as id, uuidv7() as uuid, made.*, null::text as artifact_location,
           null::text as suggested_next_step, null::text as delivery_handle
    from made
)"""


def recording(**parts: str) -> str:
    """The statement that writes facts.

    :param parts: `statements`, `columns` and a `join` that a layer above adds to it.
    """
    given = {"draft": _GIVEN, "drafts": "", "free": "draft.id in (select receipt_pk from key)", "owed": _OWED}
    return _RECORD.format(**dict.fromkeys(("statements", "columns", "join"), "") | given | parts)


def recording_made(made: str, *, closing: bool, **parts: str) -> str:
    """The same for receipts that parts of its WITH make, of what happens once: without dedupe keys, under new ids.

    These parts are `made`, which has the columns of a draft and `at`, the moment. Receipts that close, close what they pair with, and open
    nothing. Tenant and poster are parameters.
    """
    given = {"draft": made, "drafts": _MADE, "free": "true"}
    if closing:
        free = "cardinality(array(select receipt_id from closable)) >= 0"
        given |= {"draft": made + _CLOSABLE, "free": free, "owed": _CLOSED}
    return recording(**given, **parts).replace("%(now)s::timestamptz", "at")


RECORD: Final = recording()

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

# A transaction that refers to an unknown receipt and one that writes this receipt meet here, so that one of them sees the
# other. Sorted, so that they don't deadlock. There are few meeting points, so that a batch of any size fits the server's
# lock table; unrelated transactions that share one wait for each other, which is rare.
MEET: Final = """
select pg_advisory_xact_lock(key) from (
    select distinct hashtextextended(%s::text, hashtextextended(reference, 0) & 127) as key
    from unnest(%s::text[]) reference
    order by 1
) keys
"""
# Taken after the points above, and different from all of them.
SERIALIZE_ARRIVALS: Final = "select pg_advisory_xact_lock(hashtextextended(%s::text, 128))"

# The receipts that have one of these ids, with their uuid; and without one, those that refer to it and are not linked.
# Indexes: receipts_receipt_id_once, receipts_receipt_no_cause_yet, receipts_receipt_no_pair_yet.
ARRIVING: Final = """
select id, receipt_id, uuid from receipts_receipt
where tenant_id = %(tenant)s and receipt_id = any(%(references)s)
union all
select id, caused_by_ref, null from receipts_receipt
where tenant_id = %(tenant)s and caused_by_ref = any(%(references)s) and caused_by_id is null
union all
select id, pairs_with_ref, null from receipts_receipt
where tenant_id = %(tenant)s and pairs_with_ref = any(%(references)s) and pairs_with_id is null
"""

# Locked in one order before anything else is.
HOLD_WAITING: Final = "select id from receipts_receipt where id = any(%s) order by id for no key update"

# Links what has waited for these receipts; answers the new pairs. Primary key only.
LINK_WAITING: Final = """
with arrived as (
    select * from unnest(%(references)s::text[], %(receipts)s::bigint[]) arrived(reference, receipt)
), linked as (
    update receipts_receipt
    set caused_by_id = coalesce(caused_by_id, (select receipt from arrived where reference = caused_by_ref)),
        pairs_with_id = coalesce(pairs_with_id, (select receipt from arrived where reference = pairs_with_ref))
    where id = any(%(waiting)s)
    returning id, new.pairs_with_id as root, old.pairs_with_id as root_before
)
select root, id from linked where root is not null and root_before is null order by root, id
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
    where receipt_id = any(%(roots)s::bigint[]) and (closed_at is null) is true
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
where o.receipt_id = any(%(roots)s::bigint[]) and o.receipt_id = chosen.root and (o.closed_at is null) is true
"""
# The open ones of a side are cut off inside their own index before anything is joined to them: in the order of that side
# too, which is named by an array lest that be void, since the primary key would walk all that is closed. The limits keep
# the planner to one look for each.
# Indexes: receipts_obligation_owed or receipts_obligation_awaited, then primary keys.
OPEN_OBLIGATIONS: Final = """
with listed as materialized (
    select receipt_id, debtor_id, creditor_id, opened_at from receipts_obligation
    where closed_at is null and receipt_id > %(after)s and {side} = any(array[%(principal)s::bigint])
    order by {side}, receipt_id limit %(limit)s
)
select listed.receipt_id, r.receipt_id, r.event_type, r.source_system, r.title, r.summary, debtor.name, creditor.name,
       r.suggested_next_step, listed.opened_at
from listed
cross join lateral (select * from receipts_receipt where id = listed.receipt_id limit 1) r
cross join lateral (select name from principals_principal where id = listed.debtor_id limit 1) debtor
cross join lateral (select name from principals_principal where id = listed.creditor_id limit 1) creditor
order by listed.receipt_id
"""

# What a receipt `at` is linked to, and what is linked to it. Indexes: the primary key; receipts_receipt_by_cause,
# receipts_receipt_by_pair.
_CAUSES: Final = (
    "select target as id from unnest(array[at.caused_by_id, at.pairs_with_id]) target where target is not null"
)
_CONSEQUENCES: Final = """
    select c.id from receipts_receipt c where c.caused_by_id = at.id
    union all
    select p.id from receipts_receipt p where p.pairs_with_id = at.id
"""

# How many receipts hang from these, over however many links, and whether any of the others is among them. The limit ends
# the walk early. Indexes: those downwards.
HANGING: Final = f"""
with recursive hanging(id) as (
    select unnest(%(waiting)s::bigint[])
    union
    select next.id from hanging
    join receipts_receipt at on at.id = hanging.id cross join lateral ({_CONSEQUENCES}) next
)
select count(*), coalesce(bool_or(id = any(%(links)s::bigint[])), false)
from (select id from hanging limit %(limit)s) walked
"""

# The whole tree both ways; a link to a receipt that is not shown stays as the poster wrote it. `union`
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
select r.receipt_id, r.uuid::text, r.event_type, r.source_system, to_.name, r.title, r.surface, r.requires_action,
       r.created_at, coalesce(cause.receipt_id, r.caused_by_ref), coalesce(pair.receipt_id, r.pairs_with_ref),
       o.obligation, r.pruned_at is not null
from shown
cross join lateral (select * from receipts_receipt r where r.id = shown.id limit 1) r
cross join lateral (select name from principals_principal where id = r.recipient_id limit 1) to_
left join shown cause on cause.id = shown.caused_by_id
left join shown pair on pair.id = shown.pairs_with_id
left join lateral (
    select case when b.closed_at is null then 'open' else 'closed' end as obligation
    from receipts_obligation b where b.receipt_id = r.id limit 1
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

# Of a receipt with links a tombstone stays. As an array of those that have some, since the planner reads whole tables for
# an `exists` behind an `or`. Indexes: the primary keys, receipts_receipt_by_cause, receipts_receipt_by_pair.
STRIP: Final = """
update receipts_receipt r
set title = null, summary = '', metadata = '{}', dedupe_key = '', artifact_pointer = null, artifact_location = null,
    suggested_next_step = null, resource_ref = null, summary_hint = null, delivery_handle = null,
    pruned_at = gatehouse_now()
where r.id = any(array(
    select id from receipts_receipt
    where id = any(%(receipts)s)
          and (caused_by_id is not null or pairs_with_id is not null or pairs_with_ref is not null)
    union select caused_by_id from receipts_receipt where caused_by_id = any(%(receipts)s)
    union select pairs_with_id from receipts_receipt where pairs_with_id = any(%(receipts)s)
))
returning id
"""
DROP: Final = "delete from receipts_receipt where id = any(%s)"

# Of these the tombstones that have stood their time, held. Primary key only.
SPENT_TOMBSTONES: Final = """
select r.id from receipts_receipt r join principals_tenant t on t.id = r.tenant_id
where r.id = any(%(receipts)s) and r.pruned_at is not null
      and r.created_at <= gatehouse_now() - greatest(%(traces)s::interval, coalesce(t.keep_receipts, %(kept)s::interval))
order by r.id for update of r skip locked
"""
# Unlinks what hangs from them now that nobody can link to them.
# Indexes: receipts_receipt_by_cause, receipts_receipt_by_pair, the primary key.
CUT_OFF: Final = """
with hanging as materialized (
    select id from receipts_receipt where id = any(array(
        select id from receipts_receipt where caused_by_id = any(%(going)s::bigint[])
        union all
        select id from receipts_receipt where pairs_with_id = any(%(going)s::bigint[])
    ))
    order by id for no key update
)
update receipts_receipt r
set caused_by_id = case when caused_by_id = any(%(going)s::bigint[]) then null else caused_by_id end,
    pairs_with_id = case when pairs_with_id = any(%(going)s::bigint[]) then null else pairs_with_id end
from hanging where r.id = hanging.id
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
