"""How memories are named: `observation:123`, `pattern:45`, `concept:python`."""

import re
import unicodedata
from typing import Final

from apps.core.errors import Conflict, Invalid, Malformed

MALFORMED: Final = "malformed_memory_reference"
_OBSERVATION: Final = re.compile(r"(?:observation:|obs-)?([1-9][0-9]{0,17})", re.ASCII)
# References to memories. Others name rows of other rooms, or things elsewhere.
_CITED: Final = re.compile(r"(observation|obs|pattern|concept|item)([:-])(.*)", re.ASCII | re.DOTALL | re.IGNORECASE)
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)

# Of ASCII, a subject's id has letters, digits and, but for its end, `_:@.+~-`.
_OTHERS: Final = r"\x00-*,/;-?\[-^`{-}\x7f"
_KIND: Final = "[A-Z][A-Z0-9_]{0,29}"
_NAME: Final = rf"[^{_OTHERS}]*[^_:@.+~\-{_OTHERS}]"
SUBJECT_ID: Final = f"{_KIND}:{_NAME}"
LONGEST_SUBJECT_ID: Final = 200
# Of the result of key_of().
LONGEST_KEY: Final = 200


class AliasTaken(Conflict):
    """The name or alias already stands for another concept."""

    code = "alias_taken"


class UnusableName(Invalid):
    """The normalized form of the name is empty or too long."""

    code = "unusable_name"


def observation_number(text: str) -> int:
    """The number in `observation:123`, `obs-123` or `123`.

    :raises Malformed: `malformed_memory_reference`, if the text has none of these forms.
    """
    match = _OBSERVATION.fullmatch(text)
    if match is None:
        raise Malformed(f"{text[:60]!r} is not of the form observation:<number>.", code=MALFORMED)
    return int(match[1])


def cited_in(ref: str) -> tuple[str, str] | None:
    """The kind and the number of the memory that a reference names, or the key of a concept; None if it names no memory.

    :raises Malformed: `malformed_memory_reference`, if it has the form of one and no number.
    """
    match = _CITED.fullmatch(ref.strip())
    called = "" if match is None else match[1].lower()
    # `concept-7` and `item-7` are no references to memories.
    if match is None or (match[2] == "-" and called not in {"obs", "pattern"}):
        return None
    if called == "concept":
        return called, key_of(match[3])
    if _NUMBER.fullmatch(match[3]) is None:
        raise Malformed(f"{ref[:60]!r} is no reference to a memory by its number.", code=MALFORMED)
    return "observation" if called == "obs" else called, match[3]


def key_of(name: str) -> str:
    """The normalized form of a concept's name or alias, or of a slot: case, width and spacing are folded."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
