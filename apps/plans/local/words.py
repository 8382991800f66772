"""General English that all tools share, and the learned weights, as the sections of `words.txt` list them.

No entry serves one domain or one tool. `tests/plans/learning.py` writes the weights.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import snowballstemmer

_LISTS: Final = Path(__file__).with_name("words.txt").read_text(encoding="utf-8")
_SECTIONS: Final = re.split(r"^\[(\w+)\]\n", re.sub(r"(?m)^#.*\n", "", _LISTS), flags=re.MULTILINE)
_DATA: Final = dict(zip(_SECTIONS[1::2], _SECTIONS[2::2], strict=True))
_STEMMER: Final = snowballstemmer.stemmer("english")
_PIECES: Final = re.compile(r"[A-Z]+(?![a-zà-ÿ])|[A-Z]?[a-zà-ÿ]+|\d+")
_WORDS: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|\d+")  # noqa: RUF001  # people type this mark
_ROOT: Final = 5


def entries(name: str) -> Iterator[tuple[str, list[str]]]:
    """The entries `head: word word;` of a section; an underscore in a word stands for a space."""
    for entry in filter(None, map(str.strip, _DATA[name].split(";"))):
        head, _, rest = entry.partition(": ")
        yield head, [word.replace("_", " ") for word in rest.split()]


def _table(name: str) -> dict[str, str]:
    return {word: head for head, listed in entries(name) for word in listed}


_FORMS: Final = _table("forms")


@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """The stem of an English word, in lower case and without a possessive."""
    low = word.lower().replace("’", "'").removesuffix("'s").removesuffix("'")  # noqa: RUF001
    return str(_STEMMER.stemWord(_FORMS.get(low, low)))


def pieces(name: str) -> list[str]:
    """The words of an identifier in lower case: `perPage`, `per_page` and `per-page` are `per` and `page`."""
    return [piece.lower() for piece in _PIECES.findall(name)]


def prose(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return _WORDS.findall(text.lower())


IRREGULAR: Final = frozenset(_FORMS)
GROUPS: Final = {head: frozenset(listed) for head, listed in entries("small")}
"""Small words by group: `question`, `polite`, `negation`, `condition`, `exception`, `repeat`, `bulk`, `back`, `pointing` and others."""
UNPLANNED: Final = GROUPS["negation"] | GROUPS["condition"] | GROUPS["exception"] | GROUPS["repeat"]
"""Words for what a plan can't hold."""
HELD: Final = UNPLANNED | GROUPS["bulk"] | GROUPS["back"]
"""Words that change what is asked for, so that somebody must explain them."""
_OTHERS: Final = ("negation", "condition", "exception", "repeat", "bulk", "back", "filler", "calendar", "bound")
SMALL: Final = frozenset().union(*(listed for head, listed in GROUPS.items() if head not in _OTHERS))
"""Words that need no explanation."""
BOUNDS: Final = GROUPS["preposition"] | GROUPS["named"] | GROUPS["joiner"] | GROUPS["be"] | GROUPS["bound"]
"""Words that a value cut out of plain words neither begins nor ends with."""
VERBS: Final = frozenset(map(stem, _DATA["verbs"].split()))
ACTS: Final = {head: frozenset(map(stem, listed)) for head, listed in entries("acts")}
"""Stems of verbs: `generic` ones go with any thing, `showing` ones change nothing, a `wish` is for the asker itself."""
PHRASES: Final = _table("phrases")
"""What phrasal verbs mean."""
CURRENCIES: Final = _table("currencies")
LANGUAGES: Final = _table("languages")
COUNTRIES: Final = _table("countries")
PAIRS: Final = {head: frozenset(listed) for head, listed in entries("pairs")}
"""Words of the names of params that take one side of a pair or a range: `left`, `right`, `start`, `end`."""
UNITS: Final = {word: head.split()[0] for head, listed in entries("units") for word in listed}
RATIOS: Final = {one[0]: (one[1], float(one[2])) for head, _ in entries("units") if len(one := head.split()) > 1}
"""What a unit measures, and how much of the base it is: of seconds for `time`."""
ONES: Final = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_TENS: Final = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBERS: Final[Mapping[str, int]] = {
    **{word: number for number, word in enumerate(f"{ONES} seventeen eighteen nineteen".split())},
    **{word: 10 * number for number, word in enumerate(_TENS.split(), 2)},
    "dozen": 12,
}
ORDINALS: Final = {word: number for number, word in enumerate(("first", "second", "third", "fourth", "fifth"), 1)}
SCALES: Final = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "dozen": 12}
_GROUPED: Final = [group.split() for group in _DATA["clusters"].split(";")]
_CLUSTERS: Final[dict[str, frozenset[int]]] = {}
for _number, _group in enumerate(_GROUPED):
    for _word in _group:
        _CLUSTERS[stem(_word)] = _CLUSTERS.get(stem(_word), frozenset()) | {_number}
_ALL: Final = (*GROUPS.values(), UNITS, NUMBERS, SCALES, CURRENCIES, _DATA["verbs"].split(), *_GROUPED)
COMMON: Final = frozenset(word for listed in _ALL for word in listed if word.isalpha())
"""General English as it is written."""
WEIGHTS: Final = {name: {head: float(weight) for head, (weight,) in entries(name)} for name in ("score", "right")}
"""What was learned: what each feature of a plan is worth, and what features of the best one say of whether it is right."""


def clusters(stemmed: str) -> frozenset[int]:
    """The numbers of the synonym clusters that a stem belongs to."""
    return _CLUSTERS.get(stemmed, frozenset())


@lru_cache(maxsize=200_000)
def near(one: str, other: str) -> float:
    """How alike two stems are: 1 the same, 0.8 the same root, 0.75 synonyms, 0 nothing in common."""
    if one == other:
        return 1.0
    length = max(_ROOT, min(len(one), len(other)) - 1)
    if min(len(one), len(other)) > _ROOT and one[:length] == other[:length]:
        return 0.8
    return 0.75 if clusters(one) & clusters(other) else 0.0
