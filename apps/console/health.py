"""Whether everything that the product stands on is there, fit and well; and how to mend what is not."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Final

import redis
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.db import DatabaseError, ProgrammingError, connection, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Min
from django_celery_beat.models import PeriodicTask

from apps.console import selectors
from apps.core import notifications, ticks
from apps.core.admin import COUNTED, counted
from apps.core.rls import OPEN_TABLES
from apps.core.sql import SYSTEM, database_now, execute, fetch, logged_in_as
from apps.delivery.models import Delivery, Kind, State, Target
from apps.digests import soundness
from apps.digests.models import Thread
from apps.memory import vectors
from apps.principals.tenancy import acting_as_system

POSTGRESQL: Final = 18
REDIS: Final = (7, 2)
ROLES: Final = ("gatehouse_app", "gatehouse_operator", "gatehouse_system")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What examining one part found."""

    part: str
    ok: bool
    says: str
    mend: str = ""
    needed: bool = True
    """Without it nothing can be served; else work goes on, later or slower."""


Examination = Callable[[], Finding]


def readiness() -> list[Finding]:
    """What must be well for this process to serve, and what should be. Quick enough to ask every second."""
    return _examine(_QUICK)


def examination() -> list[Finding]:
    """Everything, for a person who has time to wait for it."""
    return _examine(_QUICK + _THOROUGH)


def _examine(parts: Sequence[Examination]) -> list[Finding]:
    """In order. Of a server that does not answer, one finding says so and those that would ask it are left out."""
    findings: list[Finding] = []
    away: set[type[Exception]] = set()
    for part in parts:
        if redis.RedisError in away and part in _OF_THE_BROKER:
            continue
        try:
            findings.append(part())
        except ProgrammingError:
            continue  # it asked a table that is not there yet, which the migrations' finding says
        except DatabaseError as exc:
            if DatabaseError not in away:
                findings.append(_silent("database", exc, "Start PostgreSQL and see that DATABASE_URL names it."))
            away.add(DatabaseError)
        except redis.RedisError as exc:
            if redis.RedisError not in away:
                mend = "Start Redis or Valkey and see that REDIS_URL names it."
                findings.append(_silent("broker", exc, mend, needed=False))
            away.add(redis.RedisError)
    return findings


def _silent(part: str, exc: Exception, mend: str, *, needed: bool = True) -> Finding:
    says = (str(exc).splitlines() or [type(exc).__name__])[0]
    return Finding(part=part, ok=False, says=says, mend=mend, needed=needed)


def _database() -> Finding:
    execute("select 1")
    return Finding(part="database", ok=True, says="answers")


def _postgresql() -> Finding:
    connection.ensure_connection()
    version: int = connection.connection.info.server_version
    return Finding(
        part="postgresql",
        ok=version >= POSTGRESQL * 10_000,
        says=f"version {version // 10_000}.{version % 10_000}",
        mend=f"Gatehouse needs PostgreSQL {POSTGRESQL}.",
    )


# Of scripts that have capitals; in some places that of `i` is another.
_CAPITALS: Final = "IÀŐŽΔЖԱ"


def _locale() -> Finding:
    """By small letters words are found, and forgotten."""
    connection.ensure_connection()
    encoding = connection.connection.info.parameter_status("server_encoding")
    small = ""
    if encoding == "UTF8":
        (small,) = fetch("select lower(%s)", [_CAPITALS])[0]
    return Finding(
        part="locale",
        ok=small == _CAPITALS.lower(),
        says=f"encoding {encoding}" + (f", the small letters of {_CAPITALS} are {small}" if small else ""),
        mend="Make the database anew, with small letters of all scripts: create database … owner gatehouse "
        "template template0 encoding 'UTF8' locale_provider builtin builtin_locale 'C.UTF-8'.",
    )


def _login_role() -> Finding:
    """Production has a login for each role, and none that may act as another; in development one may act in all."""
    asked = """select rolname, rolsuper or rolbypassrls, array(
                   select roleid::regrole::text from pg_auth_members where member = pg_roles.oid
                   and (rolname, roleid::regrole::text) <> ('gatehouse_system', 'gatehouse_operator') order by 1)
               from pg_roles where rolname = session_user"""
    unbound, wide = [], []
    for login in connections.settings:
        with logged_in_as(login):
            ((name, passes, others),) = fetch(asked)
        unbound += [name] if passes else []
        wide += [f"{name} can become {', '.join(others)}"] if others else []
    return Finding(
        part="login role",
        ok=not unbound and not (wide and settings.PRODUCTION),
        says="; ".join([f"{name} is not bound by row-level security" for name in unbound] + wide)
        or "row-level security binds every login",
        mend="Make the three logins as docs/deploy.md has them, and have the three addresses name them.",
    )


def _roles() -> Finding:
    can_become = """select coalesce(array_agg(w.name), '{}'), current_user::text
                    from unnest(%s::text[]) as w(name) left join pg_roles r on r.rolname = w.name
                    where r.oid is null or not pg_has_role(session_user, r.oid, 'set')"""
    ((missing, current),) = fetch(can_become, [list(ROLES[:1])])
    with logged_in_as(SYSTEM):
        ((more, system),) = fetch(can_become, [list(ROLES[1:])])
    missing += more
    return Finding(
        part="roles",
        ok=not missing and current in ROLES and system in ROLES,
        says=f"act as {current} and {system}" + (f", can't become {', '.join(missing)}" if missing else ""),
        mend="Make the three logins as docs/deploy.md has them; then manage.py migrate.",
    )


@cache
def _shipped() -> frozenset[tuple[str, str]]:
    """The migrations of this release."""
    return frozenset(MigrationLoader(None, ignore_no_migrations=True).disk_migrations)


def _migrations() -> Finding:
    waiting = len(_shipped() - set(MigrationRecorder(connection).applied_migrations()))
    ((unwalled,),) = fetch(OPEN_TABLES)
    return Finding(
        part="migrations",
        ok=not waiting and not unwalled,
        says=f"{waiting} not applied" if waiting else f"{unwalled} ended half-way" if unwalled else "all applied",
        mend="manage.py migrate",
    )


def _schedules() -> Finding:
    declared = {f"tick: {tick.name}" for tick in ticks.all_ticks() if not tick.calls_out}
    missing = declared - set(PeriodicTask.objects.filter(enabled=True).values_list("name", flat=True))
    return Finding(
        part="schedules",
        ok=not missing,
        says=f"beat does not know {', '.join(sorted(missing))}" if missing else f"{len(declared)} ticks",
        mend="manage.py sync_schedules (beat does it when it starts)",
        needed=False,
    )


def _broker() -> Finding:
    notifications.broker().ping()
    return Finding(part="broker", ok=True, says="answers")


def _redis_version() -> Finding:
    info: dict[str, Any] = notifications.broker().info("server")
    valkey = info.get("valkey_version")
    version = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
    return Finding(
        part="redis",
        ok=valkey is not None or version >= REDIS,
        says=f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}",
        mend="Gatehouse needs Redis 7.2 or newer, or Valkey.",
    )


def _eviction() -> Finding:
    policy = str(notifications.broker().info("memory").get("maxmemory_policy", "unknown"))
    return Finding(
        part="eviction",
        ok=policy == "noeviction",
        says=policy,
        mend="Set maxmemory-policy noeviction: an evicted queue is lost work until the next tick finds it.",
        needed=False,
    )


def _beat() -> Finding:
    return _alive("beat", "beat", "celery -A config beat; until then the workers' own clocks drive the ticks.")


def _worker() -> Finding:
    return _alive("worker", "worker", "celery -A config worker; until then nothing that waits will move.")


def _alive(part: str, who: str, mend: str) -> Finding:
    age = notifications.heartbeat_age(who)
    return Finding(
        part=part,
        ok=age is not None and age <= notifications.SILENT_AFTER,
        says="not heard of for an hour" if age is None else f"last tick {age.total_seconds():.0f} s ago",
        mend=f"Start it: {mend}",
        needed=False,
    )


def _digests() -> Finding:
    with acting_as_system("readiness"):
        now = database_now()
        overdue = Thread.objects.filter(flush_due_at__lt=now - selectors.FLUSHED_WITHIN)
        oldest = overdue.aggregate(at=Min("flush_due_at"))["at"]
    late = now - oldest if oldest is not None else timedelta(0)
    return Finding(
        part="digests",
        ok=late <= notifications.SILENT_AFTER,
        says=f"the longest overdue is {late.total_seconds():.0f} s late" if late else "none overdue",
        mend="A worker process flushes them: see worker and beat.",
        needed=False,
    )


def _deliveries() -> Finding:
    with acting_as_system("readiness"):
        now = database_now()
        pending = Delivery.objects.filter(state=State.PENDING, target__kind=Kind.REMOTE)
        due = Delivery.objects.filter(state=State.PENDING, target__retry_at=None, target__stopped_at=None)
        due = due.filter(due_at__lt=now - selectors.FLUSHED_WITHIN)
        due_at = due.aggregate(at=Min("due_at"))["at"]
        dead, waiting = (rows[:COUNTED].count() for rows in (Delivery.objects.filter(state=State.DEAD), pending))
        silent = Target.objects.filter(kind=Kind.REMOTE, retry_at__isnull=False).count()
    late = now - due_at if due_at is not None else timedelta(0)
    troubles = [
        *([f"the longest overdue is {late.total_seconds():.0f} s late"] if late > notifications.SILENT_AFTER else []),
        *([f"{silent} targets do not answer"] if silent else []),
        *([f"{counted(dead)} are dead"] if dead else []),
    ]
    return Finding(
        part="deliveries",
        ok=not troubles,
        says=", ".join(troubles) or f"{counted(waiting)} pending to other deployments",
        mend="Targets in the console say why; dead deliveries can be replayed there.",
        needed=False,
    )


def _inboxes() -> Finding:
    with acting_as_system("doctor"):
        found = soundness.unsound()
    faults = ", ".join(
        f"{len(ids)} {kind.replace('_', ' ')} (ids {', '.join(map(str, ids[:10]))})"
        for kind, ids in sorted(found.items())
    )
    return Finding(
        part="inboxes",
        ok=not found,
        says=faults or "every receipt is acked, visible or pending",
        mend="Report the fault: no service can cause it.",
        needed=False,
    )


def _embedder() -> Finding:
    asked = vectors.embedder()
    if asked is None:
        return Finding(part="embedder", ok=True, says="none: recall goes by words alone", needed=False)
    with acting_as_system("readiness"):
        if not vectors.has_vectors():
            return Finding(
                part="embedder",
                ok=False,
                says="the database can't compare vectors; recall goes by words alone",
                mend="Let a superuser install pgvector here: create extension vector.",
                needed=False,
            )
        lacks_index, waiting = vectors.state_of(asked)
    lack = "; a tenant has so many vectors that they need an index" if lacks_index else ""
    says = f"{waiting:,} memories wait for it{lack}"
    return Finding(part="embedder", ok=not lacks_index, says=says, mend="manage.py index_vectors", needed=False)


def _artifacts() -> Finding:
    storage = storages["artifacts"]
    try:
        name = storage.save(f".doctor-{secrets.token_hex(8)}", ContentFile(b"doctor"))
        storage.delete(name)
    except OSError as exc:
        return _silent("artifacts", exc, f"Make {settings.DATA_DIR} writable for this process.")
    return Finding(part="artifacts", ok=True, says="writable")


_QUICK: Final = (
    _database, _postgresql, _locale, _login_role, _migrations, _broker, _beat, _worker, _digests, _deliveries
)  # fmt: skip
_OF_THE_BROKER: Final = (_broker, _beat, _worker, _redis_version, _eviction)
_THOROUGH: Final = (_roles, _schedules, _redis_version, _eviction, _inboxes, _embedder, _artifacts)


def refuse_unfit_servers(*, databases: Sequence[str] | None, **_: Any) -> list[CheckMessage]:
    """A system check of `migrate` and `check --database`: production does not start on a server that can't hold it."""
    if not databases or not settings.PRODUCTION:
        return []
    unfit = [finding for finding in (_postgresql(), _locale(), _login_role()) if not finding.ok]
    return [Error(f"{finding.part}: {finding.says}", hint=finding.mend, id="console.E001") for finding in unfit]
