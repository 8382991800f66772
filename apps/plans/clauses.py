"""An intent as clauses: what is named exactly is masked (:mod:`apps.plans.spans`), the sentence cut (:mod:`apps.plans.pieces`).

Pure text work. A clause keeps its verb's family, the concepts of its object, and what was said about order.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from apps.core.lexical import words
from apps.plans import kinds, lexicon
from apps.plans.phrases import PHRASE, loose_words, phrases_in, qualifiers_in
from apps.plans.pieces import (
    AHEAD,
    ARTICLES,
    COMMANDS,
    CONDITION,
    COURTESY,
    DEFERRED,
    INTRODUCED,
    Piece,
    begins_with_verb,
    cut_up,
    has_verb,
    in_order,
    prohibitions,
    situated_pieces,
    stripped,
)
from apps.plans.spans import MASK, NAME, PREPOSITION, Span, is_directory, mask, with_kinds

_NEAR: Final = 120
"""How far around a span its neighbouring words are looked for."""
_GAP: Final = re.compile(r"\s{16,}")
"""More blank than tells anything: each place in it would be looked at anew for what may follow."""
_ASIDE: Final = re.compile(
    r"(?P<before>(?:^|(?<=[.;!?\n]\s))[^.;!?\n,]{1,200}),\s*(?P<ban>without\s[^.;!?\n,]{1,80}),\s+(?P<after>[^.;!?\n]{1,400})",
    re.IGNORECASE,
)
"""A wish that is interrupted by what it rules out."""
_JOINS: Final = re.compile(r"(?:and|or|but|then|nor|so)\b", re.IGNORECASE)
_WHETHER: Final = re.compile(
    r"\b(?:see|check|know|tell\s+(?:me|us)|determine|find\s+out|verify|ask|learn|(?:what|how|why|where|who|whom|which)\b[^.;]{0,240}?)\s+(?:if|when)\b",
    re.IGNORECASE,
)
"""What is asked about, and is no condition of the wish."""
_CAUSES: Final = re.compile(
    r"make\s+(?:\x02|it\b|them\b|everything\b|everyone\b|(?:the|this|that|these|those|my|our|your|his|her|their|its|all|every|each)\s+(?P<what>\w+))",
    re.IGNORECASE,
)
_TELLS: Final = re.compile(
    r"(?:tell|inform|(?:write|drop)(?:\s+(?:an?\s+(?:\w+\s+)?(?P<what>line|note|letter|message|e-?mail|mail)\s+)?to)?|let(?=\s+\S+\s+know\b))\s+\x02(?P<to>\d+)\x03",
    re.IGNORECASE,
)
"""How one is told something whose address follows."""
_GETS: Final = re.compile(
    r"\x02(?P<to>\d+)\x03\s+(?:should|shall|must|(?:needs?|ought|has|is)\s+to)\s+(?:get|receive|be\s+(?:sent|given))\b",
    re.IGNORECASE,
)
"""How somebody is to be sent something whose address comes first."""
_LINE: Final = re.compile(r"^\W*(?:know\b|an?\s+(?:\w+\s+)?(?:line|note|message)\b)", re.IGNORECASE)
_INVERTED: Final = re.compile(
    r"^(?:which|what)\s+(?P<what>(?:[\w-]+\s+){0,3}?[\w-]+)\s+(?:do|does|did)\s", re.IGNORECASE
)
_SOUGHT: Final = re.compile(r"\bfor\s+(?P<what>.+)$", re.IGNORECASE | re.DOTALL)
_JOINT: Final = re.compile(
    r"\s*(?:,\s*|,?\s*(?:\b(?:and|plus|as\s+well\s+as)\b|&)\s*(?P<as>(?:[a-z]+\s+){0,4}))", re.IGNORECASE
)
"""What stands between things that are named side by side."""
_LIKENED: Final = re.compile(r"(?<=\x03)\s+(?:sounds?|looks?|feels?|seems?|reads?)\b", re.IGNORECASE)
_EITHER: Final = re.compile(
    r"^(?:is|are|was|were|does|do|did)\b.*?\b(?P<one>\w+)\s+or\s+(?P<other>\w+)", re.IGNORECASE | re.DOTALL
)
"""A question for one of two answers."""
_CALLED: Final = re.compile(r"\b(?P<what>[a-z]+)\s+(?:(?:at|on|from|under)\s+)?\x02(?P<span>\d+)\x03")
_DEED: Final = re.compile(
    r"\W*(?:(?:an?|the|some|another|me|us)\s+)*(?P<kind>(?:[a-z]+\s+){0,2}?)(?P<deed>[a-z]+)\s+(?:of|for|from|on)\b",
    re.IGNORECASE,
)
_FINDING: Final = frozenset({"list", "search", "scan"})
_FILES: Final = lexicon.concept("files")
"""What is found in a place by the name of its type is a file: the PDFs in /docs."""
_DOING: Final = frozenset({"create", "build", "execute", "write", "research"})
"""Families of verbs that with a deed's name mean the deed: to build an index is to index."""
_HAVING: Final = frozenset({"want", "need", "like", "have", "get", "see"})
_HAVING_WORDS: Final = 4
_TO_HAVE: Final = re.compile(r"^.*?\b(?:want|need|like|have|get|see)\b", re.IGNORECASE | re.DOTALL)
_LETTING: Final = frozenset({"have", "get"})
"""What a wish begins with that something be done, in whatever form the deed is said: have the tests run."""
_NO_OBJECT: Final = frozenset({"the", "a", "an", "to", "of", "my", "our", "your", "their", "already", "been", "never"})
"""What stands before a noun, an infinitive or what was done before, and not before what is to be done."""
_AT_THE_END: Final = re.compile(r"(?:\s+(?:for\s+(?:me|us)|please|now|thanks|thank\s+you))+$")
_PERFECT: Final = re.compile(
    r"(?:i|we|he|she|they|it)\s+(?:have|has|had|ve)\s+(?:already|just|now|also|since|recently|never|not|\s)*\w+ed\b"
)
"""What is told to have been done, and is not asked for."""
_LIES_THERE: Final = re.compile(
    r"(?:(?:see|show|tell|know|give)\s+(?:(?:me|us)\s+)?)?what(?:['\u2019]s|\s+is|\s+are|\s+lies)?\s+(?:there\s+|stored\s+|located\s+)?(?:in|inside|under|at)\s+\x02(?P<place>\d+)\x03\W*$",
    re.IGNORECASE,
)
"""A question for what is in a place, without a word of what kind of thing that could be."""
_VERSIONS: Final = frozenset({"version", "translation", "equivalent"})
_TURNED: Final = frozenset({"in", "into", "to"})
_THAT: Final = frozenset({"it", "that", "this", "them"})
_SAYING: Final = frozenset(
    {"put", "say", "visualize", "express", "convert", "turn", "bring", "rewrite", "write", "mean"}
)
_SAID: Final = frozenset(
    {"say", "said", "mean", "phrase", "expression", "term", "line", "put", "render", "express", "turn", "bring", "like"}
)
_EXCEPTION: Final = re.compile(
    r"\b(?:except(?:ing|ions?)?|excluding|(?:apart|aside)\s+from|without\s+(?:the|its|their|those|these)|other\s+than|besides|save\s+for|not|"
    r"(?:all|each|any\w*|every\w*|no\w*)\b[^.;]{0,80}?\bbut)\b",
    re.IGNORECASE,
)
_FINITE_NEXT: Final = re.compile(
    r"(?<=\x03)\s+(?P<said>(?:is|are|was|were|has|had|would|could|might|may|must|should|can|will)(?:n['\u2019]t)?)\b(?!\s+you\b)",
    re.IGNORECASE,
)
"""What makes a statement of words that begin like a wish: send a letter to X was on the list."""
_TO_BE: Final = re.compile(
    r"\b(?:must|should|shall|(?:need|needs|has|have|is|are)\s+to)\s+be\s+(?P<done>[a-z]+)\b", re.IGNORECASE
)
_CIRCUMSTANCE: Final = re.compile(
    r"(?:(?:i|we|he|she|they|there|here|this|it)\s*(?:have|has|had|'ve|is|are|was|were|am|'m|'s)|since|because|as|for|given|while|although|though|due\s+to|in\s+order|during|regarding|considering|after|with|on|at|in)\b",
    re.IGNORECASE,
)
"""How a clause begins that tells what there is, why or when, and asks for nothing."""
_REASON: Final = re.compile(
    r"(?:(?:i|we|he|she|they|there|here|this|it)\s*(?:have|has|had|['\u2019]ve|is|are|was|were|am|['\u2019]m|['\u2019]s)|since|because|as|for|given|due\s+to|considering)\b",
    re.IGNORECASE,
)
_THANKS: Final = frozenset(
    {
        "great",
        "cheers",
        "regards",
        "regard",
        "appreciate",
        "appreciated",
        "thanks",
        "ok",
        "okay",
        "urgent",
        "best",
        "wonderful",
    }
)
_OF: Final = re.compile(r"\bof\b", re.IGNORECASE)
_WAYS: Final = frozenset({"with", "using", "via", "into"})
_TELLS_WHICH: Final = frozenset({"of", "for", "from"})
"""How a phrase begins that may tell which of several things is meant: the invoice of the Miller account."""
_NO_NAMES: Final = frozenset({"i"}) | lexicon.HUMAN_LANGUAGES | lexicon.PROGRAMMING_LANGUAGES
"""What is written with a capital, and tells nothing apart."""
_NUMBERED: Final = re.compile(r"[a-z#.]\s*\x02\d+\x03\s*$", re.IGNORECASE)
_NUMBERING: Final = re.compile(r"\b(?:number|no|nr)\b\.?(?=\s*\x02)", re.IGNORECASE)
"""A word that only brings in a number."""
_PAST: Final = frozenset({"last", "previous", "past", "yesterday"})
"""What makes a time one that a thing is from, and none to wait for."""
_ARTICLE: Final = re.compile(r"\s*(?:\b(?:the|an?|this|that|my|our|your|his|her|their|its)\b\s*)+", re.IGNORECASE)
_TOKEN: Final = re.compile(r"\x02\d+\x03|[^\W_](?:[\w'\u2019&-]*[^\W_])?")
_ADVERBS: Final = frozenset(
    {"again", "instead", "anyway", "alone", "together", "online", "offline", "away", "back", "home"}
)
_DATA: Final = frozenset({"number", "date"})
_ADDRESSED: Final = re.compile(
    r"\b(?:to|for)\s+(?:[^\W\d_][\w'\u2019-]*\s+){1,4}?(?:at|under|on)\s+\x02(?P<address>\d+)\x03", re.IGNORECASE
)
"""Somebody by name, with the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One wish of the intent."""

    number: int
    text: str
    verb: str | None
    head: tuple[str, ...]
    rest: tuple[str, ...]
    words: tuple[str, ...]
    spans: tuple[Span, ...] = field(default=())
    after_previous: bool = False
    forbidden: bool = False
    conditional: bool = False
    circumstance: bool = False
    doubt: str = ""
    """Why it is not plain that this is asked for: what changes the world is not done on such words."""
    exception: str = ""
    """The word from which on something is taken out of what is asked for."""
    sought: tuple[str, ...] = ()
    """What a search is for, where it is said."""
    asks: bool = False
    """Does a question mark end it?"""
    opening: tuple[str, ...] = ()
    """What is said before the verb, set off by a comma: of how, where or for whom."""
    values: frozenset[str] = frozenset()
    """Concepts that are values rather than matter: names, times."""
    masked: str = ""
    """The text with the kinds of what it names exactly in the place of their values, without what opens it."""
    written: str = ""
    """The text as it stands in the intent: with quotation marks, and with the word that rules it out."""
    marked: str = ""
    """The text with a mark in the place of each thing that is named exactly."""
    ordered: str = ""
    """The same, with what opens it where that was said."""
    described: str = ""
    """What it is about, as it was said, where a name, a number or a past time tells which one is meant."""

    @property
    def qualifiers(self) -> list[str]:
        """The words that say how, where or for whom it is to be done, and that introduce nothing that is named exactly."""
        return list(qualifiers_in(self.marked))

    @property
    def ways(self) -> list[str]:
        """The words that say by what means it is to be done, or into what something is to go."""
        return [
            word for relation, phrase in phrases_in(self.marked) if relation in _WAYS for word in loose_words(phrase)
        ]

    @property
    def conjoined(self) -> list[tuple[Span, ...]]:
        """What is named exactly side by side, one like the other: in /a and /b."""
        return list(_conjoined(self.marked, self.spans))

    @property
    def concepts(self) -> frozenset[str]:
        """What the clause speaks of, its verb included."""
        spoken = {*self.head, *self.rest}
        return frozenset(spoken | {self.verb} if self.verb else spoken)


@dataclass(frozen=True, slots=True)
class Reading:
    """An intent's clauses, and its skeleton: all that it says but for the values of what it names exactly."""

    clauses: tuple[Clause, ...]
    text: str
    """With a mark in the place of each thing that is named exactly."""
    spans: tuple[Span, ...]

    @property
    def masked(self) -> str:
        """The text with the kinds of what it names exactly in the place of their values."""
        return with_kinds(self.text, self.spans)


def read(intent: str) -> Reading:
    """Cut an intent into its clauses."""
    masked, spans = mask(unicodedata.normalize("NFC", intent))
    masked = _GAP.sub(lambda gap: "\n" if "\n" in gap[0] else " ", masked)
    cut = cut_up(_ASIDE.sub(_moved_behind, masked))
    found = [part for piece in situated_pieces(in_order(cut)) for part in prohibitions(piece)]
    clauses: list[Clause] = []
    for part in found:
        clause = _clause(part, spans, len(clauses))
        if clause.words or clause.spans:
            clauses.append(clause)
    return Reading(tuple(clauses), masked, spans)


def _moved_behind(found: re.Match[str]) -> str:
    """A ban that interrupts a wish, put behind it; what begins another wish is left where it is."""
    if begins_with_verb(found["after"]) or _JOINS.match(found["after"]):
        return found[0]
    return f"{found['before']} {found['after']}, {found['ban']}"


def restricts(clause: Clause) -> bool:
    """May a clause that asks for nothing hold back what was asked for before it? Thanks and reasons do not."""
    said = set(clause.words) - lexicon.STOP
    return bool(said - _THANKS) and _REASON.match(clause.text) is None


def _clause(piece: Piece, spans: tuple[Span, ...], number: int) -> Clause:
    bare = stripped(piece.text)
    whole = f"{piece.opening}, {bare}" if piece.opening else bare
    bare = INTRODUCED.sub(" at ", bare)
    spoken = words(MASK.sub(" ", bare))
    said = (*spoken, *words(MASK.sub(" ", piece.opening)))
    family, object_text = _verb_and_object(bare, spoken, spans, said)
    to_be = None if family else _TO_BE.search(bare)
    if to_be is not None:
        family, object_text = _participle(to_be["done"].casefold()), f"{bare[: to_be.start()]} {bare[to_be.end() :]}"
    if family is not None and family not in lexicon.GENERIC:
        object_text = _without_addressees(_without_callings(object_text, spans), spans)
    head, rest = _head_and_rest(
        _LIKENED.sub(" ", _plainly_asked(object_text, family)), changes=family in lexicon.MUTATING
    )
    if (family in _FINDING or (family is None and piece.asks)) and any(map(is_directory, _named_in(bare, spans))):
        head, rest = (tuple(dict.fromkeys(map(_file_or_word, part))) for part in (head, rest))
    exception = _EXCEPTION.search(whole)
    conditional = _is_conditional(whole, family)
    doubt = piece.doubt
    if not doubt and family in lexicon.MUTATING:
        doubt = _statement(piece.text, bare, spoken)
    if not doubt and family in lexicon.MUTATING and (waits := DEFERRED.search(whole)):
        doubt = f"it waits for something: {waits[0]!r}"
    return Clause(
        number=number,
        text=_unmask(whole, spans),
        verb=family,
        head=head,
        rest=rest,
        words=said,
        spans=tuple(_situated(whole, spans)),
        after_previous=piece.ordered and number > 0,
        forbidden=bool(piece.ban),
        conditional=conditional,
        circumstance=family is None and _CIRCUMSTANCE.match(bare) is not None and not has_verb(spoken),
        doubt=doubt,
        exception=exception[0] if exception else "",
        sought=_sought(bare, family),
        asks=piece.asks,
        values=_values(whole, spoken),
        opening=tuple(lexicon.concepts(MASK.sub(" ", piece.opening))),
        masked=with_kinds(bare, spans),
        marked=_with_opening(bare, piece.opening),
        ordered=INTRODUCED.sub(" at ", whole),
        described="" if exception else _described(object_text, spans),
        written=f"{piece.ban} {MASK.sub(lambda match: spans[int(match[1])].written, whole)}".strip(),
    )


def _with_opening(bare: str, opening: str) -> str:
    """A clause with what opens it in the place where it would stand else: before the first phrase of the kind."""
    first = PHRASE.search(bare)
    at = first.start() if first else len(bare)
    return f"{bare[:at]} {opening} {bare[at:]}" if opening else bare


def _statement(text: str, bare: str, spoken: list[str]) -> str:
    """Why words that begin with a verb that changes the world tell of it rather than ask for it, or nothing."""
    if not spoken or lexicon.verb(spoken[0]) is None:
        return ""
    if spoken[0].endswith("ing") and words(text[:AHEAD])[:1] == spoken[:1]:
        return f"it is spoken of with {spoken[0]!r}"
    finite = _FINITE_NEXT.search(bare)
    return f"it is spoken of with {finite['said']!r}" if finite else ""


def _participle(done: str) -> str:
    """The family of what is to be done to something; a word of no family stands for itself."""
    bases = (
        lexicon.PARTICIPLES.get(done, done),
        done.removesuffix("d"),
        done.removesuffix("ed"),
        done.removesuffix("ed")[:-1],
    )
    return next((lexicon.FAMILY_OF_VERB[base] for base in bases if base in lexicon.FAMILY_OF_VERB), done)


def _verb_and_object(
    bare: str, spoken: list[str], spans: tuple[Span, ...], said: Sequence[str]
) -> tuple[str | None, str]:
    """The family of a clause's verb, and what it is done to: a verb is the first word, or the first and a second one.

    :param said: with what opens the clause.
    """
    family = lexicon.verb(spoken[0]) if spoken else None
    rest = bare[_first_word_end(bare) :] if family else bare
    if family and spoken[0] in lexicon.AT:
        rest = f"{lexicon.AT[spoken[0]]} for {rest}"
    named = _named(bare, spans)
    if _is_said_in_a_language(family, said, named):
        return "translate", rest
    if (found := lexicon.phrase(spoken)) is not None:
        return found[0], _without(found[1], bare[_first_word_end(bare) :])
    if (asked := _asked_of_a_place(bare, spans) or _told_to_somebody(bare, spans)) is not None:
        return asked
    if family is None or family in lexicon.GENERIC:
        return _unsaid_verb(bare, spoken, named) or (family, rest)
    if (
        family in _DOING
        and (deed := _DEED.match(rest))
        and deed["deed"].casefold() in lexicon.DEEDS | {"index", "list"}
    ):
        return lexicon.concept(deed["deed"].casefold()), deed["kind"] + rest[deed.end("deed") :]
    return ("convert" if family == "turn" and "into" in spoken else family), rest


def _asked_of_a_place(bare: str, spans: tuple[Span, ...]) -> tuple[str, str] | None:
    """To say what is in a directory is to list its files."""
    found = _LIES_THERE.match(bare)
    return ("list", "files") if found and is_directory(spans[int(found["place"])]) else None


def _told_to_somebody(bare: str, spans: tuple[Span, ...]) -> tuple[str, str] | None:
    """To let somebody whose address is named know something is to send it."""
    found = _TELLS.match(bare) or _GETS.match(bare)
    if found is None or spans[int(found["to"])].kind != "email":
        return None
    return "send", _LINE.sub(" ", bare[found.end() :])


def _unsaid_verb(bare: str, spoken: list[str], named: frozenset[str]) -> tuple[str, str] | None:
    """What is to be done where no known verb begins the clause: what is wanted done, what a thing is made, an unknown verb."""
    if (done := _wanted_done(bare, spoken)) is not None:
        return _participle(done), _TO_HAVE.sub(" ", _without(done, bare), count=1)
    if (made := _made(bare, spoken, named)) is not None:
        return made, bare[_first_word_end(bare) :] if lexicon.verb(spoken[0]) else bare
    if spoken and lexicon.verb(spoken[0]) is None and spoken[0] not in lexicon.STOP and COMMANDS.match(bare):
        return lexicon.concept(spoken[0]), bare[_first_word_end(bare) :]
    return None


def _without(word: str, text: str) -> str:
    return re.sub(rf"\b{word}\b", " ", text, count=1, flags=re.IGNORECASE)


def _wanted_done(bare: str, spoken: list[str]) -> str | None:
    """The participle of a wish to have something done: I want the page translated."""
    if not (_HAVING & set(spoken[:_HAVING_WORDS])) or _PERFECT.match(" ".join(spoken[: 2 * _HAVING_WORDS])):
        return None
    for before, word in itertools.pairwise(spoken[1:]):
        if word.endswith("ed") and before not in ARTICLES and _participle(word) in lexicon.FAMILIES:
            return word
    said = _AT_THE_END.sub("", " ".join(words(MASK.sub(" it ", bare)))).split()
    is_wanted = said[:1] and said[0] in _LETTING and len(said) > _HAVING_WORDS - 1
    return said[-1] if is_wanted and said[-1] in lexicon.PARTICIPLES and said[-2] not in _NO_OBJECT else None


def _named(bare: str, spans: tuple[Span, ...]) -> frozenset[str]:
    """The kinds of what is named exactly."""
    return frozenset(spans[int(match[1])].kind for match in MASK.finditer(bare))


def _is_said_in_a_language(family: str | None, spoken: Sequence[str], named: frozenset[str]) -> bool:
    """Is a text to be put into a language, and nothing else spoken of?"""
    if "quoted" not in named and (named or family not in _SAYING or not _THAT.intersection(spoken)):
        return False
    if not (family is None or family in lexicon.GENERIC or family in _SAYING):
        return False
    if not any(
        (before in _TURNED and word in lexicon.HUMAN_LANGUAGES)
        or (before in lexicon.HUMAN_LANGUAGES and word in _VERSIONS)
        for before, word in itertools.pairwise(spoken)
    ):
        return False
    other = lexicon.STOP | lexicon.GENERIC | lexicon.HUMAN_LANGUAGES | _SAID | _VERSIONS
    return all(word in other or len(word) == 1 or kinds.of_word(word) == kinds.TEXT for word in spoken)


def _made(bare: str, spoken: list[str], named: frozenset[str]) -> str | None:
    """Making a thing something is changing it, where it is no deed that is made; a file of some width is resized."""
    if "number" in named and {"path", "url"} & named and lexicon.SIZES.intersection(spoken):
        return "resize"
    causes = _CAUSES.match(bare)
    return "update" if causes is not None and (causes["what"] or "").casefold() not in lexicon.DEEDS else None


def _is_conditional(bare: str, family: str | None) -> bool:
    """Does it hang on something? Where nothing is changed, `if you can` is kindness, and `what to do if` a subject."""
    if family not in lexicon.MUTATING:
        bare = _WHETHER.sub(" ", COURTESY.sub(" ", bare))
    return CONDITION.search(bare) is not None


def _sought(bare: str, family: str | None) -> tuple[str, ...]:
    found = _SOUGHT.search(MASK.sub(" ", bare)) if family in lexicon.SEEKING else None
    if found is None:
        return ()
    ends = PREPOSITION.search(found["what"])
    return tuple(lexicon.concepts(found["what"][: ends.start()] if ends else found["what"]))


def _without_callings(text: str, spans: tuple[Span, ...]) -> str:
    """Without the words that links are called by: the link itself says what is meant."""
    return _CALLED.sub(lambda found: " " if spans[int(found["span"])].kind == "url" else found[0], text)


def _without_addressees(text: str, spans: tuple[Span, ...]) -> str:
    """Without the names of those whose address is named: the address itself says who is meant."""
    return _ADDRESSED.sub(lambda found: " " if spans[int(found["address"])].kind == "email" else found[0], text)


def _values(text: str, spoken: list[str]) -> frozenset[str]:
    """What is written as a name, within the clause, and words of time."""
    names = [word for name in NAME.findall(MASK.sub(" , ", text)) for word in words(name)]
    either = _EITHER.match(text)
    names += words(" ".join(either.groups())) if either else []
    return frozenset(lexicon.concept(word) for word in (*names, *lexicon.TIMES.intersection(spoken)))


def _first_word_end(text: str) -> int:
    match = re.search(r"[^\W_]+", MASK.sub(lambda found: " " * len(found[0]), text))
    return match.end() if match else 0


def _plainly_asked(text: str, family: str | None) -> str:
    """A question for what something does, with what is asked for first: which concepts do the papers speak of."""
    return _INVERTED.sub(r"\g<what> that ", text) if family is None else text


def _head_and_rest(text: str, *, changes: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The head is what the wish is about: up to the first preposition, `of` passed over.

    :param changes: whether the world is changed: then what only tells which one is meant is no matter that a tool must speak of.
    """
    if changes:
        text = _NUMBERING.sub(" ", text)
    at, spoken = 0, False
    found = list(PREPOSITION.finditer(text))
    ends = [*(one.start() for one in found), len(text)]
    for one, end in zip(found, ends[1:], strict=True):
        spoken = spoken or bool(_spoken(text[at : one.start()]))
        at = one.start()
        belongs = _OF.fullmatch(one[0]) is not None and not (changes and _tells_which(text[one.end() : end], one[0]))
        if belongs or not spoken:
            continue
        return _spoken(text[: one.start()]), _spoken(text[one.end() :])
    return _spoken(text), ()


def _spoken(text: str) -> tuple[str, ...]:
    return tuple(lexicon.concepts(MASK.sub(" ", text)))


def _described(text: str, spans: tuple[Span, ...]) -> str:
    """What a verb's object is called, with the phrases behind it that tell by data which one is meant; nothing, where none does."""
    text = text.rstrip(" ,.:;!?").partition(",")[0]
    found = list(PHRASE.finditer(text))
    ends = [*(one.start() for one in found), len(text)]
    head = text[: ends[0]]
    end, tells = ends[0], _NUMBERED.search(head) is not None or bool(_names(head))
    for one, after in zip(found, ends[1:], strict=True):
        if one["word"].casefold() not in _TELLS_WHICH or not _tells_which(text[one.end() : after], one["word"]):
            break
        end, tells = after, True
    said = _without_article(text[:end])
    exact = {spans[int(mask[1])].kind for mask in MASK.finditer(said)}
    several = lexicon.SEVERAL.intersection(words(said))
    return _unmask(said, spans) if tells and not several and exact <= _DATA else ""


def _tells_which(phrase: str, relation: str) -> bool:
    """Is something told apart by a name, a number or a past time, with one more word at most? What lasts or is to come tells nothing apart."""
    said = _TOKEN.findall(_without_article(phrase))
    names = _names(f" {phrase}")
    times = [word for word in said if word.casefold() in lexicon.TIMES | _PAST]
    others = [word for word in said if not MASK.fullmatch(word) and word not in names and word not in times]
    if times and not _PAST.intersection(times) and (relation.casefold() != "of" or len(times) < len(said)):
        return False
    if any(word in lexicon.STOP or word in _ADVERBS or word.endswith("ly") for word in others):
        return False
    return len(others) <= (not times) and len(others) < len(said) and (not others or bool(names))


def _without_article(text: str) -> str:
    found = _ARTICLE.match(text)
    return text[found.end() :] if found else text


def _names(text: str) -> set[str]:
    """What is written as a name, languages aside; the first word of all may be written so anyway."""
    placed = f"a {text.strip()}" if text[:1].isspace() else text
    return {name for name in NAME.findall(placed) if name.casefold() not in _NO_NAMES}


def _conjoined(marked: str, spans: tuple[Span, ...]) -> Iterator[tuple[Span, ...]]:
    """The spans of one kind between which there is no more than a comma, or an `and` and words said before them."""
    by_number = {span.number: span for span in spans}
    found = list(MASK.finditer(marked))
    group: list[Span] = []
    before = 0
    for mark in found:
        span = by_number.get(int(mark[1]))
        joint = _JOINT.fullmatch(marked[before : mark.start()]) if group else None
        said = {*words(MASK.sub(" ", marked[:before])), *ARTICLES}
        if (
            span is None
            or joint is None
            or span.kind != group[-1].kind
            or not said.issuperset(words(joint["as"] or ""))
        ):
            yield from (tuple(group) for _ in group[1:2])
            group = []
        group += [] if span is None or span.before[-1:] == ("between",) else [span]
        before = mark.end()
    yield from (tuple(group) for _ in group[1:2])


def _file_or_word(word: str) -> str:
    return _FILES if word.removesuffix("s") in lexicon.EXTENSIONS else word


def _named_in(text: str, spans: tuple[Span, ...]) -> list[Span]:
    return [spans[int(mark[1])] for mark in MASK.finditer(text)]


def _situated(text: str, spans: tuple[Span, ...]) -> Iterator[Span]:
    for match in MASK.finditer(text):
        span = spans[int(match[1])]
        before = words(MASK.sub(" ", text[max(match.start() - _NEAR, 0) : match.start()]))[-3:]
        after = words(text[match.end() : match.end() + _NEAR].partition("\x02")[0])[:3]
        yield Span(
            number=span.number,
            kind=span.kind,
            value=span.value,
            written=span.written,
            before=tuple(before),
            after=tuple(after),
            doubtful=span.doubtful,
        )


def _unmask(text: str, spans: tuple[Span, ...]) -> str:
    return MASK.sub(lambda match: spans[int(match[1])].value, text).strip()
