"""Whether a statement says anything that another does not say already. Pure."""

import re
import unicodedata
from collections import Counter
from typing import Final

from apps.core.lexical import stem, words
from apps.memory.texts import one_line, same_text

# Of all the words of both, the share that they have in common from which on they say the same.
_SAME: Final = 0.7
_NEGATION: Final = re.compile(
    r"\b(?:not|no|non|never|none|nobody|nothing|nowhere|neither|nor|without|cannot|hardly|barely|seldom|rarely)\b"
    r"|n't\b|\b(?:are|ca|could|did|does|do|had|has|have|is|might|must|need|should|was|were|wo|would)nt\b"
)
_NUMBER: Final = re.compile(r"\d+(?:[.,:]\d+)*")
_COUNTED: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip


def says_the_same(text: str, other: str) -> bool:
    """Whether two statements are the same, or have nearly all of their words in common, in whatever form and order, and the
    same numbers, and deny as often."""
    if same_text(text) == same_text(other):
        return bool(one_line(text))
    ours, theirs = _stems(text), _stems(other)
    together = ours | theirs
    nearly = bool(together) and len(ours & theirs) >= _SAME * len(together)
    return nearly and _numbers(text) == _numbers(other) and _denials(text) == _denials(other)


def _stems(text: str) -> set[str]:
    return {stem(word) for word in words(text)}


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")


def _numbers(text: str) -> Counter[str]:
    """Those in figures, and the small ones in words, but for one, which is an article as often."""
    told = _plain(text)
    spelled = (str(_COUNTED.index(word)) for word in words(told) if word in _COUNTED and word != "one")
    return Counter([*_NUMBER.findall(told), *spelled])


def _denials(text: str) -> int:
    return len(_NEGATION.findall(_plain(text)))
