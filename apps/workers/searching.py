"""Search of tools by plain words: an index per tenant that grows and shrinks worker by worker, and tolerates typos.

BM25 over a tool's name, tags, description and parameters. Field lengths are weighed against fixed typical lengths, so the
same tools get the same scores in whatever order they were registered.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rapidfuzz import process
from rapidfuzz.distance import OSA

from apps.core.lexical import K1, B, stem, words
from apps.workers.shapes import CapabilityMatch

_FIELDS: Final[Mapping[str, tuple[float, int]]] = {
    "name": (3.0, 3),
    "capabilities": (2.0, 6),
    "description": (1.0, 20),
    "params": (0.5, 4),
}
"""The weight of a field, and how many words it typically has."""
_STOP_WORDS: Final = frozenset(
    words(
        "a an and any are as at be by can do does for from i in into is it me my of on or please some something that the"
        " this to tool tools what which who with worker workers"
    )
)
_ONE_EDIT: Final = 4
_TWO_EDITS: Final = 8
_EDIT_DISCOUNT: Final = 0.7
_MOST_TYPOS: Final = 16
"""So many unknown words of a query are compared with the known ones; more of them are noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tool of a worker, with the texts that it is found by."""

    worker_id: str
    tool_name: str
    description: str
    capabilities: Sequence[str]
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Document:
    """An indexed tool, and the weight of each stem in it."""

    entry: Entry
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Term:
    """A word of a query: the stem that it is found as (perhaps another one, at a discount; perhaps none), and its weight."""

    word: str
    stem: str | None
    factor: float
    weight: float


class SearchIndex:
    """All tools of a tenant. Not safe for several threads at once."""

    def __init__(self) -> None:
        self._documents: dict[str, list[Document]] = {}
        self._postings: defaultdict[str, dict[tuple[str, str], Document]] = defaultdict(dict)
        self._spellings: dict[str, str] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, worker_id: str, entries: Iterable[Entry]) -> None:
        """Make these the tools of a worker; no entries remove it."""
        for document in self._documents.pop(worker_id, ()):
            self._size -= 1
            for term in document.weights:
                self._postings[term].pop((worker_id, document.entry.tool_name), None)
                if not self._postings[term]:
                    del self._postings[term]
                    self._spellings.pop(term, None)
        if documents := [self._document(entry) for entry in entries]:
            self._documents[worker_id] = documents
        for document in documents:
            self._size += 1
            for term in document.weights:
                self._postings[term][worker_id, document.entry.tool_name] = document

    def search(self, query: str) -> tuple[list[Term], list[Document]]:
        """Return the terms of a query, and the tools that have any of them, best first; ties by worker and name."""
        terms = self._terms(query)
        scores: defaultdict[tuple[str, str], float] = defaultdict(float)
        documents: dict[tuple[str, str], Document] = {}
        for term in sorted(terms, key=lambda term: term.word):
            for key, document in self._postings.get(term.stem or "", {}).items():
                scores[key] += term.weight * term.factor * document.weights[term.stem or ""]
                documents[key] = document
        ranked = sorted(scores, key=lambda key: (-round(scores[key], 9), key))
        return terms, [documents[key] for key in ranked]

    def _document(self, entry: Entry) -> Document:
        properties = entry.input_schema.get("properties", {})
        texts = {
            "name": entry.tool_name,
            "capabilities": " ".join(entry.capabilities),
            "description": entry.description,
            "params": " ".join(properties) if isinstance(properties, Mapping) else "",
        }
        frequencies: defaultdict[str, float] = defaultdict(float)
        for field, (weight, typical) in _FIELDS.items():
            found = words(texts[field])
            norm = 1 - B + B * len(found) / typical
            for term, count in Counter(map(stem, found)).items():
                frequencies[term] += weight * count / norm
            for word in found:
                shortest = self._spellings.get(stem(word), word)
                self._spellings[stem(word)] = min(shortest, word, key=lambda one: (len(one), one))
        saturated = {term: frequency / (K1 + frequency) for term, frequency in frequencies.items()}
        return Document(entry, saturated)

    def _terms(self, query: str) -> list[Term]:
        asked = list(dict.fromkeys(words(query)))
        by_stem: dict[str, str] = {}
        for word in [word for word in asked if word not in _STOP_WORDS] or asked:
            by_stem.setdefault(stem(word), word)
        unknown = [term for term, word in by_stem.items() if word.isalpha() and term not in self._postings]
        terms = []
        for term, word in by_stem.items():
            if term in self._postings:
                terms.append(Term(word, term, 1.0, self._idf(term)))
                continue
            near = self._nearest(word, term) if term in unknown[:_MOST_TYPOS] else None
            found, edits = near or (None, 0)
            terms.append(Term(word, found, _EDIT_DISCOUNT**edits, self._idf(found or term)))
        return terms

    def _nearest(self, word: str, term: str) -> tuple[str, int] | None:
        """Return the known stem that a word is most likely a typo of, and how many edits away it is.

        An ending may hide a typo from the stem: so words are compared with words, and stems with stems.
        """
        near = []
        for given, known in ((word, self._spellings), (term, {known: known for known in self._spellings})):
            most = 2 if len(given) >= _TWO_EDITS else 1 if len(given) >= _ONE_EDIT else 0
            for text, edits, found in process.extract(given, known, scorer=OSA.distance, score_cutoff=most, limit=50):
                if edits and len(text) >= _ONE_EDIT:
                    near.append((int(edits), -len(self._postings[found]), found))
        if not near:
            return None
        edits, _, found = min(near)
        return found, edits

    def _idf(self, term: str) -> float:
        having = len(self._postings.get(term, ()))
        return math.log(1 + (self._size - having + 0.5) / (having + 0.5))

    def explain(self, terms: Sequence[Term], document: Document) -> CapabilityMatch:
        """Return a found tool, with the words of the query that it has and those that it lacks."""
        whole = math.fsum(term.weight for term in terms) or 1.0
        found = [term for term in terms if term.stem in document.weights]
        score = math.fsum(term.weight * term.factor * document.weights[term.stem or ""] for term in found)
        return CapabilityMatch(
            worker_id=document.entry.worker_id,
            tool_name=document.entry.tool_name,
            relevance_score=round(score / whole, 4),
            description=document.entry.description,
            matched=[term.word for term in found],
            missed=[term.word for term in terms if term not in found],
        )
