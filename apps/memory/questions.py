"""What a question asks for, read off its words: their other forms, names it may mention, pairs to find together. Pure."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from apps.memory.references import key_of
from apps.memory.texts import as_sought

_WORD: Final = re.compile(r"\w+(?:['\u2019]\w+)*")
_EDGES: Final = "?!.,;:\"'()[]{}«»“”\u2018\u2019…"
_POSSESSIVE: Final = re.compile(r"['\u2019]s?$")
# Words of a name at most, and of a question in which names and pairs are looked for.
_NAME: Final = 4
_LOOKED_AT: Final = 40
_PAIRS: Final = 16

# Stemming does not bring these together. A first form that is a stop word has no use here.
_FORMS: Final = """
begin began begun; bite bit bitten; break broke broken; bring brought; build built; burn burnt; buy bought;
catch caught; choose chose chosen; come came; dig dug; draw drew drawn; dream dreamt; drink drank drunk;
drive drove driven; eat ate eaten; fall fell fallen; feed fed; feel felt; fight fought; find found; fly flew flown;
forget forgot forgotten; forgive forgave forgiven; freeze froze frozen; get got gotten; give gave given; go went gone;
grow grew grown; hang hung; hear heard; hide hid hidden; hold held; keep kept; know knew known; lay laid; lead led;
learn learnt; leave left; lend lent; lose lost; make made; mean meant; meet met; pay paid; ride rode ridden;
ring rang rung; rise rose risen; run ran; say said; see saw seen; seek sought; sell sold; send sent; sew sewn;
shake shook shaken; shine shone; shoot shot; show shown; shrink shrank shrunk; sing sang sung; sink sank sunk;
sit sat; sleep slept; speak spoke spoken; spend spent; spin spun; stand stood; steal stole stolen; stick stuck;
strike struck; swear swore sworn; sweep swept; swim swam swum; take took taken; teach taught; tear tore torn;
tell told; think thought; throw threw thrown; understand understood; wake woke woken; wear wore worn;
weave wove woven; weep wept; win won; write wrote written;
child children; man men; woman women; person people; foot feet; tooth teeth; mouse mice; wife wives; knife knives;
good better best; bad worse worst
"""
_FAMILIES: Final = [family.split() for family in _FORMS.split(";")]
_OTHERS: Final = {form: [other for other in family if other != form] for family in _FAMILIES for form in family}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question in words, and what else to look for."""

    text: str
    """As its words are looked for."""
    forms: list[tuple[str, str]]
    """A word of it, and another form of that word."""
    names: list[str]
    """Every run of its words that may be a name, as names are compared."""
    proper: list[str]
    """Those of them that are all of it, or are written with a capital: names even where their words mean nothing by themselves."""
    pairs: list[str]
    """Words that follow each other in it, with one between them or none."""


def read(text: str) -> Question:
    """Read a question; of a long one, only the beginning is read for more than its words."""
    written = [word for word in (part.strip(_EDGES) for part in unicodedata.normalize("NFKC", text).split()) if word]
    text = as_sought(text)
    words = list(islice((found[0] for found in _WORD.finditer(text)), _LOOKED_AT))
    lowered = list(dict.fromkeys(_POSSESSIVE.sub("", word) for word in words))
    runs = list(_runs(written))
    return Question(
        text=text,
        forms=[(word, other) for word in lowered for other in _OTHERS.get(word, ())],
        names=sorted({name for name, _ in runs}),
        proper=sorted({name for name, is_proper in runs if is_proper}),
        pairs=list(islice(dict.fromkeys(_pairs(words)), _PAIRS)),
    )


def _runs(written: list[str]) -> Iterator[tuple[str, bool]]:
    words = written[:_LOOKED_AT]
    # That a question begins with a capital says nothing.
    capitals = [_has_capital(word if place else word[1:]) for place, word in enumerate(words)]
    for start in range(len(words)):
        for end in range(start + 1, min(start + _NAME, len(words)) + 1):
            name = key_of(" ".join(words[start:end]))
            is_proper = end - start == len(written) or any(capitals[start:end])
            yield name, is_proper
            yield _POSSESSIVE.sub("", name), is_proper


def _has_capital(word: str) -> bool:
    return word != word.lower()


def _pairs(words: list[str]) -> Iterator[str]:
    for size in (2, 3):
        for start in range(len(words) - size + 1):
            yield " ".join(words[start : start + size])
