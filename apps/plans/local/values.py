"""What a request says that can be told without knowing any tool: numbers, units, names of languages and the like, dates."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import Final

from apps.plans.local import words
from apps.plans.local.dates import dates_in, moments
from apps.plans.local.tokens import Found, Kind, Reading, Token, is_range, number_of, scan

__all__ = ["Found", "Kind", "Reading", "Token", "read"]

_THOUSANDS: Final = re.compile(r"[1-9]\d{0,2}\.\d{3}")
_COMPOUND: Final = re.compile(r"[-_/@]")
"""Beside a word, it makes it a part of a name that is no English."""
_PARTED: Final = frozenset("glmh")
"""Units of one letter that may stand apart from their digits: "500 g"."""
_RANGED: Final = frozenset((Kind.INTEGER, Kind.NUMBER, Kind.MONEY, Kind.QUANTITY))
_TIMES: Final = frozenset(unit for unit, (base, _) in words.RATIOS.items() if base == "time")
_TABLES: Final = ((Kind.LANGUAGE, words.LANGUAGES), (Kind.CURRENCY, words.CURRENCIES), (Kind.COUNTRY, words.COUNTRIES))
_CODE: Final = 2
_BEGINNING: Final = words.GROUPS["polite"] | words.GROUPS["modal"] | {",", ";", ".", "and", "then", "to", "you"}
"""What stands before a phrasal verb that asks for something."""
_SAYING: Final = frozenset((":", "that", "saying"))
_BACK: Final = frozenset(("last", "past"))


def read(text: str, now: datetime, spelt: Callable[[str], str] | None = None) -> Reading:
    """The tokens of a request and its values; words such as "tomorrow" are relative to `now`.

    :param spelt: what a misspelt word or a phrasal verb means. Tokens keep the text that was written, but for such verbs.
    """
    tokens, found = scan(text)
    meant = _repaired(text, tokens, spelt) if spelt is not None else text
    spans = [(one.start, one.end) for one in tokens]
    if meant != text:
        again, found = scan(meant)
        spans = [(one.start, one.end) for one in again]
        if len(again) == len(tokens):
            pairs = zip(again, tokens, strict=True)
            tokens = [replace(one, start=old.start, end=old.end, text=old.text) for one, old in pairs]
        else:
            text, tokens = meant, again
    dated = list(dates_in(meant, spans, tokens, now))
    has_day = any(one.kind is Kind.DATE for one in dated)
    parts = {
        at for one in found if one.kind is Kind.ID and _is_code(tokens[one.first : one.last + 1]) for at in one.places
    }
    for one in dated:  # a year alone, and "at 9" where no day is named, are numbers as well
        if one.last > one.first and (one.kind is not Kind.TIME or has_day or tokens[one.first].low not in ("at", "@")):
            parts |= one.places
    taken = {one.first for one in found if one.kind in _RANGED}
    others = (one for one in (*_numbers(tokens), *_named(tokens)) if one.first not in taken)
    others = (one for one in others if (one.unit in _TIMES and one.kind is not Kind.UNIT) or not parts & one.places)
    found += [*_ranges(tokens, list(others)), *dated, *moments(tokens, dated, now)]
    return Reading(text, tuple(tokens), tuple(sorted(found, key=lambda one: (one.first, -one.last))))


def _repaired(text: str, tokens: Sequence[Token], spelt: Callable[[str], str]) -> str:
    for one in reversed(tokens):
        is_first = not one.place or tokens[one.place - 1].low in _BEGINNING
        for said in (tokens[one.place : one.place + size] for size in (3, 2) if is_first):
            phrase = " ".join(token.low for token in said)
            if phrase in words.PHRASES and _SAYING.isdisjoint(token.low for token in tokens[: one.place]):
                text = f"{text[: one.start]}{spelt(phrase)}{text[said[-1].end :]}"
                break
        beside = text[: one.start][-1:] + text[one.end :][:1]
        if one.text.isalpha() and not one.text.isupper() and not _COMPOUND.search(beside):
            word = spelt(one.low)
            is_english = word in words.GROUPS["calendar"] or (not one.place and word in words.SMALL)
            if word != one.low and (one.text.islower() or is_english):
                text = f"{text[: one.start]}{word}{text[one.end :]}"
    return text


def _is_code(tokens: Sequence[Token]) -> bool:
    """Are the numbers in it no values: 2026-0418, but not 10-20?"""
    return len(tokens) > 1 and any(one.text[0] == "0" or len(one.text) > _CODE + 1 for one in tokens)


def _numbers(tokens: Sequence[Token]) -> Iterator[Found]:
    """Numbers alone, and with what they count. Durations in a row also count as one: "1 hour and 30 minutes"."""
    durations = []
    place = 0
    while place < len(tokens):
        number = _number(tokens, place)
        unit = words.UNITS.get(tokens[place + 1].low, "") if tokens[place].low in _BACK and tokens[place + 1 :] else ""
        if unit in ("minute", "hour"):  # in the last hour
            yield Found(Kind.DURATION, words.RATIOS[unit][1], place, place + 1, "start", unit)
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
        if between in ([], ["and"], [","]) and words.RATIOS[one.unit][1] > words.RATIOS[other.unit][1]:
            # A year is 365 days, but twelve months of thirty.
            share = 360 / 365 if other.unit == "month" else 1
            yield replace(one, value=share * one.value + other.value, last=other.last, unit=other.unit)
    for one in durations:
        if [token.low for token in tokens[one.last + 1 : one.last + 4]] == ["and", "a", "half"]:
            yield replace(one, value=one.value + words.RATIOS[one.unit][1] / 2, last=one.last + 3)


def _number(tokens: Sequence[Token], place: int) -> tuple[float, int] | None:
    """The number that begins at a place, in digits or words, and the place of its last token."""
    low, last, total = tokens[place].low, place, number_of(tokens[place].text)
    after = [token.low for token in tokens[place + 1 : place + 4]] + ["", ""]
    if low in ("a", "an", "one"):
        if after[0] in words.SCALES:
            return float(words.SCALES[after[0]]), place + 1
        counts = after[0] in words.UNITS and len(after[0]) > _CODE
        return (1.0, place) if counts or (low == "one" and after[0].isalpha() and after[0] not in words.SMALL) else None
    if low == "half" and after[0] in ("a", "an") and after[1] in words.UNITS:
        return 0.5, place + 1
    if low in words.NUMBERS:
        total, step = float(words.NUMBERS[low]), 2 if after[0] == "-" else 1
        if low.endswith("ty") and 0 < words.NUMBERS.get(after[step - 1], 0) < words.NUMBERS["ten"]:
            total, last = total + words.NUMBERS[after[step - 1]], place + step
    if total is not None and after[last - place :][:3] == ["and", "a", "half"]:  # nine and a half hours
        total, last = total + 0.5, last + 3
    for one in tokens[last + 1 : last + 3] if total is not None else ():
        scale = 1000 if one.low == "k" and tokens[last].end == one.start else words.SCALES.get(one.low)
        if not scale:
            break
        total, last = total * scale, last + 1  # type: ignore[operator]  # it is a number here
    return None if total is None else (total, last)


def _counted(tokens: Sequence[Token], value: float, first: int, last: int) -> list[Found]:
    """A number alone, and with the unit or currency beside it. Money has no three decimals: "1.500 EUR" are thousands."""
    before, after = tokens[first - 1].low if first else "", tokens[last + 1] if last + 1 < len(tokens) else None
    priced = before in words.CURRENCIES or (after is not None and after.low in words.CURRENCIES)
    if first == last and priced and _THOUSANDS.fullmatch(tokens[first].text):
        value *= 1000
    number: int | float = int(value) if value == int(value) else value
    alone = Found(Kind.INTEGER if isinstance(number, int) else Kind.NUMBER, number, first, last)
    if before in words.CURRENCIES and not before.isalpha():
        code = words.CURRENCIES[before]
        currency = Found(Kind.CURRENCY, code, first - 1, first - 1, "", code)
        return [replace(alone, unit=code), replace(alone, kind=Kind.MONEY, first=first - 1, unit=code), currency]
    if after is None:
        return [alone]
    close = tokens[last].end == after.start
    if close and after.text == "-" and tokens[last + 2 :] and tokens[last + 2].low in words.UNITS:  # a 45-minute walk
        last, after = last + 1, tokens[last + 2]
    if close and after.low in ("st", "nd", "rd", "th"):
        return [replace(alone, last=last + 1, role="ordinal")]
    found, unit = [], words.UNITS.get(after.low, "")
    if after.low in words.CURRENCIES and not (close and unit):
        code = words.CURRENCIES[after.low]
        found = [replace(alone, unit=code), replace(alone, kind=Kind.MONEY, last=last + 1, unit=code)]
    apart = (after.low.isalpha() and len(after.low) == 1 and after.low not in _PARTED) or after.low == "in"
    if not unit or (apart and not close):
        return found or [alone]
    whole = replace(alone, kind=Kind.QUANTITY, last=last + 1, unit=unit)
    if unit in _TIMES:
        whole = replace(whole, kind=Kind.DURATION, value=value * words.RATIOS[unit][1])
    return [*found, replace(alone, unit=unit), whole]


def _named(tokens: Sequence[Token]) -> Iterator[Found]:
    """Languages, countries, currencies and units by their names."""
    for token in tokens:
        place, low = token.place, token.low
        for kind, table in _TABLES:
            if low in table and low.isalpha() and (len(low) > _CODE or token.text.isupper()):
                yield Found(kind, table[low] if kind is Kind.CURRENCY else token.text, place, place, "", table[low])
        if low in words.ORDINALS:
            yield Found(Kind.INTEGER, words.ORDINALS[low], place, place, "ordinal")
        if low in words.UNITS and len(low) > 1 and low not in words.SMALL:
            yield Found(Kind.UNIT, token.text, place, place, "", words.UNITS[low])


def _ranges(tokens: Sequence[Token], found: Sequence[Found]) -> list[Found]:
    """The values, with the roles `start` and `end` for numbers that are the ends of a range, with their units."""
    begins = {(one.kind, one.first): one for one in found if not one.role}
    told: dict[int, tuple[str, str]] = {}
    for one in found:
        other = begins.get((one.kind, one.last + 2)) if one.kind in _RANGED and not one.role else None
        if other is not None and one.value <= other.value and is_range(tokens, one.first, one.last):
            told |= dict.fromkeys(one.places, ("start", other.unit)) | dict.fromkeys(other.places, ("end", ""))
    return [
        replace(one, role=one.role or role, unit=one.unit or unit) if one.kind in _RANGED else one
        for one in found
        for role, unit in [told.get(one.first, told.get(one.last, ("", "")))]
    ]
