"""What the params of a tool take: kinds of values, choices, and the words that go before a value."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import jsonschema_rs

from apps.plans.catalogue import Tool, allowed, listed, resolved
from apps.plans.local import words
from apps.plans.local.tokens import Found, Kind, pairs, scan

_ARGUMENT: Final = re.compile(r"(?m)^[ \t]*(?:[-*][ \t]*)?`?(\w+)`?(?:[ \t]*\([^)\n]*\))?:[ \t]+(\S.*)$")
_EXAMPLE: Final = re.compile(r"(?i)(?:\be\.g\.,?|\bfor example,?|\bexample:|\bsuch as|\blike)\s+[\"'`]?([^\s\"'`,;)]+)")
UNNAMING: Final = frozenset({"id", "new", "is", "name"})
"""Words of a param's name that don't tell what it is of."""
_PREFIX: Final = re.compile(r"(?<!\w)[A-Za-z]{1,8}(?:-[A-Z]{1,8})?[_-](?=\w*\d)")
_IN_UNIT: Final = re.compile(
    r"(?i)(?:^(?:(?:number|amount) of )?(?=\w+s\b|percent)|\b(?:in|of) )(?:degrees )?([a-z°%]{2,})\b"
)
_FORMATS: Final = {name: tuple(map(Kind, kinds)) for name, kinds in words.entries("formats")}
_KNOB: Final = "knob"
_ROLES: Final = {
    (head.startswith(_KNOB), word + end): (
        head.split()[0],
        tuple(Kind(kind) for kind in head.split()[1].split(",") if kind != "-"),
    )
    for end in ("s", "")
    for head, listed in words.entries("params")
    for word in listed
}
"""By whether it is a knob, and the word: "head" of a file is a knob, "head" of a branch is none."""
_TOLD: Final = frozenset(
    ("email", "url", "language", "country", "currency", "timezone", "phone", "path", "date", "sql", "cursor")
)
"""Roles that a word of the description gives to a param whose name says nothing."""
_CUES: Final = [(frozenset(head.split()), frozenset(listed)) for head, listed in words.entries("cues")]
_NUMERIC: Final = frozenset((Kind.INTEGER, Kind.NUMBER, Kind.NUMBER_REF, Kind.DURATION, Kind.MONEY, Kind.QUANTITY))
_PROSE: Final = frozenset(("query", "text", "request"))
_PLAIN: Final = _PROSE | {"name", "other"}
_NAMED: Final = frozenset((Kind.LANGUAGE, Kind.COUNTRY, Kind.CURRENCY, Kind.UNIT, Kind.INTEGER))
_QUOTABLE: Final = frozenset(
    (Kind.PATH, Kind.FILE, Kind.GLOB, Kind.SLUG, Kind.ID, Kind.REPO, Kind.SQL, Kind.EXPRESSION, Kind.USER, Kind.CHANNEL)
)
_CODES: Final = frozenset((Kind.ID, Kind.SLUG, Kind.GLOB, Kind.VERSION, Kind.IP, Kind.DOMAIN))
_CODE: Final = 0.7
"""How well what looks like an id serves a param that takes any text."""
_NUMBERED: Final = 0.5
_NEAR: Final = {
    (Kind(found), Kind(taken)): float(how)
    for how, listed in words.entries("near")
    for found, taken in (pair.split(">") for pair in listed)
}
"""(what was found, what the param takes): how well it serves."""
_CURRENCIES: Final = frozenset(words.CURRENCIES.values())
_YEAR: Final = re.compile(r"\d+-01-01/\d+-12-31")
_ABBREVIATED: Final = 3
_PAST: Final = frozenset(("log", "track"))
_AHEAD: Final = frozenset(("scheduled", "planned", "expected", "needed", "due", "deadline", "next", "until"))
_ROUTE: Final = frozenset(("airport", "destination", "flight", "from", "origin", "station", "train"))
"""Words of the names of params of a journey."""
_LETTERS: Final = frozenset("cfghlms")
"""Units at the end of a name: `distance_m`, but not `top_k`."""
_DEGREES: Final = frozenset("CFK")


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
    words: tuple[str, ...]
    """The stems of its name."""
    cues: frozenset[str]
    """Stems of its name, title and description, and small words, that may stand before its value."""
    role: str
    """What it is for: `query`, `text`, `request`, `name` and `other` take plain words; `slug`, `id` and `user` one plain word;
    `knob`, `number`, `flag`, `choice`, `secret`, `cursor` none. Others are called as the kind they take."""
    prefixes: tuple[str, ...]
    """What the ids in its description begin with: `evt_`."""
    side: str
    """`left` or `right` of a pair, `start` or `end` of a range, where its name says so."""
    unit: str
    """The unit its number is in, where the name or description says so."""
    minimum: float | None
    maximum: float | None
    pattern: str
    format: str
    past: bool
    """Are its days over: `paid_on`, `since`?"""


def params_of(tool: Tool) -> tuple[Param, ...]:
    """The params of a tool in the order of its schema. Descriptions may stand in the tool's own, as `name: description`."""
    inputs = {name: schema for name, schema in tool.inputs.items() if isinstance(schema, Mapping)}
    told = {name: text for name, text in _ARGUMENT.findall(tool.description) if name in inputs}
    siblings = dict.fromkeys(one for name in inputs for one in (*words.pieces(name), " ".join(words.pieces(name))))
    params = [
        _param(name, raw, tool, told.get(name, ""), siblings, required=name in tool.required)
        for name, raw in inputs.items()
    ]
    sided = {param.side for param in params if param.required} & {"left", "right"}
    return tuple(replace(param, side="") if param.side in sided and not param.required else param for param in params)


def normal(text: object) -> str:
    """The stems of a text's words, apart by spaces: "In_Progress" and "in progress" are the same."""
    return " ".join(words.stem(piece) for piece in (words.pieces(str(text)) or [str(text)]))


def _param(
    name: str, raw: Mapping[str, Any], tool: Tool, told: str, siblings: Mapping[str, None], *, required: bool
) -> Param:
    schema = resolved(raw, tool.input_schema)
    array = schema.get("type") == "array"
    items = schema.get("items")
    item = (resolved(items, tool.input_schema) if isinstance(items, Mapping) else {}) if array else schema
    description = str(schema.get("description") or item.get("description") or told)
    own = words.pieces(name)
    kind = _type(item)
    choices = _choices(item)
    side = next((side for side in ("start", "end") if words.PAIRS[side] & {*own, " ".join(own)}), "")
    mine = next((word for word in own if word in words.PAIRS["start"] & words.PAIRS["end"]), "")
    # A guest arrives first, a train departs first.
    is_dated = item.get("format") in ("date", "date-time") or own[-1:] in (["date"], ["day"])
    is_stay = is_dated and _ROUTE.isdisjoint(siblings)
    if mine == "arrival":
        side = "start" if is_stay else "end"
    elif mine:
        side = "end" if is_stay and " ".join(own).replace(mine, "arrival") in siblings else "start"
    for one, other in (("left", "right"), ("right", "left")):
        if (
            own
            and (own[-1] in words.PAIRS[one] or " ".join(own) in words.PAIRS[one])
            and words.PAIRS[other] & siblings.keys()
        ):
            side = one
    named = (
        piece
        for piece in reversed(own)
        if (len(piece) > 1 or (own[1:] and piece in _LETTERS)) and (piece != "min" or len(own) == 1)
    )
    unit = next((words.UNITS[piece] for piece in named if piece in words.UNITS), "")
    if not unit and kind in ("integer", "number"):
        unit = next(
            (words.UNITS[one.lower()] for one in _IN_UNIT.findall(description) if one.lower() in words.UNITS), ""
        )
    role, kinds = _role(own, kind, item, description)
    role = "text" if role == "request" and array else role
    if role == "repo" and side == "right":
        kinds = (Kind.SLUG,)
    if kind in ("integer", "number"):
        timed = (Kind.DURATION,) if unit in words.SECONDS else ()
        kinds = (
            *(one for one in (*kinds, *timed) if one in _NUMERIC),
            Kind.INTEGER,
            *((Kind.NUMBER,) if kind == "number" else ()),
        )
    return Param(
        name=name,
        schema=schema,
        required=required,
        type=kind,
        kinds=frozenset(kinds) & _NAMED if choices else frozenset(kinds),
        choices=choices,
        closed="enum" in item or "const" in item,
        array=array,
        words=tuple(words.stem(piece) for piece in own),
        cues=_cues(own, f"{schema.get('title', '')} {description}"),
        role="choice" if choices else role,
        prefixes=tuple(_PREFIX.findall(f"{description} {' '.join(map(str, listed(item.get('examples'))))}")),
        side=side,
        unit=unit,
        minimum=_bound(item, "minimum", "exclusiveMinimum"),
        maximum=_bound(item, "maximum", "exclusiveMaximum"),
        pattern=item["pattern"] if isinstance(item.get("pattern"), str) else "",
        format=str(item.get("format", "")),
        past="since" in own
        or (
            not _AHEAD & set(own)
            and (
                (own[-1:] in (["on"], ["at"]) and any(one.endswith("ed") or one in words.IRREGULAR for one in own))
                or (not side and not _PAST.isdisjoint(words.pieces(tool.name)[:1]))
            )
        ),
    )


def _type(item: Mapping[str, Any]) -> str:
    if isinstance(item.get("type"), str):
        return str(item["type"])
    first = next(iter(allowed(item)), None)
    return {bool: "boolean", int: "integer", float: "number", str: "string"}.get(type(first), "")


def _choices(item: Mapping[str, Any]) -> dict[str, Any]:
    """The allowed values by normal form, also without words that most share, and by the names they are codes of."""
    found = {normal(value): value for value in reversed(allowed(item))}
    heads = [name.partition(" ")[0] for name in found]
    shared = {head for head in heads if heads.count(head) > max(len(heads) / 2, 1)}
    for name in list(found):
        first, _, rest = name.partition(" ")
        if rest and first in shared:
            found.setdefault(rest, found[name])
    for name in [one for one in found if len(one) == _ABBREVIATED]:
        for word in words.CALENDAR:
            if word.startswith(name):
                found.setdefault(normal(word), found[name])
    by_code = {str(value).lower(): value for value in allowed(item)}
    for table in (words.COUNTRIES, words.LANGUAGES, words.CURRENCIES):
        named = {name: by_code[code.lower()] for name, code in table.items() if code.lower() in by_code}
        if len(set(named.values())) * 2 > len(by_code) > 1:
            found = {**{normal(name): value for name, value in named.items()}, **found}
    return found


def _role(own: list[str], kind: str, item: Mapping[str, Any], description: str) -> tuple[str, tuple[Kind, ...]]:
    """The role of a param and the kinds it takes, by its type, its format, its name, its description and its examples."""
    if kind == "boolean":
        return "flag", ()
    number = kind in ("integer", "number")
    names = ["_".join(own), *(word for word in reversed(own) if word not in ("name", "number")), *own]
    keys = [(knob, word) for knob in (number, not number) for word in names]
    role, kinds = next((_ROLES[key] for key in keys if key in _ROLES), ("other", ()))
    told = str(item.get("format", ""))
    if told in _FORMATS:
        return (role if role in _PROSE else str(_FORMATS[told][0])), _FORMATS[told]
    if number:
        bounds = own[:1] in (["max"], ["maximum"], ["min"], ["minimum"], ["num"])
        kept = ("money", "duration", _KNOB) if bounds else ("money", "duration", _KNOB, "id", "coordinates")
        priced = {*own, *words.prose(description)} & words.CURRENCIES.keys() - words.UNITS.keys()
        told = "money" if priced else "number"
        return role if role in kept else told, kinds
    if kind == "object":
        return "json", (Kind.JSON,)
    if role == _KNOB:  # digits of a card, not a count
        role, kinds = _ROLES[False, "id"]
    if role == "other":
        spoken = (_ROLES[False, word] for word in _opening(description) if (False, word) in _ROLES)
        role, kinds = next((one for one in spoken if one[0] in _TOLD), (role, kinds))
    if role not in _PROSE:
        if "iso 8601" in description.lower() and role not in ("date", "duration"):
            kinds = (*kinds, Kind.DATETIME, Kind.DATE)
        examples = [str(one) for one in listed(item.get("examples"))] + _EXAMPLE.findall(description)
        kinds = (*kinds, *(shape for example in examples for shape in _shapes(example.rstrip("."))))
    return role, kinds


def _shapes(example: str) -> list[Kind]:
    """The kinds that all of an example is."""
    tokens, found, digits = scan(example)
    whole = (one for one in (*found, *pairs(tokens, digits)) if one.last - one.first == len(tokens) - 1)
    return [one.kind for one in whole]


def _opening(description: str) -> list[str]:
    """The words of the first sentence."""
    return words.prose(description.split(". ", maxsplit=1)[0])


def _cues(own: list[str], prose: str) -> frozenset[str]:
    told = [word for word in _opening(prose) if word not in words.SMALL]
    small = [word for heads, listed in _CUES if listed & set(own) for word in heads]
    return frozenset(words.stem(word) for word in (*own, *told, *small))


def _bound(item: Mapping[str, Any], *keys: str) -> float | None:
    return next((float(item[key]) for key in keys if isinstance(item.get(key), int | float)), None)


def fits(param: Param, found: Found) -> float:
    """How well a value serves a param: 0 not at all, 1 exactly its kind."""
    if param.choices and _picked(param, found) is not None:
        return 1.0
    if param.closed or param.type == "boolean" or param.role in ("secret", "cursor"):
        return 0.0
    score = _of_kind(param, found) * _of_unit(param, found) * _of_side(param, found)
    return score if score and _allowed(param, coerced(param, found)) else 0.0


def _picked(param: Param, found: Found) -> Any:
    texts = [normal(text) for text in (found.value, found.unit) if text != ""]
    return next((param.choices[text] for text in texts if text in param.choices), None)


def _of_kind(param: Param, found: Found) -> float:
    kind = found.kind
    is_year = kind is Kind.PERIOD and "year" in param.words and _YEAR.fullmatch(found.value)
    if kind in param.kinds or is_year:
        return 0.7 if kind is Kind.INTEGER and param.type == "string" else 1.0
    best = max((_NEAR.get((kind, own), 0.0) for own in param.kinds), default=0.0)
    if param.type not in ("string", ""):
        return best
    if kind is Kind.QUOTED:
        return 0.95 if param.role in _PLAIN else 0.8 if param.kinds & _QUOTABLE else 0.0
    if param.role in ("name", "other") and kind in _CODES:
        return max(best, _CODE)
    if param.role == "other" and kind is Kind.INTEGER:
        return max(best, _NUMBERED)
    return max(best, 0.4) if param.role in _PLAIN and kind not in (*_NUMERIC, Kind.UNIT) else best


def _of_unit(param: Param, found: Found) -> float:
    """How well the unit of a number agrees with the param's."""
    unit, kind = found.unit, found.kind
    if kind not in _NUMERIC or not unit or unit == param.unit:
        return 1.0
    if unit in _CURRENCIES or param.role == "money":
        return 1.0 if unit in _CURRENCIES and param.role == "money" else 0.3 if unit in _CURRENCIES else 0.1
    if unit in words.SECONDS:
        return 1.0 if param.unit in words.SECONDS else 0.5
    if unit in words.RATIOS and param.unit in words.RATIOS:
        return 1.0 if words.RATIOS[unit][0] == words.RATIOS[param.unit][0] else 0.1
    if unit == "degree":
        return 1.0 if param.unit in _DEGREES or not param.unit else 0.1
    return 0.1 if param.unit else 0.7


def _of_side(param: Param, found: Found) -> float:
    """How well an end of a range, or half of a pair, serves a param that is made for it, or for none."""
    if found.role not in ("start", "end", "left", "right"):
        return 0.5 if found.role == "ordinal" else 1.0
    if found.role == param.side:
        return 1.0
    if {found.role, param.side} in ({"start", "end"}, {"left", "right"}):
        return 0.0
    return 0.6 if found.role in ("start", "end") and found.kind not in _NUMERIC else 0.2


@lru_cache(maxsize=4096)
def _validator(pattern: str) -> jsonschema_rs.Validator | None:
    try:
        return jsonschema_rs.validator_for({"pattern": pattern})
    except (ValueError, jsonschema_rs.ValidationError):
        return None


def _allowed(param: Param, value: Any) -> bool:
    one = value[0] if isinstance(value, list) and value else value
    if param.type == "object" and not isinstance(one, Mapping):
        return False
    if isinstance(one, int | float):
        return (param.minimum is None or one >= param.minimum) and (param.maximum is None or one <= param.maximum)
    if param.pattern and isinstance(one, str) and (validator := _validator(param.pattern)):
        return validator.is_valid(one)
    return True


def coerced(param: Param, found: Found) -> Any:
    """The value in the param's JSON type and unit."""
    value = _picked(param, found) if param.choices else None
    if value is None:
        value = _converted(param, found)
    return [value] if param.array else value


def _converted(param: Param, found: Found) -> Any:
    value, kind = found.past if param.past and found.past else found.value, found.kind
    if kind in _NUMERIC and found.unit in words.RATIOS and param.unit in words.RATIOS:
        value = round(float(value) * words.RATIOS[found.unit][1] / words.RATIOS[param.unit][1], 6)
        value = int(value) if value == int(value) else value
    elif kind is Kind.DURATION or (kind in _NUMERIC and found.unit in words.SECONDS and param.unit in words.SECONDS):
        value = _lasting(param, found)
    elif (
        kind in (Kind.LANGUAGE, Kind.COUNTRY)
        and ({"code", "iso"} & param.cues or param.schema.get("maxLength") in (2, 3))
    ) or (kind is Kind.UNIT and {"symbol", "code", "abbrevi"} & param.cues):
        value = found.unit
    elif kind is Kind.TIME and param.format == "time":
        value = f"{value}:00Z"
    elif kind is Kind.DATE and Kind.DATETIME in param.kinds and Kind.DATE not in param.kinds:
        value = f"{value}T{'23:59:59' if found.role == 'end' else '00:00:00'}Z"
    elif kind is Kind.PERIOD and "year" in param.words:
        value = int(value[:4])
    elif kind is Kind.PERIOD and "month" in param.words:
        value = str(value)[: len("2026-01")]
    elif kind is Kind.DATETIME and Kind.DATE in param.kinds and Kind.DATETIME not in param.kinds:
        value = str(value)[:10]
    elif kind is Kind.DOMAIN and Kind.URL in param.kinds and param.role != "domain":
        value = f"https://{value}"
    elif kind is Kind.USER or (
        kind is Kind.CHANNEL and "#" not in str(param.schema.get("description", "")).partition("without")[0]
    ):
        value = str(value).lstrip("@#")
    elif kind is Kind.JSON and param.type in ("object", ""):
        value = _parsed(str(value))
    return str(value) if param.type == "string" and not isinstance(value, str) else value


def _lasting(param: Param, found: Found) -> Any:
    seconds = found.value if found.kind is Kind.DURATION else found.value * words.SECONDS[found.unit]
    value = seconds / words.SECONDS.get(param.unit or found.unit, 1.0)
    if param.type == "string":
        return f"PT{seconds:g}S" if param.format == "duration" else f"{value:g}{(param.unit or found.unit)[0]}"
    return int(value) if value == int(value) else value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
