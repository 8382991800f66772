"""Synchronisation of files with a server: each item crosses once, and is in one place at a time.

A pushed item becomes a receipt, then goes to `processed/`; after a crash in between the dedupe key prevents a second
receipt. A pulled item is written into a hidden folder before the server is asked to give it. What an interrupted pull
has left there, and the server gave, becomes an item at the next pull.
"""

import fcntl
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from apps.handoff import files
from apps.handoff.files import Found, Inbox, Rejected
from apps.handoff.items import Item, Kind, Priority, Refused, moment_text, sent_name, settled_name

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
    """The names of their files."""
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
    for found in inbox.waiting():
        if found.item.receipt_id is None and found.path.parent == inbox.folder:
            _push_one(inbox, ask, found, recipient=recipient, now=now, into=into)


def _push_one(inbox: Inbox, ask: Ask, found: Found, *, recipient: str | None, now: datetime, into: Synced) -> None:
    with inbox.locked():
        if not found.path.exists():
            return  # another reader was faster
        status, answer = ask("/api/v1/handoffs", _payload(found.item, inbox.repository.id, recipient))
        if status in _REFUSED:
            into.declined.append(Rejected(name=found.path.name, reason=_detail(status, answer)))
            return
        _refuse_errors(status, answer)
        receipt_id = str(_member(answer, "receipt_id"))
        files.archive(found.path, inbox.past, now=now, name=sent_name(receipt_id))
        into.pushed.append(receipt_id)


def pull(inbox: Inbox, ask: Ask, *, into: Synced) -> None:
    """Fetch the items that wait on the server for this repository, or for none, but those that were sent from here.

    :raises Refused: if the server can't be reached or refuses the token.
    """
    pulled = inbox.folder / ".pulled"
    files.make(inbox.folder)
    files.make(pulled)
    with (pulled / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = _wanted(inbox, ask)
        # What an interrupted pull has left and waits no more was given to it.
        _settle(inbox, [path for path in files.waiting(pulled) if path.name not in wanted], into)
        while wanted:
            some = dict(islice(wanted.items(), _AT_ONCE))
            for name, item in some.items():
                if not (pulled / name).exists():
                    files.write_new(pulled, partial(settled_name, item), item.to_bytes())
            given = _inherited(inbox, ask, session=_SESSION, receipt_ids=[one.receipt_id for one in some.values()])
            _settle(inbox, [pulled / settled_name(one) for one in given], into)
            # The others were taken meanwhile by another reader.
            for name in some:
                (pulled / name).unlink(missing_ok=True)
            wanted = _wanted(inbox, ask) if given else {}


def _wanted(inbox: Inbox, ask: Ask) -> dict[str, Item]:
    """What waits, by the names of files."""
    found = _inherited(inbox, ask, project=inbox.repository.id)
    return {settled_name(one): one for one in found if not (inbox.past / sent_name(str(one.receipt_id))).exists()}


def _inherited(inbox: Inbox, ask: Ask, **given: Any) -> list[Item]:
    status, answer = ask("/api/v1/handoffs/inherit", {**given, "max_tokens": _ALL})
    _refuse_errors(status, answer)
    return [
        Item(
            from_session=one["from_session"],
            kind=Kind(one["type"]),
            priority=Priority(one["priority"]),
            created=datetime.fromisoformat(one["created"]),
            body=one["body"],
            project=one["project"] if one["project"] != inbox.repository.id else None,
            receipt_id=one["receipt_id"],
        )
        for one in _member(answer, "items")
    ]


def _settle(inbox: Inbox, pulled: Sequence[Path], into: Synced) -> None:
    """Move items that the server has given into the inbox, but those that were written there before."""
    for path in pulled:
        # Wherever it is by now. An item that can't be read again is rejected here, where somebody sees it.
        places = (path.name, f"{inbox.past.name}/{path.name}", f"rejected/*-{path.name}")
        if any(any(inbox.folder.glob(place)) for place in places):
            path.unlink()
        else:
            path.rename(inbox.folder / path.name)
            into.pulled.append(path.name)


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


def _member(answer: Mapping[str, Any], name: str) -> Any:
    if name not in answer:
        raise Refused("The server does not answer as the API does.")
    return answer[name]


def _refuse_errors(status: int, answer: Mapping[str, Any]) -> None:
    if status >= _ERRORS:
        raise Refused(f"The server answers {_detail(status, answer)}.")


def _detail(status: int, answer: Mapping[str, Any]) -> str:
    return f"{status}: {str(answer.get('detail', 'no reason')).rstrip('.')}"
