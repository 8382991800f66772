"""Data for judging recall and plans: conversations with questions, tools with requests. The forms are in the docs."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

_PLANNER: Final = "docs/planner.md"
# Forms of dates beside ISO 8601.
_DATES: Final = ("%Y/%m/%d", "%Y/%m/%d (%a) %H:%M", "%d %B %Y", "%d %B, %Y", "%B %d, %Y", "%I:%M %p on %d %B, %Y")


class BadData(SystemExit):
    """A file is not of the form that the docs describe; the message says where."""


def _read(shape: Any, text: bytes, place: object, docs: str) -> Any:
    """:raises BadData: with the place, if the text is not JSON of this shape."""
    try:
        return TypeAdapter(shape).validate_json(text)
    except ValidationError as fault:
        first, form = fault.errors()[0], f"{place} is not of the form in {docs}"
        raise BadData(": ".join(filter(None, (form, ".".join(map(str, first["loc"])), first["msg"])))) from fault


# Recall


def moment(text: str | None) -> datetime | None:
    """When a session was; None for a date that can't be read."""
    for form in (None, *_DATES):
        try:
            found = datetime.fromisoformat(text or "") if form is None else datetime.strptime(text or "", form)  # noqa: DTZ007
        except ValueError:
            continue
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return None


_Id = Annotated[str, BeforeValidator(str)]
_Date = Annotated[datetime | None, BeforeValidator(moment)]


class Message(BaseModel):
    id: _Id
    speaker: str
    text: str


class Session(BaseModel):
    id: _Id
    date: _Date = None
    messages: list[Message]


class Conversation(BaseModel):
    id: _Id
    sessions: list[Session]


class Question(BaseModel):
    """A question, and the messages that answer it."""

    conversation: _Id
    question: str
    evidence: frozenset[_Id]


class Conversations(BaseModel):
    """Conversations, and questions about them."""

    conversations: list[Conversation]
    questions: list[Question]


def read_conversations(path: Path) -> Conversations:
    """Read a file for recall.

    :raises BadData: if it is not of the form.
    """
    return _read(Conversations, path.read_bytes(), path, "docs/benchmarks.md")


# Planning


class Example(BaseModel):
    """A request, the tools that serve it in their order, and which result goes on to which tool."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)
    request: str
    nodes: tuple[str, ...]
    links: Annotated[frozenset[tuple[str, str]], BeforeValidator(lambda links: links or ())] = frozenset()


class _Tool(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)
    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    input_types: list[str] | None = None
    output_types: list[str] | None = None

    def described(self) -> dict[str, Any]:
        """The tool with schemas; where there are only types, a param and a field for each."""
        return {
            "name": self.name,
            "description": self.description or "",
            "input_schema": self.input_schema or _of_types(self.input_types or (), required=True),
            "output_schema": self.output_schema or _of_types(self.output_types or (), required=False),
        }


class Data(BaseModel):
    """What planning is judged on."""

    tools: tuple[dict[str, Any], ...]
    history: tuple[Example, ...]
    test: tuple[Example, ...]


def read_planning(folder: Path) -> Data:
    """Read a folder for planning: `tools.json`, `test.jsonl` and, if there is one, `history.jsonl`.

    :raises BadData: if a file is missing or not of its form.
    """
    path, past, test = (folder / name for name in ("tools.json", "history.jsonl", "test.jsonl"))
    if lacks := [one for one in (path, test) if not one.is_file()]:
        raise BadData(f"There is no {lacks[0]}: {_PLANNER} says what is in the folder.")
    tools = _read(Annotated[list[_Tool], Field(min_length=1)], path.read_bytes(), path, _PLANNER)
    return Data(
        tools=tuple(tool.described() for tool in tools),
        history=_examples(past) if past.exists() else (),
        test=_examples(test),
    )


def _examples(path: Path) -> tuple[Example, ...]:
    lines = enumerate(path.read_bytes().splitlines(), start=1)
    return tuple(_read(Example, line, f"{path}, line {number}", _PLANNER) for number, line in lines if line.strip())


def _of_types(types: Sequence[str], *, required: bool) -> dict[str, Any]:
    seen: Counter[str] = Counter()
    names = []
    for one in types:
        name = "_".join(one.lower().split()) or "value"
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    found: dict[str, Any] = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return {**found, "required": names} if required and names else found
