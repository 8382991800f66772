# ruff: noqa: RUF001 - people type these marks
"""The tokens of a request. A value with a form of its own, such as a path or an id, is one token."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from apps.plans.local import words

Kind = StrEnum(
    "Kind",
    "QUOTED URL EMAIL PATH GLOB FILE REPO DOTTED CHANNEL USER NUMBER_REF ID UUID VERSION DATE DATETIME TIME PERIOD DURATION"
    " INTEGER NUMBER MONEY QUANTITY CURRENCY UNIT PHONE LANGUAGE COUNTRY TIMEZONE SQL JSON EXPRESSION DOMAIN IP SLUG",
)
"""What a value is.

The halves of a pair (REPO `a/b`, DOTTED `a.b`) are SLUGs with the roles `left` and `right`. The ends of a PERIOD are DATEs or
DATETIMEs with the roles `start` and `end`. A DURATION counts seconds. MONEY, QUANTITY and DURATION are a number with its unit,
which also are values alone.
"""
NUMERIC: Final = frozenset((Kind.INTEGER, Kind.NUMBER, Kind.MONEY, Kind.QUANTITY, Kind.DURATION))
WHENS: Final = frozenset((Kind.DATE, Kind.DATETIME, Kind.TIME, Kind.PERIOD))


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a mark, or a typed value of a request."""

    place: int
    start: int
    end: int
    text: str
    low: str
    stem: str


@dataclass(frozen=True, slots=True)
class Found:
    """A value and the tokens it was read from. Values may overlap, and each token serves one param.

    The two ends of a range and the days of several date-times are an exception: they may stand on the same tokens ("last
    week", "from 2 to 3 pm tomorrow").
    """

    kind: Kind
    value: Any
    first: int
    last: int
    role: str = ""
    """`start` or `end` of a range; `left` or `right` of a pair; `ordinal` for "3rd"."""
    unit: str = ""
    """The unit or currency of a number; the code of a language, country, currency or unit."""
    past: Any = None
    """What it is of the past: "Friday" of a day that is over."""
    rest: tuple[int, ...] = ()
    """Places outside of first to last that also belong to it: "tomorrow with Ann at 9" has one date-time."""

    @property
    def places(self) -> frozenset[int]:
        return frozenset((*range(self.first, self.last + 1), *self.rest))


@dataclass(frozen=True)
class Reading:
    """A request, cut into tokens in order, with the values found in it."""

    text: str
    tokens: tuple[Token, ...]
    found: tuple[Found, ...]


_FILES: Final = (
    "txt|mdx?|rst|pdf|[ct]sv|jsonl?|ya?ml|py|ipynb|[jt]sx?|s?css|docx?|xlsx?|pptx?|odt|rtf|png|jpe?g|gif|webp|svg|bmp|tiff?|heic"
    "|mp[34]|wav|mov|avi|mkv|zip|tar|t?gz|7z|rar|log|html?|xml|toml|ini|cfg|conf|env|lock|sh|sql|db|parquet|go|rs|java|cpp|iso|ics"
)
_DOMAINS: Final = "com|org|net|edu|gov|io|dev|app|ai|co|info|me|eu|de|at|ch|uk|fr|it|es|nl|us|ca|example"
_MEASURED: Final = (
    rf"[\d.,]+(?i:{'|'.join(sorted(one for one in words.UNITS if one.isalpha()))}|[ap]m|st|nd|rd|th|k|x\d+)(?!\w)"
    r"|[qQ][1-4](?![\w-])|\d+-[A-Za-z]+(?![\w-])"
)
_AHEAD, _BEHIND = r"(?<![\w/.@#-])", r"(?![\w/@-])(?!\.\w)"
_OPERAND: Final = r"\({0,9}-?\d+(?:\.\d+)?%?\){0,9}"
_FORMS: Final = {
    Kind.QUOTED: r"\"[^\"]+\"|“[^”]+”|«[^»]+»|„[^„“”]+[“”]|`[^`]+`|‘[^’]+’(?!\w)|(?<!\w)'[^'\s](?:[^']|'(?=\w))*'(?!\w)",
    Kind.URL: r"(?<![\w+.-])(?:[a-zA-Z][a-zA-Z0-9+.-]*://|www\.)[^\s<>\"'`,;]*[^\s<>\"'`,;.:!?)\]}]",
    Kind.EMAIL: r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b",
    Kind.SQL: r"\b(?:SELECT\b[^;]+?\bFROM\b|INSERT\s+INTO\b|UPDATE\s+\S+\s+SET\b|DELETE\s+FROM\b|CREATE\s+TABLE\b)[^;]*",
    Kind.JSON: r"\{(?=\s*\}|[^{}]*:)(?:[^{}]|\{[^{}]*+\})*+\}|\[\s*[{\"][^\[\]]*[}\"]\s*\]",
    Kind.DATETIME: r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: ?(?:Z\b|UTC\b|[+-]\d\d:?\d\d))?",
    Kind.DATE: r"\b\d{4}-\d\d-\d\d\b(?!-)|\b\d\d?(?P<mark>[./])\d\d?(?P=mark)(?:19|20)\d\d\b",
    Kind.UUID: r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\b(?=[a-f]*\d)[0-9a-f]{32}\b",
    Kind.PHONE: r"(?<![\w+])\+\d[\d ()./-]{6,}\d\b|(?<![\w-])(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])"
    r"|(?<![\w-])0\d{2,4}[ ./-](?:\d{3,4}[ .-]\d{3,4}|\d{5,8})(?![\w-])",
    Kind.DURATION: r"(?<![\w.])(?:\d+\s?[dhms]\s?(?=\d)|\d+\s?[dhms](?!\w)){2,}|(?<![\w.])\d+h\d\d(?!\w)",
    Kind.NUMBER_REF: r"#\d+\b",
    Kind.CHANNEL: r"(?<!\w)#[A-Za-z][\w-]*",
    Kind.TIMEZONE: r"\b(?:Africa|America|Asia|Atlantic|Australia|Europe|Pacific|Etc)/[A-Z]\w*(?:/\w+)?",
    Kind.USER: r"(?<!\w)@[A-Za-z_](?>(?:[\w.-]*\w)?)(?!/)",
    Kind.GLOB: r"(?<!\S)(?=[^\s*]*\*)(?=\S*[A-Za-z./])[\w./{},-]*\*[\w./*{},\[\]-]*[\w*/}]|(?<!\S)\*(?=[\s,;?!]|$)",
    Kind.IP: rf"{_AHEAD}(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?:/\d\d?|:\d+)?\b",
    Kind.PATH: rf"(?<![\w/.])(?:~|\.{{1,2}})?/(?:[\w.@+%/-]*[\w/])?|\b[A-Za-z]:[\\/][^\s,;]*\w|(?<!\S)\.\.?(?=\s|$)"
    rf"|{_AHEAD}(?:[\w.@+-]+/)+[\w.+-]*\.(?i:{_FILES})\b|{_AHEAD}(?=[\w.-]*[A-Za-z])[\w.-]+(?:/[\w.+-]*\w){{2,}}/?"
    rf"|{_AHEAD}(?=[\w.-]*[A-Za-z])[\w.-]+/(?=[\s,.;?!]|$)|(?<!\w)@[\w-]+/[\w.-]*\w",
    Kind.FILE: rf"(?<![\w/@.-])(?=[\w.-]*[A-Za-z])[\w-]+(?:\.[\w-]+)*\.(?i:{_FILES}){_BEHIND}|(?<!\S)\.[a-z][\w.-]*\w{_BEHIND}",
    Kind.DOMAIN: rf"(?<![\w/@.-])(?:\w[\w-]*\.)+(?i:{_DOMAINS}){_BEHIND}",
    Kind.VERSION: rf"{_AHEAD}[vV]?\d+\.\d+\.\d+(?:[-+][\w.]*\w)?\b|{_AHEAD}[vV]\d+(?:\.\d+)*\b",
    Kind.ID: r"\b[A-Z]{2}\d\d(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b|\b\d{4}(?:[ -]\d{4}){3}\b"
    rf"|{_AHEAD}10\.\d{{4,9}}/[^\s,;\"<>]*\w|{_AHEAD}(?:(?=[\w:-]*\d)(?=[\w:-]*[A-Za-z])(?!{_MEASURED})[A-Za-z0-9]+"
    rf"(?:[_:-][A-Za-z0-9]+)*+|\d{{9,}}\.\d{{3,}}|[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+){_BEHIND}",
    Kind.TIME: r"(?<![\w:])(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d)?(?:\s?[aApP](?:[mM]\b|\.[mM]\.))?(?![\w:])"
    r"|(?<![\w.:])(?:1[0-2]|0?[1-9])\s?[aApP](?:[mM]\b|\.[mM]\.)",
    Kind.EXPRESSION: rf"(?<![\w.,/-]){_OPERAND}(?:\s*[*/^×÷]\s*|\s+[-+]\s+|\s*\+\s*){_OPERAND}"
    rf"(?:\s*[-+*/^×÷]\s*{_OPERAND})*(?![\w/-])",
}
_SCANNER: Final = re.compile(
    r"(?P<word>(?!(?i:select|insert|update|delete|create)\b)[^\W\d_]+(?=\s|[,;:?!.]\s|[,;?!.]?$))|"
    + "|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _FORMS.items())
    + r"|(?P<digits>(?<![\w.,-])\d+,\d\d?(?![\d,])|(?<![\w.-])-?\d+(?:,\d{3})+(?:\.\d+)?(?!\w)|(?:(?<![\w.-])-)?\d+(?:\.\d+)?)"
    r"|(?<=\d)[xX×](?=\d)|(?:US|[ACS]|NZ|HK)\$|°[CFcf]?|[^\W\d_]\w*(?:['’][^\W\d_]+)*|\S",
    re.DOTALL,
)
_SPANS: Final = (
    # What may be an id, though it reads as a number, a date or several words as well: 7C, 2026-0418, 1987.004, KT 4471.
    (
        Kind.ID,
        r"(?<!\d)\d+[A-Z](?!\w)|(?<!\d)(?!\d[/-]\d(?!\d))\d+(?:[/-]\d+)+(?![\w/-])|(?<![\w.])\d{2,}\.\d{3,}(?![\w.])",
    ),
    (Kind.ID, r"(?<![\w-])(?=[A-Z ]*\d)(?=[\d ]*[A-Z])[A-Z\d]{1,4}(?: [A-Z\d]{1,4}){1,2}(?![\w-])"),
    (Kind.REPO, r"(?<![\w./-])(?P<left>[A-Za-z][\w.-]*)/(?P<right>[A-Za-z][\w.-]*\w)(?![\w/])"),
    (Kind.DOTTED, r"(?<![\w./-])(?P<left>[A-Za-z_]\w+)\.(?P<right>[A-Za-z_]\w*)(?![\w/])"),
    (Kind.SLUG, r"(?<![\w./-])[A-Za-z]\w*(?:-\w+)+(?![\w/])"),
    (Kind.VERSION, r"(?<![\w./-])[A-Za-z]\w*/\d[\w.]*\w(?![\w/])"),
    (Kind.ID, r"(?<!\S)(?P<left>\d+)[xX×](?P<right>\d+)(?!\S)"),
)
"""Values of several tokens: their halves are values as well."""
_SPANNING: Final = [(kind, re.compile(pattern)) for kind, pattern in _SPANS]
_SHORT: Final = 200
_QUOTED: Final = frozenset((Kind.PATH, Kind.FILE, Kind.URL, Kind.EMAIL))
"""What stays what it is between quotes."""
_LONGEST: Final = 15
"""Longer numbers are not exact as floats: they are ids."""


def scan(text: str) -> tuple[list[Token], list[Found]]:
    """The tokens of a text in order, and the values that are told by their form."""
    tokens: list[Token] = []
    found: list[Found] = []
    for match in _SCANNER.finditer(text):
        place, said, group = len(tokens), match.group(), match.lastgroup
        low = said.lower().replace("’", "'")
        kind = None if group in (None, "word", "digits") else Kind(str(group))
        if (kind is Kind.NUMBER_REF and len(said) > _LONGEST) or (kind is Kind.DURATION and len(said) > 3 * _LONGEST):
            kind = Kind.ID
        tokens.append(Token(place, match.start(), match.end(), said, low, low if kind else words.stem(said)))
        value: Any = said[1:-1].strip() if kind is Kind.QUOTED else int(said[1:]) if kind is Kind.NUMBER_REF else said
        if kind is Kind.DURATION:
            found.append(Found(kind, _seconds(low), place, place, "", "minute"))
        elif (kind and kind not in WHENS) or (group == "digits" and number_of(said) is None):
            found.append(Found(kind or Kind.ID, value, place, place))
        within = _SCANNER.fullmatch(value) if kind is Kind.QUOTED and len(value) <= _SHORT else None
        if within and within.lastgroup in _QUOTED:
            found.append(Found(Kind(within.lastgroup), value, place, place))
        if kind is Kind.VERSION and isinstance(number := number_of(low[1:]), int):
            found.append(Found(Kind.INTEGER, number, place, place))
    starts, ends = {one.start: one.place for one in tokens}, {one.end: one.place for one in tokens}
    known = {(one.first, one.last) for one in found}
    for kind, form in _SPANNING:
        for match in form.finditer(text):
            first, last = starts.get(match.start()), ends.get(match.end())
            sides = ("left", "right") if form.groupindex else ()
            if first is None or last is None or (first, last) in known or (sides and first == last):
                continue
            found.append(Found(kind, match.group(), first, last))
            for side in sides:
                number = number_of(match[side])
                at, to = starts.get(match.start(side), first), ends.get(match.end(side), last)
                half = Kind.SLUG if number is None else Kind.INTEGER
                found.append(Found(half, match[side] if number is None else number, at, to, side))
    return tokens, found


def number_of(text: str) -> float | int | None:
    """The number that a text is in digits. What is too long, or begins with a zero, is none."""
    if not re.fullmatch(r"-?\d[\d,.]*", text) or len(text) > _LONGEST or re.fullmatch(r"0\d+", text):
        return None
    try:
        value = float(text.replace(",", "." if re.search(r",\d\d?$", text) else ""))
    except ValueError:
        return None
    return int(value) if value == int(value) else value


def _seconds(text: str) -> float:
    """How long "1h 30m" is; a number without a unit counts minutes."""
    counted = re.findall(r"(\d+)\s?([dhms]?)", text)
    return sum(
        int(number) * words.RATIOS[words.UNITS[unit.replace("m", "") or "minute"]][1] for number, unit in counted
    )


def is_range(tokens: Sequence[Token], first: int, last: int) -> bool:
    """Whether the value at these places and the one two places on are the ends of a range."""
    mark, before = tokens[last + 1].low, tokens[first - 1].low if first else ""
    upto = mark in ("to", "until", "till", "through") and before != "to"
    return mark in ("-", "–", "—") or upto or (mark == "and" and before == "between")
