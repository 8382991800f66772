"""What is said to an inbox service elsewhere, and what its answers mean. Pure."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

from apps.core.outbound import Answer, CallFailed
from apps.core.strict_json import storable
from apps.receipts.states import Door

_PATHS: Final = {
    Door.INBOX: "/internal/inbox/receipt",
    Door.UNIVERSAL: "/internal/receipt",
    Door.GATEHOUSE: "/internal/receipt",
}
_MAX_KEY: Final = 200
_MAX_SAID: Final = 500
_MAX_ID: Final = 100
_LONGEST_WAIT: Final = timedelta(days=1)


def address(base_url: str, door: Door) -> str:
    """Where a target's door is."""
    return base_url.rstrip("/") + _PATHS[door]


def fault_of(base_url: str) -> str | None:
    """What is wrong with the form of a target's address; where it leads is checked at each call."""
    try:
        parts = urlsplit(base_url)
        port_is_sound = parts.port != 0
    except ValueError:
        return "is no address"
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_sound:
        return "must begin with https:// (or http:// on loopback) and name a host"
    if parts.username or parts.password:
        return "must not hold a credential"
    return "must not have a query or a fragment" if "?" in base_url or "#" in base_url else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A fact as it is told elsewhere. References are receipt ids, which both sides know."""

    recipient: str
    source_system: str
    event_type: str
    dedupe_key: str
    receipt_id: str
    title: str | None
    summary: str
    metadata: Mapping[str, Any]
    artifact_pointer: str | None
    artifact_location: str | None
    requires_action: bool
    suggested_next_step: str | None
    caused_by: str | None
    pairs_with: str | None
    group: Mapping[str, Any] | None
    delivery_handle: str | None
    surface: str


def body(content: Content, *, door: Door, known_as: str | None) -> bytes:
    """The JSON to be posted; the same for the same fact each time, so that the remote knows a repetition.

    :param known_as: the source system under which the target knows this deployment; each key then carries the
        source that it is unique for.
    """
    told: dict[str, Any] = {
        "recipient_ai": content.recipient,
        "source_system": known_as or content.source_system,
        "dedupe_key": _key(content, known_as),
        "title": content.title,
        "summary": content.summary,
        "metadata": dict(content.metadata),
    }
    if door != Door.INBOX:
        told |= {
            "receipt_id": content.receipt_id,
            "event_type": content.event_type,
            "artifact_pointer": content.artifact_pointer,
            "artifact_location": content.artifact_location,
            "requires_action": content.requires_action,
            "suggested_next_step": content.suggested_next_step,
            "caused_by_receipt_id": content.caused_by,
            "pairs_with": content.pairs_with,
        }
    if door == Door.GATEHOUSE:
        told |= {
            "group": content.group,
            "delivery_handle": content.delivery_handle,
            "surface": content.surface,
        }
    return json.dumps({name: value for name, value in told.items() if value is not None}, ensure_ascii=False).encode()


def _key(content: Content, known_as: str | None) -> str:
    if known_as is None:
        return content.dedupe_key
    # The length keeps apart what would read the same after joining.
    key = f"{len(content.source_system)}:{content.source_system}:{content.dedupe_key}"
    return key if len(key) <= _MAX_KEY else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The remote has it."""

    receipt_id: str | None
    uuid: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    code: str
    said: str
    status: int | None = None

    @property
    def turned_away(self) -> bool:
        """The door has refused who called, so that it has surely not stored what was said."""
        return self.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(_Failed):
    """The remote will never take it as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Later(_Failed):
    """It may go well another time."""

    unwell: bool = True
    """The target as a whole is in trouble, not this letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """The remote takes nothing for a while, whichever letter comes; this one has not been tried."""

    code: str
    said: str
    wait: timedelta
    """How long it asked us to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What the letter's receipt is called here."""

    receipt_id: str
    uuid: UUID


Verdict = Delivered | Refused | Later | Resting

_MENDABLE: Final = frozenset({401, 403, 407, 408, 421, 425, 429})
"""What an operator there or here, or time, can change. The remote is up, so its other letters may go."""
_BUSY: Final = frozenset({429, 503})
_CONFLICTS: Final = frozenset({"dedupe_conflict", "receipt_id_conflict"})


def judge(outcome: Answer | CallFailed, *, door: Door, sent: Sent, now: datetime) -> Verdict:
    """What became of a letter.

    Success must be proved: an answer that does not name the stored receipt, whatever its status, has delivered nothing.
    Nor has one that names the very receipt that was sent: that one is here.
    """
    if isinstance(outcome, CallFailed):
        return Later(code=outcome.code, said=str(outcome))
    status, told = outcome.status, _object(outcome.body)
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return _stored(told, door, sent) or Later(
            code="not_a_receipt", said=f"Answered {status} without naming a stored receipt.", status=status
        )
    if status == HTTPStatus.CONFLICT:
        return _conflict(told, door, sent)
    said = f"Answered {status}: {_said(told)}" if _said(told) else f"Answered {status}."
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _MENDABLE:
        return Refused(code=f"http_{status}", said=said, status=status)
    if status in _BUSY and (wait := _asked_to_wait(outcome.headers.get("retry-after"), now)):
        return Resting(code=f"http_{status}", said=said, wait=wait)
    return Later(code=f"http_{status}", said=said, status=status, unwell=status not in _MENDABLE)


def _object(content: bytes) -> dict[str, Any]:
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _stored(told: Mapping[str, Any], door: Door, sent: Sent, prefix: str = "") -> Delivered | Refused | None:
    receipt_id, uuid = _id(told.get(f"{prefix}receipt_id")), _uuid(told.get(f"{prefix}uuid"))
    # A mere inbox makes ids of its own; elsewhere the receipt keeps its id, and has another uuid.
    if uuid == sent.uuid or (door == Door.INBOX and receipt_id == sent.receipt_id):
        return Refused(
            code="came_back", said="The answer names the receipt that was sent: this target leads back here."
        )
    proof = receipt_id if door == Door.INBOX else uuid
    return None if proof is None else Delivered(receipt_id=receipt_id, uuid=uuid)


def _conflict(told: Mapping[str, Any], door: Door, sent: Sent) -> Verdict:
    error = told.get("error")
    if error in _CONFLICTS:
        return Refused(code=str(error), said=_said(told) or "Answered 409.", status=409)
    there = _stored(told, door, sent, "existing_") if error in {None, "duplicate_receipt"} else None
    return there or Later(code="http_409", said="Answered 409 without saying what is in the way.", status=409)


def _said(told: Mapping[str, Any]) -> str:
    words = [told.get(name) for name in ("error", "code", "message", "detail")]
    return legible(": ".join(word for word in words if isinstance(word, str) and word))


def legible(text: str) -> str:
    """A remote's words as the database and a reader can take them."""
    return storable(text[:_MAX_SAID])


def _id(value: Any) -> str | None:
    return legible(value) if isinstance(value, str) and 0 < len(value) <= _MAX_ID else None


def _uuid(value: Any) -> UUID | None:
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _asked_to_wait(value: str | None, now: datetime) -> timedelta:
    """`Retry-After`, as seconds or a date; nonsense is no wish, and nobody is waited for longer than a day."""
    if value is None:
        return timedelta(0)
    try:
        wait = timedelta(seconds=int(value)) if value.strip().isdecimal() else _until(value, now)
    except (ValueError, OverflowError, TypeError):
        return timedelta(0)
    return max(timedelta(0), min(wait, _LONGEST_WAIT))


def _until(date: str, now: datetime) -> timedelta:
    moment = parsedate_to_datetime(date)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now
