"""The statements behind recording a fact and walking its chain."""

from typing import Final

# Takes the key and writes the fact in one go. No row: the key is taken. A row without `stored`: the receipt id is.
RECORD: Final = """
with key as (
    insert into receipts_receiptkey
        (tenant_id, source_system, key_digest, content_digest, receipt_pk, receipt_id, uuid, created_at)
    values (%(tenant)s::bigint, %(source_system)s::text, %(key_digest)s::bytea, %(content_digest)s::bytea,
            nextval('receipts_receipt_id_seq'), %(receipt_id)s::text, uuidv7(), %(now)s::timestamptz)
    on conflict (tenant_id, source_system, key_digest) do nothing
    returning receipt_pk, uuid
), fact as (
    insert into receipts_receipt
        (id, tenant_id, uuid, receipt_id, recipient_id, poster_id, source_system, event_type, dedupe_key, title,
         summary, metadata, artifact_pointer, artifact_location, requires_action, suggested_next_step,
         caused_by_ref, pairs_with_ref, caused_by_id, pairs_with_id, surface, groupable, resource_ref, event_family,
         flush_class, summary_hint, break_thread, delivery_handle, created_at)
    select key.receipt_pk, %(tenant)s::bigint, key.uuid, %(receipt_id)s::text, %(recipient)s::bigint,
           %(poster)s::bigint, %(source_system)s::text, %(event_type)s::text, %(dedupe_key)s::text, %(title)s::text,
           %(summary)s::text, %(metadata)s::jsonb, %(artifact_pointer)s::text, %(artifact_location)s::text,
           %(requires_action)s::boolean, %(suggested_next_step)s::text, %(caused_by_ref)s::text,
           %(pairs_with_ref)s::text, %(caused_by)s::bigint, %(pairs_with)s::bigint, %(surface)s::text,
           %(groupable)s::boolean, %(resource_ref)s::text, %(event_family)s::text, %(flush_class)s::text,
           %(summary_hint)s::text, %(break_thread)s::boolean, %(delivery_handle)s::text, %(now)s::timestamptz
    from key
    on conflict (tenant_id, receipt_id) do nothing
    returning id
)
select key.receipt_pk, key.uuid, exists (select from fact) as stored from key
"""

# Both unique indexes, one row at most per reference.
RESOLVE: Final = """
select id, receipt_id, uuid::text from receipts_receipt
where tenant_id = %s and (receipt_id = any(%s) or uuid = any(%s::uuid[]))
"""

# Whoever writes a reference to an unknown receipt and whoever brings that receipt meet here, so that one of them
# sees the other. Sorted, hence free of deadlocks.
MEET: Final = """
select pg_advisory_xact_lock(key) from (
    select distinct hashtextextended(%s::text || ':' || reference, 0) as key from unnest(%s::text[]) reference
    order by 1
) keys
"""

# What waits for receipts that arrive now. Indexes: receipts_receipt_dangling, receipts_unmatched_by_ref.
WAITING: Final = """
select id from receipts_receipt
where tenant_id = %(tenant)s and caused_by_ref = any(%(references)s) and caused_by_id is null
union
select receipt_id from receipts_unmatchedcloser where tenant_id = %(tenant)s and reference = any(%(references)s)
"""

# Locked in one order before anything else is. By key alone: a row that a rival has linked meanwhile is looked at
# again in its new version, and a join would be judged by what it was before.
HOLD_WAITING: Final = """
select caused_by_ref, pairs_with_ref from receipts_receipt where id = any(%s) order by id for no key update
"""

# Index: receipts_receipt_dangling.
LINK_CONSEQUENCES: Final = """
update receipts_receipt set caused_by_id = %(receipt)s
where tenant_id = %(tenant)s and caused_by_ref = %(reference)s and caused_by_id is null and id <> %(receipt)s
"""

# Index: receipts_unmatched_by_ref.
LINK_PAIRS: Final = """
with matched as (
    delete from receipts_unmatchedcloser
    where tenant_id = %(tenant)s and reference = %(reference)s
    returning receipt_id
)
update receipts_receipt set pairs_with_id = %(receipt)s
from matched where receipts_receipt.id = matched.receipt_id
returning receipts_receipt.id
"""

# Several are locked in one order first; an update alone would take them in any.
HOLD_OBLIGATIONS: Final = """
select receipt_id from receipts_obligation where receipt_id = any(%s) and closed_at is null
order by receipt_id for no key update
"""
# A receipt closes what its poster owes or is owed; a queued task ends by its gate's word, a plan by a plan's receipt.
# The first of several that may close does. Primary keys only.
CLOSE: Final = """
update receipts_obligation o set closed_by_id = chosen.closer, closed_at = %(now)s
from (
    select distinct on (root.id) root.id as root, closer.id as closer
    from unnest(%(roots)s::bigint[], %(closers)s::bigint[]) pair(root, closer)
    join receipts_obligation owed on owed.receipt_id = pair.root
    join receipts_receipt root on root.id = pair.root
    join receipts_receipt closer on closer.id = pair.closer
    where owed.closed_at is null and case root.event_type
        when 'task_queued' then closer.poster_id in (owed.debtor_id, root.poster_id)
                                and closer.event_type in ('task_complete', 'task_failed', 'task_canceled')
        when 'plan_created' then closer.poster_id in (owed.debtor_id, owed.creditor_id)
                                 and starts_with(closer.event_type, 'plan_')
        else closer.poster_id in (owed.debtor_id, owed.creditor_id) end
    order by root.id, closer.id
) chosen
where o.receipt_id = chosen.root and o.closed_at is null
"""

# The open ones of a side are cut off inside their own index before anything is joined to them.
# Indexes: receipts_obligation_owed or receipts_obligation_awaited, then primary keys.
OPEN_OBLIGATIONS: Final = """
with listed as materialized (
    select receipt_id, debtor_id, creditor_id, opened_at from receipts_obligation
    where closed_at is null and receipt_id > %(after)s {sides}
    order by receipt_id limit %(limit)s
)
select listed.receipt_id, r.receipt_id, r.event_type, r.source_system, r.title, r.summary, debtor.name, creditor.name,
       r.suggested_next_step, listed.opened_at
from listed
join receipts_receipt r on r.id = listed.receipt_id
join principals_principal debtor on debtor.id = listed.debtor_id
join principals_principal creditor on creditor.id = listed.creditor_id
order by listed.receipt_id
"""
OWED_BY: Final = "and debtor_id = %(owed_by)s"
AWAITED_BY: Final = "and creditor_id = %(awaited_by)s"

# Is this receipt among its own causes? Primary key only.
IN_A_CYCLE: Final = """
with recursive cause(id) as (
    select target from receipts_receipt r, unnest(array[r.caused_by_id, r.pairs_with_id]) target
    where r.id = %(receipt)s and target is not null
    union
    select target from cause join receipts_receipt r on r.id = cause.id,
        unnest(array[r.caused_by_id, r.pairs_with_id]) target
    where target is not null
)
select exists (select from cause where id = %(receipt)s)
"""

# The whole tree both ways. `union` visits a receipt once; the outer limit ends the walk early. For a principal, the
# walk never enters what does not concern it: anybody may name any receipt, which must open no way to it.
# Indexes: the primary key upwards, receipts_receipt_by_cause and receipts_receipt_by_pair downwards.
_CHAIN: Final = """
with recursive link(id) as (
    select id from receipts_receipt r where id = %(receipt)s::bigint and {concerns}
    union
    select next.id from link cross join lateral (
        select target as id from receipts_receipt r, unnest(array[r.caused_by_id, r.pairs_with_id]) target
        where r.id = link.id and target is not null
        union all
        select c.id from receipts_receipt c where c.caused_by_id = link.id
        union all
        select p.id from receipts_receipt p where p.pairs_with_id = link.id
    ) next join receipts_receipt r on r.id = next.id where {concerns}
)
select id from link limit %(limit)s
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
