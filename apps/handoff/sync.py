"""Files and receipts: items cross over to the server and back, each of them once.

An item is in one place at a time. What is left in files goes to the server as a receipt, then to `processed/`; a crash
in between is mended by the receipt's dedupe key. What waits on the server is inherited under the name of a round,
which is written down first: a round that a crash has cut off is asked for again.
"""

import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from apps.handoff import folders
from apps.handoff.errors import Refused, Unreadable
from apps.handoff.files import KEPT, Found, Inbox, Rejected
from apps.handoff.items import Item, Kind, Priority, moment_text, settled_name, stamp

_SESSION: Final = "sync"
_ALL: Final = 10_000_000
_AT_ONCE: Final = 500
_REFUSED: Final = frozenset({400, 409, 413, 422})
_ERRORS: Final = 400

Ask = Callable[[str, Mapping[str, Any]], tuple[int, dict[str, Any]]]
"""Posts JSON to a path of the API; answers the status and the JSON that came back."""


@dataclass(slots=True)
class Crossed:
    """What a synchronisation has done."""

    pushed: list[str] = field(default_factory=list)
    """Receipt ids."""
    pulled: list[str] = field(default_factory=list)
    """Receipt ids."""
    declined: list[Rejected] = field(default_factory=list)
    """What the server does not take; it goes on waiting here."""


def hub(url: str, token: str) -> Ask:
    """The server at a URL, as the principal of a token."""
    # A session without a server does not wait for this.
    import httpx2  # noqa: PLC0415

    try:
        client = httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=15)
    except UnicodeEncodeError:
        raise Refused("The token holds letters that no token has.") from None

    def ask(path: str, given: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        try:
            answer = client.post(path, json=dict(given))
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise Refused(f"{url} can't be reached: {exc}.") from None
        try:
            told = answer.json()
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise Refused(f"{url} answers {answer.status_code}, and not as the API does.")
        return answer.status_code, told

    return ask


def standing_url() -> str | None:
    """Where the hub is: as the environment says, else the one that runs from this very folder."""
    if url := os.environ.get("GATEHOUSE_URL"):
        return url
    product = Path(__file__).resolve().parents[2]
    place = Path(os.environ.get("GATEHOUSE_DATA") or product / "var") / "stack.json"
    with suppress(OSError, ValueError, AttributeError):
        found: str | None = json.loads(place.read_text()).get("url")
        return found
    return None


def push(inbox: Inbox, ask: Ask, *, recipient: str | None, now: datetime, into: Crossed) -> None:
    """Carry what was left here to the server. What came from there, or from other repositories, stays.

    :raises Refused: if the server can't be reached or does not let us; what was not carried waits.
    """
    folders.make(inbox.folder)
    inbox.claims.take_back(now=now)
    for found in inbox.waiting():
        if found.item.receipt_id is None and found.path.parent == inbox.folder:
            _push_one(inbox, ask, found, recipient=recipient, now=now, into=into)


def _push_one(inbox: Inbox, ask: Ask, found: Found, *, recipient: str | None, now: datetime, into: Crossed) -> None:
    project = inbox.repository.id
    with suppress(_Declined), inbox.taking(_SESSION, now=now) as (reader, taken):
        claimed = reader.claim(found.path, now=now)
        if claimed is None:
            return
        # What is in here goes back if the server does not take it.
        taken.shown = [replace(found, path=claimed)]
        status, told = ask("/api/v1/handoffs", _left(found.item, project, recipient))
        if status in _REFUSED:
            into.declined.append(Rejected(name=found.path.name, reason=_detail(status, told)))
            raise _Declined
        _refuse_errors(status, told)
        receipt_id = str(_said(told, "receipt_id"))
        taken.shown = [replace(found, path=claimed, item=replace(found.item, receipt_id=receipt_id))]
        into.pushed.append(receipt_id)


class _Declined(Exception):
    """The server does not take this one."""


def pull(inbox: Inbox, ask: Ask, *, take_back: bool, now: datetime, into: Crossed) -> None:
    """Fetch what waits on the server for this repository, or for none.

    :param take_back: also what was carried there from here, and nobody has inherited.
    :raises Refused: if the server can't be reached or does not let us.
    """
    rounds = inbox.folder / ".rounds"
    folders.make(inbox.folder)
    folders.make(rounds)
    with folders.alone(rounds):
        for cut_off in sorted(rounds.glob(f"{_SESSION}-*")):
            _fetch(inbox, ask, cut_off, only=[], now=now, into=into)
        carried = {str(entry.get("receipt_id")) for entry in inbox.processed.entries().values()}
        while wanted := _wanted(inbox, ask, set() if take_back else carried):
            mark = folders.write_new(rounds, lambda: f"{_SESSION}-{inbox.repository.id}-{stamp(now)}", b"")
            if not _fetch(inbox, ask, mark, only=wanted[:_AT_ONCE], now=now, into=into):
                break


def _wanted(inbox: Inbox, ask: Ask, unwanted: Collection[str]) -> list[str]:
    told = _asked(ask, {"project": inbox.repository.id, "max_tokens": _ALL})
    return [one["receipt_id"] for one in _said(told, "items") if one["receipt_id"] not in unwanted]


def _fetch(inbox: Inbox, ask: Ask, mark: Path, *, only: list[str], now: datetime, into: Crossed) -> int:
    """Write what the round of this name was given, or is given now; answers how many files are new.

    A round that was cut off and is given nothing may be another agent's: it is left to that one as long as the server
    remembers rounds.
    """
    told = _asked(ask, {"session": mark.name, "receipt_ids": only, "again": True, "max_tokens": _ALL})
    items = _said(told, "items")
    fetched = [receipt_id for one in items if (receipt_id := _keep(inbox, one))]
    into.pulled += fetched
    if items or only or now - _began(mark) >= KEPT:
        mark.unlink(missing_ok=True)
    return len(fetched)


def _began(mark: Path) -> datetime:
    milliseconds = int(mark.name.split("-")[-2])
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _keep(inbox: Inbox, told: Mapping[str, Any]) -> str | None:
    """Write an item as a file, unless it was written before; answers its receipt id if it is new."""
    item = Item(
        from_session=told["from_session"],
        kind=Kind(told["type"]),
        priority=Priority(told["priority"]),
        created=datetime.fromisoformat(told["created"]),
        body=told["body"],
        project=told["project"] if told["project"] != inbox.repository.id else None,
        receipt_id=told["receipt_id"],
    )
    name = settled_name(item)
    if _is_known(inbox, name) or _was_shown(inbox, item):
        return None
    # What can't be read again will be rejected here, where somebody sees it, and is not lost on the way.
    folders.write_new(inbox.folder, lambda: name, item.to_bytes())
    return item.receipt_id


def _is_known(inbox: Inbox, name: str) -> bool:
    """Whether an item was written here before, wherever it is by now."""
    here = (inbox.folder / name, inbox.processed.folder / name)
    claimed = inbox.claims.folder.glob(f"*/*~{name}")
    rejected = (inbox.folder / "rejected").glob(f"*-{name}")
    return any(path.exists() for path in here) or any(claimed) or any(rejected) or name in inbox.processed.entries()


def _was_shown(inbox: Inbox, item: Item) -> bool:
    """Whether a session here was shown this very item before it was known that the server has it too."""
    for name, entry in inbox.processed.entries().items():
        if entry.get("receipt_id") is not None:
            continue
        with suppress(FileNotFoundError, Unreadable):
            shown = Item.from_bytes(folders.read(inbox.processed.folder / name))
            # What makes two items one on the server.
            if (shown.kind, shown.from_session, shown.body) == (item.kind, item.from_session, item.body):
                return True
    return False


def _left(item: Item, project: str, recipient: str | None) -> dict[str, Any]:
    left = {
        "session": item.from_session,
        "type": item.kind.value,
        "priority": item.priority.value,
        "created": moment_text(item.created),
        "body": item.body,
        "project": project,
    }
    return left if recipient is None else {**left, "recipient_ai": recipient}


def _asked(ask: Ask, given: Mapping[str, Any]) -> dict[str, Any]:
    status, told = ask("/api/v1/handoffs/inherit", given)
    _refuse_errors(status, told)
    return told


def _said(told: Mapping[str, Any], name: str) -> Any:
    if name not in told:
        raise Refused("The server does not answer as the API does.")
    return told[name]


def _refuse_errors(status: int, told: Mapping[str, Any]) -> None:
    if status >= _ERRORS:
        raise Refused(f"The server answers {_detail(status, told)}.")


def _detail(status: int, told: Mapping[str, Any]) -> str:
    return f"{status}: {str(told.get('detail', 'no reason')).rstrip('.')}"
