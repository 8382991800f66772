# ruff: noqa: RUF001 - people type these marks
"""The dates, times and periods that a request names, relative to the time that it was asked at."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from typing import Final

from apps.plans.local import words
from apps.plans.local.tokens import Found, Kind, Token, is_range

Moment = date | datetime | time
When = Moment | tuple[Moment, Moment] | None
"""What a form says: a day, a moment, a time of day, or a period with its first and last; None: nothing for sure."""

_COUNTS: Final = {**words.NUMBERS, "a": 1, "an": 1, "a couple of": 2, "couple of": 2}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SHIFTS: Final = {"this": 0, "current": 0, "next": 1, "coming": 1, "last": -1, "past": -1, "previous": -1}
_LISTED: Final = {
    "MONTH": r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?",
    "DAY": r"(?:mon(?:day)?|tue(?:s(?:day)?)?|wed(?:nesday)?|thu(?:rs?(?:day)?)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?)\b",
    "UNIT": r"(?:second|minute|min|hour|hr|day|week|month|year)s?\b",
    "COUNT": rf"(?:\d{{1,4}}|{'|'.join(sorted(_COUNTS, key=len, reverse=True))})\b".replace(" ", r"\s"),
    "LATER": r"this\s+(?:morning|afternoon|evening)",
    "LATE": r"(?:morning|afternoon|evening)",
    "HOUR": r"(?:1[0-2]|0?[1-9])",
    "WHICH": "(?P<which>this|next|last|previous|past|coming|current)",
    "TO": r"\s?(?:-|–|to|and|until|through)\s?",
    "PM": r"\s?[ap](?:m\b|\.m\.)",
    "THE": r"(?:DAY,?\s+)?(?:the\s+)?",
    "OF": r"(?:,?\s+(?:of\s+)?(?P<year>(?:(?:19|20)\d\d(?![\d:/-]|\.\d)|(?:this|next|last)\s+year\b)))?",
    "TH": r"(?:st|nd|rd|th)?(?![\d:.])",
}
_LATE: Final = frozenset(("tonight", "evening", "afternoon", "night", "pm"))
_DONE: Final = frozenset(
    ["log", "logged", "track", "tracked", "recorded", "spent", "paid", "bought", "made", "taken", "done", "happened"]
)
"""Words that tell that a day is over."""
_DID: Final = frozenset(("did", "was", "were"))
_ASKING: Final = words.GROUPS["question"] | _DID
_ENDING: Final = frozenset((".", ",", ";", "?", "and"))
_AFTER: Final = frozenset(("since", "after", "from", "starting", "beginning"))
_BEFORE: Final = frozenset(("until", "till", "before", "by", "through"))
_TIED: Final = _AFTER | _BEFORE | {"in", "during", "for", "of", "on", "to", "or", "between", "and"}
"""What stands before a month or a day that may be another word: "may", "sun"."""
_JOINERS: Final = frozenset(("at", "on", "by", "the", "from", "for", ","))
_FOLLOWING: Final = _JOINERS | {"", ".", "!", "?", "with", "to", "until", "and", "in", "today", "tomorrow", "this"}
"""What may stand behind an hour or a day that is but a number."""
_COMPOUND: Final = re.compile(r"/|-[A-Za-z]")
"""What may not follow: 3-day, 5/x."""
_OF_LATE: Final = 45
"""Up to so many days ago, a day without a year is the last such day."""
_MANY, _A_YEAR, _SHORT = 20, 12, 4


@dataclass(slots=True)
class _Around:
    """What a form stands in."""

    now: datetime
    today: date
    before: str
    after: str
    late: bool
    past: bool

    def day(self, year: str | None, month: int, day: str) -> date:
        """A day of the year that was said, else the next such day; one that passed of late, or after "since", is the last."""
        found = date(self.year(year) or self.today.year, month, int(day))
        ago = (self.today - found).days
        if year or (ago > 0 and self.past) or 0 <= ago <= _OF_LATE:
            return found
        return found.replace(year=found.year + (-1 if self.past else int(ago > 0)))

    def year(self, said: str | None) -> int:
        return 0 if said is None else int(said) if said.isdigit() else self.now.year + _SHIFTS[said.split()[0]]

    def shifted(self, count: int, unit: str) -> date | datetime:
        name = words.UNITS[unit]
        if name in ("month", "year"):
            first, last = _whole(self.now.year, self.now.month + count * (_A_YEAR if name == "year" else 1))
            return first.replace(day=min(self.now.day, last.day))
        other = self.now + timedelta(seconds=count * words.RATIOS[name][1])
        return other if name in ("second", "minute", "hour") else other.date()


def _whole(year: int, month: int, months: int = 1) -> tuple[date, date]:
    """The first and last day of some months; a month below 1 or above 12 is one of another year."""
    (first, number), (other, after) = divmod(year * 12 + month - 1, 12), divmod(year * 12 + month - 1 + months, 12)
    return date(first, number + 1, 1), date(other, after + 1, 1) - timedelta(days=1)


def _count(text: str | None) -> int:
    return 1 if text is None else int(text) if text.isdigit() else _COUNTS[text]


def _iso(around: _Around, day: str, clock: str | None) -> When:
    moment = datetime.fromisoformat(
        day + (clock or "").upper().replace("UTC", "Z").replace(" Z", "Z").replace(" +", "+")
    )
    return moment.date() if clock is None else moment if moment.tzinfo else moment.replace(tzinfo=around.now.tzinfo)


def _day_month(around: _Around, first: str | None, day: str | None, month: str, year: str | None) -> When:
    one = around.day(year, _MONTHS.index(month[:3]) + 1, first or day or "")
    other = one.replace(day=int(day or one.day))
    return one if one == other else (one, other) if one < other else None


def _numeric(around: _Around, one: str, mark: str, other: str, year: str | None) -> When:
    """25.11.2026 begins with the day. In 11/25/2026 and 28/11 the larger number is the day; 3/4 says nothing for sure."""
    if mark == "." or int(one) > _A_YEAR or (year and one == other):
        return around.day(year, int(other), one) if year or mark == "/" else None
    return around.day(year, int(one), other) if year and int(other) > _A_YEAR else None


def _month(around: _Around, which: str | None, month: str, year: str | None) -> When:
    """A month without a year is one of this year. "next" and "last" go from now, and "since" is never ahead."""
    number = _MONTHS.index(month[:3]) + 1
    if year:
        return _whole(around.year(year), number)
    if not which and around.before not in _TIED and month in ("may", "march", "mar"):
        return None
    ahead = number - around.today.month
    shift = int(which == "next" and ahead <= 0) - int((which == "last" and ahead >= 0) or (around.past and ahead > 0))
    return _whole(around.today.year + shift, number)


def _month_end(around: _Around, month: str, year: str | None) -> When:
    """The last day of the next such month, or of the last one for what is over."""
    number = _MONTHS.index(month[:3]) + 1
    found = _whole(around.year(year) or around.today.year, number)[1]
    shift = 0 if year or around.past == (found < around.today) else -1 if around.past else 1
    return _whole(found.year + shift, number)[1]


def _nth(around: _Around, dow: str | None, nth: str) -> When:
    """ "the 5th" is the next such day, today included, or the last one. "Friday the 5th" is both, ahead first."""
    order = (*range(2 * _OF_LATE), *range(-1, -_OF_LATE, -1))
    days = (around.today + timedelta(days=-count if around.past else count) for count in order)
    named = (day for day in days if _DAYS[day.weekday()].startswith((dow or "")[:3]))
    return next((day for day in named if day.day == int(nth)), None) if dow or around.after in _FOLLOWING else None


def _near(around: _Around, near: str) -> When:
    shift = int("tom" in near or "tmrw" in near) - int("yesterday" in near)
    return around.today + timedelta(days=shift * (2 if "day " in near else 1))


def _span(around: _Around, span: str, which: str = "this") -> tuple[date, date]:
    today, shift = around.today, _SHIFTS[which]
    if span.startswith("week"):
        monday = today + timedelta(days=7 * shift - today.weekday())
        return monday + timedelta(days=5 if span == "weekend" else 0), monday + timedelta(days=6)
    months = {"month": 1, "quarter": 3, "year": 12}[span]
    return _whole(today.year, (today.month - 1) // months * months + 1 + months * shift, months)


def _quarter(around: _Around, number: str, year: str | None) -> When:
    nth = ("q1", "q2", "q3", "q4", "fi", "se", "th", "fo").index(number[:2]) % 4 + 1
    return _whole(around.year(year) or around.today.year, 3 * nth - 2, 3)


def _back(around: _Around, which: str, count: str | None, unit: str) -> When:
    """The last seven days end now, the next seven begin now."""
    other = around.shifted(_count(count) * (_SHIFTS[which] or 1), unit)
    now = around.now if isinstance(other, datetime) else around.today
    return (now, other) if _SHIFTS[which] >= 0 else (other, now)


def _ago(around: _Around, count: str, unit: str, way: str = "in") -> When:
    return around.shifted(_count(count) * (-1 if way == "ago" else 1), unit)


def _weekday(around: _Around, which: str | None, day: str) -> When:
    """The next such day after today, or the last one. "every Monday" is no day."""
    if around.before in ("every", "each") or not (which or around.before in _TIED or len(day) > _SHORT):
        return None
    ahead = (_DAYS.index(day[:3]) - around.today.weekday()) % 7 or 7
    return around.today + timedelta(days=ahead - (7 if which in ("last", "past") or around.past else 0))


def _hour(around: _Around, hour: str, minute: str | None = None, pm: str | None = None) -> time:
    """A time of day. Without am or pm, hours count from 0 to 23, or from noon where the request says "tonight" or the like."""
    count = _count(hour)
    if pm or (around.late and 0 < count < _A_YEAR):
        count = count % _A_YEAR + (0 if (pm or "").strip().startswith("a") else _A_YEAR)
    return time(count, int(minute or 0))


def _clock(around: _Around, since: str | None, hour: str, minute: str | None, pm: str | None) -> When:
    end = _hour(around, hour, minute, pm)
    if since is None:
        return end
    start = time(int(since) % _A_YEAR + (_A_YEAR if int(since) + _A_YEAR <= end.hour else 0))
    return (start, end) if start < end else None


def _past(around: _Around, part: str, way: str, hour: str, pm: str | None) -> When:
    minutes = (30 if part == "half" else 15) * (1 if way == "past" else -1)
    told = datetime.combine(around.today, _hour(around, hour, None, pm)) + timedelta(minutes=minutes)
    return told.time()


def _hours(around: _Around, since: str, hour: str) -> When:
    """ "from 9 to 11" are hours where the request names a day."""
    is_told = around.after in _FOLLOWING and int(since) < int(hour)
    return (_hour(around, since), _hour(around, hour)) if is_told else None


def _at(around: _Around, hour: str, minute: str | None) -> When:
    amounts = (*words.UNITS, *words.CURRENCIES, "each", "per", "%")
    return None if around.after in amounts or around.after.endswith("s") else _hour(around, hour, minute)


_READERS: Final[Sequence[tuple[Callable[..., When], str]]] = (
    (
        _iso,
        r"(?P<day>\d{4}-\d\d-\d\d)(?P<clock>[T\s]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:\s?(?:Z\b|UTC\b|[+-]\d\d:?\d\d))?)?",
    ),
    (_day_month, r"THE (?:(?P<first>\d\d?)TH TO THE)? (?P<day>\d\d?)TH \s+(?:of\s+)?(?P<month>MONTH) OF"),
    (_day_month, r"THE (?P<month>MONTH)\s+(?:the\s+)?(?P<first>\d\d?)TH (?:TO (?:the\s+)?(?P<day>\d\d?)TH)? OF"),
    (_numeric, r"(?P<one>\d\d?)(?P<mark>[./])(?P<other>\d\d?)(?:(?P=mark)(?P<year>(?:19|20)\d\d))?"),
    (_month, r"(?:(?P<which>this|next|last)\s+)?(?P<month>MONTH) OF"),
    (_quarter, r"(?:the\s+)?(?P<number>q[1-4]|(?:first|second|third|fourth)\s+quarter\b) OF"),
    (_nth, r"(?:(?P<dow>DAY),?\s+(?:the\s+)?|the\s+)(?P<nth>\d\d?)(?:st|nd|rd|th)\b"),
    (
        _near,
        r"(?P<near>(?:the\s+)?day\s+(?:after\s+tomorrow|before\s+yesterday)|today|tonight|tomorrow|tmrw|yesterday|LATER)\b",
    ),
    (_month_end, r"(?:the\s+)?end\s+of\s+(?P<month>MONTH) OF"),
    (lambda around, span: _span(around, span)[1], r"end\s+of\s+(?:the|this)\s+(?P<span>week|month|quarter|year)\b"),
    (_span, r"WHICH \s+(?P<span>week(?:end)?|month|year|quarter)\b"),
    (_back, r"WHICH \s+(?:(?P<count>COUNT)\s+)?(?P<unit>UNIT)"),
    (_ago, r"in\s+(?P<count>COUNT)\s+(?P<unit>UNIT)(?!\s+or\b)"),
    (_ago, r"(?P<count>COUNT)\s+(?P<unit>UNIT)\s+(?P<way>ago|from\s+now|from\s+today)\b"),
    (_weekday, r"(?:WHICH \s+)?(?P<day>DAY)"),
    (lambda _, noon: time(0 if noon == "midnight" else 12), r"(?P<noon>noon|midday|midnight)\b"),
    (_clock, r"(?:(?P<since>HOUR)TO)?(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)(?::[0-5]\d)?(?P<pm>PM)?"),
    (_clock, r"(?:(?P<since>HOUR)TO)?(?P<hour>HOUR)(?:\.(?P<minute>[0-5]\d))?(?P<pm>PM)"),
    (
        _clock,
        r"(?:(?P<since>HOUR)TO)?(?P<hour>HOUR)(?P<minute>)(?P<pm>)(?=\s+(?:(?:in\s+the|tomorrow)\s+LATE|this\s+LATE|tonight)\b)",
    ),
    (_past, r"(?P<part>half|(?:a\s+)?quarter)\s+(?P<way>past|to)\s+(?P<hour>COUNT) (?P<pm>PM)?(?![\d:.])"),
    (_hours, r"(?:from|between)\s+(?P<since>HOUR)TO(?P<hour>HOUR)(?![\d:.])"),
    (_at, r"(?<=day\s)(?P<hour>[01]?\d|2[0-3])\.(?P<minute>[0-5]\d)(?![\d:])"),
    (_at, r"(?:at|@)\s+(?P<hour>[01]?\d|2[0-3])(?:\.(?P<minute>[0-5]\d))?(?![\d:])"),
)
"""The forms of dates and times, first come first served, and what reads each. Capitals stand for what is listed above."""


def _compiled(form: str) -> re.Pattern[str]:
    for _ in range(2):
        form = re.sub(rf"(?<![A-Za-z])({'|'.join(_LISTED)})(?![A-Z])", lambda name: _LISTED[name[1]], form)
    return re.compile(form.replace(" ", ""), re.IGNORECASE)


_FORMS: Final = [(_compiled(form), reader) for reader, form in _READERS]
_Match = tuple[int, int, When, bool, When]
"""First and last place of what a form says, whether it names both ends of a range, and what it says of what is over."""


def dates_in(text: str, spans: Sequence[tuple[int, int]], tokens: Sequence[Token], now: datetime) -> Iterator[Found]:
    """Dates, times and periods of a request. After "since" a date is a start only, and after "until" an end only.

    :param spans: where the tokens stand in the text, in which typos may have been repaired.
    """
    found = list(_matches(text, spans, tokens, now))
    has_day = any(type(when) is date for _, _, when, _, _ in found)
    found = [one for one in found if has_day or tokens[one[0]].low not in ("from", "between")]
    skipped = -1
    for number, (first, last, when, whole, past) in enumerate(found):
        if number == skipped:
            continue
        after = found[number + 1] if number + 1 < len(found) else None
        before = tokens[first - 1].low if first else ""
        role = "" if whole else "start" if before in _AFTER else "end" if before in _BEFORE else ""
        is_joined = after is not None and after[0] == last + 2 and is_range(tokens, first, last)
        if is_joined and after and (ends := _ends(when, after[2], tokens[after[1]])):
            skipped = number + 1
            yield Found(Kind.PERIOD, "/".join(map(stamp, ends)), first, after[1])
            yield Found(_kind(ends[0]), stamp(ends[0]), first, last, "start")
            yield Found(_kind(ends[1]), stamp(ends[1]), after[0], after[1], "end")
        elif isinstance(when, tuple):
            if before == "from" and stamp(when[1])[:10] < now.date().isoformat():
                role = ""
            if not role:
                yield Found(Kind.PERIOD, "/".join(map(stamp, when)), first, last)
            for one, side in zip(when, ("start", "end"), strict=True):
                if role in ("", side):
                    yield Found(_kind(one), stamp(one), first, last, side)
        elif when is not None:
            over = stamp(past) if isinstance(past, date) and past != when else None
            yield Found(_kind(when), stamp(when), first, last, role, past=over)


def _matches(text: str, spans: Sequence[tuple[int, int]], tokens: Sequence[Token], now: datetime) -> Iterator[_Match]:
    ends = {end - (2 if tokens[at].low.endswith("'s") else 0): at for at, (_, end) in enumerate(spans)}
    lows = [token.low for token in tokens]
    late = not _LATE.isdisjoint(lows)
    # "How many did I sell on Sunday" asks for what is over, up to where its clause ends.
    ended = next((at for at, low in enumerate(lows) if low in _ENDING), len(lows))
    asking = lows[:ended] if lows and lows[0] in _ASKING else []
    did = next((at for at, low in enumerate(asking) if low in _DID), ended)
    day, following = now.date(), 0
    for first, (start, _) in enumerate(spans):
        if first < following or (start and text[start - 1] in "-/.#" and first != following + 1):
            continue
        before = [token.low for token in tokens[max(first - 2, 0) : first] if token.low != "the"]
        is_asked = did < first <= ended
        is_over = (is_asked or not _DONE.isdisjoint((tokens[0].low, *before))) and _BEFORE.isdisjoint(before[-1:])
        past = before[-1:] == ["since"] or is_over
        for form, reader in _FORMS:
            match = form.match(text, start)
            last = ends.get(match.end()) if match else None
            if match is None or last is None or _COMPOUND.match(text, match.end()):
                continue
            after = tokens[last + 1].low if last + 1 < len(tokens) else ""
            around = _Around(now, now.date(), before[-1] if before else "", after, late, past)
            if reader is _nth:
                around.today = day if around.before in ("to", "until", "through") and not past else max(day, now.date())
            said = {name: value and value.lower() for name, value in match.groupdict().items()}
            over: When = None
            try:
                when = reader(around, **said)
            except (ValueError, OverflowError):
                following = last + 1
                break  # no such day: "31 February", "in 9000 years"
            if when is not None:
                around.past = True
                with suppress(ValueError, OverflowError):
                    over = reader(around, **said)
                day, following = when if type(when) is date else day, last + 1
                yield (
                    first,
                    last,
                    when,
                    isinstance(when, tuple) and not said.keys().isdisjoint(("first", "since")),
                    over,
                )
                break


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
