"""Filling a tool's params: from context, from earlier steps, from what the intent names exactly. Every value says where it is from.

What cannot be filled is left out and named; nothing is guessed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from apps.core.lexical import stem, words
from apps.plans import kinds, lexicon, shapes
from apps.plans.announcing import UNFIT, announcements, are_alike, beside, fit
from apps.plans.catalogue import Tool, contract_key, types_meet, types_of
from apps.plans.clauses import Clause
from apps.plans.documents import can_be_told
from apps.plans.spans import MASK, Span
from apps.plans.validation import carries_secret, validator

_ABOUT: Final = re.compile(r"\b(?:for|about|on|regarding|concerning)\s+(.+)$", re.IGNORECASE | re.DOTALL)
_SHELL: Final = frozenset({"list", "path", "uri", "name", "value"})
_VAGUE_NOUNS: Final = frozenset({"input", "source", "result", "artifact", "object", "item", "previous"})
_TYPE_NAMES: Final = frozenset({"type", "types", "extension", "extensions", "format", "formats", "suffix", "suffixes"})
_MARKS: Final = ".,;:!?()[]'\"“”"
_NAMING: Final = re.compile(r"[\d_#:@/+-]")
"""What tells a name or number of something from a word of the language."""
_MOST_WORDS: Final = 200
_LONGEST_NUMBER: Final = 24
_MEASURED: Final = 2
"""So many words before a number may say what it measures."""
_DELEGATION_PATH: Final = "delegation_path"
_NEGATIONS: Final = frozenset({"no", "not", "without", "except"})


@dataclass(frozen=True, slots=True)
class Ref:
    """A value that an earlier step will bear: its key and the path in its output."""

    key: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An earlier step as slots see it."""

    key: int
    tool: Tool
    concepts: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """One param's value and where it came from."""

    value: Any
    provenance: Mapping[str, Any]
    span: int | None = None
    note: str | None = None


Axis = tuple[object, ...]
"""What tells several values that are named alike from others that are: where they stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """The values that a request gives a param alike, by their places; each is for a call of its own."""

    axis: Axis
    values: Mapping[int, Filled]


@dataclass(slots=True, kw_only=True)
class Filling:
    """What came of filling one tool's params."""

    params: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    spans: set[int] = field(default_factory=set)
    context_keys: set[str] = field(default_factory=set)
    several: dict[str, Several] = field(default_factory=dict)

    @property
    def refs(self) -> frozenset[int]:
        return frozenset(value.key for value in self.params.values() if isinstance(value, Ref))

    @property
    def is_grounded(self) -> bool:
        """Was anything taken from what the asker said?"""
        return bool(self.spans or self.context_keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What params may be filled from: the clause, all clauses, the request's context, the steps before."""

    clause: Clause
    clauses: tuple[Clause, ...]
    context: Mapping[str, Any]
    wish: str
    """What the step is to serve, as it was said: the whole intent, or the step's part of it and all that is ruled out."""
    handed_on: str | None = None
    """What another worker asks of this one in the place of that."""
    sources: Sequence[Source] = ()
    spent: frozenset[int] = frozenset()
    is_gentle: bool = True
    """Does the tool leave the world as it is?"""
    delegation_path: tuple[str, ...] = ()
    suggested: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    name: str
    schema: Mapping[str, Any]
    tool: Tool
    tokens: tuple[str, ...]
    is_required: bool
    fits: Mapping[int, int] = field(default_factory=dict)
    """How well what the clause names exactly is announced for it, by number; without what is announced better for another."""

    @property
    def types(self) -> frozenset[str]:
        return types_of(self.schema)

    def named(self, names: frozenset[str]) -> bool:
        return bool(names.intersection(self.tokens))

    @property
    def is_text(self) -> bool:
        return not self.types or "string" in self.types

    @property
    def is_array(self) -> bool:
        return "array" in self.types

    @property
    def is_wish(self) -> bool:
        return self.is_text and bool(self.tokens) and self.tokens[-1] in lexicon.WISHES

    @property
    def is_called(self) -> bool:
        """Does it hold what the tool's own thing is called, and no exact name such as that of a file?"""
        thing = self.tokens[:-1]
        own = {lexicon.concept(word) for word in words(self.tool.name)}
        return (
            self.is_text
            and self.tokens[-1:] != ()
            and self.tokens[-1] in lexicon.NAMING
            and lexicon.exact_kind(thing, str(self.schema.get("format", ""))) is None
            and all(lexicon.concept(word) in own for word in thing)
        )

    @property
    def is_matter(self) -> bool:
        """Must it be given a text, whatever the text is?"""
        return self.is_required and self.is_text and self.named(lexicon.TEXTUAL)

    @property
    def is_pointer(self) -> bool:
        return self.is_text and bool(self.tokens) and self.tokens[-1] in lexicon.POINTERLIKE

    def admits(self, value: Any) -> bool:
        """Would the schema take this literal? Text that a later reader could mistake for a reference or a credential never passes,
        nor does a number that a plan can't tell exactly.
        """
        if not isinstance(value, str) and not can_be_told(value):
            return False
        if any(shapes.OPENING in text or carries_secret(text) for text in _texts(value)):
            return False
        wrapped = {
            **{
                name: self.tool.input_schema[name]
                for name in ("$defs", "definitions")
                if name in self.tool.input_schema
            }
        }
        try:
            return bool(validator(contract_key({**wrapped, "allOf": [self.schema]})).is_valid(value))
        except ValueError:
            return False


_AND: Final = "and"
_OR: Final = "or"
_EXACT: Final = "exact"
"""Stands for something named exactly."""
_INTO: Final = frozenset({"into", "to"})
_LANGUAGES: Final = lexicon.HUMAN_LANGUAGES | lexicon.PROGRAMMING_LANGUAGES
_Way = Callable[[_Slot, Scene, Filling], Filled | None]


def fill(tool: Tool, scene: Scene) -> Filling:
    """Fill a tool's params, required ones first; spans are used once within a step."""
    filling = Filling()
    slots = sorted(_announced(tool, scene.clause), key=lambda slot: not slot.is_required)
    for way in _WAYS:
        for slot in slots:
            if slot.name not in filling.params:
                _put(slot, way(slot, scene, filling), filling)
    filling.params = {slot.name: filling.params[slot.name] for slot in slots if slot.name in filling.params}
    filling.missing = [name for name in tool.required if name not in filling.params]
    for slot in slots:
        if (several := _several(slot, scene, filling)) is not None:
            filling.several[slot.name] = several
    return filling


def places(value: Any, clause: Clause) -> dict[Axis, int]:
    """Where a value stands among those that a clause names alike, if it does."""
    return {
        axis: place for axis, alike in _named_alike(clause) for place, (said, _) in enumerate(alike) if said == value
    }


def _named_alike(clause: Clause) -> Iterator[tuple[Axis, list[tuple[str, Span | None]]]]:
    for group in clause.conjoined if len(clause.spans) > 1 else ():
        once = {span.value: span for span in reversed(group)}
        yield tuple(span.number for span in group), [(span.value, span) for span in group if once[span.value] is span]
    for at, run in _languages_in_a_row(clause) if _AND in clause.words else ():
        yield ("words", clause.number, at), [(word, None) for word in dict.fromkeys(run)]


def _languages_in_a_row(clause: Clause) -> Iterator[tuple[int, list[str]]]:
    """Languages that are named side by side, with at least one `and`."""
    rows = itertools.groupby(enumerate(clause.words), lambda one: one[1] in _LANGUAGES or one[1] == _AND)
    for is_row, listed in rows:
        row = list(listed)
        if is_row and _AND in (word for _, word in row[1:-1]):
            yield row[0][0], [word for _, word in row if word != _AND]


def _several(slot: _Slot, scene: Scene, filling: Filling) -> Several | None:
    """All of what the request names like the value that a param was given, where no other param has any of it."""
    provenance = filling.provenance.get(slot.name, {})
    if provenance.get("source") != "literal" or slot.is_array or slot.is_wish:
        return None
    value = filling.params[slot.name]
    others = [other for name, other in filling.params.items() if name != slot.name]
    for clause in scene.clauses:
        for axis, alike in _named_alike(clause) if clause.number == provenance.get("clause") else ():
            said = [one for one, _ in alike]
            fits = {
                place: _as_well(one, span, provenance)
                for place, (one, span) in enumerate(alike)
                if slot.admits(one) and (span is None or _value(slot, span) is not None)
            }
            if value in said and len(fits) > 1 and not any(one in others for one in said):
                return Several(axis=axis, values=fits)
    return None


def _as_well(value: str, span: Span | None, provenance: Mapping[str, Any]) -> Filled:
    told = {**provenance, "text": value[:200]}
    if span is None:
        return Filled(value=value, provenance=told)
    return Filled(value=value, provenance=told, span=span.number, note=_doubt(span))


def takes_wish(tool: Tool) -> bool:
    """Has a tool a param that hands the wish on?"""
    return any(_slot(tool, name).is_wish for name in tool.inputs)


def source_path(tool: Tool, param: str, source: Source) -> tuple[str, ...] | None:
    """Return the path in an earlier tool's output that a param can take, or None."""
    slot = _slot(tool, param)
    return _strong_path(slot, source) or _weak_path(slot, source)


def _slot(tool: Tool, name: str) -> _Slot:
    schema = tool.inputs.get(name)
    return _Slot(
        name=name,
        schema=schema if isinstance(schema, Mapping) else {},
        tool=tool,
        tokens=tuple(words(name)),
        is_required=name in tool.required,
    )


def _put(slot: _Slot, found: Filled | None, filling: Filling) -> None:
    if found is None:
        return
    filling.params[slot.name] = found.value
    filling.provenance[slot.name] = dict(found.provenance)
    if found.span is not None:
        filling.spans.add(found.span)
    if found.note:
        filling.notes.append(found.note)
    if found.provenance["source"] == "context":
        filling.context_keys.add(found.provenance["key"])


def _from_path_of_delegation(slot: _Slot, scene: Scene, _filling: Filling) -> Filled | None:
    """A DeleGate that is asked is told through whom, whatever the context says, so that no wish goes in circles."""
    value = list(scene.delegation_path)
    if slot.name != _DELEGATION_PATH or not value or not slot.admits(value):
        return None
    return Filled(value=value, provenance={"source": "delegation"})


def _from_context(slot: _Slot, scene: Scene, _filling: Filling) -> Filled | None:
    if slot.name == _DELEGATION_PATH:
        return None
    for key in _context_keys(slot, scene.context):
        value = scene.context[key]
        if slot.admits(value):
            return Filled(value=value, provenance={"source": "context", "key": key})
    return None


def _context_keys(slot: _Slot, context: Mapping[str, Any]) -> Iterator[str]:
    """Exact names first, then the same words, then a key that is the param's last word."""
    yield from (key for key in (slot.name,) if key in context)
    own = tuple(stem(word) for word in slot.tokens)
    for size in (len(own), 1):
        yield from (key for key in sorted(context) if tuple(stem(word) for word in words(key)) == own[-size:])


def _from_whole_wish(slot: _Slot, scene: Scene, _filling: Filling) -> Filled | None:
    """A param that hands the wish on takes it whole, with all that it names, unless what is for it is announced by its name."""
    if not slot.is_wish:
        return None
    if scene.handed_on is not None:
        return (
            Filled(value=scene.handed_on, provenance={"source": "escalation"}) if slot.admits(scene.handed_on) else None
        )
    named = [span for span in scene.clause.spans if span.kind == "quoted" and span.before[-1:] == slot.tokens[-1:]]
    value = named[0].value if len(named) == 1 else scene.wish
    if not slot.admits(value):
        return None
    return Filled(value=value, provenance={"source": "literal", "text": value[:200], "clause": scene.clause.number})


def _from_own_matter(slot: _Slot, scene: Scene, filling: Filling) -> Filled | None:
    """What the clause itself brings along stands before what earlier steps bear: a file of the kind, a text in quotes."""
    kind = kinds.of_name(slot.name)
    if kind is None or not slot.is_text:
        return None
    return _literal(slot, scene.clause, [span for span in _own(slot, scene, filling) if _is_matter(span, kind)])


def _is_matter(span: Span, kind: str) -> bool:
    named = kinds.of_file(span.value)
    return named == kind or (named is None and kind == kinds.TEXT and span.kind == "quoted")


def _from_own_files(slot: _Slot, scene: Scene, filling: Filling) -> Filled | None:
    """Files that the clause itself names need nobody who lists them first."""
    if not slot.is_array or not slot.named(lexicon.FILELIKE):
        return None
    own = [span for span in _own(slot, scene, filling) if span.kind in {"path", "quoted"} and kinds.is_file(span.value)]
    values = [span.value for span in own]
    if not values or not slot.admits(values):
        return None
    provenance = {"source": "literal", "text": ", ".join(values)[:200], "clause": scene.clause.number}
    return Filled(value=values, provenance=provenance, span=own[0].number, note=_doubt(own[0]))


def _from_strong_source(slot: _Slot, scene: Scene, _filling: Filling) -> Filled | None:
    return _from_sources(slot, scene, _strong_path)


def _from_weak_source(slot: _Slot, scene: Scene, _filling: Filling) -> Filled | None:
    return _from_sources(slot, scene, _weak_path) if slot.is_required else None


def _from_sources(
    slot: _Slot, scene: Scene, path_of: Callable[[_Slot, Source], tuple[str, ...] | None]
) -> Filled | None:
    for source in reversed(scene.sources):
        path = path_of(slot, source)
        named = _named_outputs(slot, scene.clause, source) if path is not None or slot.is_matter else []
        if named and path != (shapes.RESULT_POINTER,):
            path = _path_of_named(slot, source, named, path)
            if path is None:
                return None
        if path is not None:
            provenance = {"source": "step", "key": source.key, "path": ".".join(path)}
            return Filled(value=Ref(source.key, path), provenance=provenance)
    return None


def _named_outputs(slot: _Slot, clause: Clause, source: Source) -> list[str]:
    """Which of what an earlier tool bears a clause speaks of: the title of the page. Its verb is none, nor what it says of its own tool, nor
    what announces something that is named exactly.
    """
    said = [lexicon.concept(word) for word in words(MASK.sub(f" {_EXACT} ", clause.marked))]
    own = {lexicon.concept(word) for word in words(slot.tool.name)} - {
        lexicon.concept(word) for word in lexicon.TEXTUAL
    }
    own.update(_other_words(slot), [clause.verb or ""])
    found = []
    for name in source.tool.outputs:
        tokens = [lexicon.concept(word) for word in words(name)]
        size = len(tokens)
        ends = (at + size for at in range(len(said) - size + 1) if said[at : at + size] == tokens)
        if tokens and not own.issuperset(tokens) and any(said[end : end + 1] != [_EXACT] for end in ends):
            found.append(name)
    return found


def _other_words(slot: _Slot) -> set[str]:
    """What a tool's other params are called."""
    return {lexicon.concept(word) for name in slot.tool.inputs if name != slot.name for word in words(name)}


def _path_of_named(
    slot: _Slot, source: Source, named: Sequence[str], path: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    """The one output that is spoken of, where it could stand in the slot; of several none alone is what was asked for.

    :param path: what would be taken, were none spoken of.
    """
    if len(named) != 1:
        return None
    schema = source.tool.outputs[named[0]]
    is_text = slot.is_matter and "string" in types_of(schema) and types_meet(schema, slot.schema)
    return (named[0],) if is_text or path == (named[0],) else None


def _strong_path(slot: _Slot, source: Source) -> tuple[str, ...] | None:
    """The same name, the same kind of media, or a pointer to what the earlier tool is about."""
    same = source.tool.outputs.get(slot.name)
    if same is not None and types_meet(same, slot.schema) and (slot.is_pointer or not _is_commonplace(slot)):
        return (slot.name,)
    if (alike := _same_media(slot, source)) is not None:
        return (alike,)
    if not slot.is_pointer:
        return None
    nouns = {lexicon.concept(word) for word in slot.tokens[:-1]} - _VAGUE_NOUNS
    return (shapes.RESULT_POINTER,) if nouns <= source.concepts else None


def _same_media(slot: _Slot, source: Source) -> str | None:
    kind = kinds.of_name(slot.name)
    if kind not in kinds.MEDIA:
        return None
    names = (name for name, schema in source.tool.outputs.items() if types_meet(schema, slot.schema))
    return next((name for name in names if kinds.of_name(name) == kind), None)


def _weak_path(slot: _Slot, source: Source) -> tuple[str, ...] | None:
    """Lists of the same things, and text where text is asked for."""
    for name, schema in source.tool.outputs.items():
        if not types_meet(schema, slot.schema):
            continue
        if slot.is_array and "array" in types_of(schema) and _same_things(slot.tokens, words(name)):
            return (name,)
        if slot.is_text and "string" in types_of(schema) and _both_text(slot, words(name)):
            return (name,)
    return None


def _same_things(left: Sequence[str], right: Sequence[str]) -> bool:
    ours, theirs = ({lexicon.concept(word) for word in side} - _SHELL for side in (left, right))
    return bool(ours and theirs) and (ours <= theirs or theirs <= ours)


def _both_text(slot: _Slot, name: Sequence[str]) -> bool:
    return slot.tokens[-1:] != () and slot.tokens[-1] in lexicon.TEXTUAL and bool(name) and name[-1] in lexicon.TEXTUAL


def _is_commonplace(slot: _Slot) -> bool:
    """Names such as `name` or `path` agree by chance; they need a second sign."""
    return len(slot.tokens) == 1 and slot.is_text and slot.tokens[0] not in lexicon.TEXTUAL


def _from_own_clause(slot: _Slot, scene: Scene, filling: Filling) -> Filled | None:
    return _literal(slot, scene.clause, _own(slot, scene, filling)) or _spoken(slot, scene.clause)


def _from_announced(slot: _Slot, scene: Scene, filling: Filling) -> Filled | None:
    """What the clause names exactly and calls by the param's words, or sends its way."""
    return _literal(slot, scene.clause, _own(slot, scene, filling, at_least=1))


def _own(slot: _Slot, scene: Scene, filling: Filling, *, at_least: int = 0) -> list[Span]:
    """What the clause names exactly and no param has yet: what is announced for this one first, what is for another never."""
    found = [
        span
        for span in scene.clause.spans
        if span.number not in filling.spans
        and slot.fits.get(span.number, UNFIT) >= at_least
        and _is_meant_for(slot, span, scene, filling)
    ]
    return sorted(found, key=lambda span: -slot.fits[span.number])


def _announced(tool: Tool, clause: Clause) -> list[_Slot]:
    """A tool's params, each with what a clause names exactly and no other that could hold it is announced for better."""
    slots = [_slot(tool, name) for name in tool.inputs]
    said = announcements(clause)
    fits: dict[str, dict[int, int]] = {slot.name: {} for slot in slots}
    for span in clause.spans:
        words_before = said.get(span.number, ())
        found = {slot.name: fit(slot.tokens, words_before) for slot in slots}
        best = max((found[slot.name] for slot in slots if words_before and _could_hold(slot, span)), default=0)
        for name, how_well in found.items():
            if how_well >= max(best, 0):
                fits[name][span.number] = how_well
    return [replace(slot, fits=fits[slot.name]) for slot in slots]


def _could_hold(slot: _Slot, span: Span) -> bool:
    return (_item(slot, span) if slot.is_array else _value(slot, span)) is not None


def _is_meant_for(slot: _Slot, span: Span, scene: Scene, filling: Filling) -> bool:
    """May a param be given it? In what changes the world a text is not, unless it is announced, where it may as well be for
    another param, and what is named side by side goes to params that are alike.
    """
    if (
        span.kind == "quoted"
        and slot.fits[span.number] < 1
        and (_is_of_languages(slot) or not (scene.is_gentle or _is_only(slot, span, filling)))
    ):
        return False
    if scene.is_gentle:
        return True
    given = [one.value for one in scene.clause.spans if one.number in beside(span, scene.clause) & filling.spans]
    return all(are_alike(slot.tokens, words(name)) for name, value in filling.params.items() if value in given)


def _is_only(slot: _Slot, span: Span, filling: Filling) -> bool:
    """Is it the only param still without a value that must have one and could hold this?"""
    if not slot.is_required:
        return False
    others = (_slot(slot.tool, name) for name in slot.tool.required if name not in {slot.name, *filling.params})
    return not any(_could_hold(other, span) for other in others)


def _is_of_languages(slot: _Slot) -> bool:
    return slot.named(frozenset({"language", "lang"}))


def _from_other_clauses(slot: _Slot, scene: Scene, filling: Filling) -> Filled | None:
    if not slot.is_required:
        return None
    others = [clause for clause in scene.clauses if clause.number != scene.clause.number]
    for fresh in (True, False):
        for clause in others:
            spans = [span for span in clause.spans if span.number not in filling.spans]
            found = _literal(slot, clause, [span for span in spans if (span.number not in scene.spent) == fresh])
            if found is not None:
                return found
    return next((found for clause in others if (found := _spoken(slot, clause)) is not None), None)


def _literal(slot: _Slot, clause: Clause, spans: Sequence[Span]) -> Filled | None:
    if slot.is_array:
        return _literal_list(slot, spans)
    for span in spans:
        value = _value(slot, span)
        if value is not None and slot.admits(value):
            provenance = {"source": "literal", "text": span.value[:200], "clause": clause.number}
            return Filled(value=value, provenance=provenance, span=span.number, note=_doubt(span))
    return None


def _doubt(span: Span) -> str | None:
    if not span.doubtful:
        return None
    return f"The path is read as {span.value}: it ends at the space. Quote a path that has spaces."


def _literal_list(slot: _Slot, spans: Sequence[Span]) -> Filled | None:
    values = [(span, value) for span in spans if (value := _item(slot, span)) is not None]
    if not values or not slot.admits([value for _, value in values]):
        return None
    provenance = {"source": "literal", "text": ", ".join(span.value for span, _ in values)[:200]}
    return Filled(value=[value for _, value in values], provenance=provenance, span=values[0][0].number)


def _item(slot: _Slot, span: Span) -> Any:
    items = slot.schema.get("items")
    item = _Slot(
        name=slot.name,
        schema=items if isinstance(items, Mapping) else {},
        tool=slot.tool,
        tokens=slot.tokens,
        is_required=False,
    )
    return _value(item, span) if span.kind != "number" else None


def _value(slot: _Slot, span: Span) -> Any:
    if span.kind == "number":
        return _number(slot, span)
    return span.value if slot.is_text and _takes(slot, span) else None


def _takes(slot: _Slot, span: Span) -> bool:
    """Does a param's name or format ask for this kind of thing?"""
    wanted, matter, asked = _wanted_kind(slot), kinds.of_file(span.value), kinds.of_name(slot.name)
    if matter != asked and {matter, asked} & kinds.MEDIA and matter is not None and asked is not None:
        return False
    if span.kind == "quoted":
        if wanted is None:
            return not slot.is_pointer and (not _is_of_languages(slot) or span.value.casefold() in _LANGUAGES)
        return wanted == "path" or _looks_like(span.value, wanted)
    return span.kind == wanted


def _wanted_kind(slot: _Slot) -> str | None:
    return lexicon.exact_kind(slot.tokens, str(slot.schema.get("format", "")))


def _looks_like(text: str, kind: str) -> bool:
    pattern = {"url": r"[a-z][a-z0-9+.-]+://\S+", "email": r"\S+@\S+\.\S+", "date": r"\d{4}-\d{2}-\d{2}.*"}[kind]
    return re.fullmatch(pattern, text, re.IGNORECASE) is not None


def _number(slot: _Slot, span: Span) -> int | float | None:
    if not slot.types & {"integer", "number"}:
        return None
    near = {stem(lexicon.measure(word)) for word in (*span.before[-2:], *span.after)}
    own = {stem(word) for word in slot.tokens}
    counts = {stem(word) for word in ("top", "first", "last", "most", "limit", "maximum")}
    if not (near & own or (slot.named(lexicon.COUNTLIKE) and near & counts) or _is_in_its_unit(slot, span)):
        return None
    if len(span.value) > _LONGEST_NUMBER:
        return None
    whole = "." not in span.value
    return int(span.value) if whole else float(span.value)


def _is_in_its_unit(slot: _Slot, span: Span) -> bool:
    """Does the tool speak of the number's unit, and need one number only, and is it said to measure nothing else?"""
    described = (slot.tool.description, str(slot.schema.get("description", "")))
    numbers = [name for name, schema in slot.tool.inputs.items() if types_of(schema) & {"integer", "number"}]
    measured = lexicon.MEASURES.intersection(map(lexicon.measure, (*span.before[-_MEASURED:], *span.after)))
    return (
        slot.is_required
        and numbers == [slot.name]
        and measured <= set(slot.tokens)
        and any(lexicon.UNITS.get(word, word) in words(text) for word in span.after[:1] for text in described)
    )


def _spoken(slot: _Slot, clause: Clause) -> Filled | None:
    """A value that is said in plain words: one of an enum, a language, file types, a switch."""
    for reader in (_enum, _language, _file_types, _switch):
        value = reader(slot, clause)
        if value is not None and slot.admits(value):
            return Filled(
                value=value, provenance={"source": "literal", "text": clause.text[:200], "clause": clause.number}
            )
    return None


def _enum(slot: _Slot, clause: Clause) -> str | None:
    choices = slot.schema.get("enum")
    if not isinstance(choices, Sequence) or isinstance(choices, str):
        return None
    said = {stem(word) for word in clause.words}
    named = [
        choice
        for choice in choices
        if isinstance(choice, str) and (own := words(choice)) and {stem(w) for w in own} <= said
    ]
    return named[0] if len(named) == 1 else None


def _language(slot: _Slot, clause: Clause) -> str | None:
    if not _is_of_languages(slot) or not slot.is_text or _leaves_open(clause.words):
        return None
    target = "source" not in slot.tokens and "from" not in slot.tokens
    said = clause.words
    for position, word in enumerate(said):
        if target and word in lexicon.HUMAN_LANGUAGES and said[position - 1] in _INTO:
            return word
    for position, word in enumerate(said):
        if word in lexicon.PROGRAMMING_LANGUAGES:
            return word
        if word in lexicon.HUMAN_LANGUAGES and (said[position - 1] == "from") != target:
            return word
    return None


def _leaves_open(said: Sequence[str]) -> bool:
    """Is one language or another asked for?"""
    threes = zip(said, said[1:], said[2:], strict=False)
    return any({one, other} <= _LANGUAGES and joint == _OR for one, joint, other in threes)


def _file_types(slot: _Slot, clause: Clause) -> list[str] | str | None:
    if not slot.named(_TYPE_NAMES):
        return None
    said = [word if word in lexicon.EXTENSIONS else word.removesuffix("s") for word in clause.words]
    endings = (lexicon.ENDINGS_OF_LANGUAGES.get(word, word) for word in dict.fromkeys(said))
    found = [ending for ending in endings if ending in lexicon.EXTENSIONS]
    if not found:
        return None
    return found if slot.is_array else found[-1]


def _switch(slot: _Slot, clause: Clause) -> bool | None:
    if "boolean" not in slot.types:
        return None
    own = [stem(word) for word in slot.tokens if word not in {"is", "include", "with", "use", "enable"}]
    said = [stem(word) for word in clause.words]
    if not own or not all(word in said for word in own):
        return None
    at = said.index(own[0])
    return not _NEGATIONS.intersection(clause.words[max(at - 2, 0) : at])


def _from_shape(slot: _Slot, scene: Scene, _filling: Filling) -> Filled | None:
    """A word of the clause that looks as the schema's pattern or examples do, if it is the only one."""
    if not slot.is_text or not {"pattern", "examples"} & slot.schema.keys():
        return None
    examples = slot.schema.get("examples")
    shapes = {_shape(one) for one in examples if isinstance(one, str)} if isinstance(examples, list) else set()
    said = (word.strip(_MARKS) for word in scene.clause.text.split()[:_MOST_WORDS])
    alike = {
        word for word in said if _NAMING.search(word) and (not shapes or _shape(word) in shapes) and slot.admits(word)
    }
    if len(alike) != 1:
        return None
    (value,) = alike
    return Filled(value=value, provenance={"source": "literal", "text": value[:200], "clause": scene.clause.number})


def _from_description(slot: _Slot, scene: Scene, filling: Filling) -> Filled | None:
    """A param for what a tool's own thing is called takes what the clause calls it, with all that tells which one is meant."""
    value = scene.clause.described
    if not value or not slot.is_called or slot.schema.get("examples"):
        return None
    if value in filling.params.values() or _is_of_several(scene.clause, slot.tool) or not slot.admits(value):
        return None
    return Filled(value=value, provenance={"source": "literal", "text": value[:200], "clause": scene.clause.number})


def _is_of_several(clause: Clause, tool: Tool) -> bool:
    """Are several of the things meant, of which the tool speaks as of one?"""
    own = {word for text in (tool.name, tool.description, *tool.inputs) for word in words(text)}
    return any(
        word not in own and word.endswith("s") and word.removesuffix("s") in own for word in words(clause.described)
    )


def _shape(text: str) -> str:
    """What kinds of characters follow each other: `INV-2024` and `INV-7` are of one shape."""
    kinds_of_characters = (
        "A" if c.isupper() else "a" if c.isalpha() else "9" if c.isdigit() else c for c in text[:100]
    )
    return "".join(kind for kind, _ in itertools.groupby(kinds_of_characters))


def _from_wish(slot: _Slot, scene: Scene, _filling: Filling) -> Filled | None:
    """A param that asks for the wish itself takes the clause in its own words."""
    if not slot.is_text or not slot.tokens or slot.tokens[-1] not in lexicon.ASKING:
        return None
    about = _ABOUT.search(scene.clause.text) if slot.tokens[-1] in {"query", "topic"} else None
    value = about[1].strip() if about else scene.clause.text
    if not value or not slot.admits(value):
        return None
    return Filled(value=value, provenance={"source": "literal", "text": value[:200], "clause": scene.clause.number})


def _from_default(slot: _Slot, _scene: Scene, _filling: Filling) -> Filled | None:
    default = slot.schema.get("default")
    if not isinstance(default, (str, int, float)) or not slot.admits(default):
        return None
    note = f"{slot.name} is {default!r}, the default of {slot.tool.name}."
    return Filled(value=default, provenance={"source": "default"}, note=note)


def _from_model(slot: _Slot, scene: Scene, _filling: Filling) -> Filled | None:
    value = scene.suggested.get(slot.name)
    if value is None or not slot.is_required or not slot.admits(value):
        return None
    note = f"A model reads {slot.name} of {slot.tool.name} from the request."
    return Filled(value=value, provenance={"source": "llm"}, note=note)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield str(name)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


_WAYS: Final[tuple[_Way, ...]] = (
    _from_path_of_delegation,
    _from_context,
    _from_whole_wish,
    _from_own_matter,
    _from_own_files,
    _from_strong_source,
    _from_announced,
    _from_own_clause,
    _from_shape,
    _from_description,
    _from_weak_source,
    _from_other_clauses,
    _from_wish,
    _from_default,
    _from_model,
)
