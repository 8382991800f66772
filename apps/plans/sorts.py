"""Sorts of things: what is for Python code is not for Java code, nor what indexes PDF documents for spreadsheets.

A word says of what sort a thing is where it stands before the word for the thing, or where one thing is turned into another. Sorts that are
known rule each other out on their scale: programming languages, formats of files, human languages. Of other names it is only seen that one
stands where a tool has another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from apps.core.lexical import words
from apps.plans import kinds, lexicon
from apps.plans.catalogue import Tool
from apps.plans.clauses import Clause
from apps.plans.spans import Span

_TOKEN: Final = re.compile(r"[^\W\d_][\w+#]*|\x02\d+\x03|[^\w\s]")
_FIRST_SENTENCE: Final = re.compile(
    r"[.:;]\s|\n\s*\n|\b(?:such\s+as|e\.\s?g\.|like|including|for\s+(?:example|instance))\b"
)
_INTO: Final = frozenset({"into", "to", "as"})
_JOINING: Final = frozenset({"and", "or", ",", "/", "&"})
_SAME: Final = {
    "py": "python",
    "js": "javascript",
    "ts": "typescript",
    "rs": "rust",
    "rb": "ruby",
    "golang": "go",
    "c++": "cpp",
    "c#": "csharp",
    "md": "markdown",
}
_SAME_FORMAT: Final = {"jpeg": "jpg", "yml": "yaml", "htm": "html"}
_SAYING_LITTLE: Final = frozenset({"doc", "log"})
"""Endings that are words for other things as well."""
_FORMATS: Final = (lexicon.EXTENSIONS | {"markdown"}) - _SAME.keys() - lexicon.PROGRAMMING_LANGUAGES - _SAYING_LITTLE
_SCALES: Final = (
    ("code", lexicon.PROGRAMMING_LANGUAGES),
    ("format", _FORMATS | _SAME_FORMAT.keys()),
    ("language", lexicon.HUMAN_LANGUAGES),
)
_LONGEST: Final = 4_000
_OF_FILES: Final = -1


class _Text(Enum):
    """Where a word stands: in a wish, in a tool's name, in the sentence that says what the tool does."""

    WISH = auto()
    NAME = auto()
    SENTENCE = auto()


class Sort(NamedTuple):
    """A word that says of what sort something is."""

    word: str
    said: str
    scale: str | None
    things: frozenset[str]
    """What it stands before, as concepts; none where it stands alone."""
    into: bool
    """Is something to become of this sort?"""
    named: bool
    """Is it written as a name? What is neither that nor of a scale may be any word before another."""
    phrase: int
    """Words of one phrase say together of what sort one thing is; joined ones are of one list."""
    joined: int


@dataclass(frozen=True, slots=True)
class Sorts:
    """What a tool says of the sorts of what it takes and gives."""

    own: tuple[Sort, ...]
    spoken: frozenset[str]
    """All other words of the tool."""


class Clash(NamedTuple):
    """A wish names one sort where a tool is for others."""

    wanted: str
    own: str
    certain: bool
    """Are both known to rule each other out?"""
    sort: Sort


def of_wish(clause: Clause) -> tuple[Sort, ...]:
    """The sorts that a part of a request names, in words and by the endings of files."""
    return (*_sorts(clause.marked[:_LONGEST], _Text.WISH), *_of_files(clause.spans))


def of_file(span: Span) -> str | None:
    """The sort that a file is of by its ending, if that is of a known scale."""
    word = _plain(span.value.rpartition(".")[2].casefold())
    return word if span.kind == "path" and kinds.is_file(f"/{span.value}") and _scale(word) else None


def _of_files(spans: Iterable[Span]) -> Iterator[Sort]:
    for span in spans:
        word = of_file(span)
        if word is not None:
            said, into = f".{span.value.rpartition('.')[2]}", bool(_INTO.intersection(span.before[-1:]))
            yield Sort(word, said, _scale(word), frozenset(), into, named=True, phrase=_OF_FILES, joined=_OF_FILES)


def of_tool(tool: Tool, tags: Iterable[str]) -> Sorts:
    """The sorts that a tool's name and the first sentence of its description name."""
    parts = _FIRST_SENTENCE.split(tool.description.strip()[:_LONGEST], maxsplit=1)
    own = (*_sorts(" ".join(words(tool.name)), _Text.NAME), *_sorts(parts[0], _Text.SENTENCE))
    texts = [*parts[1:], *tags, *(text for name, schema in tool.inputs.items() for text in (name, *_told(schema)))]
    return Sorts(own, frozenset(_plain(word) for text in texts for word in words(text)))


def clash(wish: Sequence[Sort], tool: Sorts, given: str = "") -> Clash | None:
    """Where a wish names another sort than the tool is for; the certain ones first.

    :param given: what the wish names exactly: a name that is a part of that tells which one is meant, and of no sort.
    """
    if not tool.own:
        return None
    found = [one for sort in wish if (one := _clash(sort, wish, tool, given)) is not None]
    return min(found, key=lambda one: (not one.certain, not one.sort.named), default=None)


def names(tool: Sorts, sort: Sort) -> bool:
    """Is the tool for just this sort of such things?"""
    return any(own.word == sort.word and own.things & sort.things for own in tool.own)


def _clash(sort: Sort, wish: Sequence[Sort], tool: Sorts, given: str) -> Clash | None:
    if sort.word in tool.spoken:
        return None
    places = [own for own in tool.own if own.into == sort.into and (own.scale or own.named)]
    if any(sort.word == own.word for own in places):
        return None
    alike = [own for own in places if sort.scale and own.scale == sort.scale]
    certain = bool(alike)
    if not certain and sort.word not in given.casefold():
        alike = [own for own in places if own.things & sort.things and not (own.scale and sort.scale)]
    if not alike or any(_is_met(sort, other, alike) for other in wish):
        return None
    return Clash(sort.said, ", ".join({own.word: own.said for own in alike}.values()), certain, sort)


def _is_met(sort: Sort, other: Sort, own: Sequence[Sort]) -> bool:
    """Does the wish name the tool's own sort as well, and not in a list with this one?"""
    in_a_list = other.joined == sort.joined and other.phrase != sort.phrase
    return (
        other is not sort and other.into == sort.into and not in_a_list and any(other.word == one.word for one in own)
    )


def _sorts(text: str, source: _Text) -> Iterator[Sort]:
    """Each word that may say of what sort something is, with what it stands before; in a tool's text one that surely does."""
    tokens = _TOKEN.findall(text)
    runs = list(_runs(tokens))
    for place, (start, end, joined) in enumerate(runs):
        later = _heads_of_list(tokens, runs, place)
        for at in range(start, end):
            things = frozenset(lexicon.concept(word.casefold()) for word in tokens[at + 1 : end]) | (
                later if at == end - 1 else frozenset()
            )
            sort = _sort(tokens, at, things, source)
            if sort is not None:
                yield sort._replace(phrase=place, joined=joined)


def _sort(tokens: Sequence[str], at: int, things: frozenset[str], text: _Text) -> Sort | None:
    said = tokens[at]
    word = _plain(said.casefold())
    scale = _scale(word)
    before = tokens[at - 1].casefold() if at else ""
    into = not things and before in _INTO
    named = at > 0 and said[0].isupper() and text != _Text.NAME and word not in lexicon.TIMES
    alone = not things and not into
    if scale == "code" and alone:
        told = {_Text.WISH: named or before == "in", _Text.NAME: at > 0, _Text.SENTENCE: False}
        scale = scale if told[text] else None
    if scale is None and (alone or into or at == 0 or not (named or text == _Text.WISH)):
        return None
    return Sort(word, said, scale, things, into, named, 0, 0)


def _scale(word: str) -> str | None:
    return next((name for name, listed in _SCALES if word in listed), None)


def _runs(tokens: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Where words stand side by side that mean something, and which of these are joined to the one before."""
    start, joined = 0, 0
    for at in range(len(tokens) + 1):
        if at < len(tokens) and _means_something(tokens[at]):
            continue
        if at > start:
            yield start, at, joined
        if at < len(tokens) and tokens[at].casefold() not in _JOINING:
            joined = at + 1
        start = at + 1


def _heads_of_list(tokens: Sequence[str], runs: Sequence[tuple[int, int, int]], place: int) -> frozenset[str]:
    """What follows upon the last of a list: in `PDF and Word documents` the documents are PDF ones as well."""
    joined = runs[place][2]
    last = [run for run in runs[place + 1 :] if run[2] == joined][-1:]
    return frozenset(lexicon.concept(word.casefold()) for start, end, _ in last for word in tokens[start + 1 : end])


def _means_something(token: str) -> bool:
    return token[0].isalpha() and token.casefold() not in lexicon.STOP


def _plain(word: str) -> str:
    """A word without its plural and in its usual spelling, where it is of a known scale."""
    single = word.removesuffix("s") if word.removesuffix("s") in lexicon.EXTENSIONS else word
    return _SAME.get(single) or _SAME_FORMAT.get(single) or single


def _told(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        yield str(schema.get("description", ""))
        for name in ("enum", "examples"):
            listed = schema.get(name)
            yield from (one for one in listed if isinstance(one, str)) if isinstance(listed, list) else ()
