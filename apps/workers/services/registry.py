"""Registering MCP workers, taking them out, quarantine, trust and its keys, and the figures of calls.

Everybody locks in one order: signing key, workers by id, the registry's row last (:func:`advance`).
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, Q, Subquery

from apps.core.errors import Conflict, NotFound
from apps.core.sql import GATEHOUSE_NOW, database_now, in_batches, violated_constraint
from apps.principals.models import Principal
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as_system
from apps.workers import manifests, selectors, sql, trust
from apps.workers.manifests import Manifest
from apps.workers.models import (
    NOT_REMEMBERED,
    Call,
    Offer,
    Reach,
    Registry,
    SigningKey,
    State,
    ToolVersion,
    UnknownWorker,
    Worker,
    WorkerEvent,
    WorkerRateLimited,
)
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
def approve(*, tenant_id: int, worker_id: str, uids: Collection[str], why: str) -> list[str]:
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
