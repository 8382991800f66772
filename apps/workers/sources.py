"""Adapters of the sources that list MCP workers: one MCP endpoint, a YAML file, etcd, Consul.

Calls foreign servers and reads files; touches no database. Each look returns the whole list. etcd is asked through the
JSON gateway of its v3 API.
"""

import base64
import ipaddress
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import yaml

from apps.core import outbound, strict_json
from apps.core.errors import DomainError, Invalid
from apps.core.outbound import Answer, CallFailed, legible
from apps.core.schemas import parse
from apps.workers.models import SourceKind
from apps.workers.shapes import StatedWorker

LOOK_EVERY: Final = timedelta(seconds=5)
"""How often a list is read. A source that is one endpoint is looked at as often as its entry."""
DEFAULT_PREFIX: Final = "/gatehouse/workers/"
DEFAULT_SERVICE: Final = "mcp-worker"
MOST_ENTRIES: Final = 1000
_DEADLINE: Final = timedelta(seconds=5)
_ANSWER_BYTES: Final = 8 * 1024 * 1024
_FILE_BYTES: Final = 1024 * 1024
_KEY_LENGTH: Final = 500
_OK: Final = 200
_JSON: Final = {"Content-Type": "application/json"}
# etcd answers an unknown or outdated token with 401, or with 400 as for other faults.
_UNAUTHENTICATED: Final = frozenset({400, 401})

OPTIONS: Final[Mapping[SourceKind, frozenset[str]]] = {
    SourceKind.PULL: frozenset({"worker"}),
    SourceKind.STATIC: frozenset({"worker"}),
    SourceKind.ETCD: frozenset({"worker", "prefix", "user"}),
    SourceKind.CONSUL: frozenset({"worker", "service"}),
}


class BadSource(CallFailed):
    """The source answers, but its content is no list of workers."""

    code = "bad_source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a source: its key there, and what the source states of the worker, which is an endpoint or a manifest.

    `stated` has a member `endpoint` that is a string; nothing else of it has been checked.
    """

    key: str
    stated: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source, and the secret that authenticates Gatehouse there."""

    kind: SourceKind
    address: str
    options: Mapping[str, Any]
    secret: str = field(default="", repr=False)


def check_options(kind: SourceKind, address: str, options: Mapping[str, Any], *, has_secret: bool) -> None:
    """
    :raises Invalid: `bad_settings`, if a source of this kind has no such option, or takes no secret.
    """
    allowed = OPTIONS[kind]
    if unknown := sorted(options.keys() - allowed):
        raise _bad(f"A source of kind {kind} has no option {unknown[0]!r}; it has {', '.join(sorted(allowed))}.")
    for name in allowed - {"worker"}:
        if not isinstance(options.get(name, "x"), str) or not options.get(name, "x"):
            raise _bad(f"The option {name} is a text.")
    if has_secret and kind not in {SourceKind.ETCD, SourceKind.CONSUL}:
        raise _bad(f"A source of kind {kind} takes no secret.")
    if kind == SourceKind.ETCD and has_secret != ("user" in options):
        raise _bad("A user of etcd needs a secret, and a secret of etcd a user.")
    parse(StatedWorker, {**options.get("worker", {}), "endpoint": address})


def _bad(detail: str) -> Invalid:
    return Invalid(detail, code="bad_settings")


def look(source: Source) -> list[Entry]:
    """Read a source's list of workers.

    :raises CallFailed: one of its kinds; :class:`BadSource` also where a key stands twice or an entry can't be stored.
    """
    listed = _ADAPTERS[source.kind](source)
    keys = set[str]()
    for entry in listed:
        if entry.key in keys:
            raise BadSource(f"The source names {entry.key!r} twice.")
        keys.add(entry.key)
        try:
            strict_json.check(entry.stated)
        except strict_json.UnstorableJSON as exc:
            raise BadSource(f"What the source says of {entry.key!r} can't be stored. {exc.detail}") from exc
    return listed


def _static(source: Source) -> list[Entry]:
    try:
        with Path(source.address).open("rb") as file:
            content = file.read(_FILE_BYTES + 1)
    except OSError as exc:
        raise BadSource(f"The file can't be read: {exc.strerror}.") from exc
    if len(content) > _FILE_BYTES:
        raise BadSource(f"The file is over {_FILE_BYTES} bytes.")
    try:
        document = yaml.safe_load(content)
        # The round trip refuses what YAML has and JSON has not: dates, sets, keys that are no strings.
        found = strict_json.loads(json.dumps(document).encode())["workers"]
    except (yaml.YAMLError, DomainError, ValueError, TypeError, LookupError, RecursionError) as exc:
        raise BadSource("The file is no YAML with a list `workers` of plain values.") from exc
    if not isinstance(found, list) or not all(isinstance(one, dict) and "endpoint" in one for one in found):
        raise BadSource("The file's `workers` is a list of MCP workers, each with its `endpoint`.")
    return [_entry(source, str(one.get("worker_id") or one.get("endpoint")), one) for one in _bounded(found)]


def _etcd(source: Source) -> list[Entry]:
    asked = {**_etcd_range(source), "limit": MOST_ENTRIES + 1}
    answer = _etcd_post(source.address, "kv/range", asked, _etcd_headers(source))
    if source.secret and answer.status in _UNAUTHENTICATED:
        _etcd_token.cache_clear()
        answer = _etcd_post(source.address, "kv/range", asked, _etcd_headers(source))
    document = _decoded(answer)
    try:
        int(document["header"]["revision"])  # only etcd tells it
        found = _bounded(document.get("kvs", []))
        pairs = ([base64.b64decode(one.get(name, "")) for name in ("key", "value")] for one in found)
        return [_entry(source, key.decode(errors="replace"), _etcd_stated(value)) for key, value in pairs]
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        raise BadSource("What answers there is not etcd.") from exc


def _etcd_range(source: Source) -> dict[str, str]:
    prefix = source.options.get("prefix", DEFAULT_PREFIX).encode()
    # The range of all keys with this prefix ends where its last byte is one higher.
    end = prefix[:-1] + bytes([prefix[-1] + 1])
    return {"key": base64.b64encode(prefix).decode(), "range_end": base64.b64encode(end).decode()}


def _etcd_post(address: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
    return outbound.send(
        f"{address.rstrip('/')}/v3/{path}",
        body=json.dumps(body).encode(),
        headers=headers,
        deadline=_DEADLINE,
        max_answer_bytes=_ANSWER_BYTES,
    )


def _etcd_headers(source: Source) -> Mapping[str, str]:
    if not source.secret:
        return _JSON
    return {**_JSON, "Authorization": _etcd_token(source.address, source.options["user"], source.secret)}


# etcd checks a password slowly, so a token is kept until etcd refuses it.
@lru_cache(maxsize=64)
def _etcd_token(address: str, user: str, password: str) -> str:
    answer = _etcd_post(address, "auth/authenticate", {"name": user, "password": password}, _JSON)
    if answer.status != _OK:
        raise BadSource(f"The source does not take the user and its password: it answers {answer.status}.")
    try:
        return str(_decoded(answer)["token"])
    except (LookupError, TypeError) as exc:
        raise BadSource("What answers there is not etcd.") from exc


def _etcd_stated(value: bytes) -> Mapping[str, Any]:
    """Read a value of etcd: a JSON object, or an endpoint alone."""
    try:
        found = strict_json.loads(value)
    except DomainError:
        found = None
    return found if isinstance(found, dict) else {"endpoint": legible(value.decode(errors="replace").strip())}


def _consul(source: Source) -> list[Entry]:
    service = quote(source.options.get("service", DEFAULT_SERVICE), safe="")
    answer = outbound.send(
        f"{source.address.rstrip('/')}/v1/health/service/{service}?passing=true",
        headers={"X-Consul-Token": source.secret} if source.secret else {},
        deadline=_DEADLINE,
        max_answer_bytes=_ANSWER_BYTES,
    )
    document = _decoded(answer)
    if answer.headers.get("x-consul-results-filtered-by-acls") == "true":
        raise BadSource("Consul keeps back instances: the token needs service:read and node:read for them.")
    try:
        int(answer.headers["x-consul-index"])  # only Consul tells it
        return [_consul_entry(source, one) for one in _bounded(document)]
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        raise BadSource("What answers there is not Consul.") from exc


def _consul_entry(source: Source, one: Mapping[str, Any]) -> Entry:
    node, service = one["Node"], one["Service"]
    meta = service.get("Meta") or {}
    host, port = str(service.get("Address") or node["Address"]), int(service["Port"])
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    url = f"{'http' if is_loopback else 'https'}://{f'[{host}]' if ':' in host else host}:{port}/mcp"
    stated: dict[str, Any] = {"endpoint": meta.get("mcp_endpoint") or url}
    if service.get("Tags"):
        stated["capabilities"] = service["Tags"]
    if meta.get("worker_id"):
        stated["worker_id"] = meta["worker_id"]
    return _entry(source, f"{node['Node']}/{service['ID']}", stated)


def _entry(source: Source, key: str, stated: Mapping[str, Any]) -> Entry:
    endpoint = stated.get("endpoint")
    defaults = {} if "tools" in stated else source.options.get("worker", {})
    # An endpoint that is no string becomes "": asking there fails and names the entry.
    return Entry(
        key=legible(key)[:_KEY_LENGTH],
        stated={**defaults, **stated, "endpoint": endpoint if isinstance(endpoint, str) else ""},
    )


def _bounded(entries: list[Any]) -> list[Any]:
    if len(entries) > MOST_ENTRIES:
        raise BadSource(f"The source names more than {MOST_ENTRIES} MCP workers.")
    return entries


def _decoded(answer: Answer) -> Any:
    if answer.status != _OK:
        raise BadSource(f"The source answers {answer.status}.")
    try:
        return strict_json.decode(answer.body)
    except DomainError as exc:
        raise BadSource("The source answers no JSON.") from exc


_ADAPTERS: Final[Mapping[SourceKind, Callable[[Source], list[Entry]]]] = {
    SourceKind.PULL: lambda source: [_entry(source, source.address, {"endpoint": source.address})],
    SourceKind.STATIC: _static,
    SourceKind.ETCD: _etcd,
    SourceKind.CONSUL: _consul,
}
