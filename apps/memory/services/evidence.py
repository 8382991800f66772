"""What memories rest on: it is there, and may be known by whoever cites it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from apps.memory import selectors
from apps.memory.errors import UnknownMemory
from apps.memory.models import Concept, Item, Pattern
from apps.memory.references import cited_in, concept_ref, observation_ref, pattern_ref
from apps.principals.tenancy import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Cited:
    """A memory that is cited: its words, and who wrote them when."""

    text: str
    author_id: int
    written_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """References as they are kept, each once, and the memories among them."""

    refs: list[str]
    cited: Mapping[str, Cited] = field(default_factory=dict)


def evidence_of(author: Caller, given: Sequence[str]) -> Evidence:
    """What these references name. A statement for each kind of memory among them, and none where there is none.

    :raises MalformedMemoryReference: if one should name a memory by its number, and has none.
    :raises UnknownMemory: if there is no such memory, it was forgotten, or it is about a subject that is not shared with
        the author.
    """
    named: dict[str, dict[str, str]] = {}
    refs: list[str] = []
    for text in given:
        memory = cited_in(text)
        if memory is None:
            refs.append(text)
            continue
        kind, key = memory
        ref = f"{kind}:{key}"
        refs.append(ref)
        named.setdefault(kind, {})[key] = ref
    cited: dict[str, Cited] = {}
    for kind, wanted in named.items():
        found = _FOUND[kind](author, wanted)
        cited |= found
        if missing := [ref for ref in wanted.values() if ref not in found]:
            raise UnknownMemory(f"There is no {missing[0][:60]!r}.")
    return Evidence(refs=list(dict.fromkeys(refs)), cited=cited)


def words_of(viewer: Caller, refs: Iterable[str]) -> dict[str, str]:
    """What memories say by themselves, without their names and kinds: those of these references, as memories give them, that
    the viewer may know and that are still there."""
    named: dict[str, list[str]] = {}
    for ref in refs:
        kind, _, key = ref.partition(":")
        named.setdefault(kind, []).append(key)
    found = (_FOUND[kind](viewer, keys) for kind, keys in named.items())
    return {ref: cited.text for each in found for ref, cited in each.items()}


def _observations(author: Caller, numbers: Collection[str]) -> dict[str, Cited]:
    known = selectors.observations_known_to(author)
    return {
        observation_ref(row.pk): Cited(text=row.text, author_id=row.author_id, written_at=row.recorded_at)
        for row in known.filter(pk__in=map(int, numbers))
    }


def _patterns(author: Caller, numbers: Collection[str]) -> dict[str, Cited]:
    return {
        pattern_ref(row.pk): Cited(text=row.text, author_id=row.author_id, written_at=row.revised_at)
        for row in Pattern.objects.filter(pk__in=map(int, numbers))
    }


def _concepts(author: Caller, keys: Collection[str]) -> dict[str, Cited]:
    numbers = selectors.concepts_named(keys)
    rows = {row.pk: row for row in Concept.objects.filter(pk__in=numbers.values())}
    return {
        concept_ref(key): Cited(text=row.description, author_id=row.author_id, written_at=row.revised_at)
        for key, row in ((key, rows[pk]) for key, pk in numbers.items())
    }


def _items(author: Caller, numbers: Collection[str]) -> dict[str, Cited]:
    return {
        row.ref: Cited(text=row.text, author_id=row.author_id, written_at=row.recorded_at)
        for row in Item.objects.filter(subject__in=selectors.known_to(author), pk__in=map(int, numbers))
    }


_FOUND: Final[Mapping[str, Callable[[Caller, Collection[str]], dict[str, Cited]]]] = {
    "observation": _observations,
    "pattern": _patterns,
    "concept": _concepts,
    "item": _items,
}
