"""Handoff items: the file format, what a reader sees, the estimated cost, the choice within a budget, and the lint.

A file is a YAML front matter of plain texts, then a body that is kept byte for byte. This module loads without Django.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Self, TypeVar

MAX_BYTES: Final = 64 * 1024
TOO_LONG: Final = 400
_BYTES_PER_TOKEN: Final = 4
_MAX_HEAD: Final = 4096
_LONGEST_NAME: Final = 100

_FRONT: Final = re.compile(r"---[ \t]*\r?\n(?P<head>.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
# Controls but the tab, other ends of lines, what turns the direction of a line, and letters of no width.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


class Refused(Exception):
    """A refusal in plain words, for whoever typed the command."""


class Unreadable(Exception):
    """Why a file is no item; the sentence goes on from the file's name."""


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
    """What one session leaves to the next one.

    `project`: the repository that it comes from; `receipt_id`: its receipt on a server.
    """

    from_session: str
    kind: Kind
    priority: Priority
    created: datetime
    body: str
    project: str | None = None
    receipt_id: str | None = None

    @property
    def urgency(self) -> tuple[int, datetime]:
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
        """The item as a reader sees it: its sender, then the body as a quotation.

        :param in_project: the reader's repository; an item from another one names it.
        """
        elsewhere = self.project if self.project != in_project else None
        origin = f" in {one_line(elsewhere)}" if elsewhere is not None else ""
        quoted = "".join(f"> {line}".rstrip(" ") + "\n" for line in _visible(self.body).rstrip("\n").split("\n"))
        return f"[{self.kind} from {one_line(self.from_session)}{origin}]\n{quoted}"


def settled_name(item: Item) -> str:
    """The file name of an item from a server: always the same, and no other item's."""
    return f"{int(item.created.timestamp() * 1000):013d}-{_digest(item.receipt_id or '')}-{item.kind}.md"


def sent_name(receipt_id: str) -> str:
    """The file name under which an item is archived that was sent to a server."""
    return f"sent-{_digest(receipt_id)}.md"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def fresh_name(kind: Kind, *, now: datetime) -> str:
    """A file name that no other file has."""
    return f"{stamp(now)}-{kind}.md"


def stamp(now: datetime) -> str:
    """`<unix ms>-<random>`: sorts by time, and no two are the same."""
    return f"{int(now.timestamp() * 1000):013d}-{os.urandom(6).hex()}"


def session_name(name: str) -> str:
    """Check a session's name, which names folders too.

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
    """A text as it is shown within a line."""
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
    """The front matter: every value is a text, and no key comes twice."""
    # Imported here: commands that read no item start faster.
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
    """Without control and invisible characters."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def estimate(text: str) -> int:
    """About how many tokens a text takes: one for each four bytes, rounded up. Not for budgets of a model."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An item as a reader sees it."""

    item: Item
    text: str
    name: str
    """Its file's, or its receipt's; the last word on the order."""

    @property
    def cost(self) -> int:
        return estimate(self.text)

    @property
    def order(self) -> tuple[int, datetime, str]:
        return (*self.item.urgency, self.name)


S = TypeVar("S", bound=Shown)


def choose(found: Sequence[S], *, max_tokens: int) -> tuple[list[S], list[S]]:
    """The items to show, and those that go on waiting, of items in their order.

    Cautions are always shown, and count. The others are shown in order until one does not fit. If nothing else would be
    shown, the first one is, whatever its cost.
    """
    shown = [one for one in found if one.item.kind is Kind.CAUTION]
    room = max_tokens - sum(one.cost for one in shown)
    waiting: list[S] = []
    for one in found:
        if one.item.kind is Kind.CAUTION:
            continue
        if waiting or (one.cost > room and shown):
            waiting.append(one)
        else:
            shown.append(one)
            room -= one.cost
    return sorted(shown, key=lambda one: one.order), waiting


HARVEST: Final = """\
◈ HARVEST
Learning: what do you know now that the next session would have to find out again?
Caution: what goes wrong, and under which condition?
Context: what that you loaded will be needed again, and for which work? Only if that work goes on.
Thread: what is unfinished, where does it stand, and what is the very next step?
Would the next session thank you for it? If not, leave nothing: an empty inbox is a good one.
"""

_NEXT_STEP: Final = re.compile(
    r"\b(next|resum\w*|continu\w*|then|todo|to do|remain\w*|pick up|start with|run|finish|needs?|needed|must|should)\b",
    re.IGNORECASE,
)
_CONDITION: Final = re.compile(
    r"\b(if|when\w*|while|until|unless|before|after|during|without|never|always|only|must|required?|as long as)\b",
    re.IGNORECASE,
)
_CONTINUATION: Final = re.compile(
    r"\b(next|applies|apply|needed|again|continu\w*|when|if|before|will)\b", re.IGNORECASE
)
_NOTES: Final = re.compile(
    r"\s*(#+\s*)?(session (notes|summary|log)|(notes|summary|log)\b|today\b|(in )?this session\b|(i|we) (did|worked|spent|had)\b)",
    re.IGNORECASE,
)
_ASKED: Final = {
    Kind.THREAD: (_NEXT_STEP, "a thread without a next step: say what to do first"),
    Kind.CAUTION: (_CONDITION, "a caution without a condition: say when it applies"),
    Kind.CONTEXT: (_CONTINUATION, "a context without a continuation: say for which work it will be needed"),
}


def warnings(kind: Kind, body: str) -> list[str]:
    """The gratitude test: what speaks against leaving this. The author decides."""
    found = []
    if (cost := estimate(body)) > TOO_LONG:
        found.append(f"about {cost} tokens; over {TOO_LONG} the next session pays more than it gains")
    if kind in _ASKED and not _ASKED[kind][0].search(body):
        found.append(_ASKED[kind][1])
    if _NOTES.match(body):
        found.append("reads like notes of a session, which belong into the session's own file")
    return found
