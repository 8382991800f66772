"""Whether the steps of a plan in the making account for all that was asked. Pure.

Whatever is named exactly must reach a step, so must the words that take something out; and the world is changed only where
just that is plainly asked for. Of what changes nothing it is told what a step does not hear.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from apps.core.lexical import words
from apps.plans import kinds, lexicon, shapes, sorts
from apps.plans.catalogue import Catalogue
from apps.plans.clauses import Clause
from apps.plans.introducing import Named, strange
from apps.plans.layout import Draft
from apps.plans.ranking import Ranker
from apps.plans.slots import takes_wish
from apps.plans.spans import MASK, Span, is_directory

CONCEPTS_OF_SPANS: Final = {"path": ("directory", "file"), "url": ("webpage",), "email": ("email",)}
"""What speaks of something named exactly by its kind."""
_BINDING_KINDS: Final = frozenset({"path", "url", "email"})
_INTRODUCES: Final = {
    **CONCEPTS_OF_SPANS,
    "email": ("email", *map(lexicon.concept, ("address", "inbox", "recipient"))),
    "quoted": tuple(
        map(lexicon.concept, ("text", "words", "message", "sentence", "note", "line", "body", "following"))
    ),
}
"""What something named exactly may be called, beside what the tool calls it."""
_IDENTIFYING: Final = frozenset({"id", "number", "no", "nr", "key", "code"})
"""What a param's name ends with whose number is no quantity."""
_NAMING: Final = re.compile(r"[\d_#:@/+-]")
_LISTING: Final = frozenset({"list", "search", "scan"})
_FILES: Final = lexicon.concept("files")
_DIRECTORY: Final = lexicon.concept("directory")
_UNIVERSAL: Final = frozenset({"all", "any", "each", "every", "everything", "anything", "whatever", "other", "others"})
_ALL: Final = frozenset({"all", "each", "every"})
_PASSED_OVER: Final = frozenset({"the", "of", "my", "our", "your", "his", "her", "their", "its", "these", "those"})
_WILD: Final = frozenset("*?")
_MANY: Final = frozenset(
    {*_UNIVERSAL, "many", "several", "files", "directory", "directories", "dir", "folder", "folders"}
)


@dataclass(frozen=True, slots=True)
class Gap:
    """What of the request no step would do: no plan can be carried out that has one."""

    kind: str
    detail: str
    clause: str | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """What is told with a plan that can be carried out."""

    text: str
    is_doubtful: bool = False
    """May something else have been meant?"""


Finding = Gap | Remark


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What is asked for, and the steps that are to do it."""

    clauses: Sequence[Clause]
    asides: Sequence[Clause]
    """Of these, what asks for nothing and may restrict what was asked for before it."""
    drafts: Sequence[Draft]
    ranker: Ranker
    catalogue: Catalogue

    def findings(self, wanted: Iterable[Draft]) -> Iterator[Finding]:
        """Yield what is not accounted for, each once.

        :param wanted: the steps of the drafts that the request itself asks for.
        """
        of_sorts = (found for draft in self.drafts for found in self._of_sorts(draft))
        of_words = (found for draft in wanted if not draft.handed_on for found in self._of_words(draft))
        yield from dict.fromkeys(itertools.chain(self._of_spans(), of_sorts, of_words))

    def _of_spans(self) -> Iterator[Finding]:
        """Whatever the request names exactly must be used by some step, or the plan is not what was asked for."""
        # As the request is read; what comes from the context may write its letters otherwise.
        params = _strings(draft.filling.params for draft in self.drafts)
        used = [unicodedata.normalize("NFC", text) for text in params]
        handed_on = {draft.clause.number for draft in self.drafts if draft.handed_on}
        asked = [clause for clause in self.clauses if not clause.forbidden and clause.number not in handed_on]
        spans = [span for clause in asked for span in clause.spans]
        changing = {
            span.number
            for draft in self.drafts
            if draft.done is None and not draft.handed_on and self._is_changing(draft, itself=True)
            for span in draft.clause.spans
        }
        left_over = self._left_over()
        # Without a word of its own it belongs to what is asked for before it: drop 'users' before 'orders'.
        bare = {span.number for clause in asked if changing and not clause.words for span in clause.spans}
        for span in spans:
            if any(span.value in text for text in used):
                continue
            if shapes.OPENING in span.value:
                yield Gap(
                    "param", f"{span.value[:500]} reads as a reference to a step's result, which no request can give."
                )
            elif span.kind in _BINDING_KINDS or span.number in changing | left_over | bare:
                yield Gap("capability", f"No step would use {span.value[:500]}.")
            else:
                yield Remark(f"No step uses {span.value[:200]}.")

    def _is_changing(self, draft: Draft, *, itself: bool = False) -> bool:
        """Does it change the world, by its verb or its tool?

        :param itself: whether what only hands the wish on, and so leaves that to another, does not.
        """
        hands_on = itself and takes_wish(draft.tool)
        return draft.clause.verb in lexicon.MUTATING or not (hands_on or self.ranker.profiles[draft.tool.uid].gentle)

    def _left_over(self) -> frozenset[int]:
        """Quoted texts beside one of the same part of the request that a step was given: each of them is matter for it."""
        quoted = [[span.number for span in one.clause.spans if span.kind == "quoted"] for one in self.drafts]
        return frozenset(
            number
            for numbers, draft in zip(quoted, self.drafts, strict=True)
            if draft.filling.spans.intersection(numbers)
            for number in numbers
        )

    def _of_sorts(self, draft: Draft) -> Iterator[Finding]:
        """Where a wish names Java code, a tool for Python code serves it in no plan; where the name may be of anything, in none that is sure."""
        if draft.done is not None or draft.handed_on is not None or not self.ranker.tells_sorts(draft.tool):
            return
        clause = self._naming(draft)
        given = " ".join(span.value for one in self.clauses for span in one.spans)
        found = self.ranker.clash(sorts.of_wish(clause), draft.tool, given)
        if found is None:
            return
        said = f"{draft.tool.name} is for {found.own}, and the request speaks of {found.wanted}"
        named = found.sort.named or found.sort.scale is not None
        if found.certain or (named and not self.ranker.profiles[draft.tool.uid].gentle):
            yield Gap("capability", f"{said}: {clause.text[:500]}", clause.text)
        else:
            yield Remark(f"{said}: what is meant is taken to be of that sort.", is_doubtful=named)

    def _naming(self, draft: Draft) -> Clause:
        """The part of the request that names what a step is for: its own, else that of a step before whose result it takes."""
        clause, before = draft.clause, draft
        by_key = {one.key: one for one in self.drafts}
        while not sorts.of_wish(clause) and (above := [by_key[key] for key in sorted(before.filling.refs)]):
            before = above[0]
            clause = before.clause
        return clause

    def _of_words(self, draft: Draft) -> Iterator[Finding]:
        """What a wish takes out must reach its step in words; and the world is changed only where that is plainly asked for."""
        clause = draft.clause
        told = list(_strings([draft.filling.params]))
        if clause.exception and not any(clause.exception in text for text in told):
            yield Gap("condition", f"No step can leave out what this does: {clause.text[:500]}", clause.text)
        if (all_of := self._all_of(draft, told)) and draft.asked:
            yield Gap(
                "capability", f"{draft.tool.name} does not do this to all {all_of}: {clause.text[:500]}", clause.text
            )
        if self._is_changing(draft):
            for kind, why in self._unplain(draft, told):
                yield Gap(kind, f"{why}: {clause.text[:500]}", clause.text)
        elif draft.asked and (unheeded := self._unheeded(draft, told)):
            said = f"{draft.tool.name} takes nothing that says {' '.join(unheeded)!r}: it is done without."
            # A number or a time may tell which thing is meant; these tell what is to be done.
            yield Remark(said, is_doubtful=not lexicon.EXTREMES.union(clause.ways).isdisjoint(unheeded))
        elif draft.asked and (places := _places_sought(draft)):
            yield Remark(f"{draft.tool.name} gives files, and the request speaks of {places}.", is_doubtful=True)

    def _unheeded(self, draft: Draft, told: Sequence[str]) -> list[str]:
        """The words of what changes nothing that say how much, when, which or by what means, and that its step does not hear."""
        clause = draft.clause
        telling = lexicon.COUNTS | lexicon.TIMES | lexicon.EXTREMES
        found = [word for word in clause.words if word in telling] + clause.ways
        return self._not_known(draft, told, found)

    def _unplain(self, draft: Draft, told: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield what keeps a clause from asking plainly for just what a step would change in the world."""
        clause = draft.clause
        if doubt := clause.doubt or self._held_back(clause):
            yield "condition", f"It is not plain that this is to be done, for {doubt}"
        if any(clause.text in text for text in told):
            return
        heard = {word for text in told for word in words(text)}
        said = [word for before, word in itertools.pairwise(("", *clause.words)) if (before, word) != ("i", "am")]
        if late := [word for word in said if word in lexicon.TIMES and word not in heard]:
            yield "condition", f"A plan has no schedule, and no step takes {late[0]!r}"
        yield from (("capability", lost) for lost in self._lost(draft, told) if lost)

    def _lost(self, draft: Draft, told: Sequence[str]) -> Iterator[str]:
        """Yield what of a clause its step would not do, or do to something else; an empty text where that is nothing."""
        many, unheard = _many(draft), " ".join(self._unheard(draft, told))
        yield many and f"{draft.tool.name} does this to one thing, not to {many}"
        yield unheard and f"{draft.tool.name} takes nothing that says {unheard!r}"
        if not (many or unheard):
            yield from self._told_of_others(draft)
        yield from (_doubt_of(span, draft.clause) for span in draft.clause.spans)

    def _told_of_others(self, draft: Draft) -> Iterator[str]:
        """Yield what stands before something that a step is given and may make it another thing than the one named."""
        known = self._spoken_of(draft).union(*(lexicon.concepts_of(one.tool.outputs) for one in self.drafts))
        for value, named in _given_exactly(draft):
            if said := strange(named, draft.clause, known, CONCEPTS_OF_SPANS.get(named.kind, ())):
                yield f"{said[:200]!r} before {value[:200]} may tell of another thing than that"

    def _unheard(self, draft: Draft, told: Sequence[str]) -> list[str]:
        """The words that say how, where or for whom it is to be done, and of which neither the tool nor a param speaks."""
        telling = (word for word in draft.clause.words if word in lexicon.COUNTS | lexicon.COMPARING)
        return self._not_known(draft, told, [*draft.clause.qualifiers, *telling], lexicon.COMPARING)

    def _not_known(
        self, draft: Draft, told: Sequence[str], said: Sequence[str], telling: frozenset[str] = frozenset()
    ) -> list[str]:
        known = self._known(draft, told) | lexicon.SAYING_NOTHING - lexicon.COUNTS - telling if said else frozenset()
        return [word for word in dict.fromkeys(said) if len(word) > 1 and not {word, lexicon.concept(word)} & known]

    def _all_of(self, draft: Draft, told: Sequence[str]) -> str:
        """The things of which a clause means all, where neither the tool nor a param speaks of such; else nothing."""
        thing = _meant_all(draft.clause)
        if not thing:
            return ""
        if any(is_directory(span) for span in _single_paths(draft)):
            return thing
        profile = self.ranker.profiles[draft.tool.uid]
        known = {thing, thing.removesuffix("s"), lexicon.concept(thing)} & self._known(draft, told) or kinds.of_word(
            thing
        ) in profile.takes | profile.gives
        return "" if known else thing

    def _known(self, draft: Draft, told: Sequence[str]) -> frozenset[str]:
        """What a tool and its params speak of, what it is given, and what kinds of things its clause names exactly."""
        return self._spoken_of(draft) | {lexicon.concept(word) for text in told for word in words(text)}

    def _spoken_of(self, draft: Draft) -> frozenset[str]:
        """What a tool speaks of, what kinds of things its clause names exactly, and what the steps before bear that it is given by."""
        tool, offers = draft.tool, self.catalogue.offers_of(draft.tool.uid)
        described = [
            str(schema.get("description", "")) for schema in tool.inputs.values() if isinstance(schema, Mapping)
        ]
        texts = [tool.name, tool.description, *tool.inputs, *described, *tool.outputs]
        texts += [tag for offer in offers for tag in offer.capabilities]
        given = [earlier for earlier in self.drafts if earlier.key in draft.filling.refs]
        texts += [text for earlier in given for text in (earlier.tool.name, *earlier.tool.outputs)]
        known = {lexicon.concept(word) for text in texts for word in words(text)}
        known.update(*(earlier.clause.head for earlier in given))
        return frozenset(known.union(*(_INTRODUCES.get(span.kind, ()) for span in draft.clause.spans)))

    def _held_back(self, clause: Clause) -> str:
        """What is said after a clause, asks for nothing, and may restrict it."""
        aside = next((one for one in self.asides if one.number > clause.number), None)
        return f"after it is said {aside.text[:200]!r}" if aside else ""


def _doubt_of(span: Span, clause: Clause) -> str:
    """What is not plain of something named exactly that is to be changed, or that something is to be sent to; else nothing."""
    if span.kind == "path" and not {*clause.head, *clause.opening} and is_directory(span):
        return f"It is not said whether {span.value} is one file or all that lies there"
    if span.kind == "number" and span.before[-1:] == ("by",):
        return f"It is not said whether {span.value} is how much there is to be, or by how much it is to change"
    return ""


def _meant_all(clause: Clause) -> str:
    """The last word of what a clause means all of."""
    said = iter(clause.words)
    if not any(word in _ALL for word in said):
        return ""
    thing = ""
    for word in said:
        if word in lexicon.STOP and (thing or word not in _PASSED_OVER):
            break
        thing = thing if word in lexicon.STOP else word
    return thing


def _many(draft: Draft) -> str:
    """How a clause says that it means all of a kind, where the tool is for one thing; else nothing."""
    clause, singles = draft.clause, _single_paths(draft)
    if pattern := next((span.value for span in singles if not _WILD.isdisjoint(span.value)), ""):
        return f"all that {pattern} stands for"
    return next((word for word in clause.words if singles and word in _UNIVERSAL), "")


def _places_sought(draft: Draft) -> str:
    """The word by which a clause asks for places where its tool gives what lies in them; else nothing."""
    borne = set(lexicon.concepts_of(draft.tool.outputs))
    if draft.clause.verb not in _LISTING or _FILES not in borne or _DIRECTORY in borne:
        return ""
    said = draft.clause.words
    return next((word for word in said if word.endswith("s") and lexicon.concept(word) == _DIRECTORY), "")


def _given_exactly(draft: Draft) -> Iterator[tuple[str, Named]]:
    """What a clause names exactly and its step is given by it: each value, with where it stands and for which param."""
    clause, filling = draft.clause, draft.filling
    literal = [name for name, told in filling.provenance.items() if told["source"] == "literal"]
    for name in literal:
        value, tokens = filling.params[name], words(name)
        given = list(map(str, value)) if isinstance(value, list) else [str(value)]
        spans = [span for span in clause.spans if span.value in given]
        for span in spans:
            if span.kind != "number" or not _IDENTIFYING.isdisjoint(tokens[-1:]):
                at = clause.ordered.find(f"\x02{span.number}\x03")
                is_matter = span.kind == "quoted" and not lexicon.TEXTUAL.isdisjoint(tokens[-1:])
                yield span.value, Named(at=at, kind=span.kind, param=tokens, is_matter=is_matter)
        if not spans and isinstance(value, str) and value != clause.described and _NAMING.search(value):
            places = [place for place, word in _words_of(clause) if word == value]
            yield from ((value, Named(at=place, kind="id", param=tokens)) for place in places[:1])


def _words_of(clause: Clause) -> Iterator[tuple[int, str]]:
    """The words of a clause as they were said, marks put back and stops taken off, each with where it stands."""
    by_number = {span.number: span.value for span in clause.spans}
    for found in re.finditer(r"\S+", clause.ordered):
        yield found.start(), MASK.sub(lambda mark: by_number.get(int(mark[1]), ""), found[0]).strip(".,;:!?()[]")


def _single_paths(draft: Draft) -> list[Span]:
    """The paths that a tool is given for one thing each: it neither speaks of many things, nor takes a place for what is there."""
    tool, params = draft.tool, draft.filling.params
    own = {word for text in (tool.name, tool.description, *tool.inputs) for word in words(text)}
    if own & _MANY:
        return []
    names = {
        span.number: [name for name, value in params.items() if value == span.value] for span in draft.clause.spans
    }
    return [
        span
        for span in draft.clause.spans
        if span.kind == "path"
        and span.number in draft.filling.spans
        and not lexicon.PLACES.intersection(lexicon.concepts_of(names[span.number]))
    ]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, (str, int, float)):
        yield str(value)
    elif isinstance(value, Mapping):
        yield from _strings(value.values())
    elif isinstance(value, Iterable):
        for item in value:
            yield from _strings(item)
