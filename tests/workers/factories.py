"""Manifests, keys, sources and heartbeats for the tests of the registry."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from joserfc import jws
from joserfc.jwk import OKPKey

from apps.core.errors import DomainError
from apps.core.sql import database_now
from apps.principals.models import Principal
from apps.principals.tenancy import Caller
from apps.workers import selectors, trust
from apps.workers import services as registry
from apps.workers.models import SourceEntry, SourceKind, Worker, WorkerEvent, WorkerSource
from apps.workers.shapes import HeartbeatTaken, OfferView
from apps.workers.trust import Tier
from tests import waiters
from tests.commands import run, with_database

ID = "code-analyzer-001"
READS_ONLY = {"filesystem": "read", "network": "none", "execution": "none"}
NOTHING = {"filesystem": "none", "network": "none", "execution": "none"}


def make_manifest(worker_id: str = ID, **changes: Any) -> dict[str, Any]:
    """An example of a registration, with what it leaves to the reader filled in."""
    return {
        "worker_id": worker_id,
        "endpoint": "https://code-analyzer.example.com/mcp",
        "tools": [
            {
                "name": "analyze_repository",
                "description": "Analyze a code repository.",
                "input_schema": {
                    "type": "object",
                    "properties": {"repo_path": {"type": "string"}, "language": {"type": "string"}},
                    "required": ["repo_path"],
                },
                "output_schema": {
                    "type": "object",
                    "properties": {"complexity_score": {"type": "number"}, "issues": {"type": "array"}},
                },
            }
        ],
        "capabilities": ["code_analysis", "python", "javascript"],
        "constraints": {"max_payload_bytes": 10485760, "timeout_seconds": 300, "rate_limit_per_hour": 100},
        "hints": {"latency_band": "medium", "cost_band": "low", "expected_runtime": "long"},
        "side_effects": READS_ONLY,
        "trust": {"tier": "verified"},
        **changes,
    }


def make_key(key_id: str = "bundled") -> dict[str, str]:
    key = OKPKey.generate_key("Ed25519", private=True)
    return {**{name: str(value) for name, value in key.as_dict(private=True).items()}, "kid": key_id}


def public_half(key: dict[str, str]) -> str:
    return json.dumps({name: key[name] for name in ("kty", "crv", "x")})


def enroll(caller: Caller, key: dict[str, str], ceiling: Tier = Tier.VERIFIED) -> None:
    registry.enroll_key(tenant_id=caller.tenant_id, key_id=key["kid"], public_key=public_half(key), ceiling=ceiling)


def signed(
    manifest: dict[str, Any],
    key: dict[str, str],
    *,
    now: datetime | None = None,
    validity: timedelta = timedelta(hours=1),
) -> dict[str, Any]:
    manifest = {**manifest, "trust": {**manifest.get("trust", {}), "key_id": key["kid"]}}
    begun = int((now or database_now()).timestamp())
    header = {"alg": "Ed25519", "kid": key["kid"], "iat": begun, "exp": begun + int(validity.total_seconds())}
    signature = jws.serialize_compact(
        header, trust.payload(manifest), OKPKey.import_key(dict(key)), registry=trust.HEADERS
    )
    return {**manifest, "trust": {**manifest["trust"], "signature": signature}}


def register(caller: Caller, manifest: dict[str, Any]) -> registry.Registration:
    return registry.register(caller=caller, original=manifest)


def beat(caller: Caller, worker_id: str = ID, status: str = "healthy") -> HeartbeatTaken:
    return registry.heartbeat(caller=caller, worker_id=worker_id, status=status, current_load=0.0, available=True)


def events(kind: str = "state") -> list[str]:
    return [event.detail for event in WorkerEvent.objects.filter(kind=kind).order_by("id")]


def add_source(
    caller: Caller,
    address: str,
    *,
    kind: SourceKind = SourceKind.PULL,
    name: str = "found",
    secret: str = "",
    options: dict[str, Any] | None = None,
    **worker: Any,
) -> WorkerSource:
    """Add a source for the caller's principal; `worker` holds defaults for workers without a manifest."""
    return registry.add_source(
        principal=Principal.objects.get(pk=caller.principal_id),
        name=name,
        kind=kind,
        address=address,
        options={**(options or {}), **({"worker": worker} if worker else {})},
        secret=secret,
    )


def discover(*, ask: bool = False) -> None:
    """Look at every source, and ask the entries that are due, or all."""
    WorkerSource.objects.update(next_at="2000-01-01T00:00Z")
    if ask:
        SourceEntry.objects.update(next_at="2000-01-01T00:00Z")
    registry.discover()


def ids() -> list[str]:
    """The registered workers."""
    return sorted(worker.worker_id for worker in Worker.objects.registered())


def fault() -> str:
    """Of the only entry of all sources."""
    return SourceEntry.objects.get().fault or ""


def offers() -> dict[str, OfferView]:
    """What is offered, by the names of tools."""
    view = selectors.catalogue()
    names = {tool.uid: tool.name for tool in view.tools}
    return {names[offer.tool_uid]: offer for offer in view.offers}


@contextmanager
def refused(code: str, text: str | None = None) -> Iterator[pytest.ExceptionInfo[DomainError]]:
    """Expect a refusal with this code, and this text in its message."""
    with pytest.raises(DomainError, match=text) as caught, transaction.atomic():
        yield caught
    assert caught.value.code == code


def at_once(*acts: Callable[[], object]) -> list[object]:
    """The results of these acts, begun at the same moment; refusals are results."""
    return [one.code if isinstance(one, DomainError) else one for one in waiters.at_once(*acts)]


def typed(*arguments: str, code: int = 0) -> str:
    """What `manage.py mcp_workers` prints as a process; `call_command` parses options in another way."""
    done = run(sys.executable, "manage.py", "mcp_workers", *arguments, env=with_database())
    assert done.returncode == code, done.stderr
    return (done.stdout + done.stderr).strip()
