"""The statements behind a bootstrap that are memory's: the latest conversations, and how much is remembered."""

from datetime import datetime
from typing import Any, Final

from apps.core.sql import hot_cursor
from apps.memory.sql.subjects import shared_with

# The newest among which those are looked for first that the principal may know of.
_NEWEST: Final = 100
_OF_VIEWER: Final = """memory_session
            where tenant_id = (select tenant_id from viewer) and principal_id = %(principal)s and not is_forgotten"""
_LATEST: Final = "order by last_active_at desc, id desc limit"
# By whom they are with, lest all that are newer be gone through.
_LATEST_WITH: Final = "order by subject_id, last_active_at desc, id desc limit"
_FIRST: Final = f"select id, subject_id, last_active_at from {_OF_VIEWER} {_LATEST} {_NEWEST}"
# The first subject from one on that the principal spoke with. It is named by an array, and sorted by, lest all that others
# said with subjects be gone through.
_MET: Final = """select subject_id from memory_session
            where tenant_id = (select tenant_id from viewer) and principal_id = any(array[%(principal)s]::bigint[])
              and not is_forgotten and subject_id > {after}
            order by principal_id, subject_id limit 1"""
# Hours, because a day of a calendar may have 23.
_SINCE: Final = "coalesce(%(now)s::timestamptz - make_interval(hours => 24 * s.delete_after_days), '-infinity')"
_OPEN: Final = f"(s.memory_enabled and {shared_with('p.name')})"
_TOO_FEW: Final = f"(select count(*) from shown) < %(limit)s and (select count(*) from ({_FIRST}) c) = {_NEWEST}"

# By memory_session_recent, then each one's subject by its key. Where nearly all of the newest are with subjects that want
# nothing remembered, or are not shared with the principal, each other is looked at once, by memory_session_with.
RECENT: Final = f"""
with recursive viewer as materialized (
    select v.tenant_id, v.name, p.share_with
    from principals_principal v left join memory_memorypolicy p on p.tenant_id = v.tenant_id
    where v.id = %(principal)s
), shown as materialized (
    select c.id, last_active_at
    from ({_FIRST}) c
    left join memory_subject s on s.id = c.subject_id
    left join viewer p on true
    where c.subject_id is null or ({_OPEN} and last_active_at > {_SINCE})
    {_LATEST} %(limit)s
), known as (
    select ({_MET.format(after="0")}) as subject where {_TOO_FEW}
    union all
    select ({_MET.format(after="known.subject")}) from known where known.subject is not null
), others as materialized (
    select c.* from (
        select id, last_active_at from {_OF_VIEWER} and subject_id is null and {_TOO_FEW} {_LATEST_WITH} %(limit)s
    ) c
    union all
    select c.* from viewer p cross join known join memory_subject s on s.id = known.subject
    cross join lateral (select {_SINCE} as since offset 0) kept  -- what is worked out from a row is no condition of an index
    cross join lateral (
        select id, last_active_at from {_OF_VIEWER} and subject_id = any(array[s.id]) and last_active_at > since
        {_LATEST_WITH} %(limit)s
    ) c
    where {_OPEN}
)
select c.conversation_id, c.platform, c.title, c.summary, c.topics, c.tone, c.last_active_at,
       coalesce(s.anonymize_dates, false)
from (select * from shown union select * from others {_LATEST} %(limit)s) r
join memory_session c on c.id = r.id
left join memory_subject s on s.id = c.subject_id
order by c.last_active_at desc, c.id desc
"""  # constants only

# By memory_tally_of_tenant alone. What is said with a subject is of no account to those who may not know it.
HOLDINGS: Final = """
select coalesce(sum(observations), 0)::bigint, coalesce(sum(patterns), 0)::bigint, coalesce(sum(concepts), 0)::bigint
from memory_tally where tenant_id = %(tenant)s and scope = 0
"""


def recent(*, principal_id: int, now: datetime, limit: int) -> list[tuple[Any, ...]]:
    """A principal's latest conversations that it may know of: what each is, and whether its dates are told by the month."""
    with hot_cursor() as cursor:
        cursor.execute(RECENT, {"principal": principal_id, "now": now, "limit": limit})
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def held(*, tenant_id: int) -> tuple[int, int, int]:
    """How many observations, patterns and concepts a tenant has that are about no subject."""
    with hot_cursor() as cursor:
        cursor.execute(HOLDINGS, {"tenant": tenant_id})
        (row,) = cursor.fetchall()
    observations, patterns, concepts = row
    return observations, patterns, concepts
