# ruff: noqa: RUF001 - people type these marks
"""General English that all tools share: stems, synonyms, small words, units, currencies, languages, countries.

The lists stand in the sections of `words.txt`. No entry serves one domain or one tool.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import snowballstemmer

_SECTIONS: Final = re.split(
    r"^\[(\w+)\]\n", Path(__file__).with_name("words.txt").read_text(encoding="utf-8"), flags=re.MULTILINE
)
_DATA: Final = dict(zip(_SECTIONS[1::2], _SECTIONS[2::2], strict=True))
_STEMMER: Final = snowballstemmer.stemmer("english")
_PIECES: Final = re.compile(r"[A-Z]+(?![a-zà-ÿ])|[A-Z]?[a-zà-ÿ]+|\d+")
_WORDS: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|\d+")
_LONG: Final = 5


@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """The stem of an English word, in lower case and without a possessive."""
    low = word.lower().replace("’", "'").removesuffix("'s").removesuffix("'")
    return str(_STEMMER.stemWord(_FORMS.get(low, low)))


def pieces(name: str) -> list[str]:
    """The words of an identifier in lower case: `perPage`, `per_page` and `per-page` are `per` and `page`."""
    return [piece.lower() for piece in _PIECES.findall(name)]


def prose(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return _WORDS.findall(text.lower())


def entries(name: str) -> Iterator[tuple[str, list[str]]]:
    """The entries `head: word word` of a section; an underscore in a word stands for a space."""
    for line in _lines(name):
        for entry in filter(None, (part.strip() for part in line.split(";"))):
            head, _, rest = entry.partition(": ")
            yield head, [word.replace("_", " ") for word in rest.split()]


def _lines(name: str) -> list[str]:
    return [line for line in _DATA[name].splitlines() if line and not line.startswith("#")]


def _table(name: str) -> dict[str, str]:
    return {word: head for head, listed in entries(name) for word in listed}


_FORMS: Final = _table("forms")
IRREGULAR: Final = frozenset(_FORMS)
GROUPS: Final[Mapping[str, frozenset[str]]] = {head: frozenset(listed) for head, listed in entries("small")}
"""Small words by group: `question`, `polite`, `negation`, `condition`, `exception`, `repeat`, `bulk`, `back` and others."""
UNPLANNED: Final = GROUPS["negation"] | GROUPS["condition"] | GROUPS["exception"] | GROUPS["repeat"]
"""Words for what a plan can't hold."""
FILLERS: Final = GROUPS["filler"]
"""Words that hardly change what is asked for."""
HOLDING: Final = ("negation", "condition", "exception", "repeat", "bulk", "back")
"""Groups whose words change what is asked for, so that somebody must explain them."""
SMALL: Final = frozenset().union(
    *(listed for head, listed in GROUPS.items() if head not in (*HOLDING, "filler", "calendar"))
)
"""Words that need no explanation."""
ACTS: Final[Mapping[str, frozenset[str]]] = {
    head: frozenset(stem(word) for other, listed in entries("acts") if other == head for word in listed)
    for head, _ in entries("acts")
}
"""Stems of verbs by what they ask for: `generic` ones go with any thing, `showing` ones change nothing, a `wish` is for
the asker itself."""
SCORE: Final[dict[str, float]] = {head: float(weight) for head, (weight,) in entries("score")}
"""What each feature of a plan is worth: learned, a plan that is right before those that are wrong."""
SURE: Final[dict[str, float]] = {head: float(weight) for head, (weight,) in entries("sure")}
"""What each feature of the best plan says of whether it is right: learned, on the log-odds."""
POSSIBLE: Final[dict[str, float]] = {head: float(weight) for head, (weight,) in entries("possible")}
"""What each says of whether the tools can do what is asked for at all."""
VERBS: Final = frozenset(stem(word) for line in _lines("verbs") for word in line.split())
CURRENCIES: Final[Mapping[str, str]] = _table("currencies")
LANGUAGES: Final[Mapping[str, str]] = _table("languages")
COUNTRIES: Final[Mapping[str, str]] = _table("countries")
PAIRS: Final[Mapping[str, frozenset[str]]] = {head: frozenset(listed) for head, listed in entries("pairs")}
"""Words of the names of params that take one side of a pair or a range: `left`, `right`, `start`, `end`."""
UNITS: Final[Mapping[str, str]] = {word: head.split()[-1] for head, listed in entries("units") for word in listed}
SECONDS: Final[Mapping[str, float]] = {
    head.split()[1]: float(head.split()[0]) for head, _ in entries("units") if " " in head
}
"""How long a unit of time is."""
RATIOS: Final[Mapping[str, tuple[str, float]]] = {
    unit: (base, float(ratio))
    for base, listed in entries("ratios")
    for unit, ratio in zip(listed[::2], listed[1::2], strict=True)
}
"""How much of its base a unit of length, mass, volume or size is."""
ONES: Final = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
NUMBERS: Final[Mapping[str, int]] = {
    **{word: number for number, word in enumerate(f"{ONES} seventeen eighteen nineteen".split())},
    **{
        word: 10 * n
        for n, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2)
    },
    "dozen": 12,
}
SCALES: Final[Mapping[str, int]] = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "dozen": 12}
CALENDAR: Final = GROUPS["calendar"]
COMMON: Final = frozenset(
    word
    for word in (
        *CALENDAR,
        *SMALL,
        *(one for name in HOLDING for one in GROUPS[name]),
        *UNITS,
        *NUMBERS,
        *SCALES,
        *CURRENCIES,
        *(one for name in ("clusters", "verbs") for line in _lines(name) for one in line.replace(";", " ").split()),
    )
    if word.isalpha()
)
"""General English as it is written."""
COMMON_SPELLINGS: Final[dict[tuple[str, str, int], list[str]]] = {}
for _word in sorted(COMMON):
    COMMON_SPELLINGS.setdefault((_word[0], _word[-1], len(_word)), []).append(_word)
_CLUSTERS: Final[dict[str, frozenset[int]]] = {}
for _number, _group in enumerate(";".join(_lines("clusters")).split(";")):
    for _word in _group.split():
        _CLUSTERS[stem(_word)] = _CLUSTERS.get(stem(_word), frozenset()) | {_number}


def clusters(stemmed: str) -> frozenset[int]:
    """The numbers of the synonym clusters that a stem belongs to."""
    return _CLUSTERS.get(stemmed, frozenset())


@lru_cache(maxsize=200_000)
def near(one: str, other: str) -> float:
    """How alike two stems are: 1 the same, 0.8 the same root, 0.75 synonyms, 0 nothing in common."""
    if one == other:
        return 1.0
    length = max(_LONG, min(len(one), len(other)) - 1)
    if min(len(one), len(other)) > _LONG and one[:length] == other[:length]:
        return 0.8
    return 0.75 if clusters(one) & clusters(other) else 0.0
