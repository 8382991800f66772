# ruff: noqa: RUF001 - people type these marks
"""Dates, times and periods in a request: absolute ones, and those relative to the time of the request."""

import calendar
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from typing import Final

from apps.plans.local import words
from apps.plans.local.tokens import Found, Kind, Token

_MONTHS: Final = {name[:3].lower(): number for number, name in enumerate(calendar.month_name) if number}
_DAYS: Final = {name[:3].lower(): number for number, name in enumerate(calendar.day_name)}
_MONTH: Final = r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
_DAY: Final = (
    r"(?:mon|monday|tue|tues|tuesday|wed|wednesday|thu|thur|thurs|thursday|fri|friday|sat|saturday|sun|sunday)s?\b"
)
_UNIT: Final = r"(?:second|minute|min|hour|hr|day|week|month|year)s?\b"
_COUNT: Final = rf"(?:\d+|an?|{'|'.join(word for word in words.NUMBERS)}|a couple of|couple of|a few)"
_YEAR: Final = r"(?:19|20)\d\d(?![\d.:/-])"
_SUFFIX: Final = r"(?:st|nd|rd|th)?"
_CLOCK: Final = r"(?:[01]?\d|2[0-3])(?::[0-5]\d(?::[0-5]\d)?)?\s?(?:[ap]\.?m\b\.?)?"
_FORMS: Final = re.compile(
    r"(?i)(?<![\w/.#@-])(?:"
    r"(?P<iso>\d{4}-\d\d-\d\d(?P<isotime>[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?)"
    rf"|(?:{_DAY},?\s+(?:the\s+)?)?(?P<d1>\d\d?){_SUFFIX}\s+(?:of\s+)?(?P<m1>{_MONTH})(?:,?\s+(?P<y1>{_YEAR}))?"
    rf"|(?:{_DAY},?\s+)?(?P<m2>{_MONTH})\s+(?:the\s+)?(?P<d2>\d\d?){_SUFFIX}(?![\d:.])(?:\s?(?:-|–|to|until)\s?(?P<d3>\d\d?){_SUFFIX}(?![\d:.]))?(?:,?\s+(?P<y2>{_YEAR}))?"
    rf"|(?P<dots>\d\d?\.\d\d?\.(?:19|20)\d\d)|(?P<slashes>\d\d?/\d\d?/(?:19|20)\d\d)"
    rf"|q(?P<q>[1-4])(?:\s+(?:of\s+)?(?P<yq>{_YEAR}))?"
    rf"|(?P<near>(?:the\s+)?day\s+after\s+tomorrow|(?:the\s+)?day\s+before\s+yesterday|today|tonight|tomorrow|yesterday)"
    rf"|(?P<which>this|next|last|previous|past|coming|current)\s+(?P<span>week(?:end)?|month|year|quarter)"
    rf"|(?P<back>last|past|previous|next|coming)\s+(?:(?P<n1>{_COUNT})\s+)?(?P<u1>{_UNIT})"
    rf"|in\s+(?P<n2>{_COUNT})\s+(?P<u2>{_UNIT})(?!\s+(?:or|at most))|(?P<n3>{_COUNT})\s+(?P<u3>{_UNIT})\s+(?P<way>ago|from\s+now|from\s+today|later|earlier)"
    rf"|(?:(?P<whichday>this|next|last|past|coming)\s+)?(?P<day>{_DAY})"
    rf"|(?:(?P<whichmonth>this|next|last)\s+)?(?P<m3>{_MONTH})(?:\s+(?:of\s+)?(?P<y3>{_YEAR}))?"
    rf"|(?<=\bin )(?P<y4>{_YEAR})(?!\s*[a-z%])|(?<=\bsince )(?P<y5>{_YEAR})"
    r"|(?P<noon>noon|midday|midnight)\b"
    r"|(?P<half>half\s+past|(?:a\s+)?quarter\s+(?:past|to))\s+(?P<hour>\d\d?|"
    + "|".join(words.NUMBERS)
    + r")(?:\s?(?P<halfpm>[ap]\.?m)\b)?"
    r"|(?P<clock>(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d)?(?:\s?[ap]\.?m\b)?|(?:1[0-2]|0?[1-9])\s?[ap]\.?m\b)"
    r"|(?:at|@)\s+(?P<at>(?:[01]?\d|2[0-3]))(?:\s+o'?clock)?(?![\w:.,%]*\d)(?!\s*(?:%|percent|km|eur|usd|degrees))"
    r")(?![\w/])"
)


_AFTER: Final = frozenset(["since", "after", "from", "starting", "beginning"])
_BEFORE: Final = frozenset(["until", "till", "before", "by", "through"])
_MONTH_WORDS: Final = frozenset(
    [
        "in",
        "during",
        "for",
        "of",
        "since",
        "until",
        "till",
        "by",
        "from",
        "to",
        "between",
        "and",
        "through",
        "before",
        "after",
    ]
)
_NAMES_TOO: Final = frozenset(["may", "march", "april", "june", "august"])
_DAY_WORDS: Final = frozenset(
    [
        "on",
        "by",
        "since",
        "until",
        "till",
        "before",
        "after",
        "from",
        "to",
        "this",
        "next",
        "last",
        "coming",
        "past",
        "and",
        "or",
    ]
)
_JOINERS: Final = frozenset(["at", "on", "by", "the", "from", ",", "for"])


def dates(text: str, tokens: Sequence[Token], now: datetime) -> list[Found]:
    """Dates, times and periods of a request. A date and a time become a date-time, wherever they stand."""
    starts = {token.start: token.place for token in tokens}
    ends = {token.end: token.place for token in tokens}
    found: list[Found] = []
    for match in _FORMS.finditer(text):
        first, last = starts.get(match.start()), ends.get(match.end())
        if first is None or last is None or first > last:
            continue
        before = tokens[first - 1].low if first else ""
        try:
            found += _Read(match, first, last, before, now).found()
        except (ValueError, OverflowError):
            continue  # no such day: "31 February", "in 99999 years"
    return found


class _Read:
    """One match and what it says."""

    def __init__(self, match: re.Match[str], first: int, last: int, before: str, now: datetime) -> None:
        self.match, self.first, self.last, self.before, self.now = match, first, last, before, now
        self.today = now.date()
        self.role = "start" if before in _AFTER else "end" if before in _BEFORE else ""

    def found(self) -> list[Found]:
        said = {name: value.lower() for name, value in self.match.groupdict().items() if value}
        for name, reader in _READERS.items():
            if name in said:
                return list(reader(self, said))
        return []

    def _one(self, kind: Kind, value: str, role: str = "") -> Found:
        return Found(kind, value, self.first, self.last, role)

    def _day(self, day: date) -> Iterator[Found]:
        yield self._one(Kind.DATE, day.isoformat())

    def _moment(self, moment: datetime) -> Iterator[Found]:
        yield self._one(Kind.DATETIME, stamp(moment))

    def _period(self, first: date, last: date) -> Iterator[Found]:
        yield self._one(Kind.PERIOD, f"{first.isoformat()}/{last.isoformat()}")
        if self.role != "end":
            yield self._one(Kind.DATE, first.isoformat(), "start")
        if self.role != "start":
            yield self._one(Kind.DATE, last.isoformat(), "end")

    def _in_year(self, month: int, day: int, year: str | None) -> date:
        """A day of a year that was said, else the next such day; after "since" the last one."""
        if year:
            return date(int(year), month, day)
        ahead = (month, day) >= (self.today.month, self.today.day)
        back = self.before == "since"
        shift = (-1 if ahead else 0) if back else (0 if ahead else 1)
        return date(self.today.year + shift, month, day)

    def iso(self, said: dict[str, str]) -> Iterator[Found]:
        text = said["iso"].upper()
        if "isotime" not in said:
            yield from self._day(date.fromisoformat(text))
            return
        moment = datetime.fromisoformat(
            text.replace(" UTC", "Z").replace(" Z", "Z").replace(" +", "+").replace(" -", "-")
        )
        yield from self._moment(moment if moment.tzinfo else moment.replace(tzinfo=self.now.tzinfo))

    def day_month(self, said: dict[str, str]) -> Iterator[Found]:
        yield from self._day(self._in_year(_MONTHS[said["m1"][:3]], int(said["d1"]), said.get("y1")))

    def month_day(self, said: dict[str, str]) -> Iterator[Found]:
        first = self._in_year(_MONTHS[said["m2"][:3]], int(said["d2"]), said.get("y2"))
        if "d3" not in said:
            yield from self._day(first)
            return
        last = first.replace(day=int(said["d3"]))
        yield self._one(Kind.PERIOD, f"{first.isoformat()}/{last.isoformat()}")
        yield self._one(Kind.DATE, first.isoformat(), "start")
        yield self._one(Kind.DATE, last.isoformat(), "end")

    def numeric(self, said: dict[str, str]) -> Iterator[Found]:
        """25.11.2026 is day first. 11/25/2026 is told by the larger number; where both may be the month, there is no value."""
        mark = "." if "dots" in said else "/"
        one, other, year = (int(part) for part in said["dots" if mark == "." else "slashes"].split(mark))
        if mark == "." or one > _MONTHS_A_YEAR or one == other:
            yield from self._day(date(year, other, one))
        elif other > _MONTHS_A_YEAR:
            yield from self._day(date(year, one, other))

    def month(self, said: dict[str, str]) -> Iterator[Found]:
        text = self.match.group("m3")
        which, plain = said.get("whichmonth"), text.lower().rstrip(".")
        sure = which or "y3" in said or self.before in _MONTH_WORDS
        if not sure and (not text[0].isupper() or len(plain) <= len("sept") or plain in _NAMES_TOO):
            return
        month, year = _MONTHS[plain[:3]], int(said.get("y3", self.today.year))
        if "y3" not in said and which in ("next", "last"):
            passed = month <= self.today.month
            year += (1 if passed else 0) if which == "next" else (0 if month < self.today.month else -1)
        elif "y3" not in said and self.before == "since" and month > self.today.month:
            year -= 1
        yield from self._period(*_month(year, month))

    def quarter(self, said: dict[str, str]) -> Iterator[Found]:
        month, year = 3 * int(said["q"]) - 2, int(said.get("yq", self.today.year))
        yield from self._period(date(year, month, 1), _month(year, month + 2)[1])

    def near(self, said: dict[str, str]) -> Iterator[Found]:
        text = said["near"]
        shift = (
            (2 if "after" in text else 1)
            if "tomorrow" in text
            else (-2 if "before" in text else -1)
            if "yest" in text
            else 0
        )
        yield from self._day(self.today + timedelta(days=shift))

    def span(self, said: dict[str, str]) -> Iterator[Found]:
        shift = {"this": 0, "current": 0, "next": 1, "coming": 1}.get(said["which"], -1)
        today = self.today
        match said["span"]:
            case "week" | "weekend":
                monday = today + timedelta(days=7 * shift - today.weekday())
                saturday = monday + timedelta(days=5)
                yield from self._period(saturday if said["span"] == "weekend" else monday, monday + timedelta(days=6))
            case "month":
                yield from self._period(*_month(today.year, today.month + shift))
            case "quarter":
                month = 3 * ((today.month - 1) // 3 + shift) + 1
                yield from self._period(_month(today.year, month)[0], _month(today.year, month + 2)[1])
            case _:
                yield from self._period(date(today.year + shift, 1, 1), date(today.year + shift, 12, 31))

    def back(self, said: dict[str, str]) -> Iterator[Found]:
        """ "The last 7 days" end now."""
        sign = 1 if said["back"] in ("next", "coming") else -1
        other = _shifted(self.now, sign * _count(said.get("n1", "1")), said["u1"])
        start, end = (other, self.now) if sign < 0 else (self.now, other)
        if _unit(said["u1"]) in _OF_A_DAY:
            yield self._one(Kind.PERIOD, f"{stamp(start)}/{stamp(end)}")
            yield self._one(Kind.DATETIME, stamp(start), "start")
            yield self._one(Kind.DATETIME, stamp(end), "end")
        else:
            yield from self._period(start.date(), end.date())

    def relative(self, said: dict[str, str]) -> Iterator[Found]:
        count, unit = said.get("n2") or said["n3"], said.get("u2") or said["u3"]
        sign = -1 if said.get("way") in ("ago", "earlier") else 1
        moment = _shifted(self.now, sign * _count(count), unit)
        yield from self._moment(moment) if _unit(unit) in _OF_A_DAY else self._day(moment.date())

    def weekday(self, said: dict[str, str]) -> Iterator[Found]:
        text = self.match.group("day")
        which = said.get("whichday", "")
        short = len(text) <= len("weds") and not text[0].isupper() and not which and self.before not in _DAY_WORDS
        if short or said["day"].endswith("days") or self.before in ("every", "each"):
            return
        ahead = (_DAYS[said["day"][:3]] - self.today.weekday()) % 7 or 7
        if which in ("last", "past") or self.before == "since":
            ahead -= 7
        yield from self._day(self.today + timedelta(days=ahead or -7))

    def year(self, said: dict[str, str]) -> Iterator[Found]:
        year = int(said.get("y4") or said["y5"])
        yield from self._period(date(year, 1, 1), date(year, 12, 31))

    def noon(self, said: dict[str, str]) -> Iterator[Found]:
        yield self._one(Kind.TIME, "00:00" if said["noon"] == "midnight" else "12:00")

    def half(self, said: dict[str, str]) -> Iterator[Found]:
        hour = words.NUMBERS[said["hour"]] if said["hour"] in words.NUMBERS else int(said["hour"])
        minutes = {"half": 30, "past": 15}.get(said["half"].split()[0 if said["half"].startswith("half") else -1], -15)
        clock = _clock(f"{hour}{said.get('halfpm', '')}")
        moment = datetime.combine(self.today, clock) + timedelta(minutes=minutes)
        yield self._one(Kind.TIME, f"{moment:%H:%M}")

    def clock(self, said: dict[str, str]) -> Iterator[Found]:
        yield self._one(Kind.TIME, _clock(said["clock"]).isoformat("minutes"))

    def hour(self, said: dict[str, str]) -> Iterator[Found]:
        yield self._one(Kind.TIME, _clock(said["at"]).isoformat("minutes"))


_READERS: Final = {
    "iso": _Read.iso,
    "d1": _Read.day_month,
    "d2": _Read.month_day,
    "dots": _Read.numeric,
    "slashes": _Read.numeric,
    "m3": _Read.month,
    "q": _Read.quarter,
    "near": _Read.near,
    "span": _Read.span,
    "back": _Read.back,
    "n2": _Read.relative,
    "n3": _Read.relative,
    "day": _Read.weekday,
    "y4": _Read.year,
    "y5": _Read.year,
    "noon": _Read.noon,
    "half": _Read.half,
    "clock": _Read.clock,
    "at": _Read.hour,
}
_MONTHS_A_YEAR: Final = 12
_OF_A_DAY: Final = frozenset(("second", "minute", "hour"))


def timed(tokens: Sequence[Token], found: Sequence[Found], now: datetime) -> Iterator[Found]:
    """The date-times that the days and times of a request make together."""
    days = [one for one in found if one.kind is Kind.DATE and not one.role]
    for clock in (one for one in found if one.kind is Kind.TIME):
        for day in days:
            one, other = sorted((day, clock), key=lambda item: item.first)
            between = tokens[one.last + 1 : other.first]
            near = all(token.low in _JOINERS for token in between)
            if not near and len(days) > 1:
                continue
            moment = datetime.combine(date.fromisoformat(day.value), time.fromisoformat(clock.value), tzinfo=now.tzinfo)
            whole = Found(Kind.DATETIME, stamp(moment), one.first, other.last, clock.role)
            rest = tuple(range(day.first, day.last + 1))
            yield whole if near and not clock.role else replace(whole, first=clock.first, last=clock.last, rest=rest)


def stamp(moment: datetime) -> str:
    """A date-time in the form of RFC 3339."""
    return moment.replace(microsecond=0).isoformat().replace("+00:00", "Z")


def _month(year: int, month: int) -> tuple[date, date]:
    """The first and the last day of a month; months below 1 and above 12 belong to other years."""
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    return date(year, month, 1), date(year, month, calendar.monthrange(year, month)[1])


def _unit(text: str) -> str:
    return words.UNITS[text]


def _count(text: str) -> int:
    if text.isdigit():
        return int(text)
    return words.NUMBERS.get(text, {"a few": 3, "couple of": 2, "a couple of": 2}.get(text, 1))


def _shifted(moment: datetime, count: int, unit: str) -> datetime:
    name = _unit(unit)
    if name in ("month", "year"):
        first, last = _month(moment.year, moment.month + count * (12 if name == "year" else 1))
        return moment.replace(year=first.year, month=first.month, day=min(moment.day, last.day))
    return moment + timedelta(seconds=count * words.SECONDS[name])


def _clock(text: str) -> time:
    plain = text.lower().replace(".", "").replace(" ", "")
    hour, _, rest = plain.rstrip("apm").partition(":")
    number = int(hour)
    if plain.endswith("pm") and number < _MONTHS_A_YEAR:
        number += 12
    if plain.endswith("am") and number == _MONTHS_A_YEAR:
        number = 0
    minutes, _, seconds = rest.partition(":")
    return time(number, int(minutes or 0), int(seconds or 0))
