"""Discovery: sources say where workers are, the places that they name are asked, and what is found is registered.

What is found is judged as any registration is: nothing unsigned is believed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings as deployment
from django.db import transaction
from django.db.models import F, Q

from apps.core.errors import DomainError
from apps.core.outbound import CallFailed
from apps.core.schemas import parse
from apps.core.sealing import SealBroken, seal, unseal
from apps.core.sql import database_now
from apps.principals.models import Principal
from apps.principals.tenancy import Caller, acting_as, acting_as_system, acting_in, on_behalf_of
from apps.workers import deriving, endpoints, manifests, registries
from apps.workers.endpoints import Seen
from apps.workers.errors import BadSettings, NothingToOffer, SourceNameTaken, UnknownSource, WorkerIdTaken
from apps.workers.hysteresis import pause_after
from apps.workers.models import Place, SigningKey, Worker, WorkerSource
from apps.workers.registries import BadSource, Named, News, Source
from apps.workers.services.registering import register
from apps.workers.services.rounds import CALL_DEADLINE, CLAIMED_FOR, do_all, in_turn
from apps.workers.services.rows import take_out
from apps.workers.shapes import RegisterWorker, StatedWorker
from apps.workers.states import SourceKind

DEFAULT_EVERY: Final = timedelta(minutes=5)
_WHY: Final = "discovering workers"
# Then nobody asks any more where a place has gone, and keys that are made up anew each time would pile up.
_GONE_FOR: Final = timedelta(days=1)
_TEXT: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _LookClaim:
    tenant_id: int
    source_id: int
    fence: int
    source: Source
    sealed_secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskClaim:
    """`endpoint` is None where the source has given a whole manifest: then nobody is to be asked."""

    caller: Caller
    place_id: int
    fence: int
    stated: Mapping[str, Any]
    endpoint: str | None


@transaction.atomic
def add_source(
    *,
    principal: Principal,
    name: str,
    kind: SourceKind,
    address: str,
    settings: Mapping[str, Any],
    secret: str = "",
    every: timedelta = DEFAULT_EVERY,
) -> WorkerSource:
    """Look for workers there from now on; the principal answers for what is found.

    :param settings: `worker`: what is said of a worker that says nothing of itself.
    :param secret: what the place is told so that it answers: the password of etcd's `user`, Consul's token.
    :raises SourceNameTaken: if the tenant has a source of this name.
    :raises UnusableEndpoint: if no call could go there.
    :raises Invalid: if the settings are not what this kind of source takes.
    """
    if kind != SourceKind.STATIC:
        manifests.endpoint(address, allow_loopback=deployment.ALLOW_LOOPBACK, networks=deployment.ALLOWED_NETWORKS)
    registries.check_settings(kind, address, settings, has_secret=bool(secret))
    now = database_now()
    source, created = WorkerSource.objects.get_or_create(
        tenant_id=principal.tenant_id,
        name=name,
        defaults={
            "principal": principal,
            "kind": kind,
            "address": address,
            "settings": dict(settings),
            "sealed_secret": seal(secret) if secret else "",
            "every": every,
            "next_at": now,
            "added_at": now,
        },
    )
    if not created:
        raise SourceNameTaken(f"There is a source {name!r} already.")
    return source


@transaction.atomic
def change_secret(*, tenant_id: int, name: str, secret: str) -> None:
    """Tell a source another secret from the next look on.

    :raises UnknownSource: if the tenant has none of this name.
    :raises Invalid: if it has been told none.
    """
    source = _lock_source(tenant_id, name)
    if not source.sealed_secret:
        raise BadSettings(f"The source {name!r} is told no secret.")
    source.sealed_secret, source.next_at = seal(secret), database_now()
    source.save(update_fields=["sealed_secret", "next_at"])


@transaction.atomic
def remove_source(*, tenant_id: int, name: str) -> int:
    """Look there no more. Workers that were found there and have not announced themselves leave; returns how many.

    :raises UnknownSource: if the tenant has none of this name.
    """
    source = _lock_source(tenant_id, name)
    left = _forget(list(source.places.standing().order_by("id").select_for_update()), database_now())
    source.delete()
    return left


def _lock_source(tenant_id: int, name: str) -> WorkerSource:
    source = WorkerSource.objects.filter(tenant_id=tenant_id, name=name).select_for_update().first()
    if source is None:
        raise UnknownSource(f"There is no source {name[:100]!r}.")
    return source


def discover() -> int:
    """Look at the sources and ask at the places whose time has come; returns how many there were.

    Runs in transactions of its own, with the calls between them. Twice, or twice at once, is harmless.
    """
    looked = do_all(_claim_sources(), _look, _note_look)
    return looked + do_all(_claim_places(), _ask, _note_answer)


def _claim_sources() -> list[_LookClaim]:
    with acting_as_system(_WHY):
        now = database_now()
        due = WorkerSource.objects.filter(enabled=True, next_at__lte=now, principal__disabled_at=None)
        chosen = in_turn(due, by="next_at")
        held = list(due.filter(pk__in=chosen).select_for_update(skip_locked=True, of=("self",)))
        WorkerSource.objects.filter(pk__in=[source.pk for source in held]).update(
            fence=F("fence") + 1, next_at=now + CLAIMED_FOR
        )
    return [
        _LookClaim(
            tenant_id=source.tenant_id,
            source_id=source.pk,
            fence=source.fence + 1,
            source=Source(
                kind=SourceKind(source.kind),
                address=source.address,
                settings=source.settings,
                cursor=source.cursor,
            ),
            sealed_secret=source.sealed_secret,
        )
        for source in sorted(held, key=lambda source: chosen.index(source.pk))
    ]


def _look(claim: _LookClaim) -> News:
    if not claim.sealed_secret:
        return registries.look(claim.source)
    try:
        secret = unseal(claim.sealed_secret)
    except SealBroken as exc:
        raise BadSource("The source's secret can't be opened with this deployment's keys.") from exc
    return registries.look(replace(claim.source, secret=secret))


def _note_look(claim: _LookClaim, news: News | CallFailed) -> None:
    with acting_in(claim.tenant_id, _WHY):
        source = WorkerSource.objects.filter(pk=claim.source_id, fence=claim.fence).select_for_update().first()
        if source is None:
            return
        now = database_now()
        source.looked_at = now
        if isinstance(news, News):
            news = _within_bound(source, news)
        if isinstance(news, News):
            _take(source, news, now)
            source.cursor, source.faults, source.fault = news.cursor, 0, None
            every = registries.LOOK_EVERY[claim.source.kind]
            source.next_at = now + (source.every if every is None else every)
        else:
            source.faults += 1
            source.fault = f"{news.code}: {news}"[:_TEXT]
            source.next_at = now + pause_after(source.faults)
        source.save(update_fields=["looked_at", "cursor", "faults", "fault", "next_at"])


def _within_bound(source: WorkerSource, news: News) -> News | BadSource:
    """A watch tells of some places; with the others that stand they may be too many. Then all are listed the next time."""
    if news.complete or not news.named:
        return news
    others = source.places.standing().exclude(key__in={named.key for named in news.named} | news.gone)
    try:
        registries.check_bound(others.count() + len(news.named))
    except BadSource as fault:
        source.cursor = ""
        return fault
    return news


def _take(source: WorkerSource, news: News, now: datetime) -> None:
    """Bring the source's places in line with what it has said."""
    named_keys = {named.key for named in news.named}
    concerned = Q(key__in=named_keys | news.gone)
    if news.complete:
        concerned |= Q(gone_at=None)
    known = {place.key: place for place in source.places.filter(concerned).order_by("id").select_for_update()}
    for named in news.named:
        if named.key in known:
            _renew(known[named.key], named, now)
    Place.objects.bulk_create(
        Place(
            tenant_id=source.tenant_id,
            source=source,
            key=named.key,
            stated=dict(named.stated),
            named_at=now,
            next_at=now,
        )
        for named in news.named
        if named.key not in known
    )
    gone = known.keys() - named_keys if news.complete else known.keys() & news.gone
    if leaving := [known[key] for key in sorted(gone) if known[key].gone_at is None]:
        _forget(leaving, now)
        source.places.filter(gone_at__lt=now - _GONE_FOR).delete()


def _renew(place: Place, named: Named, now: datetime) -> None:
    if place.gone_at is None and place.stated == dict(named.stated):
        return
    place.stated, place.gone_at = dict(named.stated), None
    place.named_at = place.next_at = now
    place.faults, place.fault = 0, None
    place.save(update_fields=["stated", "gone_at", "named_at", "next_at", "faults", "fault"])


def _forget(places: Sequence[Place], now: datetime) -> int:
    """Places are named no more: workers that are known from there alone leave. Returns how many."""
    Place.objects.filter(pk__in=[place.pk for place in places]).update(gone_at=now, fence=F("fence") + 1)
    # Who has come to another place under the same id need not wait any longer; before any worker is held, as who asks does.
    refused = Place.objects.standing().filter(fault__startswith=f"{WorkerIdTaken.code}:")
    refused.filter(source__in={place.source_id for place in places}).update(next_at=now)
    # All workers before the first leaves: then the registry's row is held, which comes after every worker's.
    found = Worker.objects.filter(pk__in={place.worker_id for place in places if place.worker_id}).light()
    list(found.order_by("id").select_for_update())
    return sum(_dismiss(place, now) for place in places if place.worker_id is not None)


def _dismiss(place: Place, now: datetime) -> bool:
    """Take out the worker that was found at a place, unless somebody else answers for its being there."""
    worker = Worker.objects.registered().filter(places=place, beats=False).select_for_update(of=("self",)).first()
    if worker is None:
        return False
    if Place.objects.standing().filter(worker=worker).exclude(pk=place.pk).exists():
        return False
    # It may only have been away: what has signed it so far still counts.
    take_out(worker, f"{place.source.name} names it no more", now, void_until=None)
    return True


def _claim_places() -> list[_AskClaim]:
    with acting_as_system(_WHY):
        now = database_now()
        due = Place.objects.standing().filter(
            next_at__lte=now, source__enabled=True, source__principal__disabled_at=None
        )
        chosen = in_turn(due, by="next_at")
        held = list(
            due.filter(pk__in=chosen)
            .select_related("source__principal__tenant")
            .select_for_update(skip_locked=True, of=("self",))
        )
        Place.objects.filter(pk__in=[place.pk for place in held]).update(
            fence=F("fence") + 1, next_at=now + CLAIMED_FOR
        )
    return [
        _AskClaim(
            caller=on_behalf_of(place.source.principal),
            place_id=place.pk,
            fence=place.fence + 1,
            stated=place.stated,
            endpoint=None if "tools" in place.stated else place.stated["endpoint"],
        )
        for place in sorted(held, key=lambda place: chosen.index(place.pk))
    ]


def _ask(claim: _AskClaim) -> Seen | None:
    return None if claim.endpoint is None else endpoints.look(claim.endpoint, deadline=CALL_DEADLINE)


def _note_answer(claim: _AskClaim, seen: Seen | CallFailed | None) -> None:
    with acting_as(claim.caller):
        found = Place.objects.standing().filter(pk=claim.place_id, fence=claim.fence)
        place = found.select_related("source").select_for_update(of=("self",)).first()
        if place is None:
            return
        now = database_now()
        place.asked_at = now
        if isinstance(seen, CallFailed):
            _fail(place, f"{seen.code}: {seen}", now)
        else:
            _register_from(place, claim, seen, now)
        place.save(update_fields=["asked_at", "worker", "faults", "fault", "next_at"])


def _register_from(place: Place, claim: _AskClaim, seen: Seen | None, now: datetime) -> None:
    try:
        manifest, left_out = _manifest(claim, seen)
        _lock_all(place, manifest)
        worker = _registered(claim.caller, manifest, moves=_found_here_alone(place))
    except DomainError as refusal:
        _fail(place, f"{refusal.code}: {refusal.detail}", now)
        return
    if place.worker_id not in {None, worker.pk}:
        _dismiss(place, now)
    place.worker = worker
    place.faults, place.fault = 0, None
    if left_out:
        place.fault = f"left out: {'; '.join(left_out)}"[:_TEXT]
    place.next_at = now + place.source.every


def _lock_all(place: Place, manifest: dict[str, Any]) -> None:
    """Lock what the worker that was found here before needs, and the one that is found now, in everybody's order, which is
    keys, workers by their ids, and the registry's row at last.
    """
    if place.worker_id is None:
        return
    SigningKey.objects.filter(key_id=manifest.get("trust", {}).get("key_id")).select_for_update(no_key=True).first()
    both = Worker.objects.filter(Q(pk=place.worker_id) | Q(worker_id=manifest["worker_id"])).light()
    list(both.order_by("id").select_for_update())


def _found_here_alone(place: Place) -> int | None:
    """The key of the locked worker that was found here before, if no other place names it."""
    elsewhere = Place.objects.standing().filter(worker=place.worker_id).exclude(pk=place.pk)
    return None if place.worker_id is None or elsewhere.exists() else place.worker_id


def _fail(place: Place, fault: str, now: datetime) -> None:
    place.faults += 1
    place.fault = fault[:_TEXT]
    place.next_at = now + pause_after(place.faults)


def _manifest(claim: _AskClaim, seen: Seen | None) -> tuple[dict[str, Any], list[str]]:
    """What is to be registered, and why tools were left out of it.

    :raises DomainError: if what was said is no manifest, or there is nothing to offer.
    """
    if seen is None or claim.endpoint is None:
        return _sound(claim.stated), []
    if seen.manifest is not None:
        manifest = _sound(seen.manifest)
        if not manifest.get("trust", {}).get("signature"):
            # It was asked here, and its word alone leads nobody elsewhere.
            manifest["endpoint"] = claim.endpoint
        return manifest, []
    stated = parse(StatedWorker, claim.stated).model_dump(mode="json", exclude_unset=True)
    derived, left_out = deriving.manifest_of(seen, endpoint=claim.endpoint, stated=stated)
    if not derived["tools"]:
        raise NothingToOffer(f"It has no tool that can be used. {'; '.join(left_out)}")
    return _sound(derived), left_out


def _sound(manifest: Any) -> dict[str, Any]:
    return parse(RegisterWorker, manifest).model_dump(mode="json", exclude_unset=True)


def _registered(caller: Caller, manifest: dict[str, Any], *, moves: int | None) -> Worker:
    """The worker of this manifest. One that says the same under a signature stays as it is signed.

    :param moves: which one may have moved here.
    """
    known = Worker.objects.registered().named(manifest["worker_id"]).filter(principal_id=caller.principal_id).first()
    is_signed = bool(manifest.get("trust", {}).get("signature"))
    if known is not None and not is_signed and deriving.same_but_for_trust(known.manifest, manifest):
        return known
    return register(caller=caller, original=manifest, found=True, moves=moves).worker
