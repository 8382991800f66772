"""How memories are named: `observation:123`, `pattern:45`, `concept:python`."""

import re
import unicodedata
from typing import Final

from apps.memory.errors import MalformedMemoryReference

_OBSERVATION: Final = re.compile(r"(?:observation:|obs-)?([1-9][0-9]{0,17})", re.ASCII)


def observation_ref(number: int) -> str:
    return f"observation:{number}"


def pattern_ref(number: int) -> str:
    return f"pattern:{number}"


def concept_ref(key: str) -> str:
    return f"concept:{key}"


def observation_number(text: str) -> int:
    """The number in `observation:123`, `obs-123` or `123`.

    :raises MalformedMemoryReference: if the text has none of these forms.
    """
    match = _OBSERVATION.fullmatch(text)
    if match is None:
        raise MalformedMemoryReference(f"{text[:60]!r} is no reference of the form observation:<number>.")
    return int(match[1])


def key_of(name: str) -> str:
    """What a concept's name or alias is compared by: case, width and spacing do not tell names apart."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
