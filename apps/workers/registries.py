"""Where sources say that workers are. Speaks with strangers and reads files; touches no database.

etcd is spoken to through the JSON gateway of its v3 API, Consul through its HTTP API. Both are watched: a look begins where
the last one ended, waits a moment for what happens, and lists everything anew where that place is lost. Where they ask
who looks, etcd is told a user and its password, Consul a token.
"""

import base64
import hashlib
import ipaddress
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import yaml

from apps.core import outbound, strict_json
from apps.core.errors import DomainError
from apps.core.mcp_client import legible
from apps.core.outbound import Answer, AnswerTooLarge, CallFailed
from apps.core.schemas import parse
from apps.workers.errors import BadSettings
from apps.workers.shapes import StatedWorker
from apps.workers.states import SourceKind

WAIT: Final = timedelta(seconds=1)
DEFAULT_PREFIX: Final = "/gatehouse/workers/"
DEFAULT_SERVICE: Final = "mcp-worker"
MOST_PLACES: Final = 1000
_DEADLINE: Final = timedelta(seconds=5)
_ANSWER_BYTES: Final = 8 * 1024 * 1024
_FILE_BYTES: Final = 1024 * 1024
_KEY_LENGTH: Final = 500
_OK: Final = 200
_JSON: Final = {"Content-Type": "application/json"}
# etcd's words for a token that it does not know, or that is older than its users: 401, or 400 as for much else.
_ASKS_WHO: Final = frozenset({400, 401})

LOOK_EVERY: Final[Mapping[SourceKind, timedelta | None]] = {
    SourceKind.PULL: None,
    SourceKind.STATIC: timedelta(seconds=5),
    SourceKind.ETCD: timedelta(0),
    SourceKind.CONSUL: timedelta(0),
}
"""How often a source is looked at; None: as often as what it names. A watch goes on at the next tick."""


class BadSource(CallFailed):
    """The source is there, but what it holds can't be read as a list of workers."""

    code = "bad_source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A place that a source names: its key there, and what the source says of it: an endpoint, or a whole manifest.

    What is stated has an `endpoint`, which is a text; nothing else of it is sure.
    """

    key: str
    stated: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What a look has brought.

    `complete`: what is not named is not there; else only what is in `gone` has gone.
    """

    cursor: str
    complete: bool
    named: tuple[Named, ...] = ()
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source, how far it has been read, and what it is told so that it answers."""

    kind: SourceKind
    address: str
    settings: Mapping[str, Any]
    cursor: str = ""
    secret: str = field(default="", repr=False)


def check_settings(kind: SourceKind, address: str, settings: Mapping[str, Any], *, has_secret: bool) -> None:
    """
    :param has_secret: whether there is something to tell it, beside its settings.
    :raises Invalid: if a source of this kind takes other settings, or is told nothing.
    """
    wanted = _SETTINGS[kind]
    if unknown := sorted(settings.keys() - wanted):
        raise BadSettings(f"A source of kind {kind} has no setting {unknown[0]!r}; it has {', '.join(sorted(wanted))}.")
    for name in wanted - {"worker"}:
        if not isinstance(settings.get(name, "x"), str) or not settings.get(name, "x"):
            raise BadSettings(f"The setting {name} is a text.")
    if has_secret and kind not in _TAKES_SECRET:
        raise BadSettings(f"A source of kind {kind} is told no secret.")
    if kind == SourceKind.ETCD and has_secret != ("user" in settings):
        raise BadSettings("etcd is told a user and its password, or neither.")
    parse(StatedWorker, {**settings.get("worker", {}), "endpoint": address})


_TAKES_SECRET: Final = frozenset({SourceKind.ETCD, SourceKind.CONSUL})
_SETTINGS: Final[Mapping[SourceKind, frozenset[str]]] = {
    SourceKind.PULL: frozenset({"worker"}),
    SourceKind.STATIC: frozenset({"worker"}),
    SourceKind.ETCD: frozenset({"worker", "prefix", "user"}),
    SourceKind.CONSUL: frozenset({"worker", "service"}),
}


def look(source: Source) -> News:
    """Ask a source where workers are, or what has changed of that since the last look.

    :raises CallFailed: one of its kinds; so too where what is said of a worker can't be stored, or its key is there twice.
    """
    news = _LOOKS[source.kind](source)
    keys = set(news.gone)
    for named in news.named:
        if named.key in keys:
            raise BadSource(f"The source names {named.key!r} twice.")
        keys.add(named.key)
        _check_storable(named)
    return news


def _check_storable(named: Named) -> None:
    try:
        strict_json.check(named.stated)
    except strict_json.UnstorableJSON as exc:
        raise BadSource(f"What the source says of {named.key!r} can't be stored. {exc.detail}") from exc


def _pull(source: Source) -> News:
    return News(cursor="", complete=True, named=(_named(source, source.address, {"endpoint": source.address}),))


def _static(source: Source) -> News:
    try:
        with Path(source.address).open("rb") as file:
            content = file.read(_FILE_BYTES + 1)
    except OSError as exc:
        raise BadSource(f"The file can't be read: {exc.strerror}.") from exc
    if len(content) > _FILE_BYTES:
        raise BadSource(f"The file is over {_FILE_BYTES} bytes.")
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    if digest == source.cursor:
        return News(cursor=digest, complete=False)
    entries = _entries(content)
    named = (_named(source, str(entry.get("worker_id") or entry.get("endpoint")), entry) for entry in entries)
    return News(cursor=digest, complete=True, named=tuple(named))


def _entries(content: bytes) -> list[dict[str, Any]]:
    try:
        document = yaml.safe_load(content)
        # What YAML has and JSON has not (dates, sets, keys that are no texts) ends here.
        entries = strict_json.loads(json.dumps(document).encode())["workers"]
    except (yaml.YAMLError, DomainError, ValueError, TypeError, LookupError, RecursionError) as exc:
        raise BadSource("The file is no YAML with a list `workers` of plain values.") from exc
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "endpoint" in entry for entry in entries):
        raise BadSource("The file's `workers` is a list of workers, each with its `endpoint`.")
    return _bounded(entries)


def _etcd(source: Source) -> News:
    return _etcd_watch(source) or _etcd_list(source)


def _etcd_list(source: Source) -> News:
    answer = _etcd_kept(source, {**_etcd_range(source), "limit": MOST_PLACES + 1})
    try:
        entries = _bounded(answer.get("kvs", []))
        named = tuple(_named(source, _text(entry["key"]), _value(entry.get("value", ""))) for entry in entries)
        return News(cursor=str(int(answer["header"]["revision"])), complete=True, named=named)
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        raise BadSource("What answers there is not etcd.") from exc


def _etcd_watch(source: Source) -> News | None:
    """What has happened since the revision that was read last; None if everything is to be listed: at the first look, where
    etcd no longer knows or never came so far, as after a restore, and where it is too much to be told.
    """
    if not source.cursor:
        return None
    request = {"create_request": {**_etcd_range(source), "start_revision": int(source.cursor) + 1}}
    try:
        answer = outbound.listen(
            f"{source.address.rstrip('/')}/v3/watch",
            body=json.dumps(request).encode(),
            headers=_etcd_headers(source),
            hold=WAIT,
            enough=_tells_something,
            max_answer_bytes=_ANSWER_BYTES,
        )
    except AnswerTooLarge:
        return None
    _expect_ok(answer)
    if _is_cut_off(answer.body):
        return None
    try:
        results = [_decoded(line)["result"] for line in _whole_lines(answer.body)]
        if any(result.get("canceled") or _is_behind(source, result["header"]) for result in results):
            return None
        return _etcd_changes(source, [event for result in results for event in result.get("events", [])])
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        raise BadSource("What answers there is not etcd.") from exc


def _is_behind(source: Source, header: Mapping[str, Any]) -> bool:
    return int(header["revision"]) < int(source.cursor)


def _etcd_changes(source: Source, events: Iterable[Mapping[str, Any]]) -> News:
    revision, latest = int(source.cursor), dict[str, Mapping[str, Any]]()
    for event in events:
        latest[event["kv"]["key"]] = event
        revision = max(revision, int(event["kv"]["mod_revision"]))
    gone = {key for key, event in latest.items() if event.get("type") == "DELETE"}
    named = tuple(
        _named(source, _text(key), _value(event["kv"].get("value", "")))
        for key, event in latest.items()
        if key not in gone
    )
    return News(cursor=str(revision), complete=False, named=named, gone=frozenset(_key(_text(key)) for key in gone))


def _etcd_range(source: Source) -> dict[str, str]:
    prefix = source.settings.get("prefix", DEFAULT_PREFIX).encode()
    # All keys that begin so end before the prefix with its last byte raised by one.
    end = prefix[:-1] + bytes([prefix[-1] + 1])
    return {"key": base64.b64encode(prefix).decode(), "range_end": base64.b64encode(end).decode()}


def _etcd_kept(source: Source, asked: Mapping[str, Any]) -> Any:
    answer = _etcd_post(source.address, "kv/range", asked, _etcd_headers(source))
    if source.secret and answer.status in _ASKS_WHO:
        _etcd_token.cache_clear()
        answer = _etcd_post(source.address, "kv/range", asked, _etcd_headers(source))
    _expect_ok(answer)
    return _decoded(answer.body)


def _etcd_post(address: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
    return outbound.post(
        f"{address.rstrip('/')}/v3/{path}",
        body=json.dumps(body).encode(),
        headers=headers,
        deadline=_DEADLINE,
        max_answer_bytes=_ANSWER_BYTES,
    )


def _etcd_headers(source: Source) -> Mapping[str, str]:
    if not source.secret:
        return _JSON
    return {**_JSON, "Authorization": _etcd_token(source.address, source.settings["user"], source.secret)}


# To check a password costs etcd as much as many looks. A token holds as long as it is used, and is asked for anew where it
# no longer does.
@lru_cache(maxsize=64)
def _etcd_token(address: str, user: str, password: str) -> str:
    answer = _etcd_post(address, "auth/authenticate", {"name": user, "password": password}, _JSON)
    if answer.status != _OK:
        raise BadSource(f"The source does not take the user and its password: it answers {answer.status}.")
    try:
        return str(_decoded(answer.body)["token"])
    except (LookupError, TypeError) as exc:
        raise BadSource("What answers there is not etcd.") from exc


def _tells_something(body: bytes) -> bool:
    return any(b'"events"' in line or b'"canceled"' in line or b'"error"' in line for line in _whole_lines(body))


def _is_cut_off(body: bytes) -> bool:
    """Whether the time was over amid the first thing that it had to tell; the next look would come no further."""
    return not _tells_something(body) and bool(body.rpartition(b"\n")[2].strip())


def _whole_lines(body: bytes) -> Iterator[bytes]:
    whole, _, _ = body.rpartition(b"\n")
    return (line for line in whole.split(b"\n") if line.strip())


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode(errors="replace")


def _value(encoded: str) -> Mapping[str, Any]:
    """A worker in etcd: a JSON object, or its endpoint alone."""
    content = base64.b64decode(encoded)
    try:
        found = strict_json.loads(content)
    except DomainError:
        found = None
    return found if isinstance(found, dict) else {"endpoint": legible(content.decode(errors="replace").strip())}


def _consul(source: Source) -> News:
    query = {"passing": "true", "wait": f"{WAIT.total_seconds():g}s"}
    if source.cursor:
        query["index"] = source.cursor
    service = quote(source.settings.get("service", DEFAULT_SERVICE), safe="")
    answer = outbound.get(
        f"{source.address.rstrip('/')}/v1/health/service/{service}?{urlencode(query)}",
        headers={"X-Consul-Token": source.secret} if source.secret else {},
        deadline=WAIT + _DEADLINE,
        max_answer_bytes=_ANSWER_BYTES,
    )
    _expect_ok(answer)
    if answer.headers.get("x-consul-results-filtered-by-acls") == "true":
        # What is kept back has not gone.
        raise BadSource("Consul keeps back instances: the token needs service:read and node:read for them.")
    try:
        index = int(answer.headers["x-consul-index"])
        if str(index) == source.cursor:
            return News(cursor=source.cursor, complete=False)
        named = tuple(_consul_named(source, entry) for entry in _bounded(_decoded(answer.body)))
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        raise BadSource("What answers there is not Consul.") from exc
    # An index that goes back belongs to another history, and one below 1 to none: then a look does not wait.
    is_onward = index >= max(1, int(source.cursor or 0))
    return News(cursor=str(index) if is_onward else "", complete=True, named=named)


def _consul_named(source: Source, entry: Mapping[str, Any]) -> Named:
    node, service = entry["Node"], entry["Service"]
    meta = service.get("Meta") or {}
    host = service.get("Address") or node["Address"]
    stated: dict[str, Any] = {"endpoint": meta.get("mcp_endpoint") or _endpoint(str(host), int(service["Port"]))}
    if service.get("Tags"):
        stated["capabilities"] = service["Tags"]
    if meta.get("worker_id"):
        stated["worker_id"] = meta["worker_id"]
    return _named(source, f"{node['Node']}/{service['ID']}", stated)


def _endpoint(host: str, port: int) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        scheme = "http" if host == "localhost" else "https"
        return f"{scheme}://{host}:{port}/mcp"
    return f"{'http' if address.is_loopback else 'https'}://{f'[{host}]' if ':' in host else host}:{port}/mcp"


def _named(source: Source, key: str, stated: Mapping[str, Any]) -> Named:
    endpoint = stated.get("endpoint")
    said = {} if "tools" in stated else source.settings.get("worker", {})
    # What is no address is refused where it is asked, by name.
    return Named(key=_key(key), stated={**said, **stated, "endpoint": endpoint if isinstance(endpoint, str) else ""})


def _key(text: str) -> str:
    return legible(text)[:_KEY_LENGTH]


def check_bound(places: int) -> None:
    """
    :raises BadSource: if a source may not name so many.
    """
    if places > MOST_PLACES:
        raise BadSource(f"The source names more than {MOST_PLACES} workers.")


def _bounded(entries: list[Any]) -> list[Any]:
    check_bound(len(entries))
    return entries


def _expect_ok(answer: Answer) -> None:
    if answer.status != _OK:
        raise BadSource(f"The source answers {answer.status}.")


def _decoded(body: bytes) -> Any:
    try:
        return strict_json.decode(body)
    except DomainError as exc:
        raise BadSource("The source answers no JSON.") from exc


_LOOKS: Final[Mapping[SourceKind, Callable[[Source], News]]] = {
    SourceKind.PULL: _pull,
    SourceKind.STATIC: _static,
    SourceKind.ETCD: _etcd,
    SourceKind.CONSUL: _consul,
}
