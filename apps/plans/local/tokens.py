# ruff: noqa: RUF001 - people type these marks
"""The tokens of a request. A value with a form of its own, such as a path or an id, is one token."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from apps.plans.local import words


class Kind(StrEnum):
    """What a value is."""

    QUOTED = "quoted"
    URL = "url"
    EMAIL = "email"
    PATH = "path"
    GLOB = "glob"
    FILE = "file"
    """A file's name without a folder."""
    REPO = "repo"
    """`owner/name`; each half is a SLUG with the role `left` or `right`."""
    DOTTED = "dotted"
    """`database.collection`; each half is a SLUG with the role `left` or `right`."""
    CHANNEL = "channel"
    USER = "user"
    NUMBER_REF = "number_ref"
    """`#12`."""
    ID = "id"
    UUID = "uuid"
    VERSION = "version"
    DATE = "date"
    DATETIME = "datetime"
    TIME = "time"
    PERIOD = "period"
    """A whole range of dates, `2025-03-01/2025-03-31`; its ends are DATEs with roles."""
    DURATION = "duration"
    """In seconds; `unit` is the unit that was said."""
    INTEGER = "integer"
    NUMBER = "number"
    """With a fraction."""
    MONEY = "money"
    """An amount with its currency in `unit`."""
    QUANTITY = "quantity"
    """An amount with its unit in `unit`."""
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
    """A word with hyphens or underscores, or half of a pair."""


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

    Values may overlap, and each token serves one param, with one exception: the two ends of a range or pair may stand on
    the same tokens ("last week").
    """

    kind: Kind
    value: Any
    first: int
    last: int
    role: str = ""
    """`start` or `end` of a range; `left` or `right` of a pair."""
    unit: str = ""
    rest: tuple[int, ...] = ()
    """Places outside of first to last that also belong to it: "tomorrow with Ann at 9" has one time."""

    @property
    def places(self) -> frozenset[int]:
        return frozenset((*range(self.first, self.last + 1), *self.rest))


@dataclass(frozen=True)
class Reading:
    """A request, cut into tokens in order, with the values found in it."""

    text: str
    tokens: tuple[Token, ...]
    found: tuple[Found, ...]


FILES: Final = (
    "txt|md|mdx|rst|pdf|csv|tsv|json|jsonl|ya?ml|py|ipynb|jsx?|tsx?|mjs|vue|css|scss|docx?|xlsx?|pptx?|odt|rtf|png|jpe?g|gif"
    "|webp|svg|bmp|tiff?|heic|mp[34]|wav|mov|avi|mkv|zip|tar|gz|tgz|7z|rar|log|html?|xml|toml|ini|cfg|conf|env|lock|sh|bat"
    "|sql|db|sqlite|parquet|go|rs|rb|php|java|kt|swift|c|h|cpp|hpp|cs|lua|r|pl|exe|bin|iso|eml|ics|vcf|epub|key|pem|crt"
)
DOMAINS: Final = (
    "com|org|net|edu|gov|io|dev|app|ai|co|info|biz|me|eu|de|at|ch|uk|fr|it|es|nl|be|pl|se|no|dk|fi|us|ca|au|jp|in|cn|br"
)
_AHEAD: Final = r"(?<![\w/.@#-])"
_BEHIND: Final = r"(?![\w/@-])(?!\.\w)"
_FORMS: Final = (
    (
        Kind.QUOTED,
        r"\"[^\"]+\"|“[^”]+”|«[^»]+»|„[^“”]+[“”]|`[^`]+`|‘[^’]+’(?!\w)|(?<!\w)'[^'\s](?:[^']|'(?=\w))*'(?!\w)",
    ),
    (
        Kind.URL,
        r"\b[a-zA-Z][a-zA-Z+.-]*://[^\s<>\"'`,;]*[^\s<>\"'`,;.:!?)\]}]|\bwww\.[\w-]+\.[^\s<>\"',;]*[^\s<>\"',;.:!?)\]]",
    ),
    (Kind.EMAIL, r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"),
    (
        Kind.SQL,
        (
            r"\b(?:SELECT\b[^;]+?\bFROM\b|INSERT\s+INTO\b|UPDATE\s+\S+\s+SET\b|DELETE\s+FROM\b|CREATE\s+TABLE\b|select\s+"
            r"(?:\*|count\(|[\w.]+(?:\s*,\s*[\w.]+)+)[^;]*?\sfrom\b)[^;]*"
        ),
    ),
    (Kind.JSON, r"\{\s*(?:[\"'$\w].*?:.*)?\}|\[\s*[{\"].*[}\"]\s*\]"),
    (Kind.DATETIME, r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: ?(?:Z\b|UTC\b|[+-]\d\d:?\d\d))?"),
    (Kind.DATE, r"\b\d{4}-\d\d-\d\d\b"),
    (Kind.UUID, r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"),
    (Kind.PHONE, r"(?<![\w+])\+\d[\d ()./-]{6,}\d\b"),
    (Kind.NUMBER_REF, r"(?<!\w)#\d+\b"),
    (Kind.COLOR, r"(?<!\w)#(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{6}\b"),
    (Kind.CHANNEL, r"(?<!\w)#[A-Za-z][\w-]*"),
    (Kind.PATH, r"(?<!\w)@[\w-]+/[\w.-]*\w"),
    (Kind.USER, r"(?<!\w)@[A-Za-z_](?:[\w.-]*\w)?"),
    (Kind.GLOB, r"(?<!\S)(?=[^\s*]*\*)(?=\S*[A-Za-z./])[\w./{},-]*\*[\w./*{},\[\]-]*[\w*/}]|(?<!\S)\*(?=[\s,;?!]|$)"),
    (Kind.IP, rf"{_AHEAD}(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?:/\d\d?|:\d+)?\b"),
    (
        Kind.PATH,
        (
            rf"(?<![\w/.])(?:~|\.{{1,2}})?/(?:[\w.@+%-]*[\w/])?|\b[A-Za-z]:\\[^\s,;]*\w|{_AHEAD}(?:[\w.@+-]+/)+[\w.+-]*\.(?i:{FILES})\b"
            rf"|{_AHEAD}(?=[\w.-]*[A-Za-z])[\w.-]+(?:/[\w.+-]*\w){{2,}}/?|{_AHEAD}(?=[\w.-]*[A-Za-z])[\w.-]+/(?=[\s,.;?!]|$)|(?<!\S)\.\.?(?=\s|$)(?<=\s\.|\.\.)"
        ),
    ),
    (
        Kind.FILE,
        rf"(?<![\w/@])(?=[\w.-]*[A-Za-z])[\w-]+(?:\.[\w-]+)*\.(?i:{FILES}){_BEHIND}|(?<!\S)\.[a-z][\w.-]*\w{_BEHIND}",
    ),
    (Kind.DOMAIN, rf"(?<![\w/@.])(?:[A-Za-z0-9][\w-]*\.)+(?i:{DOMAINS}){_BEHIND}"),
    (Kind.VERSION, rf"{_AHEAD}[vV]?\d+\.\d+\.\d+(?:[-+][\w.]*\w)?\b|{_AHEAD}[vV]\d+(?:\.\d+)*\b"),
    (
        Kind.ID,
        (
            rf"{_AHEAD}(?:(?=[\w.:-]*\d)(?=[\w.:-]*[A-Za-z])(?![\d.,]+(?i:k|m|s|h|d|w|x|am|pm|ms|st|nd|rd|th|min|mins|hrs?|km|cm|mm|kg|mg"
            rf"|g|lbs?|oz|ml|l|ft|mi|px|pct|[kmgt]b|mph|kph|kwh|o|y|yr|yrs|eur|usd|gbp)(?![\w-]))(?![qQ][1-4]\b)(?!\d+[xX]\d+\b)"
            rf"(?!(?i:\d+-[a-z]+)(?![\w-]))[A-Za-z0-9]+(?:[_:-][A-Za-z0-9]+)*|\d{{9,}}\.\d{{3,}}|[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+){_BEHIND}"
        ),
    ),
    (
        Kind.TIME,
        r"(?<![\w:])(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d)?(?:\s?[aApP]\.?[mM]\b\.?)?(?![\w:])|(?<![\w.:-])(?:1[0-2]|0?[1-9])\s?[aApP]\.?[mM]\b",
    ),
    (
        Kind.EXPRESSION,
        (
            r"(?<![\w.,/-])\(*-?\d+(?:\.\d+)?%?\)*(?:\s*[*/^×÷]\s*|\s+[-+]\s+|\s*\+\s*)\(*-?\d+(?:\.\d+)?%?\)*"
            r"(?:\s*[-+*/^×÷]\s*\(*-?\d+(?:\.\d+)?%?\)*)*(?![\w/-])"
        ),
    ),
)
_WORD: Final = r"(?P<number>(?<![\w.-])-?\d+(?:,\d{3})+(?:\.\d+)?(?!\w)|(?:(?<![\w.-])-)?\d+(?:\.\d+)?)|[^\W\d_]+(?:['’][^\W\d_]+)*|\S"
_SCANNER: Final = re.compile(
    "|".join(f"(?P<f{n}>{pattern})" for n, (_, pattern) in enumerate(_FORMS)) + f"|{_WORD}", re.DOTALL
)
_KINDS: Final = {f"f{n}": kind for n, (kind, _) in enumerate(_FORMS)}
ZONES: Final = re.compile(
    r"(?:Africa|America|Antarctica|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc)/[A-Z]\w*(?:/\w+)?"
)
_HEX: Final = re.compile(r"[0-9a-f]{7,64}")


def scan(text: str) -> tuple[list[Token], list[Found], dict[int, float]]:
    """The tokens of a text in order, the values that are told by their form, and the numbers by place."""
    tokens: list[Token] = []
    found: list[Found] = []
    numbers: dict[int, float] = {}
    for match in _SCANNER.finditer(text):
        place, said = len(tokens), match.group()
        low = said.lower().replace("’", "'")
        group = match.lastgroup or ""
        kind = _KINDS.get(group)
        tokens.append(Token(place, match.start(), match.end(), said, low, low if kind else words.stem(said)))
        if group == "number":
            numbers[place] = float(said.replace(",", ""))
        elif kind:
            found.extend(_formed(kind, said, place))
    return tokens, found, numbers


def _formed(kind: Kind, said: str, place: int) -> Iterator[Found]:
    """The values of a token that has a form of its own."""
    value: Any = said
    if kind is Kind.QUOTED:
        value = said[1:-1].strip()
    elif kind is Kind.NUMBER_REF:
        value = int(said[1:])
    elif kind is Kind.PATH and ZONES.fullmatch(said):
        yield Found(Kind.TIMEZONE, said, place, place)
    elif kind is Kind.EXPRESSION:
        value = said.strip()
    if kind not in (Kind.DATE, Kind.DATETIME, Kind.TIME):
        yield Found(kind, value, place, place)
