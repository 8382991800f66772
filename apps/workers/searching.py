"""Finding tools by plain words: an index that grows and shrinks worker by worker, forgives typos, and says why it found what.

BM25 over a tool's name, tags, description and params. The lengths that it weighs against are typical ones, not those of
the moment, so that the same tools give the same scores in whatever order they came.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rapidfuzz import process
from rapidfuzz.distance import OSA

from apps.core.lexical import K1, B, stem, words

_FIELDS: Final[Mapping[str, tuple[float, int]]] = {
    "name": (3.0, 3),
    "capabilities": (2.0, 6),
    "description": (1.0, 20),
    "params": (0.5, 4),
}
"""How much a field weighs, and how many words it typically has."""
_ASIDES: Final = frozenset(
    [
        "a",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "by",
        "can",
        "do",
        "does",
        "for",
        "from",
        "i",
        "in",
        "into",
        "is",
        "it",
        "me",
        "my",
        "of",
        "on",
        "or",
        "please",
        "some",
        "something",
        "that",
        "the",
        "this",
        "to",
        "tool",
        "tools",
        "what",
        "which",
        "who",
        "with",
        "worker",
        "workers",
    ]
)
_ONE_EDIT: Final = 4
_TWO_EDITS: Final = 8
_AN_EDIT: Final = 0.7
_MOST_TYPOS: Final = 16
"""So many unknown words of a query are held against all known ones, the first; more of them are no typos but noise."""
_COMMON: Final = 1_000
_ENOUGH: Final = 200
_SAME: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tool on a worker, in the words that it is found by."""

    worker_id: str
    tool_name: str
    description: str
    capabilities: Sequence[str]
    input_schema: Mapping[str, Any]

    def texts(self) -> Iterator[tuple[str, str]]:
        properties = self.input_schema.get("properties", {})
        yield "name", self.tool_name
        yield "capabilities", " ".join(self.capabilities)
        yield "description", self.description
        yield "params", " ".join(properties) if isinstance(properties, Mapping) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """A word of the query that a tool carries: as which word, where, and which share of the relevance it makes."""

    word: str
    found: str
    where: tuple[str, ...]
    share: float
    typo: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A tool that shares words with a query. Relevance is the sum of the shares, 0 to 1."""

    entry: Entry
    relevance: float
    matched: tuple[Matched, ...]
    missed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Term:
    """A word of the query as the index knows it: perhaps another one, at a discount, perhaps none."""

    word: str
    stem: str | None
    found: str
    factor: float
    weight: float


@dataclass(frozen=True, slots=True)
class Document:
    """A tool as the index holds it."""

    entry: Entry
    frequencies: Mapping[str, float]
    places: Mapping[str, tuple[str, ...]]

    @property
    def key(self) -> tuple[str, str]:
        return self.entry.worker_id, self.entry.tool_name


class SearchIndex:
    """All tools of a tenant. Not for several threads at once."""

    def __init__(self) -> None:
        self._documents: dict[int, Document] = {}
        self._of_worker: defaultdict[str, list[int]] = defaultdict(list)
        self._postings: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._spellings: dict[str, str] = {}
        self._vocabulary: dict[str, str] | None = None
        self._next = 0

    def __len__(self) -> int:
        return len(self._documents)

    def put(self, worker_id: str, entries: Iterable[Entry]) -> None:
        """Let a worker have exactly these tools; none takes it out."""
        for number in self._of_worker.pop(worker_id, ()):
            self._remove(number)
        for entry in entries:
            self._next += 1
            self._of_worker[worker_id].append(self._next)
            self._add(self._next, entry)

    def search(self, query: str) -> "Ranking":
        """The tools that share words with a query, best first."""
        terms = self._terms(query)
        scores: dict[int, float] = {}
        known = sorted({term for term in terms if term.stem is not None}, key=lambda term: self._rarity(term.stem))
        for term in known:
            postings, weight = self._postings[term.stem or ""], term.weight * term.factor
            # What only shares what nearly all share is not looked for where others share more.
            if len(postings) > _COMMON and len(scores) >= _ENOUGH:
                for number in scores.keys() & postings.keys():
                    scores[number] += weight * postings[number]
            elif scores:
                for number, impact in postings.items():
                    scores[number] = scores.get(number, 0.0) + weight * impact
            else:
                scores = {number: weight * impact for number, impact in postings.items()}
        return Ranking(self._documents, scores, terms)

    def _add(self, number: int, entry: Entry) -> None:
        frequencies: defaultdict[str, float] = defaultdict(float)
        places: defaultdict[str, list[str]] = defaultdict(list)
        for field, text in entry.texts():
            weight, typical = _FIELDS[field]
            found = words(text)
            norm = 1 - B + B * len(found) / typical
            stems = [stem(word) for word in found]
            for term, count in Counter(stems).items():
                frequencies[term] += weight * count / norm
                places[term].append(field)
            for term, word in zip(stems, found, strict=True):
                self._spellings[term] = min(self._spellings.get(term, word), word, key=lambda one: (len(one), one))
        for term, frequency in frequencies.items():
            self._postings[term][number] = _saturated(frequency)
        self._documents[number] = Document(
            entry, dict(frequencies), {term: tuple(where) for term, where in places.items()}
        )
        self._vocabulary = None

    def _remove(self, number: int) -> None:
        for term in self._documents.pop(number).frequencies:
            del self._postings[term][number]
            if not self._postings[term]:
                del self._postings[term]
                del self._spellings[term]
        self._vocabulary = None

    def _terms(self, query: str) -> list[_Term]:
        said = list(dict.fromkeys(words(query)))
        meant = [word for word in said if word not in _ASIDES] or said
        by_stem = {stem(word): word for word in reversed(meant)}
        said_first = dict(reversed(by_stem.items()))
        unknown = [term for term, word in said_first.items() if word.isalpha() and term not in self._postings]
        compared = frozenset(unknown[:_MOST_TYPOS])
        return [self._term(word, term, may_be_a_typo=term in compared) for term, word in said_first.items()]

    def _term(self, word: str, term: str, *, may_be_a_typo: bool) -> _Term:
        if term in self._postings:
            return _Term(word, term, self._spellings[term], 1.0, self._idf(term))
        near = self._nearest(word, term) if may_be_a_typo else None
        if near is None:
            return _Term(word, None, "", 0.0, self._idf(term))
        found, edits = near
        return _Term(word, found, self._spellings[found], _AN_EDIT**edits, self._idf(found))

    def _nearest(self, word: str, term: str) -> tuple[str, int] | None:
        """The known word that this one is most likely a typo of, and how many edits away. Endings may hide a typo from
        the stem, or be the typo: so words are held against words, and stems against stems.
        """
        if self._vocabulary is None:
            self._vocabulary = dict(self._spellings)
        able = []
        for mine, theirs in ((word, self._vocabulary), (term, {known: known for known in self._vocabulary})):
            most = 2 if len(mine) >= _TWO_EDITS else 1 if len(mine) >= _ONE_EDIT else 0
            for near, edits, known in process.extract(mine, theirs, scorer=OSA.distance, score_cutoff=most, limit=50):
                if edits and len(near) >= _ONE_EDIT:
                    able.append((int(edits), -len(self._postings[known]), known))
        if not able:
            return None
        edits, _, found = min(able)
        return found, edits

    def _idf(self, term: str) -> float:
        having = len(self._postings.get(term, ()))
        return math.log(1 + (len(self._documents) - having + 0.5) / (having + 0.5))

    def _rarity(self, term: str | None) -> tuple[int, str]:
        return len(self._postings.get(term or "", ())), term or ""


class Ranking:
    """What a query has found, to be read from the best on, as far as somebody wants to read.

    `leading` looks into the index, which must stand still meanwhile; what has left it since the query is left out.
    """

    def __init__(self, documents: Mapping[int, Document], scores: Mapping[int, float], terms: Sequence[_Term]) -> None:
        self._documents = documents
        self._scores = scores
        self._terms = terms
        self._whole = math.fsum(term.weight for term in terms) or 1.0

    def best(self, limit: int) -> list[Found]:
        """The best tools, explained."""
        return [self.explained(document) for document in self.leading(limit)]

    def leading(self, limit: int, *, among: Collection[str] | None = None) -> list[Document]:
        """The best tools, ties in the order of workers and names.

        :param among: the workers that count; None: all.
        """
        scores = self._scores
        if among is not None:
            scores = {n: score for n, score in scores.items() if self._worker_of(n) in among}
        # Most documents are told from the best by their score alone; only those get a key to be sorted by.
        least = min(heapq.nlargest(limit, scores.values()), default=0.0) - _SAME
        near = [number for number, score in scores.items() if score >= least and number in self._documents]
        near.sort(key=lambda number: (-round(scores[number], 9), self._documents[number].key))
        return [self._documents[number] for number in near[:limit]]

    def _worker_of(self, number: int) -> str | None:
        document = self._documents.get(number)
        return None if document is None else document.entry.worker_id

    def explained(self, document: Document) -> Found:
        """Why it was found."""
        matched = []
        missed = []
        for term in self._terms:
            frequency = document.frequencies.get(term.stem or "")
            if term.stem is None or frequency is None:
                missed.append(term.word)
                continue
            matched.append(
                Matched(
                    word=term.word,
                    found=term.found,
                    where=document.places[term.stem],
                    share=round(term.weight * term.factor * _saturated(frequency) / self._whole, 4),
                    typo=term.factor < 1,
                )
            )
        return Found(
            entry=document.entry,
            relevance=round(math.fsum(one.share for one in matched), 4),
            matched=tuple(matched),
            missed=tuple(missed),
        )


def _saturated(frequency: float) -> float:
    return frequency / (K1 + frequency)
