"""The statements of waking. None of them touches an inbox."""

from typing import Final

_COLUMNS: Final = """
d.target_id, t.tenant_id, t.principal_id, d.covered_seq, t.min_unacked,
coalesce(d.woken_at + t.notify_lease > gatehouse_now(), false)
"""
_MAY_BE_CALLED: Final = """
from activation_dispatch d
join activation_target t on t.id = d.target_id and t.state = 'enabled'
join principals_principal p on p.id = t.principal_id and p.disabled_at is null
where d.next_at <= gatehouse_now()
"""

# Targets that may be called if there is something to call for. An idle one is always among them, since a post does
# not know of it.
# Index: activation_dispatch_next.
READY: Final = f"select {_COLUMNS} {_MAY_BE_CALLED} order by d.target_id"
# Index: activation_target_url_once.
READY_OF: Final = f"""
select {_COLUMNS} {_MAY_BE_CALLED}
      and (t.tenant_id, t.principal_id) in (select * from unnest(%(tenants)s::bigint[], %(principals)s::bigint[]))
order by d.target_id
"""

# Of these targets, those that no message announces just now; whoever is held is being announced or called.
ANNOUNCE: Final = """
update activation_dispatch set announced_until = gatehouse_now() + %(fresh)s::interval
where target_id in (
    select target_id from activation_dispatch
    where target_id = any(%(targets)s) and (announced_until is null or announced_until <= gatehouse_now())
    order by target_id for no key update skip locked
)
returning tenant_id, target_id
"""
# Places are given one after the other, so that nobody's share is counted twice at once.
TURN: Final = "select pg_advisory_xact_lock(hashtextextended('activation', 6))"
# The next who waits for a place and may have one: of the tenant, then of the principal that has the fewest, then who had
# none for the longest. Indexes: activation_dispatch_waiting, activation_dispatch_busy.
TAKE: Final = f"""
with busy as materialized (
    select t.tenant_id, t.principal_id from activation_dispatch d join activation_target t on t.id = d.target_id
    where d.busy_until > gatehouse_now()
)
update activation_dispatch set announced_until = null, busy_until = gatehouse_now() + %(taken_over_after)s::interval
where target_id = (
    select d.target_id {_MAY_BE_CALLED}
          and d.announced_until is not null and (d.busy_until is null or d.busy_until <= gatehouse_now())
          and (select count(*) from busy b where b.principal_id = t.principal_id) < %(of_principal)s
          and (select count(*) from busy b where b.tenant_id = t.tenant_id) < %(of_tenant)s
    order by (select count(*) from busy b where b.tenant_id = t.tenant_id),
             (select count(*) from busy b where b.principal_id = t.principal_id), d.busy_until nulls first, d.target_id
    limit 1 for no key update of d skip locked
)
returning tenant_id, target_id, busy_until
"""
# Unless it ran out, and another has it.
GIVE_BACK: Final = """
update activation_dispatch set busy_until = gatehouse_now()
where target_id = %(target)s and busy_until = %(until)s
"""

# One target, held if it may be called and nobody else holds it.
HOLD: Final = f"""
select {_COLUMNS} {_MAY_BE_CALLED} and d.target_id = %(target)s
for no key update of d skip locked
"""

# From here on until `next_at` nobody else calls; `fence` proves whose claim it is.
CLAIM: Final = """
update activation_dispatch
set fence = fence + 1, tried_at = gatehouse_now(), next_at = gatehouse_now() + %(taken_over_after)s::interval
where target_id = %(target)s returning fence, tried_at, attempts
"""

# Both notes find no row if somebody else has claimed since, or the target is gone.
NOTE_WOKEN: Final = """
update activation_dispatch
set covered_seq = greatest(covered_seq, %(as_of)s), attempts = 0, next_at = gatehouse_now(),
    woken_at = gatehouse_now(), result = %(result)s, sent = sent + 1, wasted = wasted + %(wasted)s::int
where target_id = %(target)s and fence = %(fence)s
returning target_id
"""
NOTE_FAILED: Final = """
update activation_dispatch
set attempts = attempts + 1, next_at = gatehouse_now() + %(pause)s::interval, result = %(result)s, failed = failed + 1
where target_id = %(target)s and fence = %(fence)s
returning target_id
"""
# A target that is tried again after it was stopped or changed. The new fence shuts out a call that is under way: what
# the old address answers says nothing of the new one.
AFRESH: Final = """
update activation_dispatch set attempts = 0, next_at = gatehouse_now(), fence = fence + 1 where target_id = %(target)s
"""
