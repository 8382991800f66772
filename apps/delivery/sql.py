"""Choosing the target that is called next."""

from typing import Final

# Index: delivery_delivery_due, once per target.
_CALLABLE: Final = """
from delivery_target t left join principals_principal p on p.id = t.principal_id
where t.stopped_at is null and p.disabled_at is null
      and (t.retry_at is null or t.retry_at <= gatehouse_now())
      and (t.busy_until is null or t.busy_until <= gatehouse_now())
      and exists (
          select from delivery_delivery d
          where d.target_id = t.id and d.state = 'pending' and d.due_at <= gatehouse_now()
      )
"""
# How many targets could be called now.
COUNT_CALLABLE: Final = f"select count(*) from (select t.id {_CALLABLE} limit %(limit)s) callable"
# Targets are taken one after the other, so that no share is exceeded.
LOCK_SHARES: Final = "select pg_advisory_xact_lock(hashtextextended('deliveries', 7))"
# The next target to be called: first of the tenant, then of the principal with the fewest calls under way, then the one
# that was called the longest ago. Index: delivery_target_busy.
TAKE_TARGET: Final = f"""
with busy as materialized (
    select tenant_id, principal_id from delivery_target where busy_until > gatehouse_now()
), candidate as (
    select t.id, t.busy_until,
           (select count(*) from busy b where b.tenant_id = t.tenant_id) as of_tenant,
           (select count(*) from busy b where b.principal_id = t.principal_id) as of_principal
    {_CALLABLE}
)
update delivery_target
set busy_until = gatehouse_now() + %(patience)s::interval + make_interval(secs => timeout_seconds)
where id = (
    select t.id from candidate c join delivery_target t on t.id = c.id
    where c.of_tenant < %(of_tenant)s and c.of_principal < %(of_principal)s
    order by c.of_tenant, c.of_principal, c.busy_until nulls first, t.id limit 1 for no key update of t skip locked
)
returning tenant_id, id, busy_until
"""
