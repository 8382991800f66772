"""Synchronisation of files with a server: each item crosses once, and is in one place at a time.

A pushed item becomes a receipt, then goes to `processed/`; after a crash in between the dedupe key prevents a second
receipt. A pull inherits under a session name that is written down first, as a marker file: a pull that was interrupted
is repeated under the same name.
"""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from apps.handoff import files
from apps.handoff.files import KEPT, Found, Inbox, Rejected
from apps.handoff.items import Item, Kind, Priority, Refused, moment_text, sent_name, settled_name, stamp

_SESSION: Final = "sync"
_ALL: Final = 10_000_000
_AT_ONCE: Final = 500
_REFUSED: Final = frozenset({400, 409, 413, 422})
_ERRORS: Final = 400

Ask = Callable[[str, Mapping[str, Any]], tuple[int, dict[str, Any]]]
"""Posts JSON to a path of the API; answers the status and the JSON that came back."""


@dataclass(slots=True)
class Synced:
    """What a synchronisation has done."""

    pushed: list[str] = field(default_factory=list)
    """Receipt ids."""
    pulled: list[str] = field(default_factory=list)
    """Receipt ids."""
    declined: list[Rejected] = field(default_factory=list)
    """Items that the server refused; they wait here."""


def hub(url: str, token: str) -> Ask:
    """The server at a URL, as the principal of a token."""
    # Imported here: commands without a server start faster.
    import httpx2  # noqa: PLC0415

    try:
        client = httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=15)
    except UnicodeEncodeError:
        raise Refused("The token holds characters that no token has.") from None

    def ask(path: str, given: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        try:
            response = client.post(path, json=dict(given))
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise Refused(f"{url} can't be reached: {exc}.") from None
        try:
            found = response.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Refused(f"{url} answers {response.status_code}, and not as the API does.")
        return response.status_code, found

    return ask


def running_url() -> str | None:
    """The hub's URL: of the environment, else of the hub that runs from this folder."""
    if url := os.environ.get("GATEHOUSE_URL"):
        return url
    product = Path(__file__).resolve().parents[2]
    place = Path(os.environ.get("GATEHOUSE_DATA") or product / "var") / "stack.json"
    with suppress(OSError, ValueError, AttributeError):
        found: str | None = json.loads(place.read_text()).get("url")
        return found
    return None


def push(inbox: Inbox, ask: Ask, *, recipient: str | None, now: datetime, into: Synced) -> None:
    """Send the items that were left here to the server. Items of the server or of other repositories stay.

    :raises Refused: if the server can't be reached or refuses the token; the items that were not sent wait.
    """
    files.make(inbox.folder)
    inbox.take_back(now=now)
    for found in inbox.waiting():
        if found.item.receipt_id is None and found.path.parent == inbox.folder:
            _push_one(inbox, ask, found, recipient=recipient, now=now, into=into)


def _push_one(inbox: Inbox, ask: Ask, found: Found, *, recipient: str | None, now: datetime, into: Synced) -> None:
    project = inbox.repository.id
    with inbox.reading(_SESSION, now=now) as reader:
        claimed = reader.claim(found.path)
        if claimed is None:
            return
        status, answer = ask("/api/v1/handoffs", _payload(found.item, project, recipient))
        if status in _REFUSED:
            into.declined.append(Rejected(name=found.path.name, reason=_detail(status, answer)))
            reader.give_back(claimed, now=now)
            return
        _refuse_errors(status, answer)
        receipt_id = str(_member(answer, "receipt_id"))
        reader.claimed[claimed] = sent_name(receipt_id)
        into.pushed.append(receipt_id)


def pull(inbox: Inbox, ask: Ask, *, now: datetime, into: Synced) -> None:
    """Fetch the items that wait on the server for this repository, or for none, but those that were sent from here.

    :raises Refused: if the server can't be reached or refuses the token.
    """
    markers = inbox.folder / ".pulls"
    files.make(inbox.folder)
    files.make(markers)
    with (markers / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for interrupted in sorted(markers.glob(f"{_SESSION}-*")):
            _fetch(inbox, ask, interrupted, only=[], now=now, into=into)
        while wanted := _wanted(inbox, ask):
            marker = files.write_new(markers, lambda: f"{_SESSION}-{inbox.repository.id}-{stamp(now)}", b"")
            if not _fetch(inbox, ask, marker, only=wanted[:_AT_ONCE], now=now, into=into):
                break


def _wanted(inbox: Inbox, ask: Ask) -> list[str]:
    answer = _asked(ask, {"project": inbox.repository.id, "max_tokens": _ALL})
    found: list[str] = [one["receipt_id"] for one in _member(answer, "items")]
    return [one for one in found if not (inbox.past / sent_name(one)).exists()]


def _fetch(inbox: Inbox, ask: Ask, marker: Path, *, only: list[str], now: datetime, into: Synced) -> int:
    """Write the items that the session of this marker was given, or is given now; returns how many files are new.

    The marker of an interrupted pull that is given nothing may belong to another agent. It stays as long as the server
    remembers sessions.
    """
    answer = _asked(ask, {"session": marker.name, "receipt_ids": only, "again": True, "max_tokens": _ALL})
    items = _member(answer, "items")
    fetched = [receipt_id for one in items if (receipt_id := _keep(inbox, one))]
    into.pulled += fetched
    if items or only or now.timestamp() - marker.stat().st_mtime >= KEPT.total_seconds():
        marker.unlink(missing_ok=True)
    return len(fetched)


def _keep(inbox: Inbox, answer: Mapping[str, Any]) -> str | None:
    """Write an item as a file, unless it was written before; answers its receipt id if it is new."""
    item = Item(
        from_session=answer["from_session"],
        kind=Kind(answer["type"]),
        priority=Priority(answer["priority"]),
        created=datetime.fromisoformat(answer["created"]),
        body=answer["body"],
        project=answer["project"] if answer["project"] != inbox.repository.id else None,
        receipt_id=answer["receipt_id"],
    )
    name = settled_name(item)
    # It may have been written here before, wherever it is by now.
    places = (name, f"{inbox.past.name}/{name}", f".claimed/*/{name}", f"rejected/*-{name}")
    if any(any(inbox.folder.glob(place)) for place in places):
        return None
    # An item that can't be read again is rejected here, where somebody sees it.
    files.write_new(inbox.folder, lambda: name, item.to_bytes())
    return item.receipt_id


def _payload(item: Item, project: str, recipient: str | None) -> dict[str, Any]:
    payload = {
        "session": item.from_session,
        "type": item.kind.value,
        "priority": item.priority.value,
        "created": moment_text(item.created),
        "body": item.body,
        "project": project,
    }
    return payload if recipient is None else {**payload, "recipient_ai": recipient}


def _asked(ask: Ask, given: Mapping[str, Any]) -> dict[str, Any]:
    status, answer = ask("/api/v1/handoffs/inherit", given)
    _refuse_errors(status, answer)
    return answer


def _member(answer: Mapping[str, Any], name: str) -> Any:
    if name not in answer:
        raise Refused("The server does not answer as the API does.")
    return answer[name]


def _refuse_errors(status: int, answer: Mapping[str, Any]) -> None:
    if status >= _ERRORS:
        raise Refused(f"The server answers {_detail(status, answer)}.")


def _detail(status: int, answer: Mapping[str, Any]) -> str:
    return f"{status}: {str(answer.get('detail', 'no reason')).rstrip('.')}"
