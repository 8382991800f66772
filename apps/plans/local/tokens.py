# ruff: noqa: RUF001 - people type these marks
"""The tokens of a request. A value with a form of its own, such as a path or an id, is one token."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

from apps.plans.local import words


class Kind(StrEnum):
    """What a value is.

    The halves of a pair (REPO `a/b`, DOTTED `a.b`) are SLUGs and those of COORDINATES are NUMBERs, with the roles `left` and
    `right`. The ends of a PERIOD are DATEs or DATETIMEs with the roles `start` and `end`. A DURATION counts seconds. MONEY,
    QUANTITY and DURATION are a number with its unit, which also are values alone.
    """

    QUOTED = "quoted"
    URL = "url"
    EMAIL = "email"
    PATH = "path"
    GLOB = "glob"
    FILE = "file"
    REPO = "repo"
    DOTTED = "dotted"
    CHANNEL = "channel"
    USER = "user"
    NUMBER_REF = "number_ref"
    ID = "id"
    UUID = "uuid"
    VERSION = "version"
    DATE = "date"
    DATETIME = "datetime"
    TIME = "time"
    PERIOD = "period"
    DURATION = "duration"
    INTEGER = "integer"
    NUMBER = "number"
    MONEY = "money"
    QUANTITY = "quantity"
    CURRENCY = "currency"
    UNIT = "unit"
    PHONE = "phone"
    LANGUAGE = "language"
    COUNTRY = "country"
    TIMEZONE = "timezone"
    SQL = "sql"
    JSON = "json"
    EXPRESSION = "expression"
    COORDINATES = "coordinates"
    DOMAIN = "domain"
    IP = "ip"
    COLOR = "color"
    SLUG = "slug"


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
    """A value and the tokens it was read from.

    Values may overlap, and each token serves one param. The two ends of a range and the days of several date-times are an
    exception: they may stand on the same tokens ("last week", "from 2 to 3 pm tomorrow").
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
    "txt|mdx?|rst|pdf|[ct]sv|jsonl?|ya?ml|py|ipynb|[jt]sx?|mjs|vue|s?css|docx?|xlsx?|pptx?|odt|rtf|png|jpe?g|gif|webp|svg|bmp|tiff?"
    "|heic|mp[34]|wav|mov|avi|mkv|zip|tar|t?gz|7z|rar|log|html?|xml|toml|ini|cfg|conf|env|lock|sh|bat|sql|db|sqlite|parquet|go|rs"
    "|rb|php|java|kt|swift|c|h|[ch]pp|cs|lua|r|pl|exe|bin|iso|eml|ics|vcf|epub|key|pem|crt"
)
_DOMAINS: Final = (
    "com|org|net|edu|gov|io|dev|app|ai|co|info|biz|me|eu|de|at|ch|uk|fr|it|es|nl|be|pl|se|no|dk|fi|us|ca|au|jp|in|br"
)
_MEASURED: Final = (
    r"[\d.,]+(?i:[kmshdwxgloyc]|[ap]m|ms|st|nd|rd|th|min|mins|hrs?|[kcm]m|[km]g|lbs?|oz|ml|ft|mi|px|pct|[kmgt]b|[mk]ph|kwh|yr|yrs"
    r"|eur|usd|gbp)(?!\w)|\d+[xX]\d+(?!\w)|[qQ][1-4](?![\w-])|\d+-[A-Za-z]+(?![\w-])"
)
_AHEAD: Final = r"(?<![\w/.@#-])"
_BEHIND: Final = r"(?![\w/@-])(?!\.\w)"
_OPERAND: Final = r"\({0,9}-?\d+(?:\.\d+)?%?\){0,9}"
_FORMS: Final = {
    Kind.QUOTED: r"\"[^\"]+\"|“[^”]+”|«[^»]+»|„[^„“”]+[“”]|`[^`]+`|‘[^’]+’(?!\w)|(?<!\w)'[^'\s](?:[^']|'(?=\w))*'(?!\w)",
    Kind.URL: r"(?<![\w+.-])[a-zA-Z][a-zA-Z+.-]*://[^\s<>\"'`,;]*[^\s<>\"'`,;.:!?)\]}]|\bwww\.[\w-]+\.[^\s<>\"',;]*[^\s<>\"',;.:!?)\]]",
    Kind.EMAIL: r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b",
    Kind.SQL: (
        r"\b(?:SELECT\b[^;]+?\bFROM\b|INSERT\s+INTO\b|UPDATE\s+\S+\s+SET\b|DELETE\s+FROM\b|CREATE\s+TABLE\b|select\s+"
        r"(?:\*|count\(|[\w.]+(?:\s*,\s*[\w.]+)+)[^;]*?\sfrom\b)[^;]*"
    ),
    Kind.JSON: r"\{(?=\s*\}|[^{}]*:)(?:[^{}]|\{[^{}]*+\})*+\}|\[\s*[{\"][^\[\]]*[}\"]\s*\]",
    Kind.DATETIME: r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: ?(?:Z\b|UTC\b|[+-]\d\d:?\d\d))?",
    Kind.DATE: r"\b\d{4}-\d\d-\d\d\b(?!-)|\b\d{4}/\d\d/\d\d\b(?!/)|\b\d\d?([./])\d\d?\1(?:19|20)\d\d\b",
    Kind.UUID: r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\b(?=[a-f]*\d)[0-9a-f]{32}\b",
    Kind.PHONE: r"(?<![\w+])\+\d[\d ()./-]{6,}\d\b|(?<![\w-])(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])|(?<![\w-])0\d{2,4}[ ./-](?:\d{3,4}[ .-]\d{3,4}|\d{5,8})(?![\w-])",
    Kind.DURATION: r"(?<![\w.])(?:\d+\s?[dhms]\s?(?=\d)|\d+\s?[dhms](?!\w)){2,}|(?<![\w.])\d+h\d\d(?!\w)",
    Kind.COLOR: r"(?<!\w)#(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{6}\b",
    Kind.NUMBER_REF: r"#\d+\b",
    Kind.CHANNEL: r"(?<!\w)#[A-Za-z][\w-]*",
    Kind.TIMEZONE: r"\b(?:Africa|America|Antarctica|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc)/[A-Z]\w*(?:/\w+)?",
    Kind.USER: r"(?<!\w)@[A-Za-z_](?>(?:[\w.-]*\w)?)(?!/)",
    Kind.GLOB: r"(?<!\S)(?=[^\s*]*\*)(?=\S*[A-Za-z./])[\w./{},-]*\*[\w./*{},\[\]-]*[\w*/}]|(?<!\S)\*(?=[\s,;?!]|$)",
    Kind.IP: rf"{_AHEAD}(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?:/\d\d?|:\d+)?\b",
    Kind.PATH: (
        rf"(?<![\w/.])(?:~|\.{{1,2}})?/(?:[\w.@+%/-]*[\w/])?|\b[A-Za-z]:[\\/][^\s,;]*\w|(?<!\S)\.\.?(?=\s|$)"
        rf"|{_AHEAD}(?:[\w.@+-]+/)+[\w.+-]*\.(?i:{_FILES})\b|{_AHEAD}(?=[\w.-]*[A-Za-z])[\w.-]+(?:/[\w.+-]*\w){{2,}}/?"
        rf"|{_AHEAD}(?=[\w.-]*[A-Za-z])[\w.-]+/(?=[\s,.;?!]|$)|(?<!\w)@[\w-]+/[\w.-]*\w"
    ),
    Kind.FILE: rf"(?<![\w/@.-])(?=[\w.-]*[A-Za-z])[\w-]+(?:\.[\w-]+)*\.(?i:{_FILES}){_BEHIND}|(?<!\S)\.[a-z][\w.-]*\w{_BEHIND}",
    Kind.DOMAIN: rf"(?<![\w/@.-])(?:\w[\w-]*\.)+(?i:{_DOMAINS}){_BEHIND}",
    Kind.VERSION: rf"{_AHEAD}[vV]?\d+\.\d+\.\d+(?:[-+][\w.]*\w)?\b|{_AHEAD}[vV]\d+(?:\.\d+)*\b",
    Kind.ID: (
        r"\b[A-Z]{1,3}-[A-Z]{1,2} \d{1,4}\b|\b[A-Z]{2}\d\d [A-Z]{3}\b|\b[A-Z]{2}\d\d(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b|\b\d{4}(?:[ -]\d{4}){3}\b|"
        rf"{_AHEAD}10\.\d{{4,9}}/[^\s,;\"<>]*\w|{_AHEAD}(?:(?=[\w:-]*\d)(?=[\w:-]*[A-Za-z])(?!{_MEASURED})[A-Za-z0-9]+(?:[_:-][A-Za-z0-9]+)*+|\d{{9,}}\.\d{{3,}}"
        rf"|[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+){_BEHIND}"
    ),
    Kind.TIME: (
        r"(?<![\w:])(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d)?(?:\s?[aApP](?:[mM]\b|\.[mM]\.))?(?![\w:])"
        r"|(?<![\w.:])(?:1[0-2]|0?[1-9])\s?[aApP](?:[mM]\b|\.[mM]\.)"
    ),
    Kind.EXPRESSION: (
        rf"(?<![\w.,/-]){_OPERAND}(?:\s*[*/^×÷]\s*|\s+[-+]\s+|\s*\+\s*){_OPERAND}(?:\s*[-+*/^×÷]\s*{_OPERAND})*(?![\w/-])"
    ),
}
_SCANNER: Final = re.compile(
    r"(?P<word>(?!(?i:select|insert|update|delete|create)\b)[^\W\d_]+(?=\s|[,;:?!.]\s|[,;?!.]?$))|"
    + "|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _FORMS.items())
    .replace(r"\1", "(?P=date_mark)")
    .replace("([./])", "(?P<date_mark>[./])")
    + r"|(?P<digits>(?<![\w.,-])\d+,\d\d?(?![\d,])|(?<![\w.-])-?\d+(?:,\d{3})+(?:\.\d+)?(?!\w)|(?:(?<![\w.-])-)?\d+(?:\.\d+)?)|(?<=\d)[xX×](?=\d)"
    r"|(?:US|[ACS]|NZ|HK)\$|°[CFcf]?"
    r"|[^\W\d_]\w*(?:['’][^\W\d_]+)*|\S",
    re.DOTALL,
)
_LONGEST: Final = 15
"""Longer numbers are not exact as floats: they are ids."""
_INITIAL: Final = 2
_CODE: Final = re.compile(r"0\d+$")
_DECIMAL: Final = re.compile(r",\d\d?$")
# What may be an id, though it reads as a number, a date or several words as well: 7C, 2026-0418, 214/8830, KT 4471.
_GLUED: Final = re.compile(r"(?<!\d)\d+[A-Z](?!\w)|(?<!\d)(?!\d[/-]\d(?!\d))\d+(?:[/-]\d+)+(?![\w/-])")
_SPACED: Final = [
    re.compile(rf"(?<![\w-])(?=[A-Z ]*\d)(?=[\d ]*[A-Z])[A-Z\d]{{1,4}}(?: [A-Z\d]{{1,4}}){{{parts}}}(?![\w-])")
    for parts in (1, 2)
]
_DATED: Final = (Kind.DATE, Kind.DATETIME, Kind.TIME)


def scan(text: str) -> tuple[list[Token], list[Found], dict[int, float]]:
    """The tokens of a text in order, the values that are told by their form, and the numbers in digits by place."""
    tokens: list[Token] = []
    found: list[Found] = []
    digits: dict[int, float] = {}
    for match in _SCANNER.finditer(text):
        place, said, group = len(tokens), match.group(), match.lastgroup
        low = said.lower().replace("’", "'")
        kind = None if group in (None, "word", "digits") else Kind("date" if group == "date_mark" else group)
        tokens.append(Token(place, match.start(), match.end(), said, low, low if kind else words.stem(said)))
        if group == "digits" and len(said) <= _LONGEST and not _CODE.match(said):
            digits[place] = float(said.replace(",", "." if _DECIMAL.search(said) else ""))
        elif group == "digits":
            found.append(Found(Kind.ID, said, place, place))
        elif kind is Kind.DURATION:
            found.append(Found(kind, _seconds(low), place, place, "", "minute"))
        elif kind and kind not in _DATED:
            value = {Kind.QUOTED: said[1:-1].strip(), Kind.NUMBER_REF: said[1:]}.get(kind, said)
            found.append(Found(kind, int(value) if kind is Kind.NUMBER_REF else value, place, place))
    starts, ends = ({at(token): token.place for token in tokens} for at in (attrgetter("start"), attrgetter("end")))
    known = {(one.first, one.last) for one in found if one.kind is Kind.ID}
    for match in (one for form in (_GLUED, *_SPACED) for one in form.finditer(text)):
        first, last = starts.get(match.start()), ends.get(match.end())
        if first is not None and last is not None and (first, last) not in known:
            found.append(Found(Kind.ID, match.group(), first, last))
    return tokens, found, digits


def _seconds(text: str) -> float:
    """How long "1h 30m" is; a number without a unit counts minutes."""
    counted = re.findall(r"(\d+)\s?([dhms]?)", text)
    return sum(
        int(number) * words.SECONDS[{"d": "day", "h": "hour", "s": "second"}.get(unit, "minute")]
        for number, unit in counted
    )


def pairs(tokens: list[Token], digits: dict[int, float]) -> Iterator[Found]:
    """Values of several tokens without a space between: `a/b`, `a.b`, `fix-login`, `640x480`; and coordinates."""
    place = 0
    while place + 2 < len(tokens):
        run = [place]
        while run[-1] + 2 < len(tokens) and _joined(tokens, run[-1]):
            run.append(run[-1] + 2)
        if len(run) > 1:
            yield from _joint(tokens, run)
        elif place in digits and place + 2 in digits:
            yield from _sides(tokens, digits, place)
        place = run[-1] + 1


def _joined(tokens: list[Token], place: int) -> bool:
    one, mark, other = tokens[place : place + 3]
    return (
        mark.text in ("/", ".", "-")
        and one.end == mark.start
        and mark.end == other.start
        and one.text[-1].isalnum()
        and other.text[0].isalnum()
        and not (one.text[0].isdigit() and other.text[0].isdigit())
        and not (mark.text != "-" and one.low in words.SMALL and other.low in words.SMALL)
    )


def _joint(tokens: list[Token], run: list[int]) -> Iterator[Found]:
    first, last = run[0], run[-1]
    text = "".join(token.text for token in tokens[first : last + 1])
    marks = [tokens[place + 1].text for place in run[:-1]]
    mark = "/" if "/" in marks else "." if "." in marks else "-"
    left, _, right = text.partition(mark)
    if mark == "-":
        yield Found(Kind.SLUG, text, first, last)
    elif len(left) > 1 or mark == "/" or len(right) > _INITIAL:
        middle = run[marks.index(mark)]
        yield Found(Kind.REPO if mark == "/" else Kind.DOTTED, text, first, last)
        yield Found(Kind.SLUG, left, first, middle, "left")
        yield Found(Kind.SLUG, right, middle + 2, last, "right")


def _sides(tokens: list[Token], digits: dict[int, float], place: int) -> Iterator[Found]:
    """The two numbers of 640x480, or of 48.2082, 16.3738. 2024-001 is no range but an id."""
    one, mark, other = tokens[place : place + 3]
    if mark.low in ("x", "×"):
        for side, at in (("left", place), ("right", place + 2)):
            yield Found(Kind.INTEGER, int(digits[at]), at, at, side)
    elif mark.text == "," and "." in one.text and "." in other.text and abs(digits[place]) <= _POLE:
        yield Found(Kind.COORDINATES, f"{one.text},{other.text}", place, place + 2)
        for side, at in (("left", place), ("right", place + 2)):
            yield Found(Kind.NUMBER, digits[at], at, at, side)


_POLE: Final = 90
