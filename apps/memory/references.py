"""How memories are named: `observation:123`, `pattern:45`, `concept:python`."""

import re
import unicodedata
from typing import Final

from apps.memory.errors import MalformedMemoryReference

_OBSERVATION: Final = re.compile(r"(?:observation:|obs-)?([1-9][0-9]{0,17})", re.ASCII)
# What is cited of memory; other references are those of other parts, and of elsewhere.
_CITED: Final = re.compile(r"(observation|obs|pattern|concept|item)([:-])(.*)", re.ASCII | re.DOTALL | re.IGNORECASE)
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)

# Of ASCII, a subject's id has letters, digits and, but for its end, `_:@.+~-`.
_OTHERS: Final = r"\x00-*,/;-?\[-^`{-}\x7f"
_KIND: Final = "[A-Z][A-Z0-9_]{0,29}"
_NAME: Final = rf"[^{_OTHERS}]*[^_:@.+~\-{_OTHERS}]"
SUBJECT_ID: Final = f"{_KIND}:{_NAME}"
LONGEST_SUBJECT_ID: Final = 200
# Of what key_of() makes of a name.
LONGEST_KEY: Final = 200


def observation_ref(number: int) -> str:
    return f"observation:{number}"


def item_ref(number: int) -> str:
    return f"item:{number}"


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


def cited_in(ref: str) -> tuple[str, str] | None:
    """The kind of memory that a reference names, and its number, or the key of a concept's name; None if it names no memory.

    :raises MalformedMemoryReference: if it should name a memory by its number, and has none.
    """
    match = _CITED.fullmatch(ref.strip())
    called = "" if match is None else match[1].lower()
    # `concept-7` and `item-7` are no references of ours.
    if match is None or (match[2] == "-" and called not in {"obs", "pattern"}):
        return None
    if called == "concept":
        return called, key_of(match[3])
    if _NUMBER.fullmatch(match[3]) is None:
        raise MalformedMemoryReference(f"{ref[:60]!r} is no reference to a memory by its number.")
    return "observation" if called == "obs" else called, match[3]


def key_of(name: str) -> str:
    """What a concept's name or alias, or a slot, is compared by: case, width and spacing do not tell names apart."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
