"""As-of tokens: `ent_42@57`, and `ent_42@57~…` where the read was narrower than the whole inbox from its start.

The token says which entry and which state of the inbox its reader was shown; the part after `~` binds what the read
left out, so that acking through it never reaches beyond what was shown.
"""

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from apps.core import strict_json
from apps.core.errors import DomainError
from apps.core.ids import format_ref, parse_ref
from apps.digests.errors import BadToken

ENTRY: Final = "ent"
THREAD: Final = "thr"
MAX_TOKEN: Final = 8000
_MAX_IDS: Final = 500
_MAX_SOURCE: Final = 50
_TOKEN: Final = re.compile(
    r"(?P<ref>[a-z]+_[0-9]+)@(?P<as_of>0|[1-9][0-9]{0,17})(?:~(?P<bound>[A-Za-z0-9_-]+))?", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a read left out: entries up to `after`, other sources, all but these ids."""

    after: int = 0
    source: str | None = None
    ids: tuple[int, ...] | None = None

    @property
    def is_everything(self) -> bool:
        return self == _EVERYTHING


_EVERYTHING: Final = Bound()


@dataclass(frozen=True, slots=True, kw_only=True)
class Through:
    """An entry as it was shown: acking through it reaches back to the start of that read."""

    entry_id: int
    as_of: int | None
    bound: Bound = _EVERYTHING


def entry_ref(entry_id: int) -> str:
    return format_ref(ENTRY, entry_id)


def thread_ref(thread_id: int) -> str:
    return format_ref(THREAD, thread_id)


def parse_entry(ref: str) -> int:
    """The entry in `ent_42`, or in a token.

    :raises Malformed: if it names anything else.
    """
    return parse_through(ref).entry_id if "@" in ref else parse_ref(ENTRY, ref)


def format_token(through: Through) -> str:
    """The opaque string that an agent is handed with an entry and hands back."""
    token = f"{entry_ref(through.entry_id)}@{through.as_of}"
    bound = through.bound
    if bound.is_everything:
        return token
    members: dict[str, Any] = {"after": bound.after} if bound.after else {}
    members |= {"source": bound.source} if bound.source is not None else {}
    members |= {"ids": list(bound.ids)} if bound.ids is not None else {}
    text = json.dumps(members, separators=(",", ":")).encode()
    return f"{token}~{base64.urlsafe_b64encode(text).rstrip(b'=').decode()}"


def parse_through(text: str) -> Through:
    """Read a token, or a bare reference, which binds to no read.

    :raises Malformed: if it is neither.
    """
    if "@" not in text:
        return Through(entry_id=parse_ref(ENTRY, text), as_of=None)
    match = _TOKEN.fullmatch(text) if len(text) <= MAX_TOKEN else None
    if match is None:
        raise BadToken(f"{text[:40]!r} is not a token of the form ent_<number>@<number>.")
    bound = _parse_bound(match["bound"]) if match["bound"] else _EVERYTHING
    return Through(entry_id=parse_ref(ENTRY, match["ref"]), as_of=int(match["as_of"]), bound=bound)


def _parse_bound(text: str) -> Bound:
    try:
        members = strict_json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (DomainError, ValueError, binascii.Error) as exc:
        raise BadToken("The part of the token after ~ can't be read.") from exc
    if not isinstance(members, dict) or not members or not members.keys() <= {"after", "source", "ids"}:
        raise BadToken("The part of the token after ~ is of no known form.")
    return Bound(
        after=_number(members.get("after", 0)),
        source=_source(members.get("source")),
        ids=_ids(members["ids"]) if "ids" in members else None,
    )


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise BadToken("The token holds something that is no sequence.")
    return value


def _source(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or len(value) > _MAX_SOURCE or "\x00" in value):
        raise BadToken("The token holds something that is no source.")
    return value


def _ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MAX_IDS:
        raise BadToken("The token holds something that is no list of entries.")
    return tuple(_number(one) for one in value)
