"""What a request says in a form of its own: the values that can be told without knowing any tool."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import Final

from apps.plans.local import dates, words
from apps.plans.local.tokens import Found, Kind, Reading, Token, pairs, scan

__all__ = ["Found", "Kind", "Reading", "Token", "read"]

_RANGED: Final = frozenset((Kind.INTEGER, Kind.NUMBER, Kind.MONEY, Kind.QUANTITY))
_LETTERS: Final = frozenset("shdwymglkbcf") | {"in"}
"""Units that are told only right behind a number."""
_PARTED: Final = frozenset("glmh")
"""Those of them that may also stand apart from its digits: "500 g"."""
_THOUSANDS: Final = re.compile(r"[1-9]\d{0,2}\.\d{3}")
_SHORT: Final = 2

_PARTS: Final = {"and a half": 0.5, "and a quarter": 0.25}


def read(text: str, now: datetime, spelt: Callable[[str], str] | None = None) -> Reading:
    """The tokens of a request and its values; words such as "tomorrow" are relative to `now`.

    :param spelt: what a misspelt word means. Tokens keep the text that was written.
    """
    tokens, found, digits = scan(text)
    written, own = text, tokens
    for one in reversed(own if spelt is not None else []):
        word = spelt(one.low) if spelt is not None and one.text.isalpha() and not one.text.isupper() else one.low
        if word != one.low and (
            one.text.islower() or word in words.CALENDAR or (not one.place and word in words.SMALL)
        ):
            text = f"{text[: one.start]}{word}{text[one.end :]}"
    if text != written:
        tokens, found, digits = scan(text)
    found += pairs(tokens, digits)
    taken = {one.first for one in found if one.kind in _RANGED}
    dated = list(dates.dates(text, tokens, now))
    numbers = [one for one in _numbers(tokens, digits) if one.first not in taken]
    found += _ranges(tokens, _clear([*numbers, *_named(tokens)], dated, tokens))
    found += [*dated, *dates.moments(tokens, dated, now)]
    order = sorted(range(len(found)), key=lambda n: (found[n].first, -found[n].last, n))
    if len(tokens) == len(own):
        pairs_of = zip(tokens, own, strict=True)
        tokens = [replace(one, start=old.start, end=old.end, text=old.text) for one, old in pairs_of]
    else:
        written = text
    return Reading(text=written, tokens=tuple(tokens), found=tuple(found[n] for n in order))


def _numbers(tokens: Sequence[Token], digits: Mapping[int, float]) -> Iterator[Found]:
    """Numbers alone, and with what they count. Durations in a row also count as one: "1 hour and 30 minutes"."""
    durations = []
    place = 0
    while place < len(tokens):
        number = _number(tokens, digits, place)
        if number is None:
            place += 1
            continue
        value, last = number
        for one in _counted(tokens, value, place, last):
            yield one
            last = max(last, one.last)
            if one.kind is Kind.DURATION:
                durations.append(one)
        place = last + 1
    for one, other in pairwise(durations):
        between = [token.low for token in tokens[one.last + 1 : other.first]]
        if between in ([], ["and"], [","]) and words.SECONDS[one.unit] > words.SECONDS[other.unit]:
            yield replace(one, value=one.value + other.value, last=other.last, unit=other.unit)
    for one in durations:
        part = _PARTS.get(" ".join(token.low for token in tokens[one.last + 1 : one.last + 4]))
        if part:
            yield replace(one, value=one.value + words.SECONDS[one.unit] * part, last=one.last + 3)


def _number(tokens: Sequence[Token], digits: Mapping[int, float], place: int) -> tuple[float, int] | None:
    """The number that begins at a place, in digits or words, and the place of its last token."""
    low, last = tokens[place].low, place
    after = [token.low for token in tokens[place + 1 : place + 3]] + ["", ""]
    if place in digits:
        total = digits[place]
    elif low in ("a", "an", "one"):
        if after[0] in words.SCALES:
            return float(words.SCALES[after[0]]), place + 1
        counts = after[0] in words.UNITS and len(after[0]) > _SHORT
        return (1.0, place) if counts or (low == "one" and after[0].isalpha() and after[0] not in words.SMALL) else None
    elif low == "half" and after[0] in ("a", "an") and after[1] in words.UNITS:
        return 0.5, place + 1
    elif low in words.NUMBERS:
        total = float(words.NUMBERS[low])
        step = 2 if after[0] == "-" else 1
        if low.endswith("ty") and 0 < words.NUMBERS.get(after[step - 1], 0) < words.NUMBERS["ten"]:
            total, last = total + words.NUMBERS[after[step - 1]], place + step
    else:
        return None
    for one in tokens[last + 1 : last + 3]:
        thousands = one.low == "k" and tokens[last].end == one.start
        if not thousands and one.low not in words.SCALES:
            break
        total, last = total * (words.SCALES["thousand"] if thousands else words.SCALES[one.low]), last + 1
    return total, last


def _counted(tokens: Sequence[Token], value: float, first: int, last: int) -> list[Found]:
    """A number alone, and with the unit or currency beside it. Money has no three decimals: "1.500 EUR" are thousands."""
    beside = {token.low for token in (*tokens[max(first - 1, 0) : first], *tokens[last + 1 : last + 2])}
    if first == last and _THOUSANDS.fullmatch(tokens[first].text) and not beside.isdisjoint(words.CURRENCIES):
        value *= 1000
    number: int | float = int(value) if value == int(value) else value
    alone = Found(Kind.INTEGER if isinstance(number, int) else Kind.NUMBER, number, first, last)
    before, after = tokens[first - 1].low if first else "", tokens[last + 1] if last + 1 < len(tokens) else None
    if before in words.CURRENCIES and not before.isalpha():
        code = words.CURRENCIES[before]
        return [
            replace(alone, unit=code),
            replace(alone, kind=Kind.MONEY, first=first - 1, unit=code),
            Found(Kind.CURRENCY, code, first - 1, first - 1, "", code),
        ]
    if after is None:
        return [alone]
    close = tokens[last].end == after.start
    if close and after.text == "-" and tokens[last + 2 :] and tokens[last + 2].low in words.UNITS:  # a 45-minute walk
        last, after = last + 1, tokens[last + 2]
    if close and after.low in ("st", "nd", "rd", "th"):
        return [replace(alone, last=last + 1, role="ordinal")]
    if after.low in words.CURRENCIES and not (close and after.low in words.UNITS):
        code = words.CURRENCIES[after.low]
        return [replace(alone, unit=code), replace(alone, kind=Kind.MONEY, last=last + 1, unit=code)]
    unit = words.UNITS.get(after.low, "")
    close = close or (tokens[first].text[0].isdigit() and after.low in _PARTED)
    if not unit or (after.low in _LETTERS and not close):
        return [alone]
    whole = replace(alone, kind=Kind.QUANTITY, last=last + 1, unit=unit)
    if unit in words.SECONDS:
        whole = replace(whole, kind=Kind.DURATION, value=value * words.SECONDS[unit])
    named = [Found(Kind.UNIT, after.text, last + 1, last + 1, "", unit)] if not _unit_alone(after.low) else []
    return [replace(alone, unit=unit), whole, *named]


def _unit_alone(low: str) -> bool:
    """Whether a unit is told without a number before it."""
    return low in words.UNITS and len(low) > 1 and low not in words.SMALL


def _named(tokens: Sequence[Token]) -> Iterator[Found]:
    """Languages, countries, currencies, units and time zones by their names."""
    for token in tokens:
        place, low = token.place, token.low
        for kind, table in (
            (Kind.LANGUAGE, words.LANGUAGES),
            (Kind.CURRENCY, words.CURRENCIES),
            (Kind.COUNTRY, words.COUNTRIES),
        ):
            if low in table and (len(low) > _SHORT or token.text.isupper()) and token.text.isalpha():
                yield Found(kind, table[low] if kind is Kind.CURRENCY else token.text, place, place, "", table[low])
        if _unit_alone(low):
            yield Found(Kind.UNIT, token.text, place, place, "", words.UNITS[low])


def _ranges(tokens: Sequence[Token], found: Sequence[Found]) -> list[Found]:
    """The values, with the roles `start` and `end` for numbers that are the ends of a range, with their units."""
    begins = {(one.kind, one.first): one for one in found if not one.role}
    roles: dict[int, str] = {}
    units: dict[int, str] = {}
    for one in found:
        other = begins.get((one.kind, one.last + 2)) if one.kind in _RANGED and not one.role else None
        if other is not None and one.value <= other.value and dates.between(tokens, one.first, one.last):
            roles |= dict.fromkeys(one.places, "start") | dict.fromkeys(other.places, "end")
            units[one.first] = other.unit
    return [
        replace(
            one,
            role=one.role or roles.get(one.first, roles.get(one.last, "")),
            unit=one.unit or units.get(one.first, ""),
        )
        if one.kind in _RANGED
        else one
        for one in found
    ]


def _clear(numbers: Sequence[Found], dated: Sequence[Found], tokens: Sequence[Token]) -> list[Found]:
    """Numbers and units that are no part of a date. A year alone, "at 9" and "2 weeks" are both."""
    parts: set[int] = set()
    days = any(one.kind is Kind.DATE for one in dated)
    for one in dated:
        if one.last > one.first and (days or one.kind is not Kind.TIME or tokens[one.first].low not in ("at", "@")):
            parts.update(range(one.first, one.last + 1))
    return [
        one for one in numbers if (one.unit in words.SECONDS and one.kind is not Kind.UNIT) or not parts & one.places
    ]
