# ruff: noqa: RUF001 - people type these marks
"""What a request says in a form of its own: the values that can be told without knowing any tool, dates among them."""

import calendar
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from itertools import pairwise
from typing import Final

from apps.plans.local import words
from apps.plans.local.tokens import Found, Kind, Reading, Token, pairs, scan

__all__ = ["Found", "Kind", "Reading", "Token", "read"]

_RANGED: Final = frozenset((Kind.INTEGER, Kind.NUMBER, Kind.MONEY, Kind.QUANTITY))
_LETTERS: Final = frozenset(low for low in words.UNITS if low.isalpha() and not low[1:]) | {"in"}
"""Units that are told only right behind a number."""
_PARTED: Final = frozenset("glmh")
"""Those of them that may also stand apart from its digits: "500 g"."""
_THOUSANDS: Final = re.compile(r"[1-9]\d{0,2}\.\d{3}")
_CODE: Final = 2
_COMPOUND: Final = re.compile(r"[-_/@]")
"""Beside a word, it makes it a part of a name that is no English."""

_PARTS: Final = {"and a half": 0.5, "and a quarter": 0.25}


def read(text: str, now: datetime, spelt: Callable[[str], str] | None = None) -> Reading:
    """The tokens of a request and its values; words such as "tomorrow" are relative to `now`.

    :param spelt: what a misspelt word means. Tokens keep the text that was written.
    """
    tokens, found, digits = scan(text)
    written, own = text, tokens
    for one in reversed(own if spelt is not None else []):
        apart = (
            one.text.isalpha()
            and not one.text.isupper()
            and not _COMPOUND.search(text[: one.start][-1:] + text[one.end :][:1])
        )
        word = spelt(one.low) if spelt is not None and apart else one.low
        if word != one.low and (
            one.text.islower() or word in words.CALENDAR or (not one.place and word in words.SMALL)
        ):
            text = f"{text[: one.start]}{word}{text[one.end :]}"
    if text != written:
        tokens, found, digits = scan(text)
    found += pairs(tokens, digits)
    taken = {one.first for one in found if one.kind in _RANGED}
    dated = list(dates_in(text, tokens, now))
    numbers = [one for one in _numbers(tokens, digits) if one.first not in taken]
    found += _ranges(tokens, _clear([*numbers, *_named(tokens)], dated, tokens))
    found += [*dated, *moments(tokens, dated, now)]
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
    after = [token.low for token in tokens[place + 1 : place + 5]] + ["", ""]
    if place in digits:
        total = digits[place]
    elif low in ("a", "an", "one"):
        if after[0] in words.SCALES:
            return float(words.SCALES[after[0]]), place + 1
        counts = after[0] in words.UNITS and len(after[0]) > _CODE
        return (1.0, place) if counts or (low == "one" and after[0].isalpha() and after[0] not in words.SMALL) else None
    elif low == "half" and after[0] in ("a", "an") and after[1] in words.UNITS:
        return 0.5, place + 1
    elif low == "quarter" and after[0] == "of" and after[1] in ("a", "an"):
        return 0.25, place + 2
    elif low in words.NUMBERS:
        total = float(words.NUMBERS[low])
        step = 2 if after[0] == "-" else 1
        if low.endswith("ty") and 0 < words.NUMBERS.get(after[step - 1], 0) < words.NUMBERS["ten"]:
            total, last = total + words.NUMBERS[after[step - 1]], place + step
        elif after[step - 1 : step + 1] == ["quarters", "of"] and after[step + 1] in ("a", "an"):
            total, last = total / 4, place + step + 2
    else:
        return None
    for one in tokens[last + 1 : last + 3]:
        thousands = one.low == "k" and tokens[last].end == one.start
        if not thousands and one.low not in words.SCALES:
            break
        total, last = total * (words.SCALES["thousand"] if thousands else words.SCALES[one.low]), last + 1
    part = _PARTS.get(" ".join(token.low for token in tokens[last + 1 : last + 4]))
    return (total + part, last + 3) if part else (total, last)


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
    money = []
    if after.low in words.CURRENCIES and not (close and after.low in words.UNITS):
        code = words.CURRENCIES[after.low]
        money = [replace(alone, unit=code), replace(alone, kind=Kind.MONEY, last=last + 1, unit=code)]
    if money and after.low not in words.UNITS:
        return money
    unit = words.UNITS.get(after.low, "")
    close = close or (tokens[first].text[0].isdigit() and after.low in _PARTED)
    if not unit or (after.low in _LETTERS and not close):
        return [alone]
    whole = replace(alone, kind=Kind.QUANTITY, last=last + 1, unit=unit)
    if unit in words.SECONDS:
        whole = replace(whole, kind=Kind.DURATION, value=value * words.SECONDS[unit])
    named = [Found(Kind.UNIT, after.text, last + 1, last + 1, "", unit)] if not _unit_alone(after.low) else []
    return [*money, replace(alone, unit=unit), whole, *named]


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
            if low in table and (len(low) > _CODE or token.text.isupper()) and token.text.isalpha():
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
        if other is not None and one.value <= other.value and between(tokens, one.first, one.last):
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


Moment = date | datetime | time
When = Moment | tuple[Moment, Moment] | None
"""What a match says: a day, a moment, a time of day, or a period with its first and last; None: nothing for sure."""

_COUNTS: Final = {**words.NUMBERS, "a": 1, "an": 1, "a couple of": 2, "couple of": 2}
_MONTH: Final = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\b(?:\.(?=\s*[,\d]|\s+(?:at|to|from|for|and|until|with)\b))?"
)
_DAY: Final = (
    r"(?:mon(?:day)?|tue(?:s(?:day)?)?|wed(?:nesday)?|thu(?:rs?(?:day)?)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?)\b"
)
_ON: Final = rf"(?:{_DAY},?\s+)?(?:the\s+)?"
_UNIT: Final = r"(?:second|minute|min|hour|hr|day|week|month|year)s?\b"
_COUNT: Final = rf"(?:\d{{1,4}}|{'|'.join(sorted(_COUNTS, key=len, reverse=True))})"
_HOURS: Final = "|".join(words.ONES.split()[1:13])
_YEAR: Final = r"(?:(?:19|20)\d\d(?![\d:/-]|\.\d)|(?:this|next|last)\s+year\b)"
_TH: Final = r"(?:st|nd|rd|th)?"
_UPTO: Final = r"\s?(?:-|–|to|and|until|through)\s?"
_MOMENT: Final = r"[T\s]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:\s?(?:Z\b|UTC\b|[+-]\d\d:?\d\d))?"
_PM: Final = r"[ap](?:m\b|\.m\.)"
_AMOUNT: Final = "|".join(
    sorted(word for word in {*words.UNITS, *words.CURRENCIES} - {"in"} if word.isalpha() and word[1:])
)
_PRICED: Final = rf"(?!\s*(?:{_PM}|[%°:.,/-]\d|[%°$€£]|(?:percent|degrees|each|per|{_AMOUNT}|[a-z]+s)\b))"
_CLOCK: Final = (
    rf"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d)?(?:\s?{_PM})?|(?:1[0-2]|0?[1-9])(?:\.[0-5]\d)?\s?{_PM}"
    rf"|(?<=at\s)(?:[01]?\d|2[0-3])\.[0-5]\d(?!\d){_PRICED}|(?:1[0-2]|[1-9])(?=\s+(?:in\s+the|this|tomorrow)\s+(?:morning|afternoon|evening)\b)|(?<!for\s)(?<!of\s)(?:1[0-2]|[1-9])(?=\s+tonight\b)"
)
_FORMS: Final = re.compile(
    rf"""(?ix)(?<![\w/.\#@])(?:(?=\d)|(?<!\w-))(?:
    (?P<iso>\d{{4}}(?:-\d\d-\d\d(?:{_MOMENT})?|/\d\d/\d\d))
    |{_ON}(?:(?P<d0>\d\d?){_TH}{_UPTO}{_ON})?(?P<d1>\d\d?){_TH}\s+(?:of\s+)?(?P<m1>{_MONTH})(?:,?\s+(?P<y1>{_YEAR}))?
    |(?:{_DAY},?\s+)?(?P<m2>{_MONTH})\s+(?:the\s+)?(?P<d2>\d\d?){_TH}(?![\d:.])(?:{_UPTO}{_ON}(?P<d3>\d\d?){_TH}(?![\d:.]))?
     (?:,?\s+(?P<y2>{_YEAR}))?
    |(?P<dots>\d\d?\.\d\d?\.(?:19|20)\d\d)|(?P<slashes>\d\d?/\d\d?(?:/(?:19|20)\d\d)?)
    |(?:(?P<whichmonth>this|next|last)\s+)?(?P<m3>{_MONTH})(?:\s+(?:of\s+)?(?P<y3>{_YEAR}))?
    |q(?P<q>[1-4])(?:\s+(?:of\s+)?(?P<yq>{_YEAR}))?
    |(?:(?P<dow>{_DAY}),?\s+(?:the\s+)?|the\s+)(?P<nth>\d\d?)(?:st|nd|rd|th)(?(dow)|(?=\s*(?:$|[,.;?!]|(?:at|for|from|to|until|and|with)\b)))
    |(?P<near>(?:the\s+)?day\s+after\s+tomorrow|(?:the\s+)?day\s+before\s+yesterday|today|tonight|tomorrow|tmrw|yesterday
     |this\s+(?:morning|afternoon|evening))
    |end\s+of\s+(?:the|this)\s+(?P<close>week|month|quarter|year)
    |(?P<which>this|next|last|previous|past|coming|current)\s+(?P<span>week(?:end)?|month|year|quarter)
    |(?P<back>last|past|previous|next|coming)\s+(?:(?P<n1>{_COUNT})\s+)?(?P<u1>{_UNIT})
    |in\s+(?P<n2>{_COUNT})\s+(?P<u2>{_UNIT})(?!\s+or\b)
    |(?P<n3>{_COUNT})\s+(?P<u3>{_UNIT})\s+(?P<way>ago|from\s+now|from\s+today)
    |(?:(?P<whichday>this|next|last|past|coming)\s+)?(?P<day>{_DAY})
    |(?P<noon>noon|midday|midnight)\b
    |(?P<past>half|(?:a\s+)?quarter)\s+(?P<to>past|to)\s+(?P<hour>1[0-2]|[1-9]|{_HOURS})\b
    |(?:(?P<since>1[0-2]|0?[1-9]){_UPTO})?(?P<clock>{_CLOCK})
    |(?:from|between)\s+(?P<h1>[01]?\d|2[0-3]){_UPTO}(?P<h2>[01]?\d|2[0-3])(?=\s*(?:$|[,.;?!](?:\s|$)|(?:on|for|in(?!\s+the\s+(?:after|eve))|and|with|at|today|tomorrow)\b))
    |(?:at|@)\s+(?P<at>[01]?\d|2[0-3]){_PRICED}
    )(?![\w/])(?!-[a-z])"""
)
_AFTER: Final = frozenset(("since", "after", "from", "starting", "beginning"))
_BEFORE: Final = frozenset(("until", "till", "before", "by", "through"))
_MONTHLY: Final = _AFTER | _BEFORE | {"in", "during", "for", "of", "to", "between", "and"}
_DAILY: Final = _AFTER | _BEFORE | {"on", "to", "and", "or"}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SHIFTS: Final = {"this": 0, "current": 0, "next": 1, "coming": 1, "last": -1}
_SHORT: Final = 4
_A_YEAR: Final = 12
_MANY: Final = 20
_OF_LATE: Final = 45
"""Up to so many days ago, a day without a year is the last such day."""
_LATE: Final = frozenset(("tonight", "evening", "afternoon", "night", "pm"))
_TO: Final = frozenset(("to", "until", "till", "through"))
_DONE: Final = frozenset(
    ("log", "logged", "track", "tracked", "recorded", "spent", "paid", "bought", "made", "taken", "done", "happened")
)
"""Words that tell that a day is over."""
_OF_DAYS: Final = ("iso", "m1", "m2", "dots", "slashes", "nth", "near", "day")
"""The forms that tell one day."""
_DASHES: Final = frozenset(("-", "–", "—"))
_JOINERS: Final = frozenset(("at", "on", "by", "the", "from", "for", ","))


class _Said(dict[str, str]):
    """The named groups of one match in lower case, what stands around them, and the year that was said, else 0."""

    def __init__(self, match: re.Match[str], before: str, now: datetime, *, late: bool) -> None:
        super().__init__({name: text.lower() for name, text in match.groupdict().items() if text})
        self.before, self.now, self.today, self.late, self.past = before, now, now.date(), late, False
        year = next((text for name, text in self.items() if name[0] == "y"), "0")
        self.year = int(year) if year.isdigit() else now.year + _SHIFTS[year.split()[0]]

    def day(self, month: str, day: str) -> date:
        """A day of the year that was said, else the next such day; one that passed of late, or after "since", is the last."""
        found = date(self.year or self.today.year, _month(month), int(day))
        ago = (self.today - found).days
        if self.year or (ago > 0 and self.past) or 0 <= ago <= _OF_LATE:
            return found
        return found.replace(year=found.year + (-1 if self.past else int(ago > 0)))


def _month(text: str) -> int:
    return _MONTHS.index(text[:3]) + 1


def _whole(year: int, month: int, months: int = 1) -> tuple[date, date]:
    """The first and last day of some months; a month below 1 or above 12 is one of another year."""
    first, last = divmod(year * 12 + month - 1, 12), divmod(year * 12 + month + months - 2, 12)
    return date(first[0], first[1] + 1, 1), date(last[0], last[1] + 1, calendar.monthrange(last[0], last[1] + 1)[1])


def _shifted(moment: datetime, count: int, unit: str) -> date | datetime:
    name = words.UNITS[unit]
    if name in ("month", "year"):
        first, last = _whole(moment.year, moment.month + count * (_A_YEAR if name == "year" else 1))
        return first.replace(day=min(moment.day, last.day))
    other = moment + timedelta(seconds=count * words.SECONDS[name])
    return other if name in ("second", "minute", "hour") else other.date()


def _count(text: str) -> int:
    return int(text) if text.isdigit() else _COUNTS[text]


def _iso(said: _Said) -> When:
    text = said["iso"].upper().replace("UTC", "Z").replace(" Z", "Z").replace(" +", "+").replace("/", "-")
    if len(text) == len("2026-01-01"):
        return date.fromisoformat(text)
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=said.now.tzinfo)


def _day_month(said: _Said) -> When:
    month, day = said.get("m1") or said["m2"], said.get("d1") or said["d2"]
    one = said.day(month, said.get("d0", day))
    other = one.replace(day=int(said.get("d3", day)))
    return one if one == other else (one, other) if one < other else None


def _numeric(said: _Said) -> When:
    """25.11.2026 begins with the day. In 11/25/2026 the larger number is the day; 3/4/2026 says nothing for sure.

    Without a year, 28/11 is a day and 3/4 may be anything.
    """
    one, other, *years = (int(part) for part in re.split(r"[./]", said.get("dots") or said["slashes"]))
    if not years:
        return said.day(_MONTHS[other - 1], str(one)) if one > _A_YEAR >= other > 0 else None
    year = years[0]
    if "dots" in said or one > _A_YEAR or one == other:
        return date(year, other, one)
    return date(year, one, other) if other > _A_YEAR else None


def _months(said: _Said) -> When:
    """A month without a year is one of this year. "next" and "last" go from now, and "since" is never ahead."""
    which, month = said.get("whichmonth"), _month(said["m3"])
    if said.year:
        return _whole(said.year, month)
    if not which and said.before not in _MONTHLY and said["m3"][:3] in ("may", "mar"):
        return None
    ahead = month - said.today.month
    shift = int(which == "next" and ahead <= 0) - int((which == "last" and ahead >= 0) or (said.past and ahead > 0))
    return _whole(said.today.year + shift, month)


def _quarter(said: _Said) -> When:
    return _whole(said.year or said.today.year, 3 * int(said["q"]) - 2, 3)


def _nth(said: _Said) -> When:
    """ "the 5th" is the next such day, today included, or the last one. "Friday the 5th" is both, ahead first."""
    order = (*range(2 * _OF_LATE), *range(-1, -_OF_LATE, -1))
    days = (said.today + timedelta(days=-count if said.past else count) for count in order)
    named = (day for day in days if _DAYS[day.weekday()].startswith(said.get("dow", "")[:3]))
    return next((day for day in named if day.day == int(said["nth"])), None)


def _near(said: _Said) -> When:
    text = said["near"]
    shift = int("tom" in text or "tmrw" in text) - int("yesterday" in text)
    return said.today + timedelta(days=shift * (2 if "day " in text else 1))


def _span(said: _Said) -> When:
    span, today = said["span"], said.today
    shift = _SHIFTS.get(said["which"], -1)
    if span.startswith("week"):
        monday = today + timedelta(days=7 * shift - today.weekday())
        return monday + timedelta(days=5 if span == "weekend" else 0), monday + timedelta(days=6)
    months = {"month": 1, "quarter": 3, "year": 12}[span]
    return _whole(today.year, (today.month - 1) // months * months + 1 + months * shift, months)


def _close(said: _Said) -> When:
    said |= {"span": said["close"], "which": "this"}
    found = _span(said)
    return found[1] if isinstance(found, tuple) else found


def _back(said: _Said) -> When:
    """The last seven days end now, the next seven begin now."""
    ahead = said["back"] in ("next", "coming")
    other = _shifted(said.now, _count(said.get("n1", "1")) * (1 if ahead else -1), said["u1"])
    now = said.now if isinstance(other, datetime) else said.today
    return (now, other) if ahead else (other, now)


def _relative(said: _Said) -> When:
    count = _count(said.get("n2") or said["n3"])
    return _shifted(said.now, -count if said.get("way") == "ago" else count, said.get("u2") or said["u3"])


def _weekday(said: _Said) -> When:
    """The next such day after today, or the last one. "every Monday" is no day."""
    which, before = said.get("whichday"), said.before
    if before in ("every", "each") or not (which or before in _DAILY or len(said["day"]) > _SHORT):
        return None
    ahead = (_DAYS.index(said["day"][:3]) - said.today.weekday()) % 7 or 7
    return said.today + timedelta(days=ahead - (7 if which in ("last", "past") or said.past else 0))


def _clock(said: _Said) -> When:
    """Times of day. Without am or pm, hours count from 0 to 23, or from noon where the request says "tonight" or "half past 6 pm"."""
    if "noon" in said:
        return time(0 if said["noon"] == "midnight" else 12)
    if "hour" in said:
        minutes = (30 if said["past"] == "half" else 15) * (-1 if said["to"] == "to" else 1)
        hour, minute = divmod(_count(said["hour"]) % _A_YEAR * 60 + minutes + 60 * _A_YEAR * said.late, 60)
        return time(hour % (2 * _A_YEAR), minute)
    plain = re.sub(r"\.(?=\d)", ":", said.get("clock") or said["at"])
    plain = re.sub(r"[.\s]", "", plain)
    hour, minute, second = (int(part) for part in (plain.rstrip("apm") + ":0:0").split(":")[:3])
    if plain.endswith("m") or (said.late and 0 < hour < _A_YEAR):
        hour = hour % _A_YEAR + (0 if plain.endswith("am") else _A_YEAR)
    if "since" not in said:
        return time(hour, minute, second)
    start = int(said["since"]) % _A_YEAR + (_A_YEAR if int(said["since"]) + _A_YEAR <= hour else 0)
    return (time(start), time(hour, minute, second)) if start < hour else None


def _hours(said: _Said) -> When:
    """ "from 9 to 11" are hours where the request names a day."""
    one, other = int(said["h1"]), int(said["h2"])
    return (time(one), time(other)) if one < other else None


_READERS: Final[Mapping[str, Callable[[_Said], When]]] = {
    name: reader
    for names, reader in (
        ("iso", _iso),
        ("m1 m2", _day_month),
        ("dots slashes", _numeric),
        ("m3", _months),
        ("q", _quarter),
        ("nth", _nth),
        ("near", _near),
        ("close", _close),
        ("span", _span),
        ("back", _back),
        ("n2 n3", _relative),
        ("day", _weekday),
        ("h2", _hours),
        ("noon hour clock at", _clock),
    )
    for name in names.split()
}


def dates_in(text: str, tokens: Sequence[Token], now: datetime) -> Iterator[Found]:
    """Dates, times and periods of a request. After "since" a date is a start only, and after "until" an end only."""
    spans = list(_spans(text, tokens, now))
    place = 0
    while place < len(spans):
        first, last, when, whole, past = spans[place]
        after = spans[place + 1] if place + 1 < len(spans) else None
        before = tokens[first - 1].low if first else ""
        if (
            after
            and after[0] == last + 2
            and between(tokens, first, last)
            and (ends := _ends(when, after[2], tokens[after[1]]))
        ):
            yield Found(Kind.PERIOD, "/".join(stamp(one) for one in ends), first, after[1])
            yield Found(_kind(ends[0]), stamp(ends[0]), first, last, "start")
            yield Found(_kind(ends[1]), stamp(ends[1]), after[0], after[1], "end")
            place += 2
            continue
        role = "" if whole else "start" if before in _AFTER else "end" if before in _BEFORE else ""
        if isinstance(when, tuple):
            if before == "from" and stamp(when[1])[:10] < now.date().isoformat():
                role = ""
            if not role:
                yield Found(Kind.PERIOD, "/".join(stamp(one) for one in when), first, last)
            for one, side in zip(when, ("start", "end"), strict=True):
                if role in ("", side):
                    yield Found(_kind(one), stamp(one), first, last, side)
        elif when is not None:
            over = stamp(past) if isinstance(past, date) and past != when else None
            yield Found(_kind(when), stamp(when), first, last, role, past=over)
        place += 1


def _spans(text: str, tokens: Sequence[Token], now: datetime) -> Iterator[tuple[int, int, When, bool, When]]:
    """First and last place of what a match says, whether it names both ends of a range, and what it says of what is over."""
    starts = {token.start: token.place for token in tokens}
    ends = {token.end - (2 if token.low.endswith("'s") else 0): token.place for token in tokens}
    day = now.date()
    late = not _LATE.isdisjoint(token.low for token in tokens)
    matches = list(_FORMS.finditer(text))
    has_day = any(match[name] for match in matches for name in _OF_DAYS)
    for match in matches:
        first, last = starts.get(match.start()), ends.get(match.end())
        if first is None or last is None or (match["h2"] and not has_day):
            continue
        before = [token.low for token in tokens[max(first - 2, 0) : first] if token.low != "the"]
        said = _Said(match, before[-1] if before else "", now, late=late)
        said.past = said.before == "since" or not _DONE.isdisjoint((tokens[0].low, *before))
        if "nth" in said:
            said.today = day if said.before in _TO and not said.past else max(day, said.today)
        reader = next(reader for name, reader in _READERS.items() if name in said)
        try:
            past = when = reader(said)
        except (ValueError, OverflowError):
            continue  # no such day: "31 February", "in 9000 years"
        with suppress(ValueError, OverflowError):
            said.past = True
            past = reader(said)
        if when is not None:
            day = when if type(when) is date else day
            yield first, last, when, bool(said.keys() & {"d0", "d3", "since", "h2"}), past


def between(tokens: Sequence[Token], first: int, last: int) -> bool:
    """Whether the value at these places and the one two places on are the ends of a range."""
    mark, before = tokens[last + 1].low, tokens[first - 1].low if first else ""
    return mark in _DASHES or (mark in _TO and before != "to") or (mark == "and" and before == "between")


def _ends(one: When, other: When, last: Token) -> tuple[Moment, Moment] | None:
    """The ends of a range of two dates or periods. Where the year was said once, it holds for both."""
    start, end = one[0] if isinstance(one, tuple) else one, other[1] if isinstance(other, tuple) else other
    if isinstance(start, time) and isinstance(end, time):
        return start, end
    if start is None or end is None or isinstance(start, time) or isinstance(end, time) or type(start) is not type(end):
        return None
    if start > end and last.low[:3] in _DAYS:
        end += timedelta(days=7)
    elif start > end:
        start = start.replace(year=end.year, day=min(start.day, _whole(end.year, start.month)[1].day))
    return (start, end) if start <= end else None


def _kind(when: Moment) -> Kind:
    return Kind.TIME if isinstance(when, time) else Kind.DATETIME if isinstance(when, datetime) else Kind.DATE


def moments(tokens: Sequence[Token], found: Sequence[Found], now: datetime) -> Iterator[Found]:
    """The date-times that the days and times of a request make together. A time without a day is one of today, if ahead."""
    spans = {(one.first, one.last) for one in found if one.kind is Kind.PERIOD}
    days = [one for one in found if one.kind is Kind.DATE and (one.first, one.last) not in spans][:_MANY]
    for clock in [one for one in found if one.kind is Kind.TIME][:_MANY]:
        for day in days:
            one, other = sorted((day, clock), key=lambda item: item.first)
            near = all(token.low in _JOINERS for token in tokens[one.last + 1 : other.first])
            if not near and len(days) > 1:
                continue
            moment = datetime.combine(date.fromisoformat(day.value), time.fromisoformat(clock.value), now.tzinfo)
            whole = Found(Kind.DATETIME, stamp(moment), one.first, other.last, clock.role or day.role)
            if clock.role or not near:
                whole = replace(whole, first=clock.first, last=clock.last, rest=tuple(range(day.first, day.last + 1)))
            yield whole
        today = datetime.combine(now.date(), time.fromisoformat(clock.value), now.tzinfo)
        if not days and (today > now or (clock.role == "start" and today < now)):
            yield Found(Kind.DATETIME, stamp(today), clock.first, clock.last, clock.role)


def stamp(when: Moment) -> str:
    """The ISO form: a date, a date-time with its zone, or a time to the minute."""
    if isinstance(when, datetime):
        return when.replace(microsecond=0).isoformat().replace("+00:00", "Z")
    return when.isoformat("minutes") if isinstance(when, time) else when.isoformat()
