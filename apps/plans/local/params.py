"""What the params of a tool take: kinds of values, choices, units, and the words that go before a value."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import jsonschema_rs

from apps.plans.catalogue import Tool, allowed, listed, resolved
from apps.plans.local import words
from apps.plans.local.tokens import NUMERIC, WHENS, Found, Kind, scan

_ARGUMENT: Final = re.compile(r"(?m)^[ \t]*(?:[-*][ \t]*)?`?(\w+)`?(?:[ \t]*\([^)\n]*\))?:[ \t]+(\S.*)$")
_EXAMPLE: Final = re.compile(r"(?i)(?:\be\.g\.,?|\bfor example,?|\bexample:|\bsuch as|\blike)\s+[\"'`]?([^\s\"'`,;)]+)")
_PREFIX: Final = re.compile(r"(?<!\w)[A-Za-z]{1,8}(?:-[A-Z]{1,8})?[_-](?=\w*\d)")
_IN_UNIT: Final = re.compile(
    r"(?i)(?:^(?:(?:number|amount) of )?(?=\w+s\b|percent)|\b(?:in|of) )(?:degrees )?([a-z°%]{2,})\b"
)
UNNAMING: Final = frozenset({"id", "new", "is", "name"})
"""Words of a param's name that don't tell what it is of."""
_FORMATS: Final = {name: tuple(map(Kind, kinds)) for name, kinds in words.entries("formats")}
_ROLES: Final = {
    (head.startswith("knob"), word + end): (role, tuple(Kind(kind) for kind in kinds.split(",") if kind != "-"))
    for end in ("s", "")
    for head, listed in words.entries("params")
    for role, kinds in [head.split()]
    for word in listed
}
"""By whether it is a knob, and the word: "head" of a file is a knob, "head" of a branch is none."""
_TOLD: Final = frozenset(("email", "url", "language", "currency", "phone", "path", "date", "sql", "cursor"))
"""Roles that a word of the description gives to a param whose name says nothing."""
_CUES: Final = [(head.split(), frozenset(listed)) for head, listed in words.entries("cues")]
_PROSE: Final = frozenset(("query", "text", "request"))
_PLAIN: Final = _PROSE | {"title", "name", "other"}
_CHOSEN: Final = frozenset((Kind.LANGUAGE, Kind.COUNTRY, Kind.CURRENCY, Kind.UNIT, Kind.INTEGER))
_QUOTABLE: Final = frozenset(
    map(Kind, ("path", "file", "glob", "slug", "id", "repo", "sql", "expression", "user", "channel"))
)
_CODES: Final = frozenset(map(Kind, ("id", "slug", "glob", "version", "ip", "domain")))
_NEAR: Final = {
    tuple(map(Kind, pair.split(">"))): float(how) for how, listed in words.entries("near") for pair in listed
}
"""(what was found, what the param takes): how well it serves."""
_CURRENCIES: Final = frozenset(words.CURRENCIES.values())
_LETTERS: Final = frozenset("cfghlms")
"""Units at the end of a name: `distance_m`, but not `top_k`."""
_AHEAD: Final = frozenset(("scheduled", "planned", "expected", "needed", "due", "deadline", "next", "until"))
_ABBREVIATED: Final = 3
_MONTHS: Final = {"month": 1, "year": 12}


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
    own: frozenset[str]
    """Those of them that tell it from other params."""
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
    format: str
    past: bool
    """Are its days over: `paid_on`, `since`?"""


def params_of(tool: Tool) -> tuple[Param, ...]:
    """The params of a tool in the order of its schema. Descriptions may stand in the tool's own, as `name: description`."""
    inputs = {name: schema for name, schema in tool.inputs.items() if isinstance(schema, Mapping)}
    told = {name: text for name, text in _ARGUMENT.findall(tool.description) if name in inputs}
    siblings = [part for name in inputs for own in [words.pieces(name)] for part in (*own, " ".join(own))]
    logs = words.pieces(tool.name)[:1] in (["log"], ["track"])
    params = [_param(name, raw, tool, told.get(name, ""), siblings, logs=logs) for name, raw in inputs.items()]
    unnaming = UNNAMING - {"name"} if sum("name" in one.words for one in params) == 1 else UNNAMING
    return tuple(replace(one, own=frozenset(one.words) - unnaming or one.own) for one in params)


def normal(text: object) -> str:
    """The stems of a text's words, apart by spaces: "In_Progress" and "in progress" are the same."""
    return " ".join(words.stem(piece) for piece in (words.pieces(str(text)) or [str(text)]))


def _param(name: str, raw: Mapping[str, Any], tool: Tool, told: str, siblings: Sequence[str], *, logs: bool) -> Param:
    schema = resolved(raw, tool.input_schema)
    array, items = schema.get("type") == "array", schema.get("items")
    item = (resolved(items, tool.input_schema) if isinstance(items, Mapping) else {}) if array else schema
    description = str(schema.get("description") or item.get("description") or told)
    own = words.pieces(name)
    kind = item["type"] if isinstance(item.get("type"), str) else ""
    kind = kind or next(
        ({bool: "boolean", int: "integer", str: "string"}.get(type(one), "") for one in allowed(item)), ""
    )
    number = kind in ("integer", "number")
    named = (
        one
        for one in reversed(own)
        if (len(one) > 1 or (own[1:] and one in _LETTERS)) and (one != "min" or own == [one])
    )
    units = [*named, *(map(str.lower, _IN_UNIT.findall(description)) if number else ())]
    unit = next((words.UNITS[one] for one in units if one in words.UNITS), "")
    dated = item.get("format") in ("date", "date-time") or own[-1:] in (["date"], ["day"])
    choices, side = _choices(item), _side(own, siblings, dated=dated)
    role, kinds = _role(own, kind, item, description)
    role = "text" if role == "request" and array else role
    if role == "repo" and side == "right":
        kinds = (Kind.SLUG,)
    if number:
        timed = (Kind.DURATION,) if words.RATIOS.get(unit, ("",))[0] == "time" else ()
        kept = (one for one in (*kinds, *timed) if one in NUMERIC or one is Kind.NUMBER_REF)
        kinds = (*kept, Kind.INTEGER, *((Kind.NUMBER,) if kind == "number" else ()))
    stems = tuple(map(words.stem, own))
    small = [word for heads, listed in _CUES if listed & set(own) for word in heads]
    spoken = [word for word in _opening(f"{schema.get('title', '')} {description}") if word not in words.SMALL]
    passed = own[-1:] in (["on"], ["at"]) and any(one.endswith("ed") or one in words.IRREGULAR for one in own)
    return Param(
        name=name,
        schema=schema,
        required=name in tool.required,
        type=str(kind),
        kinds=frozenset(kinds) & _CHOSEN if choices else frozenset(kinds),
        choices=choices,
        closed="enum" in item or "const" in item,
        array=array,
        words=stems,
        own=frozenset(stems),
        cues=frozenset(map(words.stem, (*own, *spoken, *small))),
        role="choice" if choices else role,
        prefixes=tuple(_PREFIX.findall(f"{description} {' '.join(map(str, listed(item.get('examples'))))}")),
        side=side,
        unit=unit,
        format=str(item.get("format", "")),
        past="since" in own or (_AHEAD.isdisjoint(own) and (passed or (not side and logs))),
    )


def _side(own: Sequence[str], siblings: Sequence[str], *, dated: bool) -> str:
    """Where a range begins or ends, or which half of a pair it is. A guest arrives first, a train departs first."""
    parts = {*own, " ".join(own), "".join(own)}
    for one, other in (("left", "right"), ("right", "left")):
        if not parts.isdisjoint(words.PAIRS[one]) and not words.PAIRS[other].isdisjoint(siblings):
            return one
    if both := next((one for one in own if one in ("arrival", "departure")), ""):
        twin = " ".join(own).replace(both, "departure" if both == "arrival" else "arrival")
        is_stay = (
            dated and twin in siblings and {"airport", "destination", "origin", "station", "from"}.isdisjoint(siblings)
        )
        return "start" if (both == "arrival") == is_stay else "end"
    return next((side for side in ("start", "end") if not parts.isdisjoint(words.PAIRS[side])), "")


def _choices(item: Mapping[str, Any]) -> dict[str, Any]:
    """The allowed values by normal form, also without words that most share, and by the names they are codes of."""
    found = {normal(value): value for value in reversed(allowed(item))}
    heads = [name.partition(" ")[0] for name in found]
    for name in list(found):
        first, _, rest = name.partition(" ")
        if rest and heads.count(first) > max(len(heads) / 2, 1):
            found.setdefault(rest, found[name])
        for word in words.GROUPS["calendar"] if len(name) == _ABBREVIATED else ():
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
    if kind in ("boolean", "object"):
        return ("flag", ()) if kind == "boolean" else ("json", (Kind.JSON,))
    number = kind in ("integer", "number")
    names = ["_".join(own), *(word for word in reversed(own) if word not in ("name", "number")), *own]
    keys = [(knob, word) for knob in (number, not number) for word in names]
    role, kinds = next((_ROLES[key] for key in keys if key in _ROLES), ("other", ()))
    if role == "json" and kind == "string":  # the name of a pipeline
        role, kinds = "slug", (*_ROLES[False, "project"][1], *kinds)
    if (told := str(item.get("format", ""))) in _FORMATS:
        return (role if role in _PROSE else str(_FORMATS[told][0])), _FORMATS[told]
    if number:
        bounds = own[:1] in (["max"], ["maximum"], ["min"], ["minimum"], ["num"])
        kept = role in ("money", "duration", "knob", "id", "coordinates") and not (
            bounds and role in ("id", "coordinates")
        )
        priced = {*own, *words.prose(description)} & words.CURRENCIES.keys() - words.UNITS.keys()
        return (role if kept else "money" if priced else "number"), kinds
    is_numbered = role == "name" and not {"number", "no", "code"}.isdisjoint(own[-1:])  # room_number
    if role == "knob" or is_numbered:  # digits of a card, not a count
        role, kinds = _ROLES[False, "id"]
    if role == "other":
        spoken = (_ROLES[False, word] for word in _opening(description) if (False, word) in _ROLES)
        role, kinds = next((one for one in spoken if one[0] in _TOLD), (role, kinds))
    if role not in _PROSE:
        if "iso 8601" in description.lower() and role not in ("date", "duration"):
            kinds = (*kinds, Kind.DATETIME, Kind.DATE)
        examples = [str(one) for one in listed(item.get("examples"))] + _EXAMPLE.findall(description)
        for tokens, found in map(scan, (example.rstrip(".") for example in examples)):
            kinds = (*kinds, *(one.kind for one in found if one.last - one.first == len(tokens) - 1))
    return role, kinds


def _opening(description: str) -> list[str]:
    """The words of the first sentence."""
    return words.prose(description.split(". ", maxsplit=1)[0])


def fits(param: Param, found: Found) -> float:
    """How well a value serves a param: 0 not at all, 1 exactly its kind."""
    if param.choices and _picked(param, found) is not None:
        return 1.0
    if param.closed or param.type == "boolean" or param.role in ("secret", "cursor"):
        return 0.0
    score = _of_kind(param, found) * _of_unit(param, found) * _of_side(param, found)
    return score if score and _is_allowed(param, coerced(param, found)) else 0.0


def _picked(param: Param, found: Found) -> Any:
    texts = [normal(text) for text in (found.value, found.unit) if text != ""]
    return next((param.choices[text] for text in texts if text in param.choices), None)


def _of_kind(param: Param, found: Found) -> float:
    kind = found.kind
    if kind in param.kinds:
        return 0.7 if kind is Kind.INTEGER and param.type == "string" else 1.0
    best = max((_NEAR.get((kind, own), 0.0) for own in param.kinds), default=0.0)
    if param.type not in ("string", ""):
        return best
    if kind is Kind.QUOTED:
        return 0.95 if param.role in _PLAIN else 0.8 if param.kinds & _QUOTABLE else 0.0
    if param.role in ("name", "other") and kind in _CODES:
        return max(best, 0.7)
    if param.role in ("name", "other") and kind is Kind.INTEGER:
        return max(best, 0.5)
    is_odd = kind in NUMERIC or kind is Kind.UNIT or (kind in WHENS and param.role != "text")
    return max(best, 0.4) if param.role in _PLAIN and not is_odd else best


def _of_unit(param: Param, found: Found) -> float:
    """How well the unit of a number agrees with the param's."""
    unit = found.unit
    if found.kind not in NUMERIC or not unit or unit == param.unit:
        return 1.0
    if unit in _CURRENCIES or param.role == "money":
        return 1.0 if unit in _CURRENCIES and param.role == "money" else 0.3 if unit in _CURRENCIES else 0.1
    one, other = words.RATIOS.get(unit, ("",))[0], words.RATIOS.get(param.unit, ("",))[0]
    return 1.0 if one == other else 0.5 if one == "time" else 0.1 if other else 0.7


def _of_side(param: Param, found: Found) -> float:
    """How well an end of a range, or half of a pair, serves a param that is made for it, or for none."""
    if found.role in ("", "ordinal") or found.role == param.side:
        return 1.0 if found.role != "ordinal" else 0.0 if param.role == "id" else 0.5
    if {found.role, param.side} in ({"start", "end"}, {"left", "right"}):
        return 0.0
    return 0.6 if found.role in ("start", "end") and found.kind not in NUMERIC else 0.2


@lru_cache(maxsize=4096)
def _validator(schema: str) -> jsonschema_rs.Validator | None:
    try:
        return jsonschema_rs.validator_for(json.loads(schema))
    except (ValueError, jsonschema_rs.ValidationError):
        return None


_CHECKED: Final = ("pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def _is_allowed(param: Param, value: Any) -> bool:
    if param.type == "object":
        return isinstance(value, Mapping)
    items = param.schema.get("items")
    item = items if param.array and isinstance(items, Mapping) else param.schema
    checked = {name: item[name] for name in _CHECKED if name in item}
    one = value[0] if isinstance(value, list) and value else value
    if param.type == "integer" and isinstance(one, float):
        return False
    validator = _validator(json.dumps(checked, sort_keys=True)) if checked else None
    return validator is None or validator.is_valid(one)


def coerced(param: Param, found: Found) -> Any:
    """The value in the param's JSON type and unit."""
    value = _picked(param, found) if param.choices else None
    value = _converted(param, found) if value is None else value
    return [value] if param.array else value


def _in_unit(param: Param, found: Found) -> Any:
    """A number with a unit, in the param's unit. A year has twelve months, though a month has thirty days."""
    (base, own), (other, ratio) = words.RATIOS[found.unit], words.RATIOS.get(param.unit, ("", 1.0))
    whole = found.value * (1.0 if found.kind is Kind.DURATION else own)
    if found.kind is Kind.DURATION and param.format == "duration":
        return f"PT{whole:.12g}S"
    if base != other and found.kind is not Kind.DURATION:
        return found.value
    value = whole / (ratio if base == other else own)
    if found.unit in _MONTHS and param.unit in _MONTHS:
        value = whole / own * _MONTHS[found.unit] / _MONTHS[param.unit]
    value = round(value, 6)
    return int(value) if value == int(value) else value


def _converted(param: Param, found: Found) -> Any:
    value, kind = found.past if param.past and found.past else found.value, found.kind
    is_month = "month" in param.words
    if kind in NUMERIC and found.unit in words.RATIOS:
        value = _in_unit(param, found)
    elif kind in (Kind.LANGUAGE, Kind.COUNTRY, Kind.UNIT):
        is_code = {"code", "iso", "symbol", "abbrevi"} & param.cues or param.schema.get("maxLength") in (2, 3)
        value = found.unit if is_code else value
    elif kind is Kind.TIME and param.format == "time":
        value = f"{value}:00Z"
    elif kind is Kind.DATE and Kind.DATETIME in param.kinds and Kind.DATE not in param.kinds:
        value = f"{value}T{'23:59:59' if found.role == 'end' else '00:00:00'}Z"
    elif kind in WHENS and (is_month or param.role != "period") and not ({Kind.DATETIME, Kind.TIME} & param.kinds):
        value = str(value)[: len("2026-01" if is_month else "2026-01-01")]
    elif kind is Kind.DOMAIN and Kind.URL in param.kinds and param.role != "domain":
        value = f"https://{value}"
    elif (
        kind in (Kind.USER, Kind.CHANNEL)
        and "#" not in str(param.schema.get("description", "")).partition("without")[0]
    ):
        value = str(value).lstrip("@#")
    elif kind is Kind.JSON and param.type in ("object", ""):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    return str(value) if param.type == "string" and not isinstance(value, str) else value
