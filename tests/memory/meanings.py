"""A small embedder of our own: words are directions, words of one meaning the same; and a server that answers by it."""

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from apps.core.lexical import words
from apps.memory.vectors import Embedder
from apps.plans.local.words import stem
from tests.remote import Behaviour, Exchange, Remote, says, serving

DIMENSIONS: Final = 64
MODEL: Final = "of-our-own"

# Words that mean the same and look nothing like it.
_ALIKE: Final = [
    {"car", "automobile", "vehicle"},
    {"doctor", "physician"},
    {"holiday", "vacation"},
    {"salary", "wage", "pay"},
    {"illness", "sick", "disease"},
]
_MEANING: Final = {stem(word): min(group) for group in _ALIKE for word in group}

Embed = Callable[[str], list[float]]


def by_words(text: str) -> list[float]:
    """The sum of the directions of its words, the little ones left out."""
    found = [0.0] * DIMENSIONS
    for word in words(text):
        if len(word) > 3:
            root = stem(word)
            for place, number in enumerate(_direction(_MEANING.get(root, root))):
                found[place] += number
    return found if any(found) else _direction(text)


def by_chance(text: str) -> list[float]:
    """Numbers that say nothing of the text."""
    return _direction(f"{text}!")


def _direction(seed: str) -> list[float]:
    chance = random.Random(hashlib.sha256(seed.encode()).digest())  # noqa: S311  # no secret
    return [chance.gauss(0, 1 / math.sqrt(DIMENSIONS)) for _ in range(DIMENSIONS)]


def answers(embed: Embed = by_words) -> Behaviour:
    """As an endpoint of the OpenAI form: the entries in another order than they were asked for."""

    def behave(exchange: Exchange) -> None:
        asked = exchange.received.json
        said(*[entry(place, embed(text)) for place, text in reversed(list(enumerate(asked["input"])))])(exchange)

    return behave


def entry(index: Any, embedding: Any) -> dict[str, Any]:
    return {"object": "embedding", "index": index, "embedding": embedding}


def said(*entries: Any) -> Behaviour:
    return says(200, {"object": "list", "data": list(entries), "model": MODEL})


def refusing(word: str, refusal: Behaviour | None = None) -> Behaviour:
    """Refuses every call that has a text with this word, or does this with it."""

    def behave(exchange: Exchange) -> None:
        texts: Sequence[str] = exchange.received.json["input"]
        no = refusal or says(400, {"error": "no"})
        (no if any(word in text for text in texts) else answers())(exchange)

    return behave


@contextmanager
def endpoint(settings: Any, behaviour: Behaviour | None = None) -> Iterator[Remote]:
    """An embedder that the deployment names, for as long as the block lasts."""
    with serving(behaviour or answers()) as remote:
        settings.EMBEDDER_URL = f"{remote.url}/v1/embeddings"
        settings.EMBEDDER_MODEL = MODEL
        settings.EMBEDDER_DIMENSIONS = DIMENSIONS
        settings.EMBEDDER_TOKEN = "sk-embedder"
        yield remote
        settings.EMBEDDER_URL = ""


def named(url: str) -> Embedder:
    return Embedder(url=url, model=MODEL, dimensions=DIMENSIONS, token="")
