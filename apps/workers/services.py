"""Commands of the registry. Health is a matter of deadlines, so the database's clock decides."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F

from apps.core.sql import database_now, violated_constraint
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller
from apps.workers import manifests, selectors, signing, sql
from apps.workers.errors import KeyIdTaken, KeyRevoked, SignatureReplayed, UnknownWorker, WorkerIdTaken
from apps.workers.manifests import Manifest, ToolContract
from apps.workers.models import Call, Offer, Registry, SigningKey, ToolVersion, Worker, WorkerEvent
from apps.workers.states import REPORTED, State
from apps.workers.trust import Grant, Tier, effective_tier

HEARTBEAT_EVERY: Final = timedelta(seconds=30)
LATE_AFTER: Final = HEARTBEAT_EVERY * 1.5
OFFLINE_AFTER: Final = HEARTBEAT_EVERY * 3
RECENT_CALLS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What came of registering: the worker, whether it is new here, and the tools it offers now."""

    worker: Worker
    created: bool
    tools: tuple[ToolContract, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trusted:
    """A grant with the key and the time of the signature that it rests on."""

    grant: Grant
    key: SigningKey | None = None
    signed_at: datetime | None = None


@transaction.atomic
def register(*, caller: Caller, original: Mapping[str, Any]) -> Registration:
    """Register a worker, or take its new manifest. The same manifest again changes nothing but its heartbeat.

    :raises WorkerIdTaken: if another principal's worker has this id.
    :raises UnusableEndpoint: if no call could go to its endpoint.
    :raises UnusableSchema: if a tool's schema does not stand on its own.
    :raises BadSignature: if it is signed, by an enrolled key, and the signature does not hold.
    """
    manifest = manifests.read(original, allow_loopback=settings.ALLOW_LOOPBACK)
    now = database_now()
    worker, created = _lock_or_create(caller, manifest, now)
    if worker.principal_id != caller.principal_id and worker.unregistered_at is None:
        raise WorkerIdTaken(f"Another principal has registered {manifest.worker_id!r}.")
    trusted = _judge(manifest, worker, now)
    changed = created or worker.unregistered_at is not None or worker.manifest != dict(manifest.original)
    _describe(worker, caller, manifest, trusted, now)
    moved = _arrive(worker, now)
    if changed:
        _offer(worker, manifest, now)
        _record(worker, WorkerEvent.Kind.REGISTERED if created else WorkerEvent.Kind.REPLACED, worker.tier_reason, now)
    if changed or moved:
        _advance([worker.tenant_id])
    return Registration(worker=worker, created=created, tools=manifest.tools)


@transaction.atomic
def heartbeat(*, caller: Caller, worker_id: str, status: str, current_load: float, available: bool) -> Worker:
    """Take a worker's word for how it is.

    :raises UnknownWorker: if the caller has registered no worker of this id.
    """
    worker = _lock_own(caller, worker_id)
    now = database_now()
    worker.last_heartbeat_at, worker.current_load, worker.available = now, current_load, available
    moved = _move(worker, REPORTED[status], f"the worker says {status}", now)
    worker.save(update_fields=["last_heartbeat_at", "current_load", "available", "state"])
    if moved:
        _advance([worker.tenant_id])
    return worker


@transaction.atomic
def unregister(*, caller: Caller, worker_id: str) -> Worker:
    """Take a worker out of the registry; its history stays.

    :raises UnknownWorker: if there is none of this id that the caller may speak for.
    """
    worker = _lock_own(caller, worker_id)
    now = database_now()
    worker.unregistered_at = now
    worker.save(update_fields=["unregistered_at"])
    _record(worker, WorkerEvent.Kind.UNREGISTERED, f"by {caller.name}", now)
    _advance([worker.tenant_id])
    return worker


@transaction.atomic
def mark_late() -> int:
    """Call workers degraded whose heartbeat is late, and offline those that have fallen silent. Runs as the system."""
    now = database_now()
    late = Worker.objects.registered().filter(last_heartbeat_at__lt=now - LATE_AFTER)
    late = late.exclude(state__in=[State.OFFLINE, State.QUARANTINED])
    moved = []
    for worker in late.select_for_update(skip_locked=True).order_by("id"):
        silent = worker.last_heartbeat_at < now - OFFLINE_AFTER
        if _move(worker, State.OFFLINE if silent else State.DEGRADED, "no heartbeat", now):
            worker.save(update_fields=["state"])
            moved.append(worker.tenant_id)
    _advance(moved)
    return len(moved)


@transaction.atomic
def enroll_key(*, tenant_id: int, key_id: str, public_key: str, ceiling: Tier) -> SigningKey:
    """Trust manifests that a key signs, up to a ceiling. Doing it twice changes nothing.

    :raises BadKey: if the text is no public Ed25519 JWK.
    :raises KeyIdTaken: if the id is another key's, or this key's with another ceiling, or revoked.
    """
    text = signing.public_key(public_key)
    key, _ = SigningKey.objects.get_or_create(
        tenant_id=tenant_id,
        key_id=key_id,
        defaults={"public_key": text, "ceiling": ceiling, "enrolled_at": database_now()},
    )
    if (key.public_key, key.ceiling, key.revoked_at) != (text, ceiling, None):
        raise KeyIdTaken(f"A key {key_id!r} is enrolled that differs from this one.")
    return key


@transaction.atomic
def revoke_key(*, tenant_id: int, key_id: str) -> int:
    """End the trust in a key at once: its workers are untrusted from now on. Returns how many there were."""
    now = database_now()
    SigningKey.objects.filter(tenant_id=tenant_id, key_id=key_id, revoked_at=None).update(revoked_at=now)
    workers = Worker.objects.filter(tenant_id=tenant_id, signing_key__key_id=key_id)
    stripped = workers.exclude(effective_tier=Tier.UNTRUSTED).update(
        effective_tier=Tier.UNTRUSTED, tier_reason=f"the key {key_id} was revoked"
    )
    if stripped:
        _advance([tenant_id])
    return stripped


@transaction.atomic
def record_call(*, worker_id: str, tool_name: str, ok: bool, seconds: float, cost: Decimal) -> None:
    """Note how a call went, for those who choose between offers. Counted by the next tick.

    :raises UnknownTool: if the worker never offered such a tool.
    """
    offer = selectors.offer_named(worker_id, tool_name)
    Call.objects.create(tenant_id=offer.tenant_id, offer=offer, ok=ok, seconds=seconds, cost=cost)


@transaction.atomic
def fold_calls() -> int:
    """Count the calls noted since the last time into their offers. Runs as the system."""
    calls = list(Call.objects.select_for_update(skip_locked=True).order_by("id")[:10_000])
    by_offer: dict[int, list[Call]] = {}
    for call in calls:
        by_offer.setdefault(call.offer_id, []).append(call)
    offers = Offer.objects.filter(pk__in=by_offer).order_by("id").select_for_update()
    for offer in offers:
        _count(offer, by_offer[offer.pk])
    Call.objects.filter(pk__in=[call.pk for call in calls]).delete()
    tenants = sorted({call.tenant_id for call in calls})
    Registry.objects.filter(tenant_id__in=tenants).update(history_epoch=F("history_epoch") + 1)
    return len(calls)


def _count(offer: Offer, calls: Iterable[Call]) -> None:
    for call in calls:
        offer.runs += 1
        offer.successes += call.ok
        offer.total_seconds += call.seconds
        offer.total_cost += call.cost
        offer.recent_seconds = [*offer.recent_seconds, call.seconds][-RECENT_CALLS:]
    offer.save(update_fields=["runs", "successes", "total_seconds", "total_cost", "recent_seconds"])


def _lock_or_create(caller: Caller, manifest: Manifest, now: datetime) -> tuple[Worker, bool]:
    """Return the worker's row, locked, and whether it is new; two first registrations at once meet at the unique key."""
    found = _lock(manifest.worker_id)
    if found is not None:
        return found, False
    try:
        with transaction.atomic():
            made = Worker.objects.create(
                tenant_id=caller.tenant_id,
                worker_id=manifest.worker_id,
                principal_id=caller.principal_id,
                endpoint=manifest.endpoint,
                manifest=dict(manifest.original),
                claimed_tier=manifest.claimed_tier,
                effective_tier=Tier.UNTRUSTED,
                last_heartbeat_at=now,
                registered_at=now,
            )
    except IntegrityError as exc:
        if violated_constraint(exc) != "workers_worker_id_once":
            raise
    else:
        return made, True
    rival = _lock(manifest.worker_id)
    if rival is None:
        raise WorkerIdTaken(f"{manifest.worker_id!r} is being registered elsewhere.")
    return rival, False


def _lock(worker_id: str) -> Worker | None:
    return Worker.objects.named(worker_id).select_for_update().first()


def _lock_own(caller: Caller, worker_id: str) -> Worker:
    worker = Worker.objects.registered().named(worker_id).select_for_update().first()
    if worker is None or (worker.principal_id != caller.principal_id and Scope.ADMIN not in caller.scopes):
        raise UnknownWorker(f"There is no worker {worker_id[:100]!r}.")
    return worker


def _judge(manifest: Manifest, worker: Worker, now: datetime) -> _Trusted:
    """Find out how far a manifest is to be trusted. Unsigned is untrusted; signed wrongly is refused."""
    if not manifest.signature or not manifest.key_id:
        return _Trusted(grant=effective_tier(manifest.claimed_tier, ceiling=None, because="the manifest is not signed"))
    key = SigningKey.objects.filter(key_id=manifest.key_id).first()
    if key is None:
        because = f"the key {manifest.key_id[:100]} is not enrolled"
        return _Trusted(grant=effective_tier(manifest.claimed_tier, ceiling=None, because=because))
    if key.revoked_at is not None:
        raise KeyRevoked(f"The key {key.key_id!r} was revoked.")
    signed = signing.verify(
        manifest.original, signature=manifest.signature, key_id=key.key_id, key=key.public_key, now=now
    )
    if worker.signed_at is not None and signed.signed_at < worker.signed_at:
        raise SignatureReplayed(f"A manifest signed at {worker.signed_at.isoformat()} is known.")
    grant = effective_tier(manifest.claimed_tier, ceiling=Tier(key.ceiling), because=f"signed by {key.key_id}")
    return _Trusted(grant=grant, key=key, signed_at=signed.signed_at)


def _describe(worker: Worker, caller: Caller, manifest: Manifest, trusted: _Trusted, now: datetime) -> None:
    worker.principal_id = caller.principal_id
    worker.endpoint = manifest.endpoint
    worker.capabilities = list(manifest.capabilities)
    worker.constraints, worker.hints = dict(manifest.constraints), dict(manifest.hints)
    worker.manifest = dict(manifest.original)
    worker.claimed_tier = manifest.claimed_tier
    worker.effective_tier, worker.tier_reason = trusted.grant.tier, trusted.grant.reason[:300]
    worker.signing_key = trusted.key
    worker.signed_at = trusted.signed_at or worker.signed_at
    worker.last_heartbeat_at = now
    worker.available = True
    worker.unregistered_at = None


def _arrive(worker: Worker, now: datetime) -> bool:
    """A worker that registers is ready, unless an operator has quarantined it."""
    moved = _move(worker, State.READY, "registered", now)
    worker.save()
    return moved


def _offer(worker: Worker, manifest: Manifest, now: datetime) -> None:
    """Bring the worker's offers in line with its manifest: what is gone is withdrawn, what came back stands again."""
    versions = _versions(worker.tenant_id, manifest.tools, now)
    standing = Offer.objects.filter(worker=worker)
    standing.filter(withdrawn_at=None).exclude(tool__in=versions.values()).update(withdrawn_at=now)
    known = set(standing.values_list("tool_id", flat=True))
    standing.filter(tool__in=versions.values()).update(withdrawn_at=None)
    Offer.objects.bulk_create(
        Offer(tenant_id=worker.tenant_id, worker=worker, tool=tool, name=tool.name, offered_at=now)
        for tool in versions.values()
        if tool.pk not in known
    )


def _versions(tenant_id: int, tools: Iterable[ToolContract], now: datetime) -> dict[str, ToolVersion]:
    contracts = {tool.uid: tool for tool in tools}
    ToolVersion.objects.bulk_create(
        [
            ToolVersion(
                tenant_id=tenant_id,
                uid=tool.uid,
                name=tool.name,
                description=tool.description,
                input_schema=dict(tool.input_schema),
                output_schema=dict(tool.output_schema),
                side_effects=dict(tool.side_effects) if tool.side_effects else None,
                effects=sorted(tool.effects),
                first_seen_at=now,
            )
            for tool in sorted(contracts.values(), key=lambda tool: tool.uid)
        ],
        ignore_conflicts=True,
    )
    return {tool.uid: tool for tool in ToolVersion.objects.filter(uid__in=contracts)}


def _move(worker: Worker, state: State, why: str, now: datetime) -> bool:
    """Change a worker's state if it is another one. A quarantine is not ended by what a worker says of itself."""
    if worker.state in {state, State.QUARANTINED}:
        return False
    before = worker.state
    worker.move_to(state)
    _record(worker, WorkerEvent.Kind.STATE, f"{before} to {state}: {why}", now)
    return True


def _record(worker: Worker, kind: WorkerEvent.Kind, detail: str, now: datetime) -> None:
    WorkerEvent.objects.create(
        tenant_id=worker.tenant_id, worker=worker, kind=kind, state=worker.state, detail=detail[:300], at=now
    )


def _advance(tenant_ids: Iterable[int]) -> None:
    """Say that what was read from these registries no longer holds."""
    for tenant_id in sorted(set(tenant_ids)):
        sql.advance_epoch(tenant_id)
