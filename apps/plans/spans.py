"""What an intent names exactly (paths, links, quotes, numbers), and the text with marks in its place. Pure text work."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from apps.plans import lexicon

_QUOTES: Final = r'"(?P<q1>[^"]{1,20000})"|“(?P<q2>[^“”]{1,20000})”|„(?P<q3>[^„“”]{1,20000})[“”]|`(?P<q4>[^`]{1,20000})`|«(?P<q5>[^«»]{1,20000})»|(?<!\w)\'(?P<q6>(?:[^\']|(?<=\w)\'(?=\w)){1,20000})\'(?!\w)'
_URL: Final = r"(?P<url>\b[a-z][a-z0-9+.-]{1,20}://[^\s<>\"']+)"
_EMAIL: Final = r"(?:(?<![\w.+-])[.+-]*(?P<email>\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b))"
_PATH: Final = r"(?P<path>(?<![\w/.])(?:~?/|\.{1,2}/|[A-Za-z]:[\\/])(?:\\ |[^\s,;:!?\"'<>|])*)"
_ROOTED: Final = re.compile(r"(?:~?/|\.{1,2}/|[A-Za-z]:[\\/])(?=[^\s/])[^\n\"<>|]*$")
_SLASH: Final = re.compile(r"[/\\]")
_FILE: Final = rf"(?P<file>(?<![\w/\\.-])[\w-]+(?:[/\\][\w.-]+)*\.(?:{'|'.join(sorted(lexicon.EXTENSIONS))})\b)"
_DATE: Final = r"(?P<date>\b\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:\d{2})?)?\b)"
_NUMBER: Final = rf"(?P<number>(?<![\w.,])-?(?:\d{{1,3}}(?:,\d{{3}})++|\d++)(?:\.\d++)?+(?:(?![\w.]*\w)|(?=(?:{'|'.join(lexicon.UNITS)})\b)))"
_SPAN: Final = re.compile("|".join((_QUOTES, _URL, _EMAIL, _PATH, _FILE, _DATE, _NUMBER)))
_BLOCK: Final = re.compile(
    r"\b(?:text|content|passage|letter|review|sentence|transcript|following|paragraph|message|story)\s*:\s+(?=[^\s\"'“„`«])",
    re.IGNORECASE,
)
MASK: Final = re.compile(r"\x02(\d+)\x03")
"""The mark in the place of something named exactly, with its number."""
_PATH_GOES_ON: Final = re.compile(
    r"(?:[ ](?P<words>[^\s/,;:!?\"'<>|]+(?:[ ][^\s/,;:!?\"'<>|]+){0,2}))??[ ]?(?P<tail>[^\s/,;:!?\"'<>|]+/[^\s,;:!?\"'<>|]*)"
)
_BARE_WORD: Final = re.compile(r"[ ](\w+)")
NAME: Final = re.compile(r"(?<=[a-z0-9,'] )[A-Z][\w'&-]*")
"""A word with a capital amid others."""
PREPOSITION: Final = re.compile(rf"\b(?:{lexicon.RELATING}|about|located|stored|that|which)\b", re.IGNORECASE)


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


def is_directory(span: Span) -> bool:
    """Is it a path whose last part has no ending, so that it may be of a place rather than of one file?"""
    return span.kind == "path" and "." not in re.split(r"[/\\]", span.value)[-1]


def masked(text: str) -> str:
    """The text with the kinds of what it names exactly in the place of their values: the rest says what is to be done."""
    return with_kinds(*mask(unicodedata.normalize("NFC", text)))


def without_names(masked: str) -> str:
    """A masked text without what is written as a name."""
    return NAME.sub(" ", masked)


def with_kinds(masked: str, spans: tuple[Span, ...]) -> str:
    """A text with marks, with the kind of each thing in the place of its mark."""
    return MASK.sub(lambda match: f" {spans[int(match[1])].kind} ", masked)


def mask(text: str) -> tuple[str, tuple[Span, ...]]:
    """A text with a mark in the place of each thing that it names exactly, and these things by their numbers."""
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
        return "path" if _is_path(value.strip()) else "quoted", value.strip(), match.end()
    if kind == "path":
        return _read_path(text, match)
    if kind == "url":
        trimmed = value.rstrip(".,;:!?)")
        return kind, trimmed, match.start() + len(trimmed)
    if kind == "number":
        return kind, value.replace(",", ""), match.end()
    return "path" if kind == "file" else kind, value, match.end()


def _is_path(quoted: str) -> bool:
    """Is it a path, which may have spaces in it, rather than words that begin with a slash?"""
    return _ROOTED.match(quoted) is not None and (" " not in quoted or len(_SLASH.findall(quoted)) > 1)


def _read_path(text: str, match: re.Match[str]) -> tuple[str, str, int]:
    """An unquoted path ends at the space, unless the words that follow lead to another slash of the same path."""
    end = match.end()
    while going := _PATH_GOES_ON.match(text, end):
        between = (going["words"] or "").casefold().split()
        if going.start() == going.end() or any(
            PREPOSITION.fullmatch(w) or w in {"and", "or", "then", "but"} for w in between
        ):
            break
        tail = going["tail"].split("/")[0].casefold()
        if (
            text[end : end + 1] != " "
            or PREPOSITION.fullmatch(tail)
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
    return word not in lexicon.STOP and not PREPOSITION.fullmatch(word) and lexicon.verb(word) is None
