# ruff: noqa: RUF001 - people type these marks
"""What a request says in a form of its own: its tokens and the values that can be told without knowing any tool."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import Final

from apps.plans.local import dates, words
from apps.plans.local.tokens import ZONES, Found, Kind, Reading, Token, scan

__all__ = ["Found", "Kind", "Reading", "Token", "read"]

_ZONE_NAMES: Final = frozenset(
    ["UTC", "GMT", "CET", "CEST", "EST", "EDT", "CST", "CDT", "MST", "MDT", "PST", "PDT", "BST", "IST", "JST", "AEST"]
)
RANGED: Final = (Kind.INTEGER, Kind.NUMBER, Kind.MONEY, Kind.QUANTITY, Kind.DATE, Kind.DATETIME, Kind.TIME)
_RANGES: Final = frozenset(
    [
        ("and", "between"),
        *((mark, "from") for mark in ("to", "until", "till", "through")),
        *((m, "of") for m in ("to",)),
    ]
)
_TWO: Final = 2
_TEN: Final = 10
_TEENS: Final = 20


def read(text: str, now: datetime) -> Reading:
    """The tokens of a request and its values; words such as "tomorrow" are relative to `now`."""
    tokens, found, numbers = scan(text)
    found += _pairs(tokens)
    found += _numbers(tokens, numbers)
    found += _named(tokens)
    found = ranged(tokens, found + dates.dates(text, tokens, now))
    found += dates.timed(tokens, found, now)
    order = sorted(range(len(found)), key=lambda n: (found[n].first, -found[n].last, n))
    return Reading(text=text, tokens=tuple(tokens), found=tuple(found[n] for n in order))


def _pairs(tokens: list[Token]) -> list[Found]:
    """Values of several tokens without a space between: `a/b`, `a.b`, `fix-login`, `640x480`; and coordinates."""
    found: list[Found] = []
    place = 0
    while place + 2 < len(tokens):
        run = [place]
        while run[-1] + 2 < len(tokens) and _joined(tokens, run[-1], "/.-"):
            run.append(run[-1] + 2)
        if len(run) > 1:
            found += _joint(tokens, run)
        place = run[-1] + 1
    return found


def _joined(tokens: list[Token], place: int, marks: str) -> bool:
    one, mark, other = tokens[place : place + 3]
    return (
        mark.text in marks
        and one.end == mark.start
        and mark.end == other.start
        and one.text[-1].isalnum()
        and other.text[0].isalnum()
        and not (one.text.isdigit() and other.text.isdigit())
    )


def _joint(tokens: list[Token], run: list[int]) -> Iterator[Found]:
    first, last = run[0], run[-1]
    text = "".join(token.text for token in tokens[first : last + 1])
    marks = {tokens[place + 1].text for place in run[:-1]}
    if ZONES.fullmatch(text):
        yield Found(Kind.TIMEZONE, text, first, last)
        return
    if marks == {"-"}:
        yield Found(Kind.SLUG, text, first, last)
        return
    mark = "/" if "/" in marks else "."
    middle = next(place + 1 for place in run if tokens[place + 1].text == mark)
    yield Found(Kind.REPO if mark == "/" else Kind.DOTTED, text, first, last)
    left, right = text.split(mark, 1)
    yield Found(Kind.SLUG, left, first, middle - 1, "left")
    yield Found(Kind.SLUG, right, middle + 1, last, "right")


def _numbers(tokens: list[Token], digits: Mapping[int, float]) -> list[Found]:
    """Numbers, alone and with what they count: a duration, money, a quantity, a percentage."""
    found: list[Found] = []
    place = 0
    while place < len(tokens):
        read_one = _number(tokens, digits, place)
        if read_one is None:
            place += 1
            continue
        value, last = read_one
        found += _counted(tokens, value, place, last)
        place = max(one.last for one in found if one.first <= place or one.last >= last) + 1
    return _sums(tokens, found)


def _number(tokens: list[Token], digits: Mapping[int, float], place: int) -> tuple[float, int] | None:
    """The number that begins at a place, in digits or words, and the place of its last token."""
    lows = [token.low for token in tokens[place : place + 6]]
    if lows[0] in ("a", "an", "half") or (lows[0] == "one" and len(lows) > 1):
        return _single(tokens, place, lows)
    if lows[0] in ("minus", "negative") and place + 1 < len(tokens):
        after = _number(tokens, digits, place + 1)
        return (-after[0], after[1]) if after else None
    last = place
    if place in digits:
        total = digits[place]
    elif lows[0] in words.NUMBERS and lows[0] != "one":
        total = float(words.NUMBERS[lows[0]])
        if total >= _TEENS and len(lows) > 1:
            step = 2 if lows[1] == "-" and len(lows) > _TWO else 1
            if 0 < words.NUMBERS.get(lows[step], 0) < _TEN:
                total += words.NUMBERS[lows[step]]
                last += step
    else:
        return None
    while last + 1 < len(tokens) and (scale := _scale(tokens, last)):
        total *= scale
        last += 1
    return total, last


def _single(tokens: list[Token], place: int, lows: list[str]) -> tuple[float, int] | None:
    """The number of "a dozen", "an hour", "half an hour", "one file"."""
    after = lows[1] if len(lows) > 1 else ""
    if lows[0] == "half":
        if after in ("a", "an") and len(lows) > _TWO and lows[2] in words.UNITS:
            return 0.5, place + 1
        return None
    if after in words.SCALES:
        return float(words.SCALES[after]), place + 1
    if after in words.UNITS and len(after) > _TWO:
        return 1.0, place
    if lows[0] == "one" and after.isalpha() and after not in words.SMALL:
        return 1.0, place
    return None


def _scale(tokens: list[Token], last: int) -> int:
    after = tokens[last + 1]
    if after.low == "k" and tokens[last].end == after.start:
        return 1000
    return words.SCALES.get(after.low, 0)


def _counted(tokens: list[Token], value: float, first: int, last: int) -> list[Found]:
    """A number alone, and with the unit or currency beside it."""
    whole = value == int(value)
    number: int | float = int(value) if whole else value
    kind = Kind.INTEGER if whole else Kind.NUMBER
    before, after = tokens[first - 1] if first else None, tokens[last + 1] if last + 1 < len(tokens) else None
    if before is not None and before.low in words.CURRENCIES and not before.text.isalpha():
        code = words.CURRENCIES[before.low]
        start = first - 1
        return [
            Found(Kind.CURRENCY, code, start, start),
            Found(kind, number, first, last, "", code),
            Found(Kind.MONEY, number, start, last, "", code),
        ]
    alone = Found(kind, number, first, last)
    if after is None:
        return [alone]
    close = tokens[last].end == after.start
    if close and after.low in ("st", "nd", "rd", "th"):
        return [replace(alone, last=last + 1, role="ordinal")]
    if after.low in words.CURRENCIES and not (close and after.low in words.UNITS):
        code = words.CURRENCIES[after.low]
        return [replace(alone, unit=code), Found(Kind.MONEY, number, first, last + 1, "", code)]
    unit = words.UNITS.get(after.low, "")
    if not unit or not (close or (len(after.low) > 1 and after.low != "in") or not after.text.isalpha()):
        return [alone]
    found = [replace(alone, unit=unit), Found(Kind.QUANTITY, number, first, last + 1, "", unit)]
    if unit in words.SECONDS:
        found[1] = replace(found[1], kind=Kind.DURATION, value=value * words.SECONDS[unit])
    if len(after.low) == 1 or after.low in words.SMALL:
        found.append(Found(Kind.UNIT, after.text, last + 1, last + 1, "", unit))
    return found


def _sums(tokens: list[Token], found: list[Found]) -> list[Found]:
    """Durations of several numbers as one: "1h 30m", "two hours and ten minutes"."""
    durations = [one for one in found if one.kind is Kind.DURATION]
    for one, other in pairwise(durations):
        between = [token.low for token in tokens[one.last + 1 : other.first]]
        if between in ([], ["and"], [","]) and words.SECONDS[one.unit] > words.SECONDS[other.unit]:
            found.append(Found(Kind.DURATION, one.value + other.value, one.first, other.last, "", other.unit))
    return found


def _named(tokens: list[Token]) -> list[Found]:
    """Languages, countries, currencies, units and time zones by their names."""
    found = []
    for token in tokens:
        place, low = token.place, token.low
        if low in words.LANGUAGES and token.text[0].isalpha():
            found.append(Found(Kind.LANGUAGE, token.text, place, place, "", words.LANGUAGES[low]))
        if low in words.CURRENCIES and token.text.isalpha():
            found.append(Found(Kind.CURRENCY, words.CURRENCIES[low], place, place))
        if low in words.UNITS and len(low) > 1 and low not in words.SMALL:
            found.append(Found(Kind.UNIT, token.text, place, place, "", words.UNITS[low]))
        if token.text in _ZONE_NAMES:
            found.append(Found(Kind.TIMEZONE, token.text, place, place))
        for length in (3, 2, 1):
            name = " ".join(one.low for one in tokens[place : place + length])
            if name in words.COUNTRIES and (len(low) > _TWO or token.text.isupper()):
                last = min(place + length, len(tokens)) - 1
                found.append(
                    Found(
                        Kind.COUNTRY,
                        name.title() if len(name) > _TWO else name.upper(),
                        place,
                        last,
                        "",
                        words.COUNTRIES[name],
                    )
                )
                break
    return found


def ranged(tokens: list[Token], found: list[Found]) -> list[Found]:
    """The same values; two that are the ends of a range have the roles `start` and `end`."""
    out = list(found)
    for n, one in enumerate(found):
        if one.kind not in RANGED or one.role:
            continue
        for m, other in enumerate(found):
            if other.kind is not one.kind or other.role or not one.last < other.first <= one.last + 2:
                continue
            mark = tokens[one.last + 1].low
            before = tokens[one.first - 1].low if one.first else ""
            if mark in ("-", "–", "—") or (mark, before) in _RANGES:
                out[n], out[m] = replace(one, role="start", unit=one.unit or other.unit), replace(other, role="end")
    return out
