"""Whether a statement says anything that another does not say already. Pure."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Final

from apps.core.lexical import stem, words
from apps.memory.texts import one_line, same_text

_NUMBER: Final = re.compile(r"\d+(?:[.,:]\d+)*")
_COUNTED: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
# One is an article as often.
_FIGURES: Final = {word: str(number) for number, word in enumerate(_COUNTED) if word != "one"}
# What makes no difference. The past, what may or must be, and all that denies, limits or relates does.
_LITTLE: Final = frozenset({"a", "an", "the", "am", "is", "are", "be", "been", "being", "do", "does", "has", "have"})
_DENIED: Final = re.compile(r"n't\b")
# With these a phrase begins that may open a statement or end it.
_OPENING: Final = frozenset({
    "after", "at", "because", "before", "by", "during", "for", "from", "if", "in", "on", "since", "to", "unless", "until",
    "when", "where", "while", "with", "within", "without",
})  # fmt: skip
_SIGNS: Final = frozenset("%#&*@\\")
_MINUS: Final = re.compile(r"(?<![\w.])[-\u2212](?=\d)")


def says_the_same(text: str, other: str) -> bool:
    """Whether two statements have the same words, in whatever form, and the same numbers and signs, in the same order but for
    a phrase at the end of one that opens the other.

    Nothing less: a word that was left out may be what limits a statement, and one that was changed what denies it. What is
    stored twice does less harm than what is taken for known and lost.
    """
    if same_text(text) == same_text(other):
        return bool(one_line(text))
    ours, theirs = list(_stems(text)), list(_stems(other))
    alike = bool(ours) and (ours == theirs or _turned(ours, theirs))
    return alike and _numbers(text) == _numbers(other) and _signs(text) == _signs(other)


def _turned(ours: list[str], theirs: list[str]) -> bool:
    """Whether one is the other with a phrase of its end, or of its beginning, moved to the other side."""
    if Counter(ours) != Counter(theirs):
        return False
    return any(
        ours[place:] + ours[:place] == theirs
        for place in range(1, len(ours))
        if ours[0] in _OPENING or ours[place] in _OPENING
    )


def _stems(text: str) -> Iterator[str]:
    for word in words(_DENIED.sub(" not", unicodedata.normalize("NFKC", text).replace("\u2019", "'"))):
        if word not in _LITTLE:
            yield _FIGURES.get(word) or stem(word)


def _numbers(text: str) -> Counter[str]:
    """Those in figures, and the small ones in words."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    spelled = (_FIGURES[word] for word in words(plain) if word in _FIGURES)
    return Counter([*_NUMBER.findall(plain), *spelled])


def _signs(text: str) -> list[str]:
    """What tells as words do, and is none: signs of mathematics, currencies and pictures, and marks on letters."""
    plain = unicodedata.normalize("NFKC", text)
    signs = [sign for sign in plain if sign in _SIGNS or unicodedata.category(sign) in {"Sm", "Sc", "So", "Mn", "Mc"}]
    return [*signs, *(["-"] * len(_MINUS.findall(plain)))]
