"""Receipts by the million, loaded set-based into every table, so that all of it adds up."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from django.db import connection

from apps.digests.models import Inbox
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as_system
from tests.factories import make_caller

BIG: Final = (
    "receipts_receipt",
    "receipts_receiptkey",
    "receipts_obligation",
    "digests_receiptstate",
    "digests_entry",
    "digests_thread",
)
# Of every hundred receipts of an inbox ninety are items and ten are one digest.
BLOCK: Final = 100
SEQUENCES: Final = 91
# The newest of each inbox are unread; one in so many blocks is of a source that is rare.
RARE_EVERY: Final = 500

# One inbox: receipts first+1 … first+many, of which the newest `unread` are unread. All in the last eighty days.
_RECEIPTS: Final = f"""
with given as (
    select n, ((n - 1) %% 100) + 1 as place, (n - 1) / 100 as block,
           now() - interval '80 days' * ((%(many)s - n + 1)::float8 / %(many)s) as at
    from generate_series(%(start)s::bigint, %(stop)s::bigint) n
)
insert into receipts_receipt
    (id, tenant_id, uuid, receipt_id, recipient_id, poster_id, source_system, event_type, dedupe_key, title, summary,
     metadata, requires_action, caused_by_ref, caused_by_id, surface, resource_ref, event_family, flush_class,
     break_thread, created_at)
select %(first)s + n, %(tenant)s, uuidv7(), 'rcpt_' || lpad(to_hex(%(first)s + n), 20, '0'), %(principal)s, %(principal)s,
       case when place = 7 and block %% {RARE_EVERY} = 0 then 'pagerduty' else 'github' end, 'ci_update',
       'github:ci_update:' || (%(first)s + n) || ':v1', 'Check ' || n || ' is green',
       'The check ran for three minutes and ended well, attempt ' || n, '{{"run": 1}}', place = 3 and %(stop)s - n < 50000,
       case when place %% 10 = 5 then 'rcpt_' || lpad(to_hex(%(first)s + n - 1), 20, '0') end,
       case when place %% 10 = 5 then %(first)s + n - 1 end, 'inbox',
       case when place %% 10 = 0 then 'pr:' || block end, case when place %% 10 = 0 then 'ci' end, 'normal', false, at
from given
"""
_KEYS: Final = """
insert into receipts_receiptkey
    (tenant_id, source_system, key_digest, content_digest, receipt_pk, receipt_id, uuid, created_at)
select tenant_id, source_system, decode(lpad(to_hex(id), 64, '0'), 'hex'), decode(lpad(to_hex(id), 64, 'f'), 'hex'),
       id, receipt_id, uuid, created_at
from receipts_receipt where id > %(first)s + %(start)s - 1 and id <= %(first)s + %(stop)s
"""
_THREADS: Final = """
insert into digests_thread (id, tenant_id, inbox_id, source_system, resource_ref, event_family, receipt_count,
                            pending_count, revision, opened_at, closed_at)
select %(thread)s + block, %(tenant)s, %(inbox)s, 'github', 'pr:' || block, 'ci', 10, 0, 1, now() - interval '1 hour',
       case when (block + 1) * 100 <= %(many)s - %(unread)s then now() end
from generate_series((%(start)s - 1) / 100, %(stop)s / 100 - 1) block
"""
_ENTRIES: Final = """
insert into digests_entry (id, tenant_id, inbox_id, kind, sequence, thread_id, revision, source_system, receipt_ids,
                           count, title, summary, first_at, last_at, flush_reason, published_at, acked_at)
select %(entry)s + sequence, %(tenant)s, %(inbox)s, case when grouped then 'digest_snapshot' else 'item' end, sequence,
       case when grouped then %(thread)s + block end, case when grouped then 1 end, r.source_system,
       case when grouped then array(select %(first)s + block * 100 + 10 * i from generate_series(1, 10) i)
            else array[r.id] end,
       case when grouped then 10 else 1 end, case when grouped then '10 ci on pr:' || block end,
       case when grouped then 'Ten checks' end, r.created_at, r.created_at, case when grouped then 'window' end, r.created_at,
       case when n <= %(many)s - %(unread)s then r.created_at + interval '1 hour' end
from (
    select r.*, id - %(first)s as n, (id - %(first)s - 1) / 100 as block, (id - %(first)s - 1) %% 100 + 1 as place
    from receipts_receipt r where id > %(first)s + %(start)s - 1 and id <= %(first)s + %(stop)s
) r cross join lateral (
    select place = 100 as grouped, 91 * block + case when place = 100 then 91 else place - place / 10 end as sequence
) e
where place = 100 or place %% 10 <> 0
"""
_STATES: Final = """
insert into digests_receiptstate (receipt_id, tenant_id, inbox_id, entry_id, thread_id, pending, delivered_at, read_at,
                                  acked_at)
select r.id, %(tenant)s, %(inbox)s, case when place %% 10 <> 0 then %(entry)s + 91 * block + place - place / 10 end,
       case when place %% 10 = 0 then %(thread)s + block end, false, acked, acked, acked
from (
    select id, (id - %(first)s - 1) / 100 as block, (id - %(first)s - 1) %% 100 + 1 as place,
           case when id - %(first)s <= %(many)s - %(unread)s then created_at + interval '1 hour' end as acked
    from receipts_receipt where id > %(first)s + %(start)s - 1 and id <= %(first)s + %(stop)s
) r
"""
_OBLIGATIONS: Final = """
insert into receipts_obligation (receipt_id, tenant_id, debtor_id, creditor_id, opened_at, closed_at)
select id, tenant_id, recipient_id, poster_id, created_at, case when id %% 200 < 100 then created_at + interval '1 day' end
from receipts_receipt where id > %(first)s + %(start)s - 1 and id <= %(first)s + %(stop)s and requires_action
"""
_COUNTERS: Final = """
update digests_inbox set last_seq = %(many)s / 100 * 91, visible_unread = %(unread)s, pending_unread = 0
where id = %(inbox)s
"""
_CHUNK: Final = 200_000


@dataclass(frozen=True, slots=True)
class Share:
    """What one inbox gets: multiples of a block."""

    owner: str
    many: int
    unread: int


def shares(total: int, *, unread: int, inboxes: int) -> list[Share]:
    """Kee's inbox, with a tenth of all and most of the unread; the others share what is left."""
    own = max(total // 10, unread)
    each = (total - own) // (inboxes - 1) // BLOCK * BLOCK
    return [Share("Kee", own, unread), *(Share(f"agent-{n}", each, BLOCK) for n in range(1, inboxes))]


def load(tenant: Tenant, wanted: list[Share], *, told: Callable[[str], object] = lambda _: None) -> Caller:
    """Fill the inboxes; answers Kee."""
    callers = {share.owner: make_caller(tenant, share.owner) for share in wanted}
    with acting_as_system("test"):
        Inbox.objects.bulk_create(
            [Inbox(tenant=tenant, principal_id=callers[share.owner].principal_id) for share in wanted],
            ignore_conflicts=True,
        )
        inboxes = dict(Inbox.objects.values_list("principal_id", "pk"))
    with _superuser() as raw, _indexes_at_the_end(raw):
        first, entry, thread = (
            _highest(raw, table) for table in ("receipts_receipt", "digests_entry", "digests_thread")
        )
        for share in wanted:
            principal = callers[share.owner].principal_id
            given = {"tenant": tenant.pk, "principal": principal, "inbox": inboxes[principal], "many": share.many}
            given |= {"unread": share.unread, "first": first, "entry": entry, "thread": thread}
            for start in range(1, share.many + 1, _CHUNK):
                part = given | {"start": start, "stop": min(start + _CHUNK - 1, share.many)}
                for statement in (_RECEIPTS, _KEYS, _THREADS, _ENTRIES, _STATES, _OBLIGATIONS):
                    raw.execute(statement, part)
            raw.execute(_COUNTERS, given)
            told(f"{share.owner}: {share.many}")
            first, entry = first + share.many, entry + share.many // BLOCK * SEQUENCES
            thread += share.many // BLOCK
        for table, highest in (("receipts_receipt", first), ("digests_entry", entry), ("digests_thread", thread)):
            raw.execute(f"select setval('{table}_id_seq', %s)", [highest])
    with _superuser() as raw:
        raw.execute(f"vacuum analyze {', '.join((*BIG, 'digests_inbox'))}")
    return callers["Kee"]


@contextmanager
def _indexes_at_the_end(raw: "psycopg.Connection[tuple[Any, ...]]") -> Iterator[None]:
    """Building an index once is quicker than growing it row by row."""
    found = raw.execute(
        """select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index
           where indrelid = any(%s::regclass[]) and not indisunique""",
        [list(BIG)],
    ).fetchall()
    for name, _ in found:
        raw.execute(f"drop index {name}")
    try:
        yield
    finally:
        for _, definition in found:
            raw.execute(definition)


def _highest(raw: "psycopg.Connection[tuple[Any, ...]]", table: str) -> int:
    row = raw.execute(f"select coalesce(max(id), 0) + 1000 from {table}").fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def _superuser() -> "Iterator[psycopg.Connection[tuple[Any, ...]]]":
    """The embedded server's own account, which may leave foreign keys unchecked: they are right by construction."""
    parameters = connection.get_connection_params()
    named = {key: parameters[key] for key in ("dbname", "host", "port") if key in parameters}
    with psycopg.connect(**named, user="postgres", autocommit=True, cursor_factory=psycopg.ClientCursor) as raw:
        raw.execute("set session_replication_role = replica; set statement_timeout = 0; set synchronous_commit = off")
        raw.execute("set maintenance_work_mem = '512MB'; set max_parallel_maintenance_workers = 0")
        yield raw
