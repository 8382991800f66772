"""An intent as clauses: what is named exactly (paths, links, quotes, numbers) is masked first, then the sentence is cut.

Pure text work. A clause keeps its verb's family, the concepts of its object, and what was said about order.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from apps.core.lexical import words
from apps.plans import lexicon

_QUOTES: Final = r'"(?P<q1>[^"]{1,20000})"|“(?P<q2>[^“”]{1,20000})”|„(?P<q3>[^„“”]{1,20000})[“”]|`(?P<q4>[^`]{1,20000})`|«(?P<q5>[^«»]{1,20000})»|(?<!\w)\'(?P<q6>[^\']{1,20000})\'(?!\w)'
_URL: Final = r"(?P<url>\b[a-z][a-z0-9+.-]{1,20}://[^\s<>\"']+)"
_EMAIL: Final = r"(?P<email>\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b)"
_PATH: Final = r"(?P<path>(?<![\w/.])(?:~?/|\.{1,2}/|[A-Za-z]:[\\/])(?:\\ |[^\s,;:!?\"'<>|])*)"
_FILE: Final = rf"(?P<file>(?<![\w/.])[\w-]+(?:[/\\][\w.-]+)*\.(?:{'|'.join(sorted(lexicon.EXTENSIONS))})\b)"
_DATE: Final = r"(?P<date>\b\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:\d{2})?)?\b)"
_NUMBER: Final = r"(?P<number>(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w))"
_SPAN: Final = re.compile("|".join((_QUOTES, _URL, _EMAIL, _PATH, _FILE, _DATE, _NUMBER)))

_BLOCK: Final = re.compile(
    r"\b(?:text|content|passage|letter|review|sentence|transcript|following|paragraph|message|story)\s*:\s+(?=[^\s\"'“„`«])",
    re.IGNORECASE,
)

_MASK: Final = re.compile(r"\x02(\d+)\x03")
_PATH_GOES_ON: Final = re.compile(
    r"(?:[ ](?P<words>[^\s/,;:!?\"'<>|]+(?:[ ][^\s/,;:!?\"'<>|]+){0,2}))??[ ]?(?P<tail>[^\s/,;:!?\"'<>|]+/[^\s,;:!?\"'<>|]*)"
)
_NEAR: Final = 120
"""How far around a span its neighbouring words are looked for."""

_BARE_WORD: Final = re.compile(r"[ ](\w+)")

_CUT: Final = re.compile(
    r"(?P<stop>(?<=[\w\x03)\]])[.!?](?=\s|$)|;|\n+|(?<=\w):(?=\s+(?:please|can\s+you|could\s+you|i\s|we\s)))"
    r"|(?P<then>,?\s*\b(?:and\s+then|and\s+after\s+that|and\s+finally|after\s+(?:that|which|this)|afterwards|thereafter|subsequently|finally|then|followed\s+by|before)\b,?)"
    r"|(?P<but>,?\s*\b(?:but|instead)\b(?:\s+(?:rather|instead|only|just))?,?\s+)"
    r"|(?P<and>,?\s*(?:\band\b|\bas\s+well\s+as\b|\bplus\b|&)\s+(?:also\s+)?|,\s+(?:also\s+)?)",
    re.IGNORECASE,
)
_LEAD: Final = re.compile(
    r"^(?:please|kindly|hey|hi|hello|ok(?:ay)?|so|also|first(?:ly)?|next|secondly|lastly|now|just|and|then|"
    r"(?:can|could|would|will)\s+you(?:\s+please)?|i(?:'d|\s+would)\s+like(?:\s+you)?\s+to|i\s+(?:want|need|have)(?:\s+you)?\s+to|"
    r"we\s+(?:want|need)(?:\s+you)?\s+to|help\s+me(?:\s+to)?|let(?:'s|\s+us)|your\s+task\s+is\s+to|you\s+should|try\s+to|go\s+and|to)\b[\s,:]*",
    re.IGNORECASE,
)
_NEVER: Final = re.compile(
    r"\b(?:(?:do|does|must|should|shall|may|need|(?:you|one|they)\s+(?:can|could|will|would))\s*(?:not|n['\u2019]?t)\b|never\b|without\b|but\s+not\b|not\s+to\b"
    r"|(?:not|n['\u2019]t)\s+(?:allowed|permitted|supposed|meant)\b|instead\s+of\b|rather\s+than\b|no\s+need\s+to\b|neither\b|nor\b"
    r"|(?:under|in|on|by)\s+no\s+(?:circumstances?|means|account|case)\b|forbid(?:s|den)?\b|prohibit(?:s|ed)?\b|disallow(?:s|ed)?\b"
    r"|(?:is|be)\s+(?:\w+\s+)?(?:wrong|unwise|illegal|dangerous|a\s+mistake)\s+to\b)"
    r"|(?:^|\b(?:and|but|or|please|must|should|to)\s|,)\s*(?:avoid|refrain\s+from|abstain\s+from|beware\s+of)\b|^\W*(?:nobody|no[ -]one)\b",
    re.IGNORECASE,
)
_REACHES_NOT: Final = re.compile(r"without|instead|rather|but", re.IGNORECASE)
"""How a ban begins that rules out what it names and no more; others reach to the end of the sentence."""
_CONDITION: Final = re.compile(
    r"\b(?:if|unless|whenever|in\s+(?:the\s+|any\s+)?case|in\s+the\s+event|as\s+soon\s+as|(?:as|so)\s+long\s+as|until|otherwise|depending\s+on|on\s+(?:the\s+)?condition"
    r"|(?:provided|providing|assuming|supposing)\s+(?:that|the|he|she|it|they|we|you|i)|every\s+(?:\w+\s+)?(?:minute|hour|day|night|morning|evening|week|month|year|monday|"
    r"tuesday|wednesday|thursday|friday|saturday|sunday)|(?:hourly|daily|weekly|monthly)(?=\W*$|,|\s+(?:at|on|in|from|until)\b))\b"
    r"|^(?:hourly|daily|weekly|monthly)\b"
    r"|^(?:when|once)\b(?!\s+(?:(?:you|it|that|this|they|all|everything)\b\W*(?:(?:s|re|is|are|has|have)\b\s*)?(?:been\s+)?)?(?:done|finished|completed?|ready)\b)"
    r"|^(?:should|were|had)\s|^(?:only\s+)?after\s+(?!(?:that|which|this)\b)(?:[\w'\u2019-]+\s+){1,4}?(?:has|have|had|is|are|was|were)\b",
    re.IGNORECASE,
)
_DEFERRED: Final = re.compile(
    r"\b(?:when|once|after|before|upon|only\s+(?:with|by|at)|provided|with\s+(?:my|our|his|her|their|your)\s+(?:approval|consent|permission)|as\s+long)\b",
    re.IGNORECASE,
)
"""What in a wish that changes the world lets it wait for something."""
_EXCEPTION: Final = re.compile(
    r"\b(?:except(?:ing|ions?)?|excluding|(?:apart|aside)\s+from|other\s+than|besides|save\s+for|not|"
    r"(?:all|each|any\w*|every\w*|no\w*)\b[^.;]{0,80}?\bbut)\b",
    re.IGNORECASE,
)
_EMBEDS: Final = re.compile(
    r"\b(?:how|why|whether|what|who|whom|whose|where)\b|\b(?:said|says|told|asked|asks|wants|wanted|thinks|thought|believes|claims|claimed|"
    r"wrote|suggests|suggested|recommends|recommended|proposed|ordered|demanded|insists)\b",
    re.IGNORECASE,
)
_OWN_WORD: Final = re.compile(r"\b(?:i|we)\s+(?:\w+\s+)?$", re.IGNORECASE)
_STATES: Final = re.compile(
    r"\b(?:is|are|was|were|be|has|have|had|may|might|can|could|must|should|shall|will|would)\b", re.IGNORECASE
)
_POLITE: Final = re.compile(r"\b(?:can|could|would|will)\s+you\b|\bplease\b", re.IGNORECASE)
_TO_BE: Final = re.compile(
    r"\b(?:must|should|shall|(?:need|needs|has|have|is|are)\s+to)\s+be\s+(?P<done>[a-z]+)\b", re.IGNORECASE
)
_CIRCUMSTANCE: Final = re.compile(
    r"(?:(?:i|we|he|she|they|there|here|this|it)\s*(?:have|has|had|'ve|is|are|was|were|am|'m|'s)|since|because|as|for|given|while|although|though|due\s+to|in\s+order|during|regarding|considering|after|with|on|at|in)\b",
    re.IGNORECASE,
)
"""How a clause begins that tells what there is, why or when, and asks for nothing."""
_ARTICLES: Final = frozenset(
    {"the", "a", "an", "my", "our", "your", "his", "her", "their", "this", "that", "some", "of"}
)
_NAMED: Final = re.compile(r"(?<=[a-z0-9,'] )[A-Z][\w'&-]*")
_PREPOSITION: Final = re.compile(
    r"\b(?:at|in|on|from|for|of|to|with|into|onto|under|inside|within|by|about|against|using|via|located|stored|as|that|which)\b",
    re.IGNORECASE,
)
_OF: Final = re.compile(r"\bof\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something named exactly, with the words before it and after it."""

    number: int
    kind: str
    value: str
    written: str = ""
    """As it stands in the intent, with its quotation marks."""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    doubtful: bool = False


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
    values: frozenset[str] = frozenset()
    """Concepts that are values rather than matter: names, times."""
    masked: str = ""
    """The text with the kinds of what it names exactly in the place of their values."""
    written: str = ""
    """The text as it stands in the intent: with quotation marks, and with the word that rules it out."""

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
        return _kinds(self.text, self.spans)


def read(intent: str) -> Reading:
    """Cut an intent into its clauses."""
    masked, spans = _mask(unicodedata.normalize("NFC", intent))
    found = [part for piece in _situated_pieces(_cut(masked)) for part in _prohibitions(piece)]
    clauses = (_clause(part, spans) for part in found)
    kept = [clause for clause in clauses if clause.words or clause.spans]
    return Reading(tuple(_numbered(clause, number) for number, clause in enumerate(kept)), masked, spans)


def masked(text: str) -> str:
    """The text with the kinds of what it names exactly in the place of their values: the rest says what is to be done."""
    return _kinds(*_mask(unicodedata.normalize("NFC", text)))


def without_names(masked: str) -> str:
    """A masked text without what is written as a name."""
    return _NAMED.sub(" ", masked)


def _kinds(masked: str, spans: tuple[Span, ...]) -> str:
    return _MASK.sub(lambda match: f" {spans[int(match[1])].kind} ", masked)


def _numbered(clause: Clause, number: int) -> Clause:
    return Clause(
        number=number,
        text=clause.text,
        verb=clause.verb,
        head=clause.head,
        rest=clause.rest,
        words=clause.words,
        spans=clause.spans,
        after_previous=clause.after_previous and number > 0,
        forbidden=clause.forbidden,
        conditional=clause.conditional,
        circumstance=clause.circumstance,
        doubt=clause.doubt,
        exception=clause.exception,
        values=clause.values,
        masked=clause.masked,
        written=clause.written,
    )


def _mask(text: str) -> tuple[str, tuple[Span, ...]]:
    out: list[str] = []
    spans: list[Span] = []
    at = 0
    text = text.replace("\x02", " ").replace("\x03", " ")
    block = _BLOCK.search(text)
    while match := _SPAN.search(text, at):
        if block is not None and block.end() <= match.start():
            break
        kind, value, end = _read_span(text, match)
        out.append(text[at : match.start()])
        if value:
            out.append(f"\x02{len(spans)}\x03")
            doubtful = kind == "path" and _runs_into_word(text, end)
            written = text[match.start() : end]
            spans.append(Span(number=len(spans), kind=kind, value=value, written=written, doubtful=doubtful))
        else:
            out.append(text[match.start() : end])
        at = end
        if block is not None and block.start() < at:
            block = _BLOCK.search(text, at)
    if block is not None:
        value = text[block.end() :].strip()
        spans.append(Span(number=len(spans), kind="quoted", value=value, written=value))
        return "".join([*out, text[at : block.end()], f"\x02{len(spans) - 1}\x03"]), tuple(spans)
    return "".join([*out, text[at:]]), tuple(spans)


def _read_span(text: str, match: re.Match[str]) -> tuple[str, str, int]:
    kind, value = next((name, value) for name, value in match.groupdict().items() if value is not None)
    if kind.startswith("q"):
        return "quoted", value.strip(), match.end()
    if kind == "path":
        return _read_path(text, match)
    if kind == "url":
        trimmed = value.rstrip(".,;:!?)")
        return kind, trimmed, match.start() + len(trimmed)
    return "path" if kind == "file" else kind, value, match.end()


def _read_path(text: str, match: re.Match[str]) -> tuple[str, str, int]:
    """An unquoted path ends at the space, unless the words that follow lead to another slash of the same path."""
    end = match.end()
    while going := _PATH_GOES_ON.match(text, end):
        between = (going["words"] or "").casefold().split()
        if going.start() == going.end() or any(
            _PREPOSITION.fullmatch(w) or w in {"and", "or", "then", "but"} for w in between
        ):
            break
        tail = going["tail"].split("/")[0].casefold()
        if (
            text[end : end + 1] != " "
            or _PREPOSITION.fullmatch(tail)
            or tail.endswith(":")
            or tail in {".", "..", "~", "and", "or"}
        ):
            break
        end = going.end()
    value = text[match.start() : end].rstrip(".,;:!?)")
    end = match.start() + len(value)
    if value in {"/", "~", "~/"} and text[end : end + 1].isalnum():
        return "path", "", end
    return "path", value.replace("\\ ", " "), end


def _runs_into_word(text: str, end: int) -> bool:
    following = _BARE_WORD.match(text, end)
    if following is None:
        return False
    word = following[1].casefold()
    return word not in lexicon.STOP and not _PREPOSITION.fullmatch(word) and lexicon.verb(word) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
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
    ban: str = ""
    """The word before it that rules it out as well."""
    doubt: str = ""


def _cut(masked: str) -> Iterator[_Piece]:
    """Yield each piece between sequencing words, stops, and `and` or `but` before a verb."""
    start, ordered, opens, joined, in_list = 0, False, True, False, False
    for match in _CUT.finditer(masked):
        if (match["and"] or match["but"]) is not None and not _begins_with_verb(masked[match.end() :]):
            continue
        text = masked[start : match.start()]
        asks = (match["stop"] or "").strip() == "?"
        yield _Piece(text=text, ordered=ordered, opens=opens, joined=joined, in_list=in_list, asks=asks)
        empty = not text.strip(" ,")
        ordered = match["then"] is not None or (ordered and empty)
        opens = match["stop"] is not None or match["but"] is not None or (opens and empty)
        joined = match["and"] is not None and not match["and"].lstrip().startswith(",")
        in_list = match["stop"] == "\n" and (in_list or text.rstrip().endswith(":"))
        start = match.end()
    asks = masked[start:].rstrip().endswith("?")
    yield _Piece(text=masked[start:], ordered=ordered, opens=opens, joined=joined, in_list=in_list, asks=asks)


def _situated_pieces(pieces: Iterable[_Piece]) -> Iterator[_Piece]:
    """Add what reaches from one piece into the next: a ban, what somebody else says, what is only spoken of."""
    ban, about, polite = "", "", False
    for piece in pieces:
        if piece.opens and not piece.in_list:
            ban, about, polite = "", "", False
        polite = polite or _POLITE.search(piece.text) is not None
        doubt = _doubt(piece, about if piece.joined else "", polite=polite)
        yield replace(piece, ban=ban, doubt=doubt)
        own = _NEVER.search(piece.text)
        if own is not None and not _REACHES_NOT.match(own[0].strip(" ,")):
            ban = own[0].strip(" ,")
        about = about or _spoken_of(piece.text)


def _spoken_of(text: str) -> str:
    """The word of a piece that makes it speak of deeds rather than ask for them."""
    for found in _EMBEDS.finditer(text):
        if not _OWN_WORD.search(text[: found.start()]):
            return found[0]
    bare = _stripped(text)
    states = None if _begins_with_verb(bare) else _STATES.search(bare)
    return states[0] if states else ""


def _doubt(piece: _Piece, about: str, *, polite: bool) -> str:
    if piece.asks and not polite:
        return "it is put as a question"
    if about:
        return f"it may belong to what is said with {about!r} before"
    told = next((one for one in _EMBEDS.finditer(piece.text) if not _OWN_WORD.search(piece.text[: one.start()])), None)
    return f"it is spoken of with {told[0]!r}" if told else ""


def _begins_with_verb(text: str) -> bool:
    lead = words(_stripped(text)[:60])
    if not lead:
        return False
    if _NEVER.match(_stripped(text)):
        return True
    return lexicon.verb(lead[0]) is not None and not lead[0].endswith("ing")


def _stripped(text: str) -> str:
    bare = text.strip(" \t,.:;!?-*•")
    while shorter := _LEAD.match(bare):
        bare = bare[shorter.end() :]
    return bare


def _prohibitions(piece: _Piece) -> Iterator[_Piece]:
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


def _clause(piece: _Piece, spans: tuple[Span, ...]) -> Clause:
    bare = _stripped(piece.text)
    spoken = words(_MASK.sub(" ", bare))
    family = _family(spoken)
    object_text = bare[_first_word_end(bare) :] if family else bare
    to_be = None if family else _TO_BE.search(bare)
    if to_be is not None:
        family, object_text = _participle(to_be["done"].casefold()), bare[: to_be.start()]
    head, rest = _head_and_rest(object_text)
    exception = _EXCEPTION.search(bare)
    conditional = _CONDITION.search(bare) is not None
    doubt = piece.doubt
    if not doubt and family in lexicon.MUTATING and (waits := _DEFERRED.search(bare)):
        doubt = f"it waits for something: {waits[0]!r}"
    return Clause(
        number=0,
        text=_unmask(bare, spans),
        verb=family,
        head=head,
        rest=rest,
        words=tuple(spoken),
        spans=tuple(_situated(bare, spans)),
        after_previous=piece.ordered,
        forbidden=bool(piece.ban),
        conditional=conditional,
        circumstance=family is None and _CIRCUMSTANCE.match(bare) is not None and not _has_verb(spoken),
        doubt=doubt,
        exception=exception[0] if exception else "",
        values=_values(bare, spoken),
        masked=_kinds(bare, spans),
        written=f"{piece.ban} {_MASK.sub(lambda match: spans[int(match[1])].written, bare)}".strip(),
    )


def _participle(done: str) -> str:
    """The family of what is to be done to something; a word of no family stands for itself."""
    bases = (done, done.removesuffix("d"), done.removesuffix("ed"), done.removesuffix("ed")[:-1])
    return next((lexicon.FAMILY_OF_VERB[base] for base in bases if base in lexicon.FAMILY_OF_VERB), done)


def _family(spoken: list[str]) -> str | None:
    """The family of a clause's verb: its first word. To turn one thing into another is to convert it."""
    family = lexicon.verb(spoken[0]) if spoken else None
    return "convert" if family == "turn" and "into" in spoken else family


def _has_verb(spoken: list[str]) -> bool:
    """Is anything in there a verb by its place, rather than a noun behind its article?"""
    pairs = itertools.pairwise(spoken)
    return any(before not in _ARTICLES and lexicon.FAMILY_OF_VERB.get(word) for before, word in pairs)


def _values(text: str, spoken: list[str]) -> frozenset[str]:
    """What is written as a name, within the clause, and words of time."""
    names = [word for name in _NAMED.findall(_MASK.sub(" , ", text)) for word in words(name)]
    return frozenset(lexicon.concept(word) for word in (*names, *lexicon.TIMES.intersection(spoken)))


def _first_word_end(text: str) -> int:
    match = re.search(r"[^\W_]+", _MASK.sub(lambda found: " " * len(found[0]), text))
    return match.end() if match else 0


def _head_and_rest(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The head is what the wish is about: up to the first preposition, `of` passed over."""
    plain = _MASK.sub(" ", text)
    for found in _PREPOSITION.finditer(plain):
        if _OF.fullmatch(found[0]) or not lexicon.concepts(plain[: found.start()]):
            continue
        return tuple(lexicon.concepts(plain[: found.start()])), tuple(lexicon.concepts(plain[found.end() :]))
    return tuple(lexicon.concepts(plain)), ()


def _situated(text: str, spans: tuple[Span, ...]) -> Iterator[Span]:
    for match in _MASK.finditer(text):
        span = spans[int(match[1])]
        before = words(_MASK.sub(" ", text[max(match.start() - _NEAR, 0) : match.start()]))[-3:]
        after = words(_MASK.sub(" ", text[match.end() : match.end() + _NEAR]))[:2]
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
    return _MASK.sub(lambda match: spans[int(match[1])].value, text).strip()
