"""Words, stems and an immutable BM25 index over weighted fields.

Deterministic by construction: terms are summed in sorted order, and ties are broken by key.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import snowballstemmer

_WORD: Final = re.compile(r"[^\W_]+")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_STEMMER: Final = snowballstemmer.stemmer("english")

K1: Final = 1.2
B: Final = 0.6


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Return the English stem of one lower-case word."""
    return str(_STEMMER.stemWord(word))


def words(text: str) -> list[str]:
    """Split text into lower-case words; snake_case and camelCase come apart."""
    if text.isascii() and text == text.lower():
        return _WORD.findall(text)
    normal = unicodedata.normalize("NFKC", text)
    return [word.casefold() for word in _WORD.findall(_CAMEL.sub(" ", normal))]


@dataclass(frozen=True, slots=True)
class Hit:
    """One document that shares terms with the query; relevance is the share of the query's weight it carries, 0 to 1."""

    key: str
    score: float
    relevance: float


class Index:
    """BM25 over documents made of weighted fields, built once and never changed."""

    def __init__(self, documents: Mapping[str, Mapping[str, Sequence[str]]], weights: Mapping[str, float]) -> None:
        self._size = len(documents)
        averages = _average_lengths(documents, weights)
        frequencies: dict[str, dict[str, float]] = defaultdict(dict)
        for key in sorted(documents):
            for term, frequency in _weighted_terms(documents[key], weights, averages).items():
                frequencies[term][key] = frequency
        self._idf = {term: _idf(len(found), self._size) for term, found in frequencies.items()}
        self._postings: dict[str, tuple[tuple[str, float], ...]] = {
            term: tuple((key, self._idf[term] * tf / (K1 + tf)) for key, tf in found.items())
            for term, found in frequencies.items()
        }

    def __len__(self) -> int:
        return self._size

    def idf(self, term: str) -> float:
        """Return how much a term tells; one that no document has tells the most."""
        return self._idf.get(term, _idf(0, self._size))

    def search(self, terms: Iterable[str], *, limit: int, where: Callable[[str], bool] | None = None) -> list[Hit]:
        """Return the best documents for the terms, best first, ties by key."""
        query = sorted(set(terms))
        whole = math.fsum(self.idf(term) for term in query) or 1.0
        scores: dict[str, float] = defaultdict(float)
        for term in query:
            for key, impact in self._postings.get(term, ()):
                scores[key] += impact
        found = [(key, score) for key, score in scores.items() if where is None or where(key)]
        found.sort(key=lambda pair: (-pair[1], pair[0]))
        return [Hit(key, round(score, 6), round(score / whole, 6)) for key, score in found[:limit]]


def _average_lengths(
    documents: Mapping[str, Mapping[str, Sequence[str]]], weights: Mapping[str, float]
) -> dict[str, float]:
    count = len(documents) or 1
    return {field: sum(len(doc.get(field, ())) for doc in documents.values()) / count or 1.0 for field in weights}


def _weighted_terms(
    document: Mapping[str, Sequence[str]], weights: Mapping[str, float], averages: Mapping[str, float]
) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for field, weight in weights.items():
        terms = document.get(field, ())
        norm = 1 - B + B * len(terms) / averages[field]
        for term, count in Counter(terms).items():
            total[term] += weight * count / norm
    return total


def _idf(found: int, size: int) -> float:
    return math.log(1 + (size - found + 0.5) / (found + 0.5))
