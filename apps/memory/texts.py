"""Texts: normalization, quoting, token counts, and the reading of questions. Pure."""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from apps.memory.references import key_of

# Characters that Unicode calls default ignorable and Python calls printable: they are invisible and can carry a message.
_UNSEEN: Final = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xE0000, 0xE0FFF),
)
_DROPPED: Final = dict.fromkeys(chain.from_iterable(range(first, last + 1) for first, last in _UNSEEN))
_ENDS: Final = " .!?…;:,"


def one_line(text: str) -> str:
    """The text on one line without invisible characters: controls, direction marks, zero-width characters.

    Separators of words, lines and paragraphs become a space.
    """
    seen = text if text.isprintable() else "".join(sign for sign in text if sign.isprintable() or sign.isspace())
    return " ".join((seen if seen.isascii() else seen.translate(_DROPPED)).split())


def as_sought(text: str) -> str:
    """The text as its words are indexed and searched: compatibility forms and capitals are folded."""
    return unicodedata.normalize("NFKC", text).casefold()


# json.dumps() would make an encoder for each text.
_QUOTED: Final = json.JSONEncoder(ensure_ascii=False).encode


def quoted(text: str) -> str:
    """The text on one line between quotation marks, which it can't close."""
    return _QUOTED(one_line(text))


def same_text(text: str) -> bytes:
    """A digest that is equal for texts that differ only in case, width, spacing or a full stop at the end."""
    folded = one_line(unicodedata.normalize("NFKC", one_line(text))).casefold()
    return hashlib.sha256((folded.rstrip(_ENDS) or folded).encode()).digest()


_WORD: Final = re.compile(r"[A-Za-z0-9]+")
_PLAIN: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]{1,4}")
# Sequences of letters that are rare in words: a word with one is counted letter by letter, as are keys and codes.
_ODD: Final = re.compile(
    r"[^aeiouy]{5}|[aeiou]{4}|uu|ii|aa|wu|yi|iy|uw|h[fhn]|[jqvxz][^aeiouy]|[^aeiouyn][jqxz]|[bcdfgkmpw]{2}[^aeiouylr]"
    r"|[hwy][bcdfgjkmpqvwxz]|[bdfgkmpw][bdfgkpwv]|^[^aeiouyAEIOUY]+$"
)
_SPACES: Final = re.compile("  +")


def tokens(text: str) -> int:
    """An upper bound of the tokens that the text takes in a model's context.

    Three letters of a plain word count as one, and so does each byte of anything else. One space between words is free.
    """
    words = _WORD.findall(text)
    rest = len(text.encode(errors="surrogatepass")) - sum(map(len, words)) - text.count(" ")
    spaces = sum(len(run) - 1 for run in _SPACES.findall(text))
    # Words repeat, and the test for plain ones takes time.
    return sum(times * _tokens_of_word(word) for word, times in Counter(words).items()) + rest + spaces


def _tokens_of_word(word: str) -> int:
    return (len(word) + 2) // 3 if _PLAIN.fullmatch(word) and not _ODD.search(word) else len(word)


# What a question asks for.

_TERM: Final = re.compile(r"\w+(?:['\u2019]\w+)*")
_EDGES: Final = "?!.,;:\"'()[]{}«»“”\u2018\u2019…"
_POSSESSIVE: Final = re.compile(r"['\u2019]s?$")
# The most words of a name, and of a question in which names and pairs are searched.
_NAME: Final = 4
_LOOKED_AT: Final = 40
_PAIRS: Final = 16

# Forms that stemming does not bring together.
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
    """The words of a question, and what else to search for."""

    text: str
    """Normalized by :func:`as_sought`."""
    forms: list[tuple[str, str]]
    """A word of the question, and another form of that word."""
    names: list[str]
    """Runs of words that may be a name, normalized by :func:`key_of`."""
    proper: list[str]
    """Those that are the whole question or have a capital: they count as names even if they consist of stop words."""
    pairs: list[str]
    """Pairs of words that follow each other, with at most one between them."""


def read_question(text: str) -> Question:
    """Read a question. Names and pairs are searched in its beginning only."""
    written = [word for word in (part.strip(_EDGES) for part in unicodedata.normalize("NFKC", text).split()) if word]
    text = as_sought(text)
    words = list(islice((match[0] for match in _TERM.finditer(text)), _LOOKED_AT))
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
    # The first letter of a question is often a capital.
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
