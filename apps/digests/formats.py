"""As-of tokens: `ent_42@57`, and `ent_42@57~…` where the read was narrower than the whole inbox from its start.

The token names the entry and the state of the inbox that its reader was shown. The part after `~` binds what the read
left out, so that an ack through it never reaches beyond what was shown.
"""

import base64
import re
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from apps.core import strict_json
from apps.core.errors import DomainError, Malformed
from apps.core.ids import format_ref, parse_ref
from apps.core.schemas import parse

ENTRY: Final = "ent"
THREAD: Final = "thr"
MAX_TOKEN: Final = 8000
_TOKEN: Final = re.compile(
    r"(?P<ref>[a-z]+_[0-9]+)@(?P<as_of>0|[1-9][0-9]{0,17})(?:~(?P<bound>[A-Za-z0-9_-]+))?", re.ASCII
)
_Number = Annotated[int, Field(ge=0, lt=2**63)]


class Bound(BaseModel):
    """What a read left out: entries up to `after`, other sources, all but these ids."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    after: _Number = 0
    source: Annotated[str, StringConstraints(max_length=50, pattern=r"^[^\x00]*$")] | None = None
    ids: Annotated[tuple[_Number, ...], Field(max_length=500)] | None = None


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
    if through.bound == _EVERYTHING:
        return token
    text = through.bound.model_dump_json(exclude_defaults=True).encode()
    return f"{token}~{base64.urlsafe_b64encode(text).rstrip(b'=').decode()}"


def parse_through(text: str) -> Through:
    """Read a token, or a bare reference, which binds to no read.

    :raises Malformed: if it is neither.
    """
    if "@" not in text:
        return Through(entry_id=parse_ref(ENTRY, text), as_of=None)
    match = _TOKEN.fullmatch(text) if len(text) <= MAX_TOKEN else None
    if match is None:
        raise Malformed(f"{text[:40]!r} is not a token of the form ent_<number>@<number>.", code="bad_token")
    bound = _EVERYTHING
    if match["bound"]:
        try:
            padded = match["bound"] + "=" * (-len(match["bound"]) % 4)
            bound = parse(Bound, strict_json.loads(base64.urlsafe_b64decode(padded)))
        except (DomainError, ValueError) as exc:
            raise Malformed("The part of the token after ~ can't be read.", code="bad_token") from exc
        if bound == _EVERYTHING:
            raise Malformed("The part of the token after ~ binds nothing.", code="bad_token")
    return Through(entry_id=parse_ref(ENTRY, match["ref"]), as_of=int(match["as_of"]), bound=bound)
