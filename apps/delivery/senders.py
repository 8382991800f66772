"""What each kind of target is sent, and what its answers mean. Apps above register a sender for their kind."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final

from apps.core.outbound import Answer, CallFailed
from apps.delivery.models import Delivery, Kind, Target

_LONGEST_WAIT: Final = timedelta(days=1)
_BUSY: Final = frozenset({429, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """One message, as it is sent."""

    url: str
    body: bytes
    message_id: str
    """Of a webhook's message: the same in each repetition, so that the receiver can drop it."""
    context: Any = field(default=None, repr=False)
    """For the sender that made it."""
    max_answer_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The target has it."""

    remote_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The target will never accept it as it is."""

    code: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """It may succeed at another time."""

    code: str
    said: str
    unwell: bool = True
    """The failure counts against the target as a whole, not only against this delivery."""
    wait: timedelta = timedelta(0)
    """How long the target asked us to wait. It is sent nothing until then."""


Verdict = Delivered | Refused | Later


class Sender:
    """The rules of one kind of target. The defaults judge a call by its status alone."""

    longest_pause: ClassVar[timedelta] = timedelta(minutes=5)
    max_attempts: ClassVar[int | None] = None
    """After so many failed attempts a delivery is dead; None: never."""

    def prepare(self, target: Target, delivery: Delivery, now: datetime) -> Payload | None:
        """What to send now; None if there is nothing to send, in which case the delivery is deleted.

        Called in the transaction of the claim, with both rows locked; changes of the delivery are saved.
        """
        raise NotImplementedError

    def judge(self, payload: Payload, outcome: Answer | CallFailed, *, seconds: float, now: datetime) -> Verdict:
        """What became of a call that took this long. Called outside of transactions."""
        if isinstance(outcome, CallFailed):
            return Later(code=outcome.code, said=str(outcome))
        if 200 <= outcome.status < 300:  # noqa: PLR2004  # success, by HTTP
            return Delivered()
        return postponed(outcome, f"Answered {outcome.status}.", now)

    def settled(self, target: Target, delivery: Delivery, payload: Payload, verdict: Verdict, now: datetime) -> None:
        """Note the end of a call in further columns of both rows, which are locked and saved by the caller."""


def webhook_body(kind: str, at: datetime, **content: Any) -> bytes:
    """The JSON of a webhook's message."""
    return json.dumps({"type": kind, "timestamp": at.isoformat(), "data": content}, separators=(",", ":")).encode()


def postponed(answer: Answer, said: str, now: datetime, *, unwell: bool = True) -> Later:
    """The verdict on an answer that is neither a success nor final: after the wait that the target asks for, if any."""
    wait = _retry_after(answer.headers, now) if answer.status in _BUSY else timedelta(0)
    return Later(code=f"http_{answer.status}", said=said, unwell=unwell, wait=wait)


def _retry_after(headers: Mapping[str, str], now: datetime) -> timedelta:
    """`Retry-After`, as seconds or as a date, at most a day; zero if it is missing or can't be read."""
    value = headers.get("retry-after", "")
    try:
        if value.strip().isdecimal():
            wait = timedelta(seconds=int(value))
        else:
            moment = parsedate_to_datetime(value)
            wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now
    except (ValueError, OverflowError, TypeError):
        return timedelta(0)
    return max(timedelta(0), min(wait, _LONGEST_WAIT))


_senders: Final[dict[str, Sender]] = {}


def register(kind: Kind, sender: Sender) -> None:
    """Make a sender the one of its kind; called when its app is ready."""
    _senders[kind] = sender


def sender_of(target: Target) -> Sender:
    """The sender of a target's kind."""
    return _senders[target.kind]
