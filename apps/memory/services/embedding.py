"""Asking the embedder: what a question means, at once or not at all; what memories mean, some time after they were written."""

import logging
import threading
import time
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Final

from apps.memory import sql
from apps.memory.embedding import Embedder, NotEmbedded, embedder, spelled
from apps.memory.sql import Meant
from apps.principals.tenancy import acting_as_system

logger = logging.getLogger(__name__)

# Who asks a question waits for its answer.
_QUESTION: Final = timedelta(seconds=1)
_MEMORIES: Final = timedelta(seconds=20)
_AT_ONCE: Final = 64
_BATCHES: Final = 50
# At each call it is looked no further for texts that it does not fail at; the next call goes on from there.
_FAILURES: Final = 64
# Seconds until a text that it has failed at is asked about again.
_AGAIN: Final = 60.0
# No embedder refuses this for what it says.
_PLAIN: Final = "memory"


class _Silence:
    """For how long an embedder is not asked what questions mean, after it has not said so. Of one process."""

    _LASTS: Final = 30.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def reigns(self, url: str) -> bool:
        with self._lock:
            return time.monotonic() < self._until.get(url, 0.0)

    def begins(self, url: str) -> None:
        with self._lock:
            self._until[url] = time.monotonic() + self._LASTS


_silence: Final = _Silence()


class _Failing:
    """At which memories an embedder has failed of late, while it answered for others: they keep none of these waiting. Of one
    process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[str, dict[int, float]] = {}

    def at(self, url: str) -> set[int]:
        """The places of those that are not asked about again yet."""
        now = time.monotonic()
        with self._lock:
            self._until[url] = {place: until for place, until in self._until.get(url, {}).items() if until > now}
            return set(self._until[url])

    def note(self, url: str, places: Collection[int]) -> None:
        with self._lock:
            self._until.setdefault(url, {}).update(dict.fromkeys(places, time.monotonic() + _AGAIN))


_failing: Final = _Failing()


def asks_what_is_meant() -> bool:
    """Whether this deployment names an embedder, who is asked outside of transactions."""
    return embedder() is not None


def meaning_of(question: str, /, *, patience: timedelta = _QUESTION) -> Meant | None:
    """What a question means; None where nobody can say so just now. Call it outside of transactions: it calls out.

    `patience` bounds how long the caller waits for the embedder.
    """
    asked = embedder()
    if asked is None or not question.strip() or _silence.reigns(asked.url) or not sql.has_vectors():
        return None
    try:
        (vector,) = asked.embed([question], patience=patience)
    except NotEmbedded as exc:
        logger.warning("A question is recalled by its words alone: the embedder failed. %s", exc)
        if not exc.refused:
            _silence.begins(asked.url)
        return None
    return Meant(embedder=asked.mark, dimensions=asked.dimensions, vector=spelled(vector))


def embed_memories() -> int:
    """Have the embedder tell what memories mean that it has not been told of yet, or not as they read now.

    As the system, a bounded number at each call; answers of how many it is known now. Where the embedder fails, the
    rest is left for another time; a text that it refuses is found by its words alone, and one that it only fails at is
    asked about again a minute later. An embedder that does so with a plain word as well does it with no text, but fails.
    """
    asked = embedder()
    if asked is None or not sql.has_vectors():
        return 0
    done = 0
    failed = 0
    for _ in range(_BATCHES):
        with acting_as_system("what is to be embedded"):
            texts = sql.unembedded(asked.mark, but=_failing.at(asked.url), limit=_AT_ONCE)
        if not texts or failed > _FAILURES:
            break
        try:
            vectors = _embedded(asked, texts)
        except NotEmbedded as exc:
            logger.warning("Memories wait for the embedder, and are recalled by their words until then. %s", exc)
            break
        with acting_as_system("what memories mean"):
            kept = sql.keep_vectors(asked.mark, texts, vectors)
        failing = texts.keys() - vectors.keys()
        if failing:
            logger.warning("The embedder fails at %d memories, and answers for others.", len(failing))
        _failing.note(asked.url, failing)
        failed += len(failing)
        if not kept and not failing:
            break
        done += kept
    return done


def _embedded(asked: Embedder, texts: Mapping[int, str]) -> dict[int, str | None]:
    """A vector of each text; None of those that the embedder refuses even when they are asked alone, and nothing of those at
    which it fails then.

    :raises NotEmbedded: if it fails at, or refuses, whatever it is asked. Then nothing is known of any of the texts.
    """
    places = list(texts)
    try:
        vectors = asked.embed(list(texts.values()), patience=_MEMORIES)
    except NotEmbedded as exc:
        if not exc.refused and not exc.unclear:
            raise
        # Each time, lest one that has begun to refuse everything takes the rest of the batch with it.
        if exc.unclear or len(places) == 1:
            asked.embed([_PLAIN], patience=_MEMORIES)
        if len(places) == 1:
            return {places[0]: None} if exc.refused else {}
        half = len(places) // 2
        parts = ({place: texts[place] for place in part} for part in (places[:half], places[half:]))
        return {place: vector for part in parts for place, vector in _embedded(asked, part).items()}
    return {place: spelled(vector) for place, vector in zip(places, vectors, strict=True)}
