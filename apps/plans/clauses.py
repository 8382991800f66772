"""An intent as clauses: what is named exactly (paths, links, quotes, numbers) is masked first, then the sentence is cut.

Pure text work. A clause keeps its verb's family, the concepts of its object, and what was said about order.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
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
    r"\b(?:do\s+not|don'?t|never|without|must\s+not|mustn'?t|but\s+not|not\s+to)\b", re.IGNORECASE
)
_CONDITION: Final = re.compile(
    r"\b(?:if|unless|whenever|in\s+case|as\s+soon\s+as|until|every\s+(?:\w+\s+)?(?:minute|hour|day|night|morning|evening|week|month|year|monday|"
    r"tuesday|wednesday|thursday|friday|saturday|sunday)|hourly|daily|weekly|monthly)\b",
    re.IGNORECASE,
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
    found = [piece for rough in _cut(masked) for piece in _prohibitions(rough)]
    clauses = (_clause(text, ordered=ordered, ban=ban, spans=spans) for text, ordered, ban in found)
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


def _cut(masked: str) -> Iterator[tuple[str, bool]]:
    """Yield (text, after the previous one) for each piece between sequencing words, stops, and `and` before a verb."""
    start, ordered = 0, False
    for match in _CUT.finditer(masked):
        if match["and"] is not None and not _begins_with_verb(masked[match.end() :]):
            continue
        yield masked[start : match.start()], ordered
        ordered = match["then"] is not None or (ordered and not masked[start : match.start()].strip(" ,"))
        start = match.end()
    yield masked[start:], ordered


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


def _prohibitions(piece: tuple[str, bool]) -> Iterator[tuple[str, bool, str]]:
    text, ordered = piece
    ban = _NEVER.search(text)
    if ban is None:
        yield text, ordered, ""
        return
    if text[: ban.start()].strip(" ,"):
        yield text[: ban.start()], ordered, ""
    yield text[ban.end() :], False, ban[0]


def _clause(text: str, *, ordered: bool, ban: str, spans: tuple[Span, ...]) -> Clause:
    bare = _stripped(text)
    conditional = _CONDITION.search(bare) is not None
    spoken = words(_MASK.sub(" ", bare))
    family = _family(spoken)
    object_text = bare[_first_word_end(bare) :] if family else bare
    head, rest = _head_and_rest(object_text)
    return Clause(
        number=0,
        text=_unmask(bare, spans),
        verb=family,
        head=head,
        rest=rest,
        words=tuple(spoken),
        spans=tuple(_situated(bare, spans)),
        after_previous=ordered,
        forbidden=bool(ban),
        conditional=conditional,
        circumstance=family is None and _CIRCUMSTANCE.match(bare) is not None and not _has_verb(spoken),
        values=_values(bare, spoken),
        masked=_kinds(bare, spans),
        written=f"{ban} {_MASK.sub(lambda match: spans[int(match[1])].written, bare)}".strip(),
    )


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
