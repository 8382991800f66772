"""Taking a worker's manifest, and taking a worker out again."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from apps.core.sql import database_now, violated_constraint
from apps.principals.tenancy import Caller
from apps.workers import manifests, sql
from apps.workers.errors import SignatureReplayed, WorkerIdTaken
from apps.workers.hysteresis import Reach
from apps.workers.manifests import Manifest, ToolContract
from apps.workers.models import Offer, ToolVersion, Worker, WorkerEvent
from apps.workers.services.judging import Trusted, grant_trust, judge, lock_key
from apps.workers.services.rows import advance, lock, lock_own, lock_registered, move, record, take_out
from apps.workers.signing import CLOCK_SKEW, unsigned
from apps.workers.states import State
from apps.workers.trust import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What came of registering: the worker, whether it is new here, and the tools it offers now."""

    worker: Worker
    created: bool
    tools: tuple[ToolContract, ...]


@transaction.atomic
def register(
    *, caller: Caller, original: Mapping[str, Any], found: bool = False, moves: int | None = None
) -> Registration:
    """Register a worker, or take its new manifest. The same manifest again, freshly signed or not, changes nothing but
    its heartbeat and how long its trust lasts.

    :param found: the worker was found and has not announced itself, so that no heartbeats are to be expected. To be found
        says nothing of how a worker is that beats by itself.
    :param moves: key of the worker that is known from the very place where this one was found: if it does not speak for
        itself, that place says where it is.
    :raises WorkerIdTaken: if another principal's worker has this id; or if a worker at another endpoint has it, and this
        one was found and is not signed: whoever is asked what it offers may say that it is anybody.
    :raises UnusableEndpoint: if no call could go to its endpoint.
    :raises UnusableSchema: if a tool's schema does not stand on its own.
    :raises BadSignature: if it is signed, by an enrolled key, and the signature does not hold.
    """
    manifest = manifests.read(original, allow_loopback=settings.ALLOW_LOOPBACK, networks=settings.ALLOWED_NETWORKS)
    key = lock_key(manifest)
    now = database_now()
    worker, created = _lock_or_create(caller, manifest, now)
    if worker.principal_id != caller.principal_id and worker.unregistered_at is None:
        raise WorkerIdTaken(f"Another principal has registered {manifest.worker_id!r}.")
    trusted = judge(manifest, worker, key, now)
    _refuse_anothers(worker, caller, trusted)
    is_known = not created and worker.unregistered_at is None
    is_spoken_for = found and is_known and worker.beats
    if found and is_known and trusted.key is None and (worker.beats or worker.pk != moves):
        _refuse_elsewhere(worker, manifest)
    changed = not is_known or unsigned(worker.manifest) != unsigned(manifest.original)
    regraded = grant_trust(worker, trusted, now)
    is_elsewhere = worker.endpoint != manifest.endpoint
    _describe(worker, caller, manifest)
    if changed:
        _doubt(worker, now, reach=is_elsewhere or not is_spoken_for)
    moved = not is_spoken_for and _arrive(worker, now, beats=not found, anew=changed or not found)
    worker.save()
    if changed:
        _offer(worker, manifest, now)
        record(worker, WorkerEvent.Kind.REGISTERED if created else WorkerEvent.Kind.REPLACED, worker.tier_reason, now)
    if changed or regraded or moved:
        advance([worker.tenant_id])
    if changed:
        sql.stamp_description(worker.tenant_id, worker.pk)
    return Registration(worker=worker, created=created, tools=manifest.tools)


@transaction.atomic
def unregister(*, caller: Caller, worker_id: str) -> Worker:
    """Take a worker out of the registry; its history stays. Calls that run go on; what signed it so far counts no more.
    Where another takes it out than who has registered it, that includes what may have been signed by a clock that is ahead.

    :raises UnknownWorker: if there is none of this id that the caller may speak for.
    """
    worker = lock_own(caller, worker_id)
    now = database_now()
    is_owner = worker.principal_id == caller.principal_id
    take_out(worker, f"by {caller.name}", now, void_until=now if is_owner else now + CLOCK_SKEW)
    return worker


@transaction.atomic
def expel(*, tenant_id: int, worker_id: str, why: str) -> Worker:
    """Take a worker out of the registry by an operator's word. It may register again, unless it is in quarantine; but
    whatever may have been signed before, by a clock that is ahead too, counts no more.

    :raises UnknownWorker: if none of this id is registered.
    """
    worker = lock_registered(tenant_id, worker_id)
    now = database_now()
    take_out(worker, f"by an operator: {why}", now, void_until=now + CLOCK_SKEW)
    return worker


def _lock_or_create(caller: Caller, manifest: Manifest, now: datetime) -> tuple[Worker, bool]:
    """Return the worker's row, locked, and whether it is new; two first registrations at once meet at the unique key."""
    found = lock(manifest.worker_id)
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
    rival = lock(manifest.worker_id)
    if rival is None:
        raise WorkerIdTaken(f"{manifest.worker_id!r} is being registered elsewhere.")
    return rival, False


def _refuse_elsewhere(worker: Worker, manifest: Manifest) -> None:
    if worker.endpoint != manifest.endpoint:
        raise WorkerIdTaken(f"{manifest.worker_id!r} is registered at another endpoint.")


def _refuse_anothers(worker: Worker, caller: Caller, trusted: Trusted) -> None:
    """A worker that has left still shows its manifest to everybody, and may come back with it."""
    if trusted.signed is None or worker.signed_at is None or worker.principal_id == caller.principal_id:
        return
    if trusted.signed.signed_at <= worker.signed_at:
        raise SignatureReplayed("Another principal has registered with this signature; sign anew.")


def _describe(worker: Worker, caller: Caller, manifest: Manifest) -> None:
    worker.principal_id = caller.principal_id
    worker.endpoint = manifest.endpoint
    worker.capabilities = list(manifest.capabilities)
    worker.constraints, worker.hints = dict(manifest.constraints), dict(manifest.hints)
    worker.manifest = dict(manifest.original)
    worker.claimed_tier = manifest.claimed_tier
    worker.unregistered_at = None


def _doubt(worker: Worker, now: datetime, *, reach: bool) -> None:
    """What probes have seen of a worker says nothing of what its new manifest says.

    :param reach: nor whether it answers.
    """
    worker.drift, worker.probe_at = None, now
    if reach:
        worker.reach, worker.probes_against = Reach.UNKNOWN, 0


def _arrive(worker: Worker, now: datetime, *, beats: bool, anew: bool) -> bool:
    """A worker that registers is ready, unless an operator has quarantined it, it offers what its manifest does not say, or
    its endpoint is known not to answer.

    :param anew: it speaks for itself or has a new manifest.
    """
    worker.beats, worker.last_heartbeat_at, worker.available = beats, now, True
    if anew:
        worker.reported, worker.probe_at = State.READY, now
    return move(worker, worker.condition, "registered", now)


def _offer(worker: Worker, manifest: Manifest, now: datetime) -> None:
    """Bring the worker's offers in line with its manifest: what is gone is withdrawn, what came back stands again."""
    versions = _versions(worker.tenant_id, manifest.tools, now)
    standing = Offer.objects.filter(worker=worker)
    # In the order of who counts calls into them.
    known = set(standing.order_by("id").select_for_update().values_list("tool_id", flat=True))
    standing.filter(withdrawn_at=None).exclude(tool__in=versions.values()).update(withdrawn_at=now)
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
