"""Commands of the registry: registration, trust, figures of calls, health, discovery, and its copy in memory.

Everybody locks in one order: signing key, workers by id, the registry's row last (:func:`advance`). The database's
clock decides what is late.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery
from pydantic import ValidationError

from apps.core.errors import Conflict, DomainError, Invalid, NotFound
from apps.core.outbound import CallFailed, legible
from apps.core.schemas import parse
from apps.core.sealing import SealBroken, seal, unseal
from apps.core.sql import GATEHOUSE_NOW, database_now, in_batches, in_turn, violated_constraint
from apps.memory import selectors as memories
from apps.memory import services as memory
from apps.memory.models import Memory
from apps.principals.models import Principal, TenantModel
from apps.principals.scopes import Kind, Scope
from apps.principals.selectors import principal_named
from apps.principals.services import DELEGATE, add_principal
from apps.principals.tenancy import Caller, acting_as, acting_as_system, acting_in, on_behalf_of
from apps.workers import manifests, selectors, sources, sql, trust
from apps.workers.manifests import Manifest, Seen
from apps.workers.models import (
    NOT_REMEMBERED,
    REPORTED,
    Call,
    Offer,
    Reach,
    Registry,
    SigningKey,
    SourceEntry,
    SourceKind,
    State,
    ToolVersion,
    UnknownWorker,
    Worker,
    WorkerEvent,
    WorkerRateLimited,
    WorkerSource,
    pause_after,
)
from apps.workers.selectors import tools_shown
from apps.workers.shapes import HeartbeatTaken, RegisterWorker, ServerShown, StatedWorker, ToolShown
from apps.workers.sources import BadSource, Entry, Source
from apps.workers.trust import BadSignature, Tier, effective_tier, share_of_an_hour, unsigned

RECENT_CALLS: Final = 64
FORGET_BATCH: Final = 1000
LAPSE_BATCH: Final = 200
_HOUR: Final = 3_600


class Registration(NamedTuple):
    """The result of a registration: the worker, whether it is new, and the tools that it offers now."""

    worker: Worker
    created: bool
    tools: tuple[ToolVersion, ...]


@transaction.atomic
def register(
    *, caller: Caller, original: Mapping[str, Any], found: bool = False, moves: int | None = None
) -> Registration:
    """Register a worker, or replace its manifest. The same manifest again only renews its heartbeat and its trust.

    :param found: the worker was discovered: expect no heartbeats, and leave the health of a worker that sends them alone.
    :param moves: key of a worker that only this source lists: such a worker may have moved to another endpoint.
    :raises Conflict: `worker_id_taken`, if the worker is another principal's; or if an unsigned discovered manifest
        has the id of a worker at another endpoint.
    :raises Invalid: `unusable_endpoint`, `unusable_schema`, `repeated_tool`.
    :raises BadSignature: if an enrolled key is named and the signature does not hold.
    """
    manifest = manifests.read(original)
    # Locked before its worker: a key that is being revoked is seen revoked.
    key = SigningKey.objects.filter(key_id=manifest.key_id).select_for_update(no_key=True).first()
    now = database_now()
    worker, created = _lock_or_create(caller, manifest, now)
    if worker.principal_id != caller.principal_id and worker.unregistered_at is None:
        raise Conflict(f"Another principal has registered {manifest.worker_id!r}.", code="worker_id_taken")
    signed, reason = _signature(manifest, key, now)
    if signed is not None:
        _refuse_replayed(worker, caller, signed)
    is_known = not created and worker.unregistered_at is None
    is_elsewhere = worker.endpoint != manifest.endpoint
    if found and is_known and is_elsewhere and signed is None and (worker.beats or worker.pk != moves):
        raise Conflict(f"{manifest.worker_id!r} is registered at another endpoint.", code="worker_id_taken")
    speaks_for_itself = found and is_known and worker.beats
    changed = not is_known or unsigned(worker.manifest) != unsigned(manifest.original)
    regraded = _grade(worker, manifest.claimed_tier, key=key if signed else None, signed=signed, reason=reason, now=now)
    if is_elsewhere and signed is None:
        _disapprove(worker)
    worker.principal_id, worker.endpoint, worker.unregistered_at = caller.principal_id, manifest.endpoint, None
    worker.capabilities, worker.constraints = list(manifest.capabilities), dict(manifest.constraints)
    worker.hints, worker.manifest = dict(manifest.hints), dict(manifest.original)
    if changed:
        # Probes of the old manifest say nothing of the new one.
        worker.drift, worker.probe_at = None, now
        if is_elsewhere or not speaks_for_itself:
            worker.reach, worker.probes_against = Reach.UNKNOWN, 0
    moved = False
    if not speaks_for_itself:
        # One that was found and never sent a heartbeat goes on being probed, whoever registers it.
        worker.beats = not found and (worker.beats or not is_known)
        worker.last_heartbeat_at, worker.available = now, True
        if changed or not found:
            worker.reported, worker.probe_at = State.READY, now
        moved = move(worker, worker.condition, "registered", now)
    worker.save()
    if changed:
        _offer(worker, manifest, now)
        record(worker, WorkerEvent.Kind.REGISTERED if created else WorkerEvent.Kind.REPLACED, worker.tier_reason, now)
        _describe(worker.tenant_id, Q(pk=worker.pk))
    elif regraded or moved:
        advance([worker.tenant_id])
    return Registration(worker, created, manifest.tools)


def _grade(
    worker: Worker, claimed: Tier, *, key: SigningKey | None, signed: trust.Signed | None, reason: str, now: datetime
) -> bool:
    """Give a worker, in memory, the tier of its manifest; tells whether that is another one."""
    ceiling = None if key is None else Tier(key.ceiling)
    before = worker.effective_tier
    tier, because = effective_tier(claimed, ceiling=ceiling, because=reason)
    worker.effective_tier, worker.tier_reason, worker.signing_key = tier, because[:300], key
    worker.trust_ends_at = signed.expires_at if signed else None
    if signed is not None:
        worker.signed_at = signed.signed_at
    if before != tier:
        record(worker, WorkerEvent.Kind.TRUST, f"{before} to {tier}: {worker.tier_reason}", now)
    return before != tier


def _lock_or_create(caller: Caller, manifest: Manifest, now: datetime) -> tuple[Worker, bool]:
    """Return the worker's row, locked, and whether it is new."""
    named = Worker.objects.filter(worker_id=manifest.worker_id).select_for_update()
    if (known := named.first()) is not None:
        return known, False
    try:
        with transaction.atomic():
            made = Worker.objects.create(
                tenant_id=caller.tenant_id,
                worker_id=manifest.worker_id,
                principal_id=caller.principal_id,
                endpoint=manifest.endpoint,
                manifest=dict(manifest.original),
                effective_tier=Tier.UNTRUSTED,
                last_heartbeat_at=now,
                registered_at=now,
            )
    except IntegrityError as exc:
        if violated_constraint(exc) != "workers_worker_id_once":
            raise
    else:
        return made, True
    rival = named.all().first()
    if rival is None:
        raise Conflict(f"{manifest.worker_id!r} is being registered elsewhere.", code="worker_id_taken")
    return rival, False


def _signature(manifest: Manifest, key: SigningKey | None, now: datetime) -> tuple[trust.Signed | None, str]:
    """Return the signature by an enrolled key, and what the trust in the manifest rests on.

    :raises BadSignature: if the signature does not hold, or the key was revoked.
    """
    if manifest.signature is None or manifest.key_id is None:
        return None, "the manifest is not signed, or names no key"
    if key is None:
        return None, f"the key {manifest.key_id[:100]} is not enrolled"
    if key.revoked_at is not None:
        raise BadSignature(f"The key {key.key_id!r} was revoked.", code="key_revoked")
    signed = trust.verify(
        manifest.original, signature=manifest.signature, key_id=key.key_id, key=key.public_key, now=now
    )
    return signed, f"signed by {key.key_id}"


def _refuse_replayed(worker: Worker, caller: Caller, signed: trust.Signed) -> None:
    """Refuse signatures that are older than the last one, or void; and another principal's use of the last one."""
    is_own = worker.principal_id == caller.principal_id
    if worker.signed_at is not None and (
        signed.signed_at < worker.signed_at or (signed.signed_at == worker.signed_at and not is_own)
    ):
        raise BadSignature(
            f"A manifest signed at {worker.signed_at.isoformat()} is known; sign again.", code="signature_replayed"
        )
    if worker.void_until is not None and signed.signed_at <= worker.void_until:
        raise BadSignature(
            f"The worker was unregistered at {worker.void_until.isoformat()}: sign again.", code="signature_replayed"
        )


def _offer(worker: Worker, manifest: Manifest, now: datetime) -> None:
    """Bring the worker's offers in line with its manifest."""
    contracts = {tool.uid: tool for tool in manifest.tools}
    for tool in manifest.tools:
        tool.tenant_id, tool.first_seen_at = worker.tenant_id, now
    ToolVersion.objects.bulk_create([contracts[uid] for uid in sorted(contracts)], ignore_conflicts=True)
    versions = list(ToolVersion.objects.filter(uid__in=contracts))
    offers = Offer.objects.filter(worker=worker)
    # In the order in which fold_calls() locks them.
    known = set(offers.order_by("id").select_for_update().values_list("tool_id", flat=True))
    offers.filter(withdrawn_at=None).exclude(tool__in=versions).update(withdrawn_at=now)
    offers.filter(tool__in=versions).update(withdrawn_at=None)
    Offer.objects.bulk_create(
        Offer(tenant_id=worker.tenant_id, worker=worker, tool=tool, name=tool.name, offered_at=now)
        for tool in versions
        if tool.pk not in known
    )


@transaction.atomic
def unregister(*, caller: Caller, worker_id: str) -> Worker:
    """Take a worker out of the registry. Its history stays, running calls go on, its signatures so far are void.

    :raises UnknownWorker: if there is none of this id that the caller may speak for.
    """
    worker = lock_own(caller, worker_id)
    now = database_now()
    take_out(worker, f"by {caller.name}", now, void_until=now)
    return worker


@transaction.atomic
def expel(*, tenant_id: int, worker_id: str, why: str) -> Worker:
    """Take a worker out of the registry as an operator. It may register again, unless it is in quarantine.

    :raises UnknownWorker: if none of this id is registered.
    """
    worker = _lock(worker_id, tenant_id)
    now = database_now()
    take_out(worker, f"by an operator: {why}", now, void_until=now)
    return worker


@transaction.atomic
def approve_tools(*, tenant_id: int, worker_id: str, uids: Collection[str], why: str) -> list[str]:
    """Approve versions of tools: they may be used whatever the worker's tier, and their effects are taken as they are claimed.

    Another version of a tool, or a worker at another endpoint, needs another approval. Returns the names of the tools.

    :raises UnknownWorker: if none of this id is registered.
    :raises NotFound: `unknown_tool`, if it does not offer one of these versions now; nothing is approved.
    """
    worker = _lock(worker_id, tenant_id)
    now = database_now()
    offers = Offer.objects.filter(worker=worker, withdrawn_at=None, tool__uid__in=uids)
    names = sorted(offers.values_list("name", flat=True))
    if len(names) != len(set(uids)):
        raise NotFound(f"{worker_id} no longer offers what was shown. Look at its tools again.", code="unknown_tool")
    offers.update(approved_at=now)
    worker.approved_at = now
    worker.save(update_fields=["approved_at"])
    record(worker, WorkerEvent.Kind.TRUST, f"approved {', '.join(names)}: {why}", now)
    _describe(tenant_id, Q(pk=worker.pk))
    return names


def _disapprove(worker: Worker) -> None:
    """End the approvals of a worker that has left or moved; the caller saves the worker."""
    if worker.approved_at is not None:
        worker.approved_at = None
        Offer.objects.filter(worker=worker).update(approved_at=None)


@transaction.atomic
def quarantine(*, tenant_id: int, worker_id: str, why: str) -> Worker:
    """Exclude a worker from plans and calls until it is released, whatever it reports, even if it registers again.

    :raises UnknownWorker: if none of this id is registered.
    :raises Conflict: `illegal_transition`, if it is in quarantine.
    """
    return _order(_lock(worker_id, tenant_id), State.QUARANTINED, why)


@transaction.atomic
def release(*, tenant_id: int, worker_id: str, why: str) -> Worker:
    """End a quarantine. The worker is offline until a heartbeat, a registration or a probe shows otherwise.

    :raises UnknownWorker: if none of this id is registered.
    :raises Conflict: `illegal_transition`, if it is not in quarantine.
    """
    worker = _lock(worker_id, tenant_id)
    if worker.state != State.QUARANTINED:
        raise Conflict(f"{worker_id} is {worker.state}, not quarantined.", code="illegal_transition")
    return _order(worker, State.OFFLINE, why)


def _order(worker: Worker, state: State, why: str) -> Worker:
    now, before = database_now(), worker.state
    worker.move_to(state)
    # Memory keeps quarantines, so that they survive a loss of the registry.
    worker.probe_at, worker.remembered_at_epoch = now, NOT_REMEMBERED
    worker.save(update_fields=["state", "probe_at", "remembered_at_epoch"])
    record(worker, WorkerEvent.Kind.STATE, f"{before} to {state}: by an operator: {why}", now)
    advance([worker.tenant_id])
    return worker


def lock_own(caller: Caller, worker_id: str) -> Worker:
    """Lock a registered worker that the caller may speak for.

    :raises UnknownWorker: if there is none.
    """
    worker = _lock(worker_id, caller.tenant_id)
    if worker.principal_id != caller.principal_id and Scope.ADMIN not in caller.scopes:
        raise UnknownWorker(f"There is no MCP worker {worker_id[:100]!r}.")
    return worker


def _lock(worker_id: str, tenant_id: int) -> Worker:
    found = Worker.objects.registered().light().filter(tenant_id=tenant_id, worker_id=worker_id)
    worker = found.select_for_update().first()
    if worker is None:
        raise UnknownWorker(f"There is no MCP worker {worker_id[:100]!r}.")
    return worker


def move(worker: Worker, state: State, why: str, now: datetime) -> bool:
    """Change a worker's state, unless it has this state or is in quarantine; tells whether it did."""
    event = changed(worker, state, why, now)
    if event is not None:
        event.save()
    return event is not None


def changed(worker: Worker, state: State, why: str, now: datetime) -> WorkerEvent | None:
    """As :func:`move`, but returns the event, which is not stored yet."""
    if worker.state in {state, State.QUARANTINED}:
        return None
    before = worker.state
    worker.move_to(state)
    return _event(worker, WorkerEvent.Kind.STATE, f"{before} to {state}: {why}", now)


def take_out(worker: Worker, why: str, now: datetime, *, void_until: datetime | None) -> None:
    """Take a locked worker out of the registry.

    :param void_until: signatures made until then are void, the last accepted one too; None: they stay valid.
    """
    worker.unregistered_at = now
    if void_until is not None:
        worker.void_until = max(void_until, worker.signed_at or void_until)
        _disapprove(worker)
    worker.save(update_fields=["unregistered_at", "void_until", "approved_at"])
    record(worker, WorkerEvent.Kind.UNREGISTERED, why, now)
    _describe(worker.tenant_id, Q(pk=worker.pk))


def record(worker: Worker, kind: WorkerEvent.Kind, detail: str, now: datetime) -> None:
    _event(worker, kind, detail, now).save()


def _event(worker: Worker, kind: WorkerEvent.Kind, detail: str, now: datetime) -> WorkerEvent:
    return WorkerEvent(
        tenant_id=worker.tenant_id, worker=worker, kind=kind, state=worker.state, detail=detail[:300], at=now
    )


def advance(tenant_ids: Iterable[int]) -> None:
    """Advance the epochs of registries: copies of them are outdated."""
    for tenant_id in sorted(set(tenant_ids)):
        sql.advance_epoch(tenant_id)


def _describe(tenant_id: int, which: Q) -> None:
    """Advance the epoch of a registry, and store it on the workers whose tools or pool have changed."""
    advance([tenant_id])
    epoch = Registry.objects.filter(tenant_id=tenant_id).values("epoch")
    Worker.objects.filter(which, tenant_id=tenant_id).update(described_at_epoch=Subquery(epoch))


@transaction.atomic
def rearrange(*, tenant_id: int, moved: Principal) -> None:
    """Tell the registry that a DeleGate reports to another."""
    _describe(tenant_id, Q(principal=moved) | Q(worker_id=moved.name))


@transaction.atomic
def enroll_key(*, tenant_id: int, key_id: str, public_key: str, ceiling: Tier) -> SigningKey:
    """Trust manifests that a key signs, up to a ceiling. Repeating it changes nothing.

    Workers that have named this key before are asked by their next heartbeat to register again.

    :raises Invalid: `bad_key`, if the text is no public Ed25519 JWK.
    :raises Conflict: `key_id_taken`, if the id belongs to another key, another ceiling, or a revoked key.
    """
    text, now = trust.public_key(public_key), database_now()
    key, created = SigningKey.objects.get_or_create(
        tenant_id=tenant_id,
        key_id=key_id,
        defaults={"public_key": text, "ceiling": ceiling, "enrolled_at": now},
    )
    if (key.public_key, key.ceiling, key.revoked_at) != (text, ceiling, None):
        raise Conflict(f"A key {key_id!r} is enrolled that differs from this one.", code="key_id_taken")
    if created:
        named = Worker.objects.registered().filter(tenant_id=tenant_id, manifest__trust__key_id=key_id)
        named.filter(signing_key=None).update(trust_ends_at=now)
    return key


@transaction.atomic
def revoke_key(*, tenant_id: int, key_id: str, why: str) -> int:
    """End the trust in a key for good. Returns the number of workers that are untrusted from now on.

    :raises NotFound: `unknown_key`, if no such key was enrolled.
    """
    now = database_now()
    key = SigningKey.objects.filter(tenant_id=tenant_id, key_id=key_id).select_for_update(no_key=True).first()
    if key is None:
        raise NotFound(f"No key {key_id[:100]!r} is enrolled.", code="unknown_key")
    if key.revoked_at is None:
        key.revoked_at = now
        key.save(update_fields=["revoked_at"])
    trusting = Worker.objects.trusted().filter(signing_key=key).select_for_update().order_by("id")
    return _strip(trusting, f"the key {key_id} was revoked: {why}", now, may_return=False)


def lapse_trust(*, batch: int = LAPSE_BATCH) -> int:
    """End the trust in workers whose signature has expired; returns their number. Opens a transaction per batch."""
    return in_batches(_lapse_some, batch)


@acting_as_system("expired signatures")
def _lapse_some(most: int) -> int:
    now = database_now()
    found = Worker.objects.trusted().filter(trust_ends_at__lte=now).order_by("id")
    workers = found.select_for_update(skip_locked=True)[:most]
    return _strip(workers, "the signature has ended", now, may_return=True)


def _strip(workers: Iterable[Worker], why: str, now: datetime, *, may_return: bool) -> int:
    """End the trust in these locked workers; returns their number.

    :param may_return: a new registration would help, so heartbeats ask for one.
    """
    tenants = []
    for worker in workers:
        before, worker.effective_tier, worker.tier_reason = worker.effective_tier, Tier.UNTRUSTED, why[:300]
        if not may_return:
            worker.trust_ends_at = None
        worker.save(update_fields=["effective_tier", "tier_reason", "trust_ends_at"])
        record(worker, WorkerEvent.Kind.TRUST, f"{before} to {Tier.UNTRUSTED}: {why}", now)
        tenants.append(worker.tenant_id)
    advance(tenants)
    return len(tenants)


@transaction.atomic
def take_call(*, worker_id: str) -> None:
    """Count a call that is about to be made against the worker's limit. The row stays locked until the transaction ends.

    Whoever takes calls of several workers in one transaction takes them in the order of the workers' ids.

    :raises WorkerRateLimited: if the worker has received all calls that it and its tier allow for now.
    """
    # Any: a worker with the database's clock.
    worker: Any = Worker.objects.light().filter(worker_id=worker_id).annotate(asked_at=GATEHOUSE_NOW).get()
    per_hour = worker.calls_per_hour(worker.tier_at(worker.asked_at))
    seconds: int | None = _HOUR
    if per_hour:
        seconds = sql.take_call(tenant_id=worker.tenant_id, worker_id=worker.pk, share=share_of_an_hour(per_hour))
    if seconds is not None:
        raise WorkerRateLimited(f"{worker_id} may be sent {per_hour:g} calls an hour.", retry_after=seconds)


@transaction.atomic
def record_call(*, worker_id: str, tool_name: str, ok: bool, seconds: float, cost: Decimal) -> None:
    """Record the outcome of a call; :func:`fold_calls` counts it.

    :raises NotFound: `unknown_tool`, if the worker never offered such a tool.
    """
    offer = selectors.offer_named(worker_id, tool_name)
    Call.objects.create(tenant_id=offer.tenant_id, offer=offer, ok=ok, seconds=seconds, cost=cost)


@transaction.atomic
def fold_calls() -> int:
    """Count recorded calls into their offers. Runs as the system."""
    calls = list(Call.objects.select_for_update(skip_locked=True).order_by("id")[:10_000])
    by_offer: dict[int, list[Call]] = {}
    for call in calls:
        by_offer.setdefault(call.offer_id, []).append(call)
    for offer in Offer.objects.filter(pk__in=by_offer).order_by("id").select_for_update():
        for call in by_offer[offer.pk]:
            offer.runs += 1
            offer.successes += call.ok
            offer.total_cost += call.cost
            if call.ok:
                offer.recent_seconds = [*offer.recent_seconds, call.seconds][-RECENT_CALLS:]
        offer.save(update_fields=["runs", "successes", "total_cost", "recent_seconds"])
    Call.objects.filter(pk__in=[call.pk for call in calls]).delete()
    tenants = sorted({call.tenant_id for call in calls})
    Registry.objects.filter(tenant_id__in=tenants).update(history_epoch=F("history_epoch") + 1)
    return len(calls)


def forget_events(*, batch: int = FORGET_BATCH) -> int:
    """Delete old events, except for each worker's last one; returns their number. Opens a transaction per batch."""
    return in_batches(_forget_some, batch)


@acting_as_system("deleting old events of workers")
def _forget_some(most: int) -> int:
    later = WorkerEvent.objects.filter(
        tenant_id=OuterRef("tenant_id"), worker_id=OuterRef("worker_id"), pk__gt=OuterRef("pk")
    )
    old = WorkerEvent.objects.filter(Exists(later), at__lt=database_now() - settings.WORKER_EVENTS_KEPT)
    keys = list(old.order_by("pk").values_list("pk", flat=True)[:most])
    gone, _ = WorkerEvent.objects.filter(pk__in=keys).delete()
    return gone


# The health of MCP workers: heartbeats, their absence, and probes of the manifests.

logger = logging.getLogger(__name__)

HEARTBEAT_EVERY: Final = timedelta(seconds=30)
LATE_AFTER: Final = HEARTBEAT_EVERY * 1.5
OFFLINE_AFTER: Final = HEARTBEAT_EVERY * 3
PROBE_EVERY: Final = HEARTBEAT_EVERY
# Healthy workers with heartbeats need few probes; lost ones cost a whole deadline each.
PROBE_SELDOM: Final = 10 * HEARTBEAT_EVERY
_PROBE_AGAIN: Final = timedelta(seconds=5)

LATE_BATCH: Final = 200
MOST_AT_ONCE: Final = 64
CALL_DEADLINE: Final = timedelta(seconds=5)
_AT_ONCE: Final = 32
TEXT: Final = 300

C = TypeVar("C")
R = TypeVar("R")
M = TypeVar("M", bound=TenantModel)


class Unexpected(CallFailed):
    """The call, or storing its result, broke in an unforeseen way; the log has the traceback."""

    code = "unexpected"


# No savepoint: a refusal changes nothing.
@transaction.atomic(savepoint=False)
def heartbeat(*, caller: Caller, worker_id: str, status: str, current_load: float, available: bool) -> HeartbeatTaken:
    """Store a worker's report.

    :raises UnknownWorker: if the caller has registered no worker of this id.
    """
    worker, now = lock_own(caller, worker_id), database_now()
    worker.last_heartbeat_at, worker.current_load, worker.available = now, current_load, available
    worker.beats, worker.reported = True, REPORTED[status]
    # A report does not make an endpoint reachable, nor does it undo a drift.
    moved = move(worker, worker.condition, f"the worker says {status}", now)
    worker.save(update_fields=["last_heartbeat_at", "current_load", "available", "beats", "reported", "state"])
    if moved:
        advance([worker.tenant_id])
    return HeartbeatTaken(
        status=worker.state,
        register_again=worker.is_to_register_again,
        next_heartbeat_seconds=int(HEARTBEAT_EVERY.total_seconds()),
    )


def mark_late(*, batch: int = LATE_BATCH) -> int:
    """Mark workers degraded whose heartbeat is late, and offline where it is lost or their principal is disabled.

    Workers that send no heartbeats are left to the probes. Opens a transaction per batch, so that the heartbeat of a
    worker that returns need not wait for all others.
    """
    return in_batches(_mark_some, batch)


@acting_as_system("late heartbeats")
def _mark_some(most: int) -> int:
    now = database_now()
    late = Q(last_heartbeat_at__lt=now - LATE_AFTER) & ~Q(state=State.DEGRADED)
    lost = Q(last_heartbeat_at__lt=now - OFFLINE_AFTER)
    online = Worker.objects.registered().exclude(state__in=[State.OFFLINE, State.QUARANTINED])
    found = online.filter(Q(beats=True) & (late | lost) | Q(principal__disabled_at__isnull=False))
    found = found.select_related("principal").light().order_by("id")
    workers = list(found.select_for_update(skip_locked=True, of=("self",))[:most])
    events = []
    for worker in workers:
        if worker.principal.disabled_at is None:
            events.append(changed(worker, _state_of(worker, now), "no heartbeat", now))
        else:
            events.append(changed(worker, State.OFFLINE, f"{worker.principal.name} is disabled", now))
    Worker.objects.bulk_update(workers, ["state"])
    WorkerEvent.objects.bulk_create(stored := [event for event in events if event is not None])
    advance(event.tenant_id for event in stored)
    return len(stored)


def _state_of(worker: Worker, now: datetime) -> State:
    """A worker's state by its condition and the age of its heartbeat."""
    silence, condition = now - worker.last_heartbeat_at, worker.condition
    if worker.beats and silence > OFFLINE_AFTER:
        return State.OFFLINE
    if worker.beats and silence > LATE_AFTER and condition != State.OFFLINE:
        return State.DEGRADED
    return condition


def due(rows: QuerySet[M], *, at: str = "next_at") -> list[M]:
    """The rows that are due, not too many, in a transaction of its own. Those of tenants take turns.

    The tick that asks runs nowhere else meanwhile. An answer is stored only where the row is still due at that moment.

    :param at: the field with the time at which a row is due.
    """
    with acting_as_system("looking for what is due"):
        return list(in_turn(rows.filter(**{f"{at}__lte": GATEHOUSE_NOW}), by=at)[:MOST_AT_ONCE])


def do_all(claims: Sequence[C], call: Callable[[C], R], note: Callable[[C, R | CallFailed], None]) -> int:
    """Make the calls side by side, and note each result as it comes back; returns the number of calls.

    The calls run on threads and must not use the database. An unforeseen exception is noted as :class:`Unexpected`.
    """

    def made(claim: C) -> R | CallFailed:
        try:
            return call(claim)
        except CallFailed as fault:
            return fault

    if not claims:
        return 0
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="workers") as pool:
        under_way = {pool.submit(made, claim): claim for claim in claims}
        for done in as_completed(under_way):
            try:
                note(under_way[done], done.result())
            except Exception as exc:
                logger.exception("one of a sweep broke")
                note(under_way[done], Unexpected(f"{type(exc).__name__}, as the log says."))
    return len(claims)


def probe() -> int:
    """Probe the workers that are due, and judge their answers; returns their number.

    Opens its own transactions, with the calls between them.
    """
    probed = Worker.objects.registered().light().exclude(state=State.QUARANTINED).filter(principal__disabled_at=None)

    def look(worker: Worker) -> Seen:
        return manifests.look(worker.endpoint, deadline=CALL_DEADLINE, with_manifest=False)

    return do_all(due(probed, at="probe_at"), look, note_probe)


def note_probe(asked: Worker, seen: Seen | CallFailed) -> None:
    with acting_in(asked.tenant_id, "probing workers"):
        # The answer of an old endpoint says nothing of the new one.
        found = Worker.objects.registered().filter(pk=asked.pk, probe_at=asked.probe_at, endpoint=asked.endpoint)
        worker = found.select_for_update().first()
        has_drifted = worker is not None and _judge(worker, seen, database_now())
    if has_drifted:
        # In a transaction of its own: discovery locks the entry before the worker.
        with acting_in(asked.tenant_id, "probing workers"):
            SourceEntry.objects.filter(worker_id=asked.pk).update(next_at=database_now())


def _judge(worker: Worker, seen: Seen | CallFailed, now: datetime) -> bool:
    """Store the result of a probe; tells whether the worker has drifted since the last one."""
    drift_before = worker.drift
    worker.note_answer(answered=isinstance(seen, Seen))
    since_last = timedelta(0) if worker.probed_at is None else now - worker.probed_at
    worker.probed_at = now
    if isinstance(seen, Seen):
        manifest: dict[str, Any] = worker.manifest
        drift = manifests.drift(manifest["tools"], seen.tools)
        worker.probe_fault, worker.drift = None, drift and drift[:TEXT]
        if not worker.beats:
            worker.last_heartbeat_at = now
    else:
        worker.probe_fault = f"{seen.code}: {seen}"[:TEXT]
    has_drifted = worker.drift not in {None, drift_before}
    if has_drifted:
        record(worker, WorkerEvent.Kind.DRIFTED, worker.drift or "", now)
    worker.probe_at = now + _pause(worker, now, since_last)
    is_down = worker.reach == Reach.DOWN
    why = f"it does not answer: {worker.probe_fault}" if is_down else worker.drift or "it answers"
    moved = move(worker, _state_of(worker, now), why, now)
    worker.save(
        update_fields=[
            *("reach", "probes_against", "probed_at", "probe_fault", "probe_at", "drift", "last_heartbeat_at", "state")
        ]
    )
    if moved:
        advance([worker.tenant_id])
    return has_drifted


def _pause(worker: Worker, now: datetime, since_last: timedelta) -> timedelta:
    """How long to leave a worker alone after a probe.

    :param since_last: how long it had been left alone before.
    """
    if worker.probes_against:
        return _PROBE_AGAIN
    if worker.reach == Reach.DOWN and (not worker.beats or now - worker.last_heartbeat_at > LATE_AFTER):
        return min(max(PROBE_EVERY, 2 * since_last), PROBE_SELDOM)
    is_calm = worker.beats and worker.reach == Reach.UP and worker.drift is None
    return PROBE_SELDOM if is_calm else PROBE_EVERY


# Discovery: sources list MCP workers, each entry is asked for its tools, and what is found is registered.
#
# A discovered worker is judged like any registration: an unsigned one is untrusted.

DEFAULT_EVERY: Final = timedelta(minutes=1)
LEAST_EVERY: Final = timedelta(seconds=5)
SERVERS: Final = "mcp-servers"
_PATIENCE: Final = timedelta(seconds=15)
"""How long an operator waits for a server to show its tools."""


@transaction.atomic
def add_source(
    *,
    principal: Principal,
    name: str,
    kind: SourceKind,
    address: str,
    options: Mapping[str, Any],
    secret: str = "",
    every: timedelta = DEFAULT_EVERY,
) -> WorkerSource:
    """Add a source of workers. Its workers are registered for the principal.

    :param options: of this kind of source; `worker` holds defaults for workers without a manifest.
    :param secret: the password of etcd's `user`, or Consul's token.
    :raises Conflict: `source_name_taken`.
    :raises Invalid: `unusable_endpoint`, or `bad_settings` if a source of this kind has no such option.
    """
    address = _checked_address(kind, address, options, has_secret=bool(secret))
    _check_every(every)
    now = database_now()
    source, created = WorkerSource.objects.get_or_create(
        tenant_id=principal.tenant_id,
        name=name,
        defaults={
            "principal": principal,
            "kind": kind,
            "address": address,
            "options": dict(options),
            "sealed_secret": seal(secret) if secret else "",
            "every": every,
            "next_at": now,
        },
    )
    if not created:
        raise Conflict(f"There is a source {name!r} already.", code="source_name_taken")
    return source


def _checked_address(kind: SourceKind, address: str, options: Mapping[str, Any], *, has_secret: bool) -> str:
    """Check a source's address and options; the path of a file becomes absolute, since workers read it elsewhere."""
    address = str(Path(address).resolve()) if kind == SourceKind.STATIC else manifests.endpoint(address)
    sources.check_options(kind, address, options, has_secret=has_secret)
    return address


def _check_every(every: timedelta) -> None:
    if every < LEAST_EVERY:
        raise Invalid(f"MCP workers are asked every {LEAST_EVERY.seconds} seconds at most.", code="bad_settings")


def visit(url: str) -> Seen:
    """Ask a server for its tools now, as an operator who is about to trust it. Not within a transaction.

    :raises Invalid: `unusable_endpoint`; `server_unusable`, if it does not answer as an MCP server.
    """
    manifests.endpoint(url)
    try:
        return manifests.look(url, deadline=_PATIENCE)
    except CallFailed as fault:
        raise Invalid(f"{url} does not answer as an MCP server: {fault}", code="server_unusable") from fault


def shown(url: str, seen: Seen) -> ServerShown:
    """What a server offers, and what its tools claim to touch: what an operator is about to trust.

    :raises Invalid: `nothing_to_offer`, if it has no usable tool.
    """
    derived, left_out = _manifest_of({"endpoint": url}, seen)
    manifest = manifests.read(derived)
    return ServerShown(
        url=url,
        server_name=seen.server_name,
        worker_id=manifest.worker_id,
        tools=[
            ToolShown(name=tool.name, description=tool.description, effects=tool.effects, tool_uid=tool.uid)
            for tool in manifest.tools
        ],
        left_out=left_out,
    )


@transaction.atomic
def principal_for_servers(*, tenant_id: int, name: str = SERVERS) -> Principal:
    """The principal for whom an operator adds servers; the default one is made if there is none.

    :raises UnknownPrincipal: if there is none of another name.
    """
    found = Principal.objects.filter(tenant_id=tenant_id, name=name).first()
    if found is None and name == SERVERS:
        return add_principal(tenant_id=tenant_id, name=name, kind=Kind.SERVICE, now=database_now())
    return found or principal_named(name)


@transaction.atomic
def add_server(
    *, principal: Principal, url: str, seen: Seen, name: str | None = None, approve: Collection[str] = (), why: str
) -> ServerShown:
    """Add a server by its address, register it with the tools that it has just shown, and approve some of them.

    The address again adds nothing, whoever added it, and approves what is named besides. Its source is enabled again.

    :param name: of the source; None: the worker's id.
    :param approve: uids of tools.
    :raises Conflict: `source_name_taken`; `worker_id_taken`.
    :raises NotFound: `unknown_tool`, if it does not offer a tool to approve.
    """
    found, now = shown(url, seen), database_now()
    same = WorkerSource.objects.filter(tenant_id=principal.tenant_id, kind=SourceKind.PULL, address=url)
    source = same.select_related("principal__tenant").first()
    if source is None:
        name = name or found.worker_id
        source = add_source(principal=principal, name=name, kind=SourceKind.PULL, address=url, options={})
    elif not source.enabled:
        source.enabled = True
        source.save(update_fields=["enabled"])
    entry, _ = SourceEntry.objects.get_or_create(
        tenant_id=principal.tenant_id,
        source=source,
        key=legible(url),
        defaults={"stated": {"endpoint": url}, "named_at": now, "next_at": now + source.every},
    )
    _register_from(entry, on_behalf_of(source.principal), entry.stated, seen, now)
    entry.asked_at = now
    entry.save(update_fields=["asked_at", "worker"])
    if approve:
        approve_tools(tenant_id=principal.tenant_id, worker_id=found.worker_id, uids=approve, why=why)
    tools = tools_shown(tenant_id=principal.tenant_id, worker_id=found.worker_id)
    return found.model_copy(update={"source": source.name, "tools": tools})


@transaction.atomic
def change_source(
    *,
    tenant_id: int,
    name: str,
    address: str | None = None,
    every: timedelta | None = None,
    enabled: bool | None = None,
    secret: str | None = None,
) -> WorkerSource:
    """Change a source, and look at it and ask its workers now. What is None stays.

    :raises NotFound: `unknown_source`.
    :raises Invalid: `unusable_endpoint`, or `bad_settings`, also for a secret where there was none.
    """
    source, now = _lock_source(tenant_id, name), database_now()
    if address is not None:
        kind, has_secret = SourceKind(source.kind), bool(source.sealed_secret)
        source.address = _checked_address(kind, address, source.options, has_secret=has_secret)
    if every is not None:
        _check_every(every)
        source.every = every
    if enabled is not None:
        source.enabled = enabled
    if secret is not None:
        if not source.sealed_secret:
            raise Invalid(f"The source {name!r} takes no secret.", code="bad_settings")
        source.sealed_secret = seal(secret)
    source.next_at, source.faults = now, 0
    source.save(update_fields=["address", "every", "enabled", "sealed_secret", "next_at", "faults"])
    source.entries.update(next_at=now)
    return source


@transaction.atomic
def remove_source(*, tenant_id: int, name: str) -> int:
    """Remove a source, and unregister the workers that only it lists; returns their number.

    :raises NotFound: `unknown_source`.
    """
    source = _lock_source(tenant_id, name)
    left = _remove(list(source.entries.order_by("id").select_for_update()), database_now())
    source.delete()
    return left


def _lock_source(tenant_id: int, name: str) -> WorkerSource:
    source = WorkerSource.objects.filter(tenant_id=tenant_id, name=name).select_for_update().first()
    if source is None:
        raise NotFound(f"There is no source {name[:100]!r}.", code="unknown_source")
    return source


def ask_now(entry_ids: Collection[int]) -> None:
    """Have discovery ask the servers of these entries at once."""
    with acting_as_system("servers that have other tools"):
        SourceEntry.objects.filter(pk__in=entry_ids).update(next_at=database_now())


def discover() -> int:
    """Look at the sources that are due and ask the entries that are due; returns their number.

    Opens its own transactions, with the calls between them.
    """
    return do_all(due_sources(), look, note_listing) + do_all(due_entries(), ask, note_answer)


def due_sources() -> list[WorkerSource]:
    return due(WorkerSource.objects.filter(enabled=True, principal__disabled_at=None))


def look(source: WorkerSource) -> list[Entry]:
    try:
        secret = unseal(source.sealed_secret) if source.sealed_secret else ""
    except SealBroken as exc:
        raise BadSource("The source's secret can't be opened with this deployment's keys.") from exc
    kind = SourceKind(source.kind)
    return sources.look(Source(kind=kind, address=source.address, options=source.options, secret=secret))


def note_listing(asked: WorkerSource, listed: list[Entry] | CallFailed) -> None:
    with acting_in(asked.tenant_id, "discovering workers"):
        # Where it was changed meanwhile, it is due at another moment, and this answer is none to what stands there now.
        source = WorkerSource.objects.filter(pk=asked.pk, next_at=asked.next_at).select_for_update().first()
        if source is None:
            return
        now = source.looked_at = database_now()
        if isinstance(listed, CallFailed):
            source.faults += 1
            source.fault = f"{listed.code}: {listed}"[:TEXT]
            source.next_at = now + pause_after(source.faults)
        else:
            _update_entries(source, listed, now)
            source.faults, source.fault = 0, None
            source.next_at = now + (source.every if source.kind == SourceKind.PULL else sources.LOOK_EVERY)
        source.save(update_fields=["looked_at", "faults", "fault", "next_at"])


def _update_entries(source: WorkerSource, listed: Sequence[Entry], now: datetime) -> None:
    known = {entry.key: entry for entry in source.entries.order_by("id").select_for_update()}
    for one in listed:
        entry = known.pop(one.key, None)
        if entry is None:
            entry = SourceEntry(tenant_id=source.tenant_id, source=source, key=one.key)
        elif entry.stated == dict(one.stated):
            continue
        entry.stated, entry.named_at, entry.next_at, entry.faults, entry.fault = dict(one.stated), now, now, 0, None
        entry.save()
    _remove(list(known.values()), now)


def _remove(entries: Sequence[SourceEntry], now: datetime) -> int:
    """Remove entries, and unregister the workers that only they list; returns the number of workers."""
    # All workers are locked before the first one is unregistered: that locks the registry's row.
    found = Worker.objects.filter(pk__in={entry.worker_id for entry in entries if entry.worker_id}).light()
    list(found.order_by("id").select_for_update())
    SourceEntry.objects.filter(pk__in=[entry.pk for entry in entries]).delete()
    return sum(_dismiss(entry, now) for entry in entries if entry.worker_id is not None)


def _dismiss(entry: SourceEntry, now: datetime) -> bool:
    """Unregister the worker of an entry, unless it sends heartbeats or another entry lists it."""
    worker = Worker.objects.registered().filter(pk__in=[entry.worker_id], beats=False).select_for_update().first()
    if worker is None or SourceEntry.objects.filter(worker=worker).exclude(pk=entry.pk).exists():
        return False
    # Its signatures stay valid: it may only have been away.
    take_out(worker, f"{entry.source.name} names it no more", now, void_until=None)
    return True


def due_entries() -> list[SourceEntry]:
    entries = SourceEntry.objects.filter(source__enabled=True, source__principal__disabled_at=None)
    return due(entries.select_related("source__principal__tenant"))


def ask(entry: SourceEntry) -> Seen | None:
    """Ask the endpoint of an entry; None where the source holds the whole manifest."""
    return None if "tools" in entry.stated else manifests.look(entry.stated["endpoint"], deadline=CALL_DEADLINE)


def note_answer(asked: SourceEntry, seen: Seen | CallFailed | None) -> None:
    caller = on_behalf_of(asked.source.principal)
    with acting_as(caller):
        found = SourceEntry.objects.filter(pk=asked.pk, next_at=asked.next_at)
        entry = found.select_related("source").select_for_update(of=("self",)).first()
        if entry is None:
            return
        now = entry.asked_at = database_now()
        fault, left_out = None, list[str]()
        if isinstance(seen, CallFailed):
            fault = f"{seen.code}: {seen}"
        else:
            try:
                left_out = _register_from(entry, caller, asked.stated, seen, now)
            except DomainError as refusal:
                fault = f"{refusal.code}: {refusal.detail}"
        entry.faults = entry.faults + 1 if fault else 0
        entry.next_at = now + (pause_after(entry.faults) if fault else entry.source.every)
        if left_out:
            fault = f"left out: {'; '.join(left_out)}"
        entry.fault = fault and fault[:TEXT]
        entry.save(update_fields=["asked_at", "worker", "faults", "fault", "next_at"])


def _register_from(
    entry: SourceEntry, caller: Caller, stated: Mapping[str, Any], seen: Seen | None, now: datetime
) -> list[str]:
    """Register the worker of an entry; returns the reasons why tools were left out.

    :raises DomainError: if there is no manifest or no tool, or the registration is refused.
    """
    manifest, left_out = _manifest_of(stated, seen)
    moves = None
    if entry.worker_id is not None:
        # The former and the present worker, locked in everybody's order.
        SigningKey.objects.filter(key_id=manifest.get("trust", {}).get("key_id")).select_for_update(no_key=True).first()
        both = Worker.objects.filter(Q(pk=entry.worker_id) | Q(worker_id=manifest["worker_id"])).light()
        list(both.order_by("id").select_for_update())
        others = SourceEntry.objects.filter(worker=entry.worker_id).exclude(pk=entry.pk)
        moves = None if others.exists() else entry.worker_id
    known = (
        Worker.objects.registered().filter(worker_id=manifest["worker_id"], principal_id=caller.principal_id).first()
    )
    is_signed = bool(manifest.get("trust", {}).get("signature"))
    if known is not None and not is_signed and _said(known.manifest) == _said(manifest):
        worker = known  # its manifest, signed or not, says the same
    else:
        worker = register(caller=caller, original=manifest, found=True, moves=moves).worker
    if entry.worker_id not in {None, worker.pk}:
        _dismiss(entry, now)
    entry.worker = worker
    return left_out


def _said(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says, without its trust: an empty member says as much as one that is left out."""
    return {name: value for name, value in manifest.items() if value and name != "trust"}


def _manifest_of(stated: Mapping[str, Any], seen: Seen | None) -> tuple[dict[str, Any], list[str]]:
    if seen is None:
        return _checked(stated), []
    if seen.manifest is not None:
        manifest = _checked(seen.manifest)
        if not manifest.get("trust", {}).get("signature"):
            # An unsigned manifest can't lead callers to another endpoint than the one that was asked.
            manifest["endpoint"] = stated["endpoint"]
        return manifest, []
    about = parse(StatedWorker, stated).model_dump(mode="json", exclude_unset=True)
    derived, left_out = manifests.manifest_of(seen, endpoint=stated["endpoint"], stated=about)
    if not derived["tools"]:
        raise Invalid(f"It has no tool that can be used. {'; '.join(left_out)}", code="nothing_to_offer")
    return _checked(derived), left_out


def _checked(manifest: Any) -> dict[str, Any]:
    return parse(RegisterWorker, manifest).model_dump(mode="json", exclude_unset=True)


# The registry in memory: each MCP worker is a concept with relationships, and a lost registry is rebuilt from them.
#
# A rebuild registers the remembered manifests anew, so trust comes from their signatures alone: whoever may write memory
# gains nothing here. Quarantines are relationships of the gate's own principal, which no other author can retract.

CONCEPT: Final = "worker"
PROVIDES: Final = "provides"
MANAGES: Final = "manages"
QUARANTINES: Final = "quarantines"


class Restored(NamedTuple):
    """The result for one remembered worker: its tier, or None and the reason why it was left out."""

    worker_id: str
    tier: str | None
    reason: str


@transaction.atomic
def remember(*, limit: int = 100) -> int:
    """Write to memory what has changed of workers; returns their number. Runs within a tenant.

    A worker that memory refuses is logged and left out until it changes again.
    """
    due = Worker.objects.unremembered().select_related("principal__tenant").order_by("id")
    workers = list(due.select_for_update(of=("self",), skip_locked=True)[:limit])
    managers = dict[str, str]()
    if workers:
        named = [worker.worker_id for worker in workers]
        found = selectors.managers(tenant_id=workers[0].tenant_id, worker_ids=named)
        managers = {worker_id: name for worker_id, (_, name) in found.items()}
    for worker in workers:
        try:
            with transaction.atomic():
                _store(worker, managers.get(worker.worker_id, DELEGATE), database_now())
        except DomainError as refusal:
            logger.warning("memory does not take the MCP worker %s: %s", worker.worker_id, refusal.detail)
        worker.remembered_at_epoch = worker.described_at_epoch
        worker.save(update_fields=["remembered_at_epoch"])
    return len(workers)


def _store(worker: Worker, manager: str, now: datetime) -> None:
    name, author = worker.worker_id, on_behalf_of(worker.principal)
    known = memories.concept_named(name)
    if known is not None and (
        known.key != name.casefold() or known.domain not in {"", CONCEPT} or _worker_id(known) not in {None, name}
    ):
        raise Conflict(f"{name!r} is another concept or another worker's.")
    left = worker.unregistered_at
    memory.store_concept(
        author=author,
        name=name,
        now=now,
        concept_type=CONCEPT,
        description=f"MCP worker {name}: {', '.join(tool['name'] for tool in worker.manifest['tools'])[:2000]}",
        metadata={
            "endpoint": worker.endpoint,
            "tools": [tool["name"] for tool in worker.manifest["tools"]],
            "capabilities": list(worker.capabilities),
            "trust_tier": worker.effective_tier,
            "registered_at": worker.registered_at.isoformat(),
            "unregistered_at": None if left is None else left.isoformat(),
            "managed_by_delegate": manager,
            "registered_by": worker.principal_id,
            "announces_itself": worker.beats,
            "manifest": worker.manifest,
        },
    )
    provided = []
    for capability in worker.capabilities:
        try:
            provided.append(_relate(author, name, PROVIDES, capability, now))
        except Invalid as refusal:
            logger.info("memory has no concept for a capability of %s: %s", name, refusal.detail)
    memory.retract_relationships(author=author, from_concept=name, rel_type=PROVIDES, but=provided)
    gate = on_behalf_of(principal_named(DELEGATE))
    for source, rel_type, holds in (
        (manager, MANAGES, left is None),
        (DELEGATE, QUARANTINES, worker.state == State.QUARANTINED),
    ):
        current = [_relate(gate, source, rel_type, name, now)] if holds else []
        memory.retract_relationships(author=gate, to_concept=name, rel_type=rel_type, but=current)


def _relate(author: Caller, source: str, rel_type: str, target: str, now: datetime) -> Any:
    return memory.add_relationship(
        author=author,
        from_concept=source,
        to_concept=target,
        rel_type=rel_type,
        description=f"{source} {rel_type} {target}",
        now=now,
    )


def _worker_id(concept: Memory) -> str | None:
    """The worker that a concept describes, if its manifest has the concept's name."""
    manifest = concept.metadata.get("manifest")
    worker_id = manifest.get("worker_id") if isinstance(manifest, Mapping) else None
    return worker_id if isinstance(worker_id, str) and worker_id.casefold() == concept.key else None


def restore(*, tenant_id: int) -> list[Restored]:
    """Register the workers that memory holds and the registry does not, each in a transaction of its own.

    A worker whose signature no longer holds comes back untrusted, and a quarantined one in quarantine. One that was
    unregistered, or whose principal is disabled, comes back unregistered, so that its signatures stay void.
    """
    with acting_in(tenant_id, "rebuild the registry"):
        quarantined = memories.targets_of(QUARANTINES)
        remembered = memories.concepts_of_type(CONCEPT)
    restored = []
    for concept in remembered:
        with acting_in(tenant_id, "rebuild the registry"):
            worker_id = _worker_id(concept)
            if not Worker.objects.filter(worker_id=worker_id or concept.name).exists():
                restored.append(_restore(tenant_id, worker_id, concept, is_quarantined=concept.pk in quarantined))
    return restored


def _restore(tenant_id: int, worker_id: str | None, concept: Memory, *, is_quarantined: bool) -> Restored:
    about, owner = concept.metadata, concept.metadata.get("registered_by")
    if worker_id is None:
        return Restored(concept.name, None, "memory holds no manifest of it")
    known = Principal.objects.filter(tenant_id=tenant_id).select_related("tenant")
    principal = known.filter(pk=owner).first() if isinstance(owner, int) else None
    if principal is None:
        return Restored(worker_id, None, "there is no principal that has registered it")
    try:
        worker = _registered(on_behalf_of(principal), about)
    except ValidationError:
        return Restored(worker_id, None, "memory holds no valid manifest of it")
    except DomainError as refusal:
        return Restored(worker_id, None, refusal.detail)
    if is_quarantined:
        worker = quarantine(tenant_id=tenant_id, worker_id=worker_id, why="it was before the rebuild")
    away = None
    if about.get("unregistered_at") is not None:
        away = "it had left"
    elif principal.disabled_at is not None:
        away = f"its principal {principal.name!r} is disabled"
    if away is not None:
        now = database_now()
        take_out(worker, away, now, void_until=now)
        return Restored(worker_id, None, away)
    return Restored(worker_id, worker.effective_tier, worker.tier_reason)


def _registered(owner: Caller, about: Mapping[str, Any]) -> Worker:
    """Register a remembered manifest. Where its signature does not hold, only signatures made from now on count."""
    original = RegisterWorker.model_validate(about["manifest"]).model_dump(mode="json", exclude_unset=True)
    was_found, may_return = about.get("announces_itself") is False, False
    try:
        with transaction.atomic():
            worker = register(caller=owner, original=original, found=was_found).worker
    except BadSignature as refusal:
        may_return = refusal.code != "key_revoked"
        claim = {name: value for name, value in original.get("trust", {}).items() if name == "tier"}
        worker = register(caller=owner, original={**original, "trust": claim}, found=was_found).worker
    if worker.signed_at is None:
        worker.void_until = database_now()
        # The next heartbeat asks for a new registration.
        worker.trust_ends_at = worker.void_until if may_return else None
        worker.save(update_fields=["void_until", "trust_ends_at"])
    return worker
