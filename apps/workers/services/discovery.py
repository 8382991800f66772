"""Discovery: sources list MCP workers, each entry is asked for its tools, and what is found is registered.

A discovered worker is judged like any registration: an unsigned one is untrusted.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from django.db import transaction
from django.db.models import Q

from apps.core.errors import Conflict, DomainError, Invalid, NotFound
from apps.core.outbound import CallFailed, legible
from apps.core.schemas import parse
from apps.core.sealing import SealBroken, seal, unseal
from apps.core.sql import database_now
from apps.principals.models import Principal
from apps.principals.scopes import Kind
from apps.principals.selectors import principal_named
from apps.principals.services import add_principal
from apps.principals.tenancy import Caller, acting_as, acting_in, on_behalf_of
from apps.workers import manifests, sources
from apps.workers.manifests import Seen
from apps.workers.models import SigningKey, SourceEntry, SourceKind, Worker, WorkerSource, pause_after
from apps.workers.selectors import tools_shown
from apps.workers.services.health import CALL_DEADLINE, TEXT, do_all, due
from apps.workers.services.registry import approve as approve_tools
from apps.workers.services.registry import register, take_out
from apps.workers.shapes import RegisterWorker, ServerShown, StatedWorker, ToolShown
from apps.workers.sources import BadSource, Entry, Source

DEFAULT_EVERY: Final = timedelta(minutes=1)
LEAST_EVERY: Final = timedelta(seconds=5)
_WHY: Final = "discovering workers"
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
    with acting_in(asked.tenant_id, _WHY):
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
