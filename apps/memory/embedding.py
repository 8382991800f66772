"""What texts mean, as numbers: told by an endpoint of the OpenAI form, where this deployment names one.

It speaks with strangers: call it outside of transactions. Nothing depends on its answers but how well recall finds:
whoever asks goes on without them.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
from django.conf import settings
from numpy.typing import NDArray

from apps.core import outbound
from apps.core.outbound import CallFailed

Vector = NDArray[np.float32]
"""Of length 1."""

# What an endpoint reads of a text. Those of longer ones say less of each part than of the whole.
_READ: Final = 8_000
_BYTES_A_NUMBER: Final = 40
_BYTES_BESIDES: Final = 65_536
_REFUSED: Final = frozenset({400, 413, 422})
# What servers of models, and those before them, answer where one of the texts is too much for them, too.
_BROKEN: Final = frozenset({500, 502, 504})
_SHORTEST: Final = 1e-6


class NotEmbedded(Exception):
    """The endpoint has given nothing that can be used; `str()` says why, and nothing of what was asked.

    `refused`: it has taken no offence at the call, but at the texts. `unclear`: it has answered, and may have failed at one
    of the texts or at whatever it is asked.
    """

    def __init__(self, why: str, *, refused: bool = False, unclear: bool = False) -> None:
        super().__init__(why)
        self.refused = refused
        self.unclear = unclear


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedder:
    """An endpoint, and the model that is asked for there."""

    url: str
    model: str
    dimensions: int
    token: str

    @property
    def mark(self) -> int:
        """By which its vectors are told from those of other models; never 0."""
        digest = hashlib.blake2b(f"{self.model}\0{self.dimensions}".encode(), digest_size=4).digest()
        return int.from_bytes(digest) >> 1 or 1

    def embed(self, texts: Sequence[str], *, patience: timedelta) -> list[Vector]:
        """A vector of each text, in their order. Waits for no longer than this.

        :raises NotEmbedded: if the endpoint does not give exactly that.
        """
        asked = {"model": self.model, "input": [text[:_READ] for text in texts]}
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self.token}"} if self.token else {}
        )
        try:
            answer = outbound.post(
                self.url,
                body=json.dumps(asked).encode(),
                headers=headers,
                deadline=patience,
                max_answer_bytes=_BYTES_BESIDES + _BYTES_A_NUMBER * self.dimensions * len(texts),
            )
        except CallFailed as exc:
            raise NotEmbedded(str(exc)) from exc
        if answer.status != 200:  # noqa: PLR2004  # the one status of such an answer
            raise NotEmbedded(
                f"It answered {answer.status}.", refused=answer.status in _REFUSED, unclear=answer.status in _BROKEN
            )
        return self._read(answer.body, len(texts))

    def _read(self, body: bytes, wanted: int) -> list[Vector]:
        try:
            entries = json.loads(body)["data"]
            found = {_place(entry): self._vector(entry["embedding"]) for entry in entries}
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as exc:
            why = f"Its answer is not of the OpenAI form, or not of {self.dimensions} numbers."
            raise NotEmbedded(why, unclear=True) from exc
        if len(entries) != wanted or found.keys() != set(range(wanted)):
            why = f"It answered {len(entries)} vectors for {wanted} texts, or not one for each."
            raise NotEmbedded(why, unclear=True)
        return [found[place] for place in range(wanted)]

    def _vector(self, numbers: Any) -> Vector:
        if not isinstance(numbers, list) or len(numbers) != self.dimensions:
            raise ValueError("not as many numbers as the model gives")
        if not all(type(number) in {int, float} for number in numbers):
            raise TypeError("not all of them numbers")
        length = math.hypot(*numbers)
        if not math.isfinite(length) or length < _SHORTEST:
            raise ValueError("a vector without a direction")
        return np.array([number / length for number in numbers], dtype=np.float32)


def _place(entry: Mapping[str, Any]) -> int:
    if type(entry["index"]) is not int:
        raise TypeError("no place")
    return int(entry["index"])


def embedder() -> Embedder | None:
    """The one that this deployment names, if it names one."""
    if not settings.EMBEDDER_URL:
        return None
    return Embedder(
        url=settings.EMBEDDER_URL,
        model=settings.EMBEDDER_MODEL,
        dimensions=settings.EMBEDDER_DIMENSIONS,
        token=settings.EMBEDDER_TOKEN,
    )


def spelled(vector: Vector) -> str:
    """As PostgreSQL reads a vector."""
    return f"[{','.join(map(repr, vector.tolist()))}]"
