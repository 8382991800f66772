"""What the params of a tool take: kinds of values, choices, and the words that go before a value."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jsonschema_rs

from apps.plans.catalogue import Tool
from apps.plans.local import words
from apps.plans.local.tokens import Found, Kind

_OPTIONS: Final = re.compile(
    r"(?i)\b(?:one of|either|options?(?: are)?|allowed values?(?: are)?|possible values?(?: are)?|values|must be|can be)\s*:?\s*"
    r"((?:[\"'`(]?[\w.-]+[\"'`)]?\s*(?:,\s*(?:or\s+)?|\s+or\s+|\s*\|\s*))+[\"'`]?[\w.-]+)"
)
_DEFAULT: Final = re.compile(r"(?i)\bdefaults?(?:\s+(?:is|to|value))?\s*[:=]?\s*[\"'`]?([\w./-]*\w)")
_IN_UNIT: Final = re.compile(
    r"(?i)\b(?:in|of|number of)\s+(milliseconds|seconds|minutes|hours|days|weeks|months|years|ms|sec|min)\b"
)
_FORMATS: Final = {
    "email": (Kind.EMAIL,),
    "uri": (Kind.URL, Kind.DOMAIN),
    "url": (Kind.URL, Kind.DOMAIN),
    "date": (Kind.DATE,),
    "date-time": (Kind.DATETIME, Kind.DATE),
    "time": (Kind.TIME,),
    "duration": (Kind.DURATION,),
    "uuid": (Kind.UUID,),
    "hostname": (Kind.DOMAIN,),
    "ipv4": (Kind.IP,),
}
_ROLES: Final = {
    word: (head.split()[0], tuple(Kind(kind) for kind in head.split()[1].split(",") if kind != "-"))
    for head, listed in words.entries("params")
    for word in listed
}
_CUES: Final = [(frozenset(head.split()), frozenset(listed)) for head, listed in words.entries("cues")]
_NUMERIC: Final = frozenset((Kind.INTEGER, Kind.NUMBER, Kind.NUMBER_REF, Kind.DURATION, Kind.MONEY, Kind.QUANTITY))
_TEXTUAL: Final = frozenset(("query", "text", "name", "request", "other"))
_NEAR: Final[Mapping[tuple[Kind, Kind], float]] = {
    (Kind.DATE, Kind.DATETIME): 0.8,
    (Kind.DATETIME, Kind.DATE): 0.5,
    (Kind.DOMAIN, Kind.URL): 0.7,
    (Kind.FILE, Kind.PATH): 0.9,
    (Kind.PATH, Kind.FILE): 0.9,
    (Kind.REPO, Kind.PATH): 0.6,
    (Kind.REPO, Kind.ID): 0.6,
    (Kind.GLOB, Kind.PATH): 0.5,
    (Kind.UUID, Kind.ID): 1.0,
    (Kind.ID, Kind.SLUG): 0.9,
    (Kind.VERSION, Kind.SLUG): 0.7,
    (Kind.SLUG, Kind.ID): 0.8,
    (Kind.DOTTED, Kind.ID): 0.6,
    (Kind.INTEGER, Kind.NUMBER): 1.0,
    (Kind.EMAIL, Kind.USER): 0.9,
}
"""(what was found, what the param takes): how well it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One param of a tool."""

    name: str
    schema: Mapping[str, Any]
    """Its JSON Schema: references are resolved, and null is left out."""
    required: bool
    type: str
    """The JSON type, that of an item for an array; empty: any."""
    kinds: frozenset[Kind]
    """What it takes at once."""
    choices: Mapping[str, Any]
    """The normal form of each allowed word, see :func:`normal`, and the value it stands for; empty: not an enum."""
    closed: bool
    """Nothing but the choices is allowed."""
    array: bool
    default: Any
    words: tuple[str, ...]
    """The stems of its name."""
    cues: frozenset[str]
    """Stems of its name, title and description, and small words, that may stand before its value."""
    role: str
    """`query`, `text`, `name`, `id`, `path`, `request`, `knob`, `secret`, `choice`, `flag`, `number` or another."""
    side: str
    """`left` or `right` of a pair, `start` or `end` of a range, where its name says so."""
    unit: str
    """The unit its number is in, where the name or description says so."""
    minimum: float | None
    maximum: float | None
    pattern: str
    format: str


def params_of(tool: Tool) -> tuple[Param, ...]:
    """The params of a tool in the order of its schema."""
    required = set(tool.required)
    inputs = {name: schema for name, schema in tool.inputs.items() if isinstance(schema, Mapping)}
    names = {piece for name in inputs for piece in words.pieces(name)}
    return tuple(_param(name, schema, name in required, tool, names) for name, schema in inputs.items())


def normal(text: object) -> str:
    """The stems of a text's words, apart by spaces: "In_Progress" and "in progress" are the same."""
    return " ".join(words.stem(piece) for piece in (words.pieces(str(text)) or [str(text)]))


def _param(name: str, raw: Mapping[str, Any], required: bool, tool: Tool, siblings: set[str]) -> Param:  # noqa: FBT001
    schema = _resolved(raw, tool.input_schema, 0)
    array = schema.get("type") == "array"
    item = (
        _resolved(schema["items"], tool.input_schema, 0)
        if array and isinstance(schema.get("items"), Mapping)
        else schema
    )
    description = str(schema.get("description") or item.get("description") or "")
    kind = _type(item) if not array or item is not schema else ""
    own = words.pieces(name)
    listed = _choices(item, description)
    role, kinds = _role(own, kind, item, description)
    if listed:
        role, kinds = "choice", kinds & {Kind.LANGUAGE, Kind.COUNTRY, Kind.CURRENCY, Kind.UNIT, Kind.INTEGER}
    side = next((side for side in ("start", "end") if words.PAIRS[side] & set(own)), "")
    for one, other in (("left", "right"), ("right", "left")):
        if words.PAIRS[one] & set(own[-1:]) and words.PAIRS[other] & siblings:
            side = one
    return Param(
        name=name,
        schema=schema,
        required=required,
        type=kind,
        kinds=kinds,
        choices=listed,
        closed="enum" in item or "const" in item or "_choices" in item,
        array=array,
        default=schema.get("default", _told_default(description, kind)),
        words=tuple(words.stem(piece) for piece in own),
        cues=_cues(own, f"{schema.get('title', '')} {description}"),
        role=role,
        side=side,
        unit=_unit(own, description),
        minimum=_bound(item, "minimum", "exclusiveMinimum"),
        maximum=_bound(item, "maximum", "exclusiveMaximum"),
        pattern=item["pattern"] if isinstance(item.get("pattern"), str) else "",
        format=str(item.get("format", "")),
    )


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """A schema with its references and alternatives merged into it; of several alternatives, the first that is not null."""
    flat = dict(schema)
    reference = flat.pop("$ref", None)
    if isinstance(reference, str) and reference.startswith("#/") and depth < _DEEP:
        target: Any = root
        for step in reference[2:].split("/"):
            target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        if isinstance(target, Mapping):
            flat = {**_resolved(target, root, depth + 1), **flat}
    for key in ("allOf", "anyOf", "oneOf"):
        options = flat.pop(key, None)
        if not isinstance(options, list) or depth >= _DEEP:
            continue
        solved = [
            _resolved(one, root, depth + 1) for one in options if isinstance(one, Mapping) and one.get("type") != "null"
        ]
        listed = [value for one in solved for value in (one.get("enum") or ([one["const"]] if "const" in one else []))]
        if key == "allOf":
            for one in solved:
                flat = {**one, **flat}
        elif solved:
            flat = {**solved[0], **flat}
            if listed and len(solved) > 1:
                flat.pop("const", None)
                closed = all("enum" in one or "const" in one for one in solved)
                flat = (
                    {**flat, "enum": listed}
                    if closed
                    else {**{k: v for k, v in flat.items() if k != "enum"}, "examples": listed}
                )
    if isinstance(flat.get("type"), list):
        flat["type"] = next((one for one in flat["type"] if one != "null"), "")
    return flat


def _type(item: Mapping[str, Any]) -> str:
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    values = item.get("enum") or [item.get("const")]
    first = values[0] if isinstance(values, list) and values else None
    return {bool: "boolean", int: "integer", float: "number", str: "string"}.get(type(first), "")


def _choices(item: Mapping[str, Any], description: str) -> dict[str, Any]:
    """The allowed values by their normal forms, and by the names of countries, languages and currencies they are codes of."""
    values = item["enum"] if isinstance(item.get("enum"), list) else [item["const"]] if "const" in item else []
    if not values and (told := _OPTIONS.search(description)) and _type(item) in ("string", ""):
        values = [word for word in re.findall(r"[\w.-]*\w", told.group(1)) if word.lower() not in ("or", "and")]
    found: dict[str, Any] = {}
    for value in values:
        if value is not None:
            found.setdefault(normal(value), value)
    if len(found) > 1:
        for table in (words.COUNTRIES, words.LANGUAGES, words.CURRENCIES):
            codes = {code.lower(): code for code in table.values()}
            if sum(str(value).lower() in codes for value in values) * 2 > len(values):
                by_code = {str(value).lower(): value for value in values}
                for word, code in table.items():
                    if code.lower() in by_code:
                        found.setdefault(normal(word), by_code[code.lower()])
    return found


def _role(own: list[str], kind: str, item: Mapping[str, Any], description: str) -> tuple[str, frozenset[Kind]]:
    """The role of a param and the kinds it takes, from its format, its type and the last telling word of its name."""
    if kind == "boolean":
        return "flag", frozenset()
    told = str(item.get("format", ""))
    role, kinds = next(
        (_ROLES[key] for key in ("_".join(own), *reversed(own)) if key in _ROLES),
        ("other", ()),
    )
    if told in _FORMATS:
        kinds = _FORMATS[told]
        role = role if role in ("request", "query") else str(kinds[0])
    elif kind in ("integer", "number"):
        kinds = tuple(_NUMERIC & {Kind.INTEGER, *kinds}) + ((Kind.NUMBER, Kind.QUANTITY) if kind == "number" else ())
        if role not in ("knob", "id", "duration", "money", "coordinates"):
            role = "number"
    elif kind == "object":
        kinds = (Kind.JSON,)
    elif role == "other" and "iso 8601" in description.lower():
        role, kinds = "datetime", (Kind.DATETIME, Kind.DATE)
    return role, frozenset(kinds)


def _told_default(description: str, kind: str) -> Any:
    """A default that stands in the description only."""
    if (told := _DEFAULT.search(description)) is None:
        return None
    text = told.group(1)
    if kind in ("integer", "number"):
        return int(text) if text.isdigit() else None
    if kind == "boolean":
        return {"true": True, "false": False}.get(text.lower())
    return text if kind == "string" and text.lower() not in words.SMALL else None


def _cues(own: list[str], prose: str) -> frozenset[str]:
    told = [word for word in words.prose(prose.split(". ", maxsplit=1)[0]) if word not in words.SMALL]
    small = [word for heads, listed in _CUES if listed & set(own) for word in heads]
    return frozenset(words.stem(word) for word in (*own, *told, *small))


def _unit(own: list[str], description: str) -> str:
    named = next((words.UNITS[piece] for piece in reversed(own) if len(piece) > 1 and piece in words.UNITS), "")
    if not named and (told := _IN_UNIT.search(description)):
        named = words.UNITS[told.group(1).lower()]
    return named


def _bound(item: Mapping[str, Any], *keys: str) -> float | None:
    return next((float(item[key]) for key in keys if isinstance(item.get(key), int | float)), None)


_DEEP: Final = 6
_VALIDATORS: dict[str, Any] = {}


def fits(param: Param, found: Found) -> float:
    """How well a value serves a param: 0 not at all, 1 exactly its kind."""
    if param.choices and _picked(param, found) is not None:
        return 1.0
    if param.closed or param.type == "boolean" or param.role == "secret":
        return 0.0
    score = _kind_fits(param, found)
    if score and found.role and param.side and found.role != param.side:
        score *= 0.2
    elif score and found.role in ("left", "right") and not param.side:
        score *= 0.4
    return score if score and _allowed(param, coerced(param, found)) else 0.0


def _picked(param: Param, found: Found) -> Any:
    for text in (found.value, found.unit):
        if text != "" and normal(text) in param.choices:
            return param.choices[normal(text)]
    return None


def _kind_fits(param: Param, found: Found) -> float:
    kind = found.kind
    if kind in param.kinds:
        return 1.0
    best = max((_NEAR.get((kind, own), 0.0) for own in param.kinds), default=0.0)
    if param.type in ("integer", "number", "object", "array"):
        return best
    if kind is Kind.QUOTED:
        return 0.95 if param.role in _TEXTUAL else 0.8 if param.kinds & _WORDLIKE else 0.0
    if param.role in _TEXTUAL and kind not in _NUMERIC:
        return max(best, 0.4)
    return best


_WORDLIKE: Final = frozenset(
    (Kind.PATH, Kind.FILE, Kind.GLOB, Kind.SLUG, Kind.ID, Kind.REPO, Kind.SQL, Kind.EXPRESSION, Kind.USER, Kind.CHANNEL)
)


def _allowed(param: Param, value: Any) -> bool:
    one = value[0] if isinstance(value, list) and value else value
    if isinstance(one, int | float):
        low, high = param.minimum, param.maximum
        return (low is None or one >= low) and (high is None or one <= high)
    if param.pattern and isinstance(one, str):
        if param.pattern not in _VALIDATORS:
            try:
                _VALIDATORS[param.pattern] = jsonschema_rs.validator_for({"pattern": param.pattern})
            except ValueError:
                _VALIDATORS[param.pattern] = None
        validator = _VALIDATORS[param.pattern]
        return validator is None or bool(validator.is_valid(one))
    return True


def coerced(param: Param, found: Found) -> Any:
    """The value in the param's JSON type and unit."""
    value = _picked(param, found) if param.choices else None
    if value is None:
        value = _converted(param, found)
    return [value] if param.array else value


def _converted(param: Param, found: Found) -> Any:
    value = found.value
    if found.kind is Kind.DURATION or (found.unit in words.SECONDS and param.unit in words.SECONDS):
        seconds = value if found.kind is Kind.DURATION else value * words.SECONDS[found.unit]
        value = seconds / words.SECONDS.get(param.unit or found.unit, 1.0)
        value = int(value) if value == int(value) else value
    if param.type in ("integer", "number"):
        return value
    if param.type == "string" and Kind.DATETIME in param.kinds and found.kind is Kind.DATE:
        return f"{value}T00:00:00Z"
    if found.kind is Kind.DATETIME and Kind.DATE in param.kinds and Kind.DATETIME not in param.kinds:
        return str(value)[:10]
    if found.kind is Kind.DOMAIN and Kind.URL in param.kinds:
        return f"https://{value}"
    if found.kind is Kind.USER:
        return str(value).removeprefix("@")
    return value if param.type != "string" or isinstance(value, str) else str(value)
