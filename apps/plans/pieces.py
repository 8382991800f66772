"""An intent cut into pieces at its stops and joining words, with what reaches from one piece into the next. Pure text work."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from apps.core.lexical import words
from apps.plans import lexicon
from apps.plans.phrases import GIVES_REASON, PHRASE
from apps.plans.spans import MASK
from apps.plans.verbs import listed

AHEAD: Final = 240
"""How far it is looked for a verb behind what joins two pieces."""
_CUT: Final = re.compile(
    r"(?P<stop>(?<=[\w\x03)\]])[.!?](?=\s|$)|;|\n+|(?<=\w):(?=\s+(?:please|can\s+you|could\s+you|i\s|we\s)))"
    r"|(?P<then>,?\s*\b(?:and\s+then|and\s+after\s+that|and\s+finally|after\s+(?:that|which|this)|afterwards|thereafter|subsequently|finally|then|followed\s+by|before)\b,?)"
    r"|(?P<but>,?\s*\b(?:but|instead)\b(?:\s+(?:rather|instead|only|just))?,?\s+)|(?P<only>,\s*(?:only|just)\s+)"
    r"|(?P<and>,?\s*(?:\band\b|\bas\s+well\s+as\b|\bplus\b|&)\s+(?:also\s+)?|,\s+(?:also\s+)?)",
    re.IGNORECASE,
)
_LEAD: Final = re.compile(
    r"^(?:please|kindly|hey|hi|hello|ok(?:ay)?|so|also|first(?:ly)?|next|secondly|lastly|now|just|and|then|"
    r"(?:do\s+you\s+think\s+)?(?:(?:can|could|would|will)\s+(?:you|somebody|someone)|you\s+(?:could|can)(?=.*\?\s*$))(?:\s+(?:please|kindly|perhaps|maybe|possibly))?(?:\s+mind)?|"
    r"(?:i|we)(?:['\u2019]d|\s+would)\s+(?:(?:really|very\s+much)\s+)?(?:like|love|prefer|appreciate)(?:\s+(?:it\s+if\s+)?you(?:\s+could)?)?(?:\s+to\b|(?=\s+\w+ing\b))|"
    r"(?:i|we)\s+(?:want|need|have|wish)(?:\s+you)?\s+to|(?:i\s+was|i['\u2019]m|i\s+am|we\s+were|we\s+are)\s+(?:wondering|hoping)\s+(?:if\s+|that\s+)?you\s+(?:could|can|would)|"
    r"(?:i['\u2019]m|i\s+am|we['\u2019]re|we\s+are)\s+(?:trying|looking|going)\s+to|(?:i['\u2019]m|i\s+am|we['\u2019]re|we\s+are)(?=\s+(?:looking|searching)\s+for\b)|"
    r"(?:is|would)\s+it\s+(?:be\s+)?possible\s+(?:for\s+you\s+)?to|(?:are\s+you|be)\s+able\s+to|be\s+so\s+(?:kind|good)\s+(?:as\s+to|and)|do\s+me\s+a\s+favou?r\s+and|go\s+ahead\s+and|help\s+me(?:\s+to)?|let(?:'s|\s+us)|your\s+task\s+is\s+to|you\s+should|try\s+to|go\s+and|to)\b[\s,:]*",
    re.IGNORECASE,
)
_NEVER: Final = re.compile(
    r"\b(?:(?:do|does|must|should|shall|may|need|(?:you|one|they)\s+(?:can|could|will|would))\s*(?:not|n['\u2019]?t)\b|never\b|without\b(?!\s+(?:the|its|their|those|these)\s)|but\s+not\b|not\s+to\b"
    r"|(?:not|n['\u2019]t)\s+(?:allowed|permitted|supposed|meant)\b|instead\s+of\b|rather\s+than\b|no\s+need\s+to\b|neither\b|nor\b"
    r"|(?:under|in|on|by)\s+no\s+(?:circumstances?|means|account|case)\b|forbid(?:s|den)?\b|prohibit(?:s|ed)?\b|disallow(?:s|ed)?\b"
    r"|(?:is|be)\s+(?:\w+\s+)?(?:wrong|unwise|illegal|dangerous|a\s+mistake)\s+to\b)"
    r"|(?:^|\b(?:and|but|or|please|must|should|to)\s|,)\s*(?:avoid|refrain\s+from|abstain\s+from|beware\s+of)\b|^\W*(?:nobody|no[ -]one)\b",
    re.IGNORECASE,
)
_FORBIDS: Final = re.compile(r"\W*(?:please\W+)?(?:do\s+not|don['\u2019]?t|never)\b", re.IGNORECASE)
"""How somebody is told not to do something: what is just to be done instead may follow."""
_REACHES_NOT: Final = re.compile(r"without|instead|rather|but", re.IGNORECASE)
"""How a ban begins that rules out what it names and no more; others reach to the end of the sentence."""
CONDITION: Final = re.compile(
    r"\b(?:if|unless|whenever|in\s+(?:the\s+|any\s+)?case|in\s+the\s+event|as\s+soon\s+as|(?:as|so)\s+long\s+as|until|otherwise|depending\s+on|on\s+(?:the\s+)?condition"
    r"|(?:provided|providing|assuming|supposing)\s+(?:that|the|he|she|it|they|we|you|i)|every\s+(?:\w+\s+)?(?:minute|hour|day|night|morning|evening|week|month|year|monday|"
    r"tuesday|wednesday|thursday|friday|saturday|sunday)|(?:hourly|daily|weekly|monthly)(?=\W*$|,|\s+(?:at|on|in|from|until)\b))\b"
    r"|^(?:hourly|daily|weekly|monthly)\b"
    r"|^(?:when|once)\b(?!\s+(?:(?:you|it|that|this|they|all|everything)\b\W*(?:(?:s|re|is|are|has|have)\b\s*)?(?:been\s+)?)?(?:done|finished|completed?|ready)\b)"
    r"|^(?:should|were|had)\s|^(?:only\s+)?after\s+(?!(?:that|which|this)\b)(?:[\w'\u2019-]+\s+){1,4}?(?:has|have|had|is|are|was|were)\b",
    re.IGNORECASE,
)
COURTESY: Final = re.compile(
    r"\bif\s+(?:(?:at\s+all\s+)?possible|you\s+(?:can|could|please|like|want|wish|will|would|may|have\s+(?:the\s+|a\s+)?(?:time|minute|moment)"
    r"|(?:don['\u2019]?t|do\s+not|wouldn['\u2019]?t)\s+mind)|need(?:ed)?(?:\s+be)?|necessary)\b",
    re.IGNORECASE,
)
"""Conditions that only ask kindly, where nothing is changed."""
_SUBJECT: Final = re.compile(
    r"\s*(?P<subject>(?:(?:the|this|that|my|our)\s+)?(?:[\w-]+\s+){0,3}?(?:(?:at|in|on|under)\s+)?\x02\d+\x03)"
    r"\s+(?:is|are|was|were|has|have|had|can|could|may|might|should|must|needs?)\b(?P<said>[^\x02]{0,80})",
    re.IGNORECASE,
)
_TO_IT: Final = re.compile(r"(?:(?:so|then|please|kindly|just|now)\s+)*[a-z]+\s+(?:it|them)\b", re.IGNORECASE)
COMMANDS: Final = re.compile(
    r"[a-z][\w-]*\s+(?:the|a|an|my|our|your|his|her|their|this|these|those|all|every|each|any|some|it|them|everything)\b",
    re.IGNORECASE,
)
"""A word before an article, at the beginning: a verb, known or not."""
_NO_VERBS: Final = listed("""
    not even like unlike because since unless until whenever where what that except plus besides despite once
    only respectively instead always never perhaps maybe quite half
    """)
"""Words that stand before an article as well, and are none."""
_ASKS: Final = frozenset({"to", "and", "please", "you", "then", "i", "we"})
DEFERRED: Final = re.compile(
    r"\b(?:when|once|after|before|upon|only\s+(?:with|by|at)|provided|with\s+(?:my|our|his|her|their|your)\s+(?:approval|consent|permission)|as\s+long|(?:in|for|after)\s+an?\s+(?:\w+\s+)?while)\b",
    re.IGNORECASE,
)
"""What in a wish that changes the world lets it wait for something."""
_EMBEDS: Final = re.compile(
    r"\b(?:how|why|whether|what|who|whom|whose|where)\b|\b(?:said|says|told|asked|asks|wants|wanted|thinks|thought|believes|claims|claimed|"
    r"wrote|suggests|suggested|recommends|recommended|proposed|ordered|demanded|insists)\b",
    re.IGNORECASE,
)
_OWN_WORD: Final = re.compile(r"\b(?:i|we)\s+(?:\w+\s+)?$", re.IGNORECASE)
_STATES: Final = re.compile(
    r"\b(?:is|are|was|were|be|has|have|had|may|might|can|could|must|should|shall|will|would)\b", re.IGNORECASE
)
_TAKES_BACK: Final = re.compile(
    r"(?:(?:oh|no|nope|wait|sorry|actually|hmm|well|but|please|or(?:\s+rather)?|(?:on|upon)\s+(?:second|reflection)(?:\s+thoughts?)?)\b[\s,.\u2026-]*)*"
    r"(?P<said>no|nope|(?:do\s+not|don['\u2019]?t)(?:\s+bother)?|never\s*mind(?:\s+(?:that|this|it))?|(?:scratch|cancel|forget|ignore|disregard|skip|strike)\s+(?:that|this|it|about\s+(?:that|it)|(?:the|what\s+i)\s+\w+)"
    r"|(?:i\s+(?:was|am)|i['\u2019]m)?\s*(?:just|only)\s+(?:kidding|joking)|(?:i\s+(?:was|am)|i['\u2019]m)\s+(?:kidding|joking)|kidding|joking"
    r"|(?:that|this|it)\s*(?:was|is|['\u2019]s)\s+(?:just\s+|only\s+)?an?\s+(?:joke|mistake|example|test|typo)|i\s+(?:have\s+)?changed\s+my\s+mind)",
    re.IGNORECASE,
)
"""A sentence that takes back what was asked for before it."""
_POLITE: Final = re.compile(r"\b(?:can|could|would|will)\s+(?:you|somebody|someone)\b|\bplease\b", re.IGNORECASE)
ARTICLES: Final = frozenset(
    {"the", "a", "an", "my", "our", "your", "his", "her", "their", "this", "that", "some", "of"}
)
_OPENS: Final = re.compile(rf"\W*(?:{lexicon.RELATING}|{lexicon.RELATING_TOO}|after|before|upon)\b", re.IGNORECASE)
"""How a phrase begins that may stand before the verb: on Windows, run the tests."""
_TAKES: Final = re.compile(r"\W*(?:please\s+)?take\s+[^\x02]{0,80}\x02\d+\x03\W*$", re.IGNORECASE)
"""What is only named by it, for the part after it: take the photo PATH and resize it."""
INTRODUCED: Final = re.compile(
    r",?\s*\b(?:whose\s+(?:e-?mail\s+)?(?:address|path|location|link)\s+is"
    r"|(?:that|which)\s+(?:(?:is|are|lies?)\s+(?:(?!(?:no|not|never|hardly|barely)\b)\w+\s+){0,2}(?:at|in|inside|within|under|on)|says?|reads?|states?))\s*:?\s*(?=\x02)",
    re.IGNORECASE,
)
"""What only brings in what is named exactly: whose address is ADDRESS, that lies in PATH, which says TEXT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What stands between two cuts, with how it hangs together with what came before it in its sentence."""

    text: str
    ordered: bool = False
    opens: bool = True
    """Does a sentence, or a contrast, begin with it?"""
    joined: bool = False
    """Is it joined by a bare `and`, so that it may belong to whatever the piece before is about?"""
    in_list: bool = False
    """Is it a line of a list under the line before?"""
    asks: bool = False
    """Does a question mark end it?"""
    opening: str = ""
    """A phrase before its verb, set off by a comma."""
    later: bool = False
    """Is it to be done after what follows: before you do this, do that?"""
    ban: str = ""
    """The word before it that rules it out as well."""
    doubt: str = ""


def cut_up(masked: str) -> Iterator[Piece]:
    """Yield each piece between sequencing words, stops, and `and` or `but` before a verb."""
    start, ordered, opens, joined, in_list, opening, later = 0, False, True, False, False, "", False
    for match in _CUT.finditer(masked):
        following = masked[match.end() : match.end() + AHEAD]
        if (match["and"] or match["but"] or match["only"]) is not None and not (
            begins_with_verb(following) or (match["and"] is not None and _commands(following))
        ):
            continue
        text = masked[start : match.start()]
        if match["only"] is not None and not _FORBIDS.match(text):
            continue
        if match["and"] is not None and (named := _spoken_of_before(text, following)):
            opening, start = f"{opening} {named}".strip(), match.end()
            continue
        if match["and"] is not None and _is_opening(text, is_set_off=match["and"].strip() == ","):
            opening, start = f"{opening} {text}".strip(), match.end()
            continue
        asks = (match["stop"] or "").strip() == "?"
        yield Piece(
            text=text,
            ordered=ordered,
            opens=opens,
            joined=joined,
            in_list=in_list,
            asks=asks,
            opening=opening,
            later=later,
        )
        opening = ""
        later = (
            match["then"] is not None and opens and not text.strip() and match["then"].strip().casefold() == "before"
        )
        empty = not text.strip(" ,")
        ordered = match["then"] is not None or (ordered and empty)
        opens = (match["stop"] or match["but"] or match["only"]) is not None or (opens and empty)
        joined = match["and"] is not None and not match["and"].lstrip().startswith(",")
        in_list = match["stop"] == "\n" and (in_list or text.rstrip().endswith(":"))
        start = match.end()
    asks = masked[start:].rstrip().endswith("?")
    yield Piece(
        text=masked[start:],
        ordered=ordered,
        opens=opens,
        joined=joined,
        in_list=in_list,
        asks=asks,
        opening=opening,
        later=later,
    )


def in_order(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """With what is to be done before something before it."""
    held: Piece | None = None
    for piece in pieces:
        if held is not None and not piece.opens:
            yield replace(piece, ordered=False, opens=held.opens)
            yield replace(held, ordered=True, opens=False)
            held = None
            continue
        if held is not None:
            yield held
        held = piece if piece.later else None
        if held is None:
            yield piece
    if held is not None:
        yield held


def _spoken_of_before(text: str, following: str) -> str:
    """What a plain statement names exactly, where what follows asks for something to be done to it: PATH is old, delete it."""
    found = _SUBJECT.fullmatch(text)
    if found is None or not _TO_IT.match(following):
        return ""
    restricts = (CONDITION, _NEVER, DEFERRED, _EMBEDS, PHRASE)
    if any(one.search(found["said"]) for one in restricts) or lexicon.TIMES.intersection(words(found["said"])):
        return ""
    return found["subject"]


def _is_opening(text: str, *, is_set_off: bool) -> bool:
    """Does it only name something for the verb after it, or is it a phrase with a preposition and no verb, or mere kindness?"""
    if _TAKES.match(text):
        return True
    if not is_set_off:
        return False
    if COURTESY.fullmatch(stripped(text)):
        return True
    begins = _OPENS.match(text)
    if begins is None or any(one.search(text.strip()) for one in (_STATES, CONDITION, _NEVER)):
        return False
    spoken = words(MASK.sub(" ", text))
    return not (spoken[0] == "as" and GIVES_REASON.match(text, begins.end())) and not has_verb(spoken)


def situated_pieces(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Add what reaches from one piece into the next: a ban, what somebody else says, what is only spoken of."""
    pieces = tuple(pieces)
    back, said = max(
        ((place, said) for place, piece in enumerate(pieces) if (said := _taken_back(piece))), default=(0, "")
    )
    ban, about, polite = "", "", False
    for place, piece in enumerate(pieces):
        if piece.opens and not piece.in_list:
            ban, about, polite = "", "", False
        polite = polite or _POLITE.search(piece.text) is not None
        doubt = _doubt(piece, about if piece.joined else "", polite=polite)
        if place < back:
            doubt = f"it is taken back with {said!r}"
        yield replace(piece, ban=ban, doubt=doubt)
        own = _NEVER.search(piece.text)
        if own is not None and not _REACHES_NOT.match(own[0].strip(" ,")):
            ban = own[0].strip(" ,")
        about = about or _spoken_of(piece.text)


def _taken_back(piece: Piece) -> str:
    """The words by which a piece takes back what came before it: a bare ban is such, unless a list comes below it."""
    bare = piece.text.strip(" \t,.!?-()\u2026\u2013\u2014")
    found = _NEVER.fullmatch(bare) or _TAKES_BACK.fullmatch(bare)
    return found[0] if found else ""


def _spoken_of(text: str) -> str:
    """The word of a piece that makes it speak of deeds rather than ask for them."""
    for found in _EMBEDS.finditer(text):
        if not _OWN_WORD.search(text[: found.start()]):
            return found[0]
    bare = stripped(text)
    states = None if begins_with_verb(bare) else _STATES.search(bare)
    return states[0] if states else ""


def _doubt(piece: Piece, about: str, *, polite: bool) -> str:
    if piece.asks and not polite:
        return "it is put as a question"
    if about:
        return f"it may belong to what is said with {about!r} before"
    text = INTRODUCED.sub(" at ", piece.text)
    told = next((one for one in _EMBEDS.finditer(text) if not _OWN_WORD.search(text[: one.start()])), None)
    return f"it is spoken of with {told[0]!r}" if told else ""


def begins_with_verb(text: str) -> bool:
    """Does it begin with a verb that is known, or with a ban, kindnesses aside?"""
    lead = words(stripped(text)[:60])
    if not lead:
        return False
    if _NEVER.match(stripped(text)):
        return True
    return lexicon.verb(lead[0]) is not None and not lead[0].endswith("ing")


def _commands(text: str) -> bool:
    """Does it begin with a word that can only be a verb, though none that is known: a small one before an article?"""
    found = COMMANDS.match(text)
    word = words(text[:60])[:1]
    if found is None or text[:1].isupper() or not word:
        return False
    return (
        word[0] not in lexicon.STOP | _NO_VERBS
        and not PHRASE.fullmatch(word[0])
        and not word[0].endswith(("ly", "ing", "s"))
    )


def stripped(text: str) -> str:
    """A text without the kindnesses and joining words that lead in a wish."""
    bare = text.strip(" \t,.:;!?-*•")
    while shorter := _LEAD.match(bare):
        bare = bare[shorter.end() :]
    return bare


def prohibitions(piece: Piece) -> Iterator[Piece]:
    """A piece parted at a ban in it: what is asked for before that, and what is ruled out."""
    ban = _NEVER.search(piece.text)
    if ban is None:
        yield piece
        return
    said, ruled_out = piece.text[: ban.start()], piece.text[ban.end() :]
    if not ruled_out.strip(" ,.!"):
        yield replace(piece, ban=piece.ban or ban[0].strip(" ,"))
        return
    if said.strip(" ,"):
        yield replace(piece, text=said)
    yield replace(piece, text=ruled_out, ordered=False, ban=ban[0].strip(" ,"))


def has_verb(spoken: list[str]) -> bool:
    """Is anything in there a verb by its place, rather than a noun behind its article?"""
    pairs = itertools.pairwise(spoken)
    return any(
        before not in ARTICLES and lexicon.FAMILY_OF_VERB.get(word) and (word not in lexicon.TWOFOLD or before in _ASKS)
        for before, word in pairs
    )
