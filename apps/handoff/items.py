"""One item as a file: a front matter of plain texts, then a body that is kept byte for byte.

python-frontmatter strips bodies, so the boundary is found here; PyYAML reads what is between the fences.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Self, TypeVar

from apps.handoff.errors import Refused, Unreadable

MAX_BYTES: Final = 64 * 1024
_MAX_HEAD: Final = 4096
_LONGEST_NAME: Final = 100

_FRONT: Final = re.compile(r"---[ \t]*\r?\n(?P<head>.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
# Controls but the tab, other ends of lines, what turns the direction of a line, and letters of no width.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


class Kind(StrEnum):
    LEARNING = "learning"
    CAUTION = "caution"
    CONTEXT = "context"
    THREAD = "thread"


class Priority(StrEnum):
    """Declared in the order in which items are shown."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


RANK: Final = {priority: rank for rank, priority in enumerate(Priority)}
_Choice = TypeVar("_Choice", Kind, Priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What one session tells the next one.

    `project` is the repository that it comes from; `receipt_id` the receipt as which a server has kept it.
    """

    from_session: str
    kind: Kind
    priority: Priority
    created: datetime
    body: str
    project: str | None = None
    receipt_id: str | None = None

    @property
    def turn(self) -> tuple[int, datetime]:
        """Sorts items into the order in which they are shown."""
        return RANK[self.priority], self.created

    def to_bytes(self) -> bytes:
        fields = {
            "from_session": self.from_session,
            "type": self.kind,
            "priority": self.priority,
            "created": moment_text(self.created),
            "project": self.project,
            "receipt_id": self.receipt_id,
        }
        lines = [f"{name}: {_scalar(value)}\n" for name, value in fields.items() if value is not None]
        return f"---\n{''.join(lines)}---\n\n{self.body}".encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """:raises Unreadable: if it is no item."""
        head, body = _split(_decoded(data))
        fields = _fields(head)
        if missing := [name for name in ("from_session", "type", "priority", "created") if name not in fields]:
            raise Unreadable(f"lacks {', '.join(missing)}")
        if not body.strip():
            raise Unreadable("has no body")
        return cls(
            from_session=_line(fields, "from_session"),
            kind=_choice(Kind, fields, "type"),
            priority=_choice(Priority, fields, "priority"),
            created=_moment(fields["created"]),
            body=body,
            project=_line(fields, "project") if "project" in fields else None,
            receipt_id=_line(fields, "receipt_id") if "receipt_id" in fields else None,
        )

    def shown(self, *, in_project: str | None) -> str:
        """As a reader is shown it: who says it, then what they say, quoted, line by line.

        :param in_project: where the reader is; an item from elsewhere says so.
        """
        elsewhere = self.project if self.project != in_project else None
        origin = f" in {one_line(elsewhere)}" if elsewhere is not None else ""
        quoted = "".join(f"> {line}".rstrip(" ") + "\n" for line in _visible(self.body).rstrip("\n").split("\n"))
        return f"[{self.kind} from {one_line(self.from_session)}{origin}]\n{quoted}"


def settled_name(item: Item) -> str:
    """The name of an item that a server has kept: the same whenever it is fetched, and no other item's."""
    chance = hashlib.sha256((item.receipt_id or "").encode()).hexdigest()[:12]
    return f"{int(item.created.timestamp() * 1000):013d}-{chance}-{item.kind}.md"


def fresh_name(kind: Kind, *, now: datetime) -> str:
    """A name for a file that no other has: by the moment, then by chance."""
    return f"{stamp(now)}-{kind}.md"


def stamp(now: datetime) -> str:
    """`<unix ms>-<random>`: sorts by the moment, and no two are the same."""
    return f"{int(now.timestamp() * 1000):013d}-{os.urandom(6).hex()}"


def session_name(name: str) -> str:
    """A session's name as somebody gives it: it names folders too.

    :raises Refused: if it can't.
    """
    if len(name) > _LONGEST_NAME or not _PLAIN.fullmatch(name):
        raise Refused(
            f"{name[:120]!r} can't name a session: letters, digits and . _ + - only, at most {_LONGEST_NAME}."
        )
    return name


def moment_text(moment: datetime) -> str:
    """ISO 8601 in UTC, to the second."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def one_line(name: str) -> str:
    """A name as it is shown within a line, whatever it holds."""
    return _visible(name).replace("\n", "\\n")


def _scalar(text: str) -> str:
    """A text as YAML writes it in one line; every JSON string is such a text."""
    return text if _PLAIN.fullmatch(text.replace(":", "")) else json.dumps(text, ensure_ascii=False)


def _decoded(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise Unreadable(f"is over {MAX_BYTES // 1024} KiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable("is not UTF-8") from None
    if "\x00" in text:
        raise Unreadable("holds a NUL character")
    return text


def _split(text: str) -> tuple[str, str]:
    found = _FRONT.match(text)
    if found is None:
        raise Unreadable("has no front matter between two lines of ---")
    body = text[found.end() :]
    # The blank line below the fence, which every writer here puts there, belongs to the form.
    blank = "\r\n" if body.startswith("\r\n") else "\n"
    return found["head"], body.removeprefix(blank)


def _fields(head: str) -> dict[str, str]:
    """The front matter as it stands: no value is anything but a text, and no key comes twice."""
    # Only who reads an item pays for the reader of YAML.
    import yaml  # noqa: PLC0415

    if len(head) > _MAX_HEAD:
        raise Unreadable("has a front matter of over 4 KiB")
    try:
        node = yaml.compose(head, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError):
        raise Unreadable("has a front matter that is no YAML") from None
    if not isinstance(node, yaml.MappingNode):
        raise Unreadable("has a front matter without keys")
    fields: dict[str, str] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or not isinstance(value, yaml.ScalarNode):
            raise Unreadable("has a front matter with more than plain texts")
        if key.value in fields:
            raise Unreadable(f"says {key.value[:50]!r} twice")
        fields[key.value] = value.value
    return fields


def _line(fields: Mapping[str, str], name: str) -> str:
    text = fields[name].strip()
    if not text or len(text) > _LONGEST_NAME or not text.isprintable():
        raise Unreadable(f"has a {name} that is not one line of 1 to {_LONGEST_NAME} characters")
    return text


def _choice(choices: type[_Choice], fields: Mapping[str, str], name: str) -> _Choice:
    try:
        return choices(fields[name])
    except ValueError:
        raise Unreadable(f"has the unknown {name} {fields[name][:50]!r}") from None


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Unreadable(f"has the created {text[:50]!r}, which is no ISO 8601") from None


def _visible(text: str) -> str:
    """Without what a terminal would obey or a reader could not see."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))
