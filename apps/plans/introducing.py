"""Whether what is said before something named exactly only brings it in, or makes it tell of another thing (the copy of PATH). Pure.

Between the verb and the thing there may stand no more than how it is called, where it is, the way it is sent, and what belongs to it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from apps.core.lexical import stem, words
from apps.plans import lexicon
from apps.plans.announcing import UNFIT, fit
from apps.plans.clauses import Clause
from apps.plans.phrases import LIES, PHRASE
from apps.plans.spans import MASK
from apps.plans.verbs import listed

_OF_ONE: Final = listed("a an the this that my our your his her their its one")
_PERSONS: Final = listed("my our your his her their")
_CALLS: Final = listed("called named titled entitled number no nr id following")
_TELLS: Final = listed("say says saying read reads reading state states stating write writes writing")
_IDLE: Final = listed("please kindly just now then also simply immediately dear")
_STANDS_AT: Final = listed("at located stored")
_BELONGS: Final = listed("of for on by with as") | LIES - _STANDS_AT
_WAYS: Final = listed("to into onto from")
_JOINS: Final = re.compile(r"^\W*(?:and|plus)\b", re.IGNORECASE)
_TOKEN: Final = re.compile(r"[^\W_]+(?:['\u2019]s\b)?")
_WORD: Final = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Something that a clause names exactly, and the param that is given it."""

    at: int
    """Where it stands in the clause as it was said."""
    kind: str
    param: Sequence[str]
    """The words of the param's name."""
    is_matter: bool = False
    """Is it the matter itself, and no thing that is there already?"""


@dataclass(frozen=True, slots=True)
class _Before:
    """What stands before something named exactly, behind the verb and whatever is named before it."""

    head: Sequence[str]
    """What the last preposition belongs to."""
    relation: str
    own: Sequence[str]
    names: frozenset[str]
    """Of the words, those that are written as names."""
    text: str


def strange(named: Named, clause: Clause, known: Collection[str], kinds: Collection[str]) -> str:
    """The words that may make it another thing than the one named, as they were said; nothing where they only bring it in.

    :param known: the concepts that the tool speaks of.
    :param kinds: of these, what such a thing itself is called.
    """
    before = _before(clause, named)
    if before is None or (named.is_matter and before.text.rstrip().endswith(":")):
        return ""
    own = {said for word in named.param for said in (lexicon.concept(word), stem(word))} | set(kinds)
    nouns = own | set(known)
    if _brings_in(before, named, nouns) and _leads_to(before, named, nouns, own):
        return ""
    return " ".join(before.text.split()).strip(" ,:;(")


def _before(clause: Clause, named: Named) -> _Before | None:
    """None where it is one of several that are named side by side, and not the first of them."""
    text = clause.ordered[: named.at]
    mark = max((one.end() for one in MASK.finditer(text)), default=0)
    numbers = [[span.number for span in group] for group in clause.conjoined]
    here = MASK.match(clause.ordered, named.at)
    if here is not None and any(int(here[1]) in group[1:] for group in numbers):
        return None
    # ADDRESS should get an email saying TEXT.
    start = mark + (_lead_end(text[mark:]) if named.is_matter else 0) if mark else _deed_end(clause, text)
    text = _JOINS.sub("", text[start:]) if mark else text[start:]
    relations = list(PHRASE.finditer(text))
    last = relations[-1] if relations else None
    head, own = (text[: last.start()], text[last.end() :]) if last else ("", text)
    said = frozenset(word.casefold() for found in _TOKEN.findall(text) if found[:1].isupper() for word in words(found))
    relation = last["word"].casefold() if last else ""
    return _Before(words(head), relation, words(own), said, text)


def _deed_end(clause: Clause, text: str) -> int:
    """Where the verb ends, with its particle; without a verb, where what leads in ends."""
    found = list(_WORD.finditer(text))
    for place, one in enumerate(found):
        word = one[0].casefold()
        if lexicon.verb(word) is not None and (lexicon.verb(word) == clause.verb or place == 0):
            return _particle_end(found[place:]) or one.end()
    if found and clause.verb is not None and lexicon.concept(found[0][0].casefold()) == clause.verb:
        return found[0].end()
    return _lead_end(text)


def _lead_end(text: str) -> int:
    """Where the words end that say nothing and lead in, up to an article."""
    leading = itertools.takewhile(
        lambda one: one[0].casefold() in lexicon.SAYING_NOTHING - _OF_ONE, _WORD.finditer(text)
    )
    return max((one.end() for one in leading), default=0)


def _particle_end(found: Sequence[re.Match[str]]) -> int | None:
    said = [one[0].casefold() for one in found[:2]]
    particle = lexicon.phrase(said)
    return found[1].end() if particle is not None and particle[1] == said[-1] and len(said) > 1 else None


def _brings_in(before: _Before, named: Named, nouns: Collection[str]) -> bool:
    """Are the words right before it, behind the last preposition, none but what it is called?"""
    said = [word for word in before.own if word not in _IDLE]
    told = _CALLS | (_TELLS if named.kind == "quoted" else frozenset())
    odd = [place for place, word in enumerate(said) if not (_is_known(word, nouns, before) or word in _OF_ONE | told)]
    if not odd:
        return True
    (place, *others) = odd
    if others or place == 0:
        return False
    # An attribute of one thing: the old file PATH. Somebody by what he is to who asks: our accountant ADDRESS.
    if place + 2 == len(said):
        return said[place - 1] in _OF_ONE and _is_known(said[-1], nouns, before)
    is_person = named.kind == "email" and said[place - 1] in _PERSONS
    return is_person and place + 1 == len(said) and said[place] not in lexicon.STOP


def _leads_to(before: _Before, named: Named, nouns: Collection[str], own: Collection[str]) -> bool:
    """Does the last preposition lead to the thing itself, and not from another such thing to it?"""
    relation = before.relation
    if not relation or relation in _STANDS_AT or fit(named.param, (relation,)) > 0:
        return not relation or relation not in _WAYS or _ends_in_noun(before, nouns)
    if relation == "that" and named.kind == "quoted" and not before.own:
        return True
    if relation in LIES and named.kind == "path" and not lexicon.PLACES.isdisjoint(lexicon.concepts_of(named.param)):
        return True
    head = [word for word in before.head if word not in _IDLE]
    if any(lexicon.concept(word) in own for word in head):
        return False
    if relation in _WAYS:
        return fit(named.param, (relation,)) != UNFIT and _ends_in_noun(before, nouns)
    return (
        relation in _BELONGS
        and _ends_in_noun(before, nouns)
        and all(_is_known(word, nouns, before) or word in lexicon.SAYING_NOTHING for word in head)
    )


def _ends_in_noun(before: _Before, nouns: Collection[str]) -> bool:
    """Is the word before the preposition a noun, by the tool's word or by its place: not the file next to PATH?"""
    head = [word for word in before.head if word not in _IDLE]
    return not head or _is_known(head[-1], nouns, before) or len(head) == 1 or head[-2] in _OF_ONE


def _is_known(word: str, nouns: Collection[str], before: _Before) -> bool:
    return word in before.names or (
        word not in lexicon.STOP and not {word, stem(word), lexicon.concept(word)}.isdisjoint(nouns)
    )
