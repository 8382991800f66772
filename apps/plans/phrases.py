"""Words that relate: the phrases of a wish, and what in it says how, where or for whom. Pure text work."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Final

from apps.core.lexical import words
from apps.plans import lexicon
from apps.plans.spans import MASK

_MASK_OR_REST: Final = re.compile(r"\x02?[0-9]+\x03")
"""A mark of something named exactly, whole or without its beginning."""
_A_LINE: Final = re.compile(r"^\W*an?\s+(?:line|note)\b", re.IGNORECASE)
PHRASE: Final = re.compile(
    rf"\b(?P<word>{lexicon.RELATING}|{lexicon.RELATING_TOO}|about|located|stored|that|which|who|like|but)\b",
    re.IGNORECASE,
)
_RELATES: Final = frozenset({"that", "which", "who"})
_OF_OURS: Final = re.compile(r"\s*(?:i|we)\b", re.IGNORECASE)
"""What something named exactly is to who asks, and restricts nothing: the project PATH that we work on."""
_BELONGS: Final = frozenset({"of", "for", "to"})
"""What such a phrase names may be told exactly by the one after it: of the shop at PATH, to the accountant at ADDRESS."""
LIES: Final = frozenset({"at", "in", "under", "inside", "within", "located", "stored", "on"})
GIVES_REASON: Final = re.compile(r"\s*(?:it|they|we|i|he|she|this|that|these|those|there|you)\b", re.IGNORECASE)


def qualifiers_in(text: str) -> Iterator[str]:
    """The words of prepositional phrases, and of what follows upon something named exactly; but for those that only introduce such.

    A phrase of what something belongs to is introduced by the next one, if that says where it lies.
    """
    first = PHRASE.search(text)
    yield from loose_words(text[: first.start() if first else len(text)].partition("\x02")[2])
    for (word, phrase), (following, after) in itertools.pairwise([*phrases_in(text), ("", "")]):
        if word == "as" and GIVES_REASON.match(phrase):
            return
        if word in _RELATES and _OF_OURS.match(phrase):
            continue
        if not (word in _BELONGS and following in LIES and MASK.search(after) and not MASK.search(phrase)):
            yield from loose_words(phrase)


def phrases_in(text: str) -> Iterator[tuple[str, str]]:
    """Each preposition, or word that relates, with what follows it up to the next."""
    found = list(PHRASE.finditer(text))
    ends = [*(one.start() for one in found[1:]), len(text)]
    yield from ((one["word"].casefold(), text[one.end() : end]) for one, end in zip(found, ends, strict=False))


def loose_words(text: str) -> Iterator[str]:
    """The words that introduce nothing named exactly: such stand right before it, and no colon parts them."""
    pieces = _MASK_OR_REST.split(text)
    for place, piece in enumerate(pieces):
        if place == len(pieces) - 1 or piece.rstrip().endswith(":"):
            yield from words(_A_LINE.sub(" ", piece))
