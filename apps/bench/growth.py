"""A database that has grown, beside a copy of it from before: volumes that no service could write in the time."""

from typing import Final

import psycopg
from django.conf import settings
from django.db import connection
from psycopg import sql

from apps.bench import load
from apps.bench.world import SOURCE
from apps.principals.tenancy import Caller, acting_as_system

_CHUNK: Final = 2000
# Receipts as items of one inbox, as posting leaves them, or as acking does.
_FILL: Final = """
with fresh as materialized (
    select nextval('receipts_receipt_id_seq') as id, n, uuidv7() as uuid, now() as at
    from generate_series(1, %(count)s::int) n
), named as (
    select *, 'rcpt_fill_' || id as receipt_id, 'bench:message:' || id || ':v1' as dedupe_key from fresh
), key as (
    insert into receipts_receiptkey
        (tenant_id, source_system, key_digest, content_digest, receipt_pk, receipt_id, uuid, created_at)
    select %(tenant)s, %(source)s, sha256(convert_to(dedupe_key, 'UTF8')), sha256('x'), id, receipt_id, uuid, at
    from named
), fact as (
    insert into receipts_receipt
        (id, tenant_id, uuid, receipt_id, recipient_id, poster_id, source_system, event_type, dedupe_key, title, summary,
         metadata, requires_action, surface, flush_class, break_thread, created_at)
    select id, %(tenant)s, uuid, receipt_id, %(recipient)s, %(poster)s, %(source)s, 'message', dedupe_key, 'A receipt',
           repeat('What happened. ', 8), '{"n": 1}', false, 'inbox', 'normal', false, at
    from named
), inbox as (
    update digests_inbox
    set last_seq = last_seq + %(count)s, visible_unread = visible_unread + case when %(acked)s then 0 else %(count)s end
    where principal_id = %(recipient)s returning id, last_seq - %(count)s as base
), entry as (
    insert into digests_entry
        (tenant_id, inbox_id, kind, sequence, source_system, receipt_ids, count, first_at, last_at, published_at, acked_at)
    select %(tenant)s, inbox.id, 'item', base + n, %(source)s, array[named.id], 1, at, at, at,
           case when %(acked)s then at end
    from named, inbox returning id, receipt_ids[1] as receipt_id
)
insert into digests_receiptstate
    (receipt_id, tenant_id, inbox_id, entry_id, pending, delivered_at, read_at, acked_at)
select receipt_id, %(tenant)s, inbox.id, entry.id, false, acked.at, acked.at, acked.at
from entry, inbox, (select case when %(acked)s then now() end as at) acked
"""


def fill(poster: Caller, recipients: list[Caller], *, receipts: int, acked: bool) -> None:
    """Put so many receipts into existing inboxes, spread over them as if they had come in turn."""

    def write() -> None:
        left, turn = receipts, 0
        while left > 0:
            count = min(_CHUNK, left)
            with acting_as_system("measuring"), connection.cursor() as cursor:
                cursor.execute("set local statement_timeout = 0")
                cursor.execute(
                    _FILL,
                    {
                        "count": count,
                        "tenant": poster.tenant_id,
                        "poster": poster.principal_id,
                        "recipient": recipients[turn % len(recipients)].principal_id,
                        "source": SOURCE,
                        "acked": acked,
                    },
                )
            left, turn = left - count, turn + 1

    load.apart(write)


# Tasks that wait in a queue, or that have ended well, as queueing and completing leave them, less their receipts.
_FILL_TASKS: Final = """
with line as (
    select k.id as task_type_id, k.queue_id from tasks_tasktype k join tasks_queue q on q.id = k.queue_id
    where k.tenant_id = %(tenant)s and q.name = %(queue)s order by k.id limit 1
), cold as (
    insert into tasks_task
        (tenant_id, queue_id, task_type_id, requester_id, recipient_id, priority, params, receipt_id, created_at)
    select %(tenant)s, queue_id, task_type_id, %(principal)s, %(principal)s, 5, '{"n": 1}', 'rcpt_task_fill_' || n, now()
    from line, generate_series(1, %(count)s::int) n
    returning id, queue_id, task_type_id
), hot as (
    insert into tasks_hottask
        (task_id, tenant_id, queue_id, task_type_id, ready_at, fence, lease_seconds, priority_rank, failures,
         max_attempts, expiries, max_expiries, flags)
    select id, %(tenant)s, queue_id, task_type_id, now(), 0, 60, 5, 0, 3, 0, 3, 0 from cold where not %(ended)s
), run as (
    insert into tasks_run (id, tenant_id, holder_id, started_at, message, ended_at, outcome)
    select (id << 16) + 1, %(tenant)s, %(principal)s, now(), '', now(), 'succeeded' from cold where %(ended)s
)
insert into tasks_terminalrecord (task_id, tenant_id, status, fence, summary, receipt_id, finished_at)
select id, %(tenant)s, 'succeeded', 1, 'Echo: succeeded', 'rcpt_task_end_' || id, now() from cold where %(ended)s
"""


def fill_tasks(owner: Caller, *, queue: str, ready: int, finished: int) -> None:
    """Put so many tasks into a queue of the owner's tenant, and so many into its past."""

    def write() -> None:
        for count, ended in ((finished, True), (ready, False)):
            for start in range(0, count, _CHUNK):
                _write_tasks(owner, queue=queue, count=min(_CHUNK, count - start), ended=ended)

    load.apart(write)


def _write_tasks(owner: Caller, *, queue: str, count: int, ended: bool) -> None:
    with acting_as_system("measuring"), connection.cursor() as cursor:
        cursor.execute("set local statement_timeout = 0")
        cursor.execute(
            _FILL_TASKS,
            {
                "count": count,
                "tenant": owner.tenant_id,
                "principal": owner.principal_id,
                "queue": queue,
                "ended": ended,
            },
        )


# The first of a line come to a worker, and go.
_TAKEN: Final = """
update tasks_hottask set holder_id = %(principal)s, lease_expires_at = now() + interval '1 minute', fence = fence + 1
where ctid = any(array(
    select h.ctid from tasks_hottask h join tasks_queue q on q.id = h.queue_id
    where h.tenant_id = %(tenant)s and q.name = %(queue)s and h.holder_id is null and h.ready_at is not null
    order by h.priority_rank, h.ready_at, h.task_id limit %(count)s))
"""
_GONE: Final = """
delete from tasks_hottask h using tasks_queue q
where q.id = h.queue_id and h.tenant_id = %(tenant)s and q.name = %(queue)s and h.holder_id = %(principal)s
"""


def churn_tasks(owner: Caller, *, queue: str, tasks: int) -> None:
    """Let so many tasks come to the end of a queue and so many go from its beginning; its length stays.

    As queueing, leasing and completing do it with the rows that claims read; in the calling process.
    """
    for start in range(0, tasks, _CHUNK):
        count = min(_CHUNK, tasks - start)
        _write_tasks(owner, queue=queue, count=count, ended=False)
        for statement in (_TAKEN, _GONE):
            with acting_as_system("measuring"), connection.cursor() as cursor:
                cursor.execute("set local statement_timeout = 0")
                cursor.execute(
                    statement,
                    {"count": count, "tenant": owner.tenant_id, "principal": owner.principal_id, "queue": queue},
                )


def tidy(database: str) -> None:
    """What autovacuum would do in a while."""
    with psycopg.connect(settings.DATABASE_URL, autocommit=True, dbname=database) as owner:
        owner.execute("set role none")
        owner.execute("vacuum (analyze)")


def original() -> str:
    """The run's own database."""
    name: str = settings.DATABASES["default"]["NAME"]
    return name


def copy() -> str:
    """Copy the run's database, whose visitors are shown out; answers what the copy is called."""
    name = copy_of(original())
    with psycopg.connect(settings.DATABASE_URL, autocommit=True, dbname="template1") as owner:
        owner.execute("set role none")
        # A process that was ended may have left a statement at work.
        show_out(owner, original())
        drop(owner, name)
        owner.execute(
            sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(original()))
        )
        # Of the role's settings, those for one database are not copied with it.
        owner.execute(
            sql.SQL("alter role current_user in database {} set role = gatehouse_app").format(sql.Identifier(name))
        )
    return name


def show_out(owner: psycopg.Connection, database: str) -> None:
    """End the sessions of all clients of a database but this one, and wait until they are gone.

    :raises psycopg.Error: if one of them is another role's, which the connection's role may not end.
    """
    owner.execute(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
        # The server's own, such as autovacuum, are not ours to end.
        " where datname = %s and backend_type = 'client backend' and pid <> pg_backend_pid()",
        [database],
    )


def drop(owner: psycopg.Connection, database: str) -> None:
    """Drop a database, if there is one of that name, whoever is still in it.

    Without `force`, which a role that is no superuser is denied while autovacuum is at work there; a plain drop sends
    autovacuum away by itself.
    """
    show_out(owner, database)
    owner.execute(sql.SQL("drop database if exists {}").format(sql.Identifier(database)))


def copy_of(database: str) -> str:
    """What the copy of a run's database is called."""
    return f"{database}_copy"


def within(database: str, work: load.Work) -> load.Work:
    """The same work, done in another database of the server."""

    def elsewhere(number: int) -> load.Operation:
        connection.close()
        connection.settings_dict["NAME"] = database
        return work(number)

    return elsewhere
