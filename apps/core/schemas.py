"""Base classes of what operations take and give, the one way from JSON to them, and their JSON Schemas.

An operation's schema is a pydantic model: typed for the code that reads it, JSON Schema 2020-12 for MCP and
OpenAPI. Inputs are strict (no "5" for 5) and refuse unknown members.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

from django.db.models import Model, QuerySet
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import ErrorDetails, PydanticKnownError

from apps.core.errors import FieldError, Invalid, TooLarge, near, pointer_to
from apps.core.ids import decode_position, encode_cursor, fits_an_address


class Input(BaseModel):
    """What a caller sends. Immutable; unknown members are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Output(BaseModel):
    """What a caller receives. Further members may be added in later releases.

    Where a selector's answer has the same members, `model_validate` takes it as it is.
    """

    model_config = ConfigDict(
        frozen=True,
        use_attribute_docstrings=True,
        from_attributes=True,
        json_schema_serialization_defaults_required=True,
    )


class Empty(Input):
    """No arguments."""


def _text(value: str) -> str:
    if "\x00" in value:
        raise ValueError("holds a NUL character")
    return value


Text = Annotated[str, AfterValidator(_text)]
# Of one page for the next: what :func:`apps.core.ids.encode_cursor` gave out.
Cursor = Annotated[Text, StringConstraints(min_length=1, max_length=200)]
Row = TypeVar("Row", bound=Model)


class Paged(Input):
    """Which page of a list."""

    limit: Annotated[int, Field(ge=1, le=500)] = 50
    cursor: Cursor | None = None
    """`next` of the page before."""

    @property
    def position(self) -> int | None:
        """The key of the last row of the page before.

        :raises BadCursor: if the cursor is of no such list.
        """
        return None if self.cursor is None else decode_position(self.cursor)

    def of(self, rows: QuerySet[Row], *, newest_first: bool = False) -> tuple[list[Row], str | None]:
        """One page of these rows in the order of their keys, and the cursor of the next one."""
        if self.position is not None:
            rows = rows.filter(pk__lt=self.position) if newest_first else rows.filter(pk__gt=self.position)
        found = list(rows.order_by("-pk" if newest_first else "pk")[: self.limit + 1])
        page = found[: self.limit]
        return page, encode_cursor(page[-1].pk) if len(found) > len(page) else None


Name = Annotated[str, StringConstraints(min_length=1, max_length=50, pattern=r"^[^\x00-\x1f\x7f]+$")]


def _fit_for_a_path(name: str) -> str:
    if not fits_an_address(name):
        raise ValueError("can't stand in an address: no slash, not . or ..")
    return name


# What somebody names: routes will hold it.
FitForAPath: Final = AfterValidator(_fit_for_a_path)
NewName = Annotated[Name, FitForAPath]
_EARLIEST: Final = datetime(1, 1, 3, tzinfo=UTC)
_LATEST: Final = datetime(9999, 12, 29, tzinfo=UTC)
_A_NUMBER: Final = re.compile(r"[+-]?[0-9.]+")


_any_datetime: Final = TypeAdapter(datetime)


def _read_moment(given: Any) -> Any:
    """Read a text here: behind this function a strict model takes no text for a moment. Numbers are not read."""
    if not isinstance(given, str):
        return given
    if _A_NUMBER.fullmatch(given):
        raise ValueError("is a number, not a date and time")
    try:
        return _any_datetime.validate_strings(given)
    except ValidationError:
        return given


def _on_every_calendar(moment: datetime) -> datetime:
    """In UTC: PostgreSQL takes fewer offsets than may be written."""
    if not _EARLIEST <= moment <= _LATEST:
        raise ValueError("is at the edge of the calendar, where other time zones have no date for it")
    return moment.astimezone(UTC)


# A date and time with its offset, on the calendar in every time zone.
Moment = Annotated[AwareDatetime, BeforeValidator(_read_moment), AfterValidator(_on_every_calendar)]

# A text over a limit of this size is a body too large; under it, a field that breaks its rule.
_BODY_SIZED: Final = 16_384
# How many names of fields a refusal lists.
_MOST_LISTED: Final = 20

M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], given: Any) -> M:
    """Validate decoded JSON strictly.

    :raises Invalid: with one pointer per fault.
    :raises TooLarge: if the only faults are lengths over a limit of 16 KiB or more.
    """
    return parse_text(model, json.dumps(given))


def parse_text(model: type[M], text: str | bytes) -> M:
    """As :func:`parse`, from JSON that :mod:`apps.core.strict_json` has found to be sound.

    :raises Invalid: with one pointer per fault.
    :raises TooLarge: if the only faults are lengths over a limit of 16 KiB or more.
    """
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as exc:
        raise refusal(exc, model) from exc


def parse_strings(model: type[M], given: Mapping[str, Any]) -> M:
    """Validate what came as text (query parameters, path parameters); `5` is a number here.

    :raises Invalid: with one pointer per fault.
    """
    try:
        return model.model_validate_strings(dict(given))
    except ValidationError as exc:
        raise refusal(exc, model) from exc


def refusal(exc: ValidationError, model: type[BaseModel] | None = None) -> Invalid | TooLarge:
    """What a validation error means to a caller.

    :param model: whose members may be meant by one that is unknown.
    """
    faults = exc.errors(include_url=False, include_context=True)
    errors = [FieldError(pointer_to(*fault["loc"]), _message(fault, model)) for fault in faults]
    detail = "; ".join(f"{error.pointer or '/'}: {error.message}" for error in errors[:5])
    over = [fault for fault in faults if fault["type"] in {"string_too_long", "too_long"}]
    if len(over) == len(faults) and all(fault["ctx"]["max_length"] >= _BODY_SIZED for fault in over):
        return TooLarge(detail, errors=errors)
    return Invalid(detail, errors=errors)


def _message(fault: ErrorDetails, model: type[BaseModel] | None) -> str:
    match fault["type"]:
        case "value_error":
            return str(fault["ctx"]["error"])
        case "extra_forbidden":
            known = _members(model, fault["loc"][:-1]) if model else ()
            return f"Unknown field.{near(str(fault['loc'][-1]), known) or _listed(known)}"
        # A text that is looked at before it is measured is taken for a list.
        case "too_short" if isinstance(fault["input"], str):
            return PydanticKnownError("string_too_short", {"min_length": fault["ctx"]["min_length"]}).message()
        case "too_long" if isinstance(fault["input"], str):
            return PydanticKnownError("string_too_long", {"max_length": fault["ctx"]["max_length"]}).message()
    return fault["msg"]


def _listed(names: Sequence[str]) -> str:
    return f" The known ones are {', '.join(names)}." if 0 < len(names) <= _MOST_LISTED else ""


def _members(model: type[BaseModel], place: Iterable[int | str]) -> list[str]:
    """The members that a model has at a place; where several models may stand there, of all of them."""
    found = {model}
    for part in place:
        fields = [one.model_fields[part] for one in found if part in one.model_fields]
        # A place in a list, or which of several models is spoken of, is no member.
        found = {inner for field in fields for inner in _models_in(field.annotation)} or found
    return sorted({name for one in found for name in one.model_fields})


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


_HOLDERS = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})


@cache
def json_schema(model: type[BaseModel], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """The JSON Schema of an input (`validation`) or an output (`serialization`), in a dialect that every client reads.

    References are written out, so that no model may hold itself. Titles are dropped, and an object without members says
    so. Do not change the answer.

    :raises ValueError: if the model is not an object, which is all that an operation may take or give.
    """
    raw = model.model_json_schema(mode=mode)
    definitions = raw.pop("$defs", {})
    schema: dict[str, Any] = _plain(raw, definitions)
    if schema.get("type") != "object":
        raise ValueError(f"{model.__name__} is not an object.")
    schema.pop("description", None)
    schema.setdefault("properties", {})
    return schema


def _plain(node: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema without titles and with references written out."""
    if isinstance(node, list):
        return [_plain(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if isinstance(reference := node.get("$ref"), str):
        siblings = {name: value for name, value in node.items() if name != "$ref"}
        return _plain({**definitions[reference.removeprefix("#/$defs/")], **siblings}, definitions)
    return {
        name: {inner: _plain(value[inner], definitions) for inner in value}
        if name in _HOLDERS
        else value
        if name in {"default", "const", "enum", "examples", "required"}
        else _plain(value, definitions)
        for name, value in node.items()
        if name != "title"
    }
