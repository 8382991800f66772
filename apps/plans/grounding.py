"""What a request's context refers to, read from the many forms that references to memories come in."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_MEMORY: Final = re.compile(r"(?:(?P<kind>observation|obs|pattern)[:-])?(?P<number>[1-9][0-9]{0,17})", re.ASCII)


@dataclass(frozen=True, slots=True)
class MemoryRef:
    """A memory named by number; a bare number is an observation or a pattern."""

    text: str
    number: int
    is_observation: bool
    is_pattern: bool


def memory_refs(given: Iterable[object]) -> tuple[list[MemoryRef], list[str]]:
    """Return the references that have a known form, and the texts of those that have none."""
    found, strange = [], []
    for one in given:
        text = str(one)
        match = _MEMORY.fullmatch(text)
        if match is None or isinstance(one, bool):
            strange.append(text[:100])
            continue
        kind = match["kind"]
        found.append(MemoryRef(text, int(match["number"]), kind != "pattern", kind in {None, "pattern"}))
    return found, strange
