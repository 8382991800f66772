"""Kinds of matter: text, pictures, sound, moving pictures, tables. What a tool takes and gives, and what a wish speaks of.

A kind is read off words and file endings; what names none has none, and meets everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from apps.core.lexical import stem, words

TEXT: Final = "text"

_WORDS: Final = {
    "image": "image picture photo photograph photography drawing sketch painting portrait screenshot artwork illustration scene"
    " visual thumbnail logo selfie icon",
    "audio": "audio speech voice sound music song recording podcast melody tune track narration voiceover spoken soundtrack",
    "video": "video movie clip film footage animation slideshow",
    "text": "text sentence paragraph article essay story poem passage summary caption description prompt transcript script"
    " paper document review letter words writing note question answer topic keyword keywords",
    "table": "table spreadsheet csv tabular",
}
_ENDINGS: Final = {
    "image": "png jpg jpeg gif bmp tiff webp svg",
    "audio": "mp3 wav flac ogg m4a aac",
    "video": "mp4 avi mov mkv webm",
    "text": "txt md doc docx rtf html",
    "table": "csv xlsx xls tsv parquet",
    "document": "pdf",
}
_OF_WORD: Final = {stem(word): kind for kind, listed in _WORDS.items() for word in listed.split()}
_OF_ENDING: Final = {ending: kind for kind, listed in _ENDINGS.items() for ending in listed.split()}
MEDIA: Final = frozenset({"image", "audio", "video"})
"""The kinds that are told apart with certainty: one never stands for another."""


KNOWN: Final = frozenset(_WORDS)


@lru_cache(maxsize=65536)
def of_word(word: str) -> str | None:
    """The kind that a lower-case word names, or None."""
    return _OF_WORD.get(stem(word))


def of_words(said: Iterable[str]) -> frozenset[str]:
    """The kinds that words name."""
    return frozenset(kind for word in said if (kind := of_word(word)))


def of_file(value: str) -> str | None:
    """The kind of what a path or a link names by its ending, or None."""
    head, dot, ending = value.rstrip("/").rpartition(".")
    return _OF_ENDING.get(ending.casefold()) if dot and head else None


def is_file(value: str) -> bool:
    """Does a path name a file, by an ending that a folder's name would hardly have?"""
    return re.search(r"[/\\][^/\\\s]*\.[A-Za-z][A-Za-z0-9]{1,4}$", value) is not None


@lru_cache(maxsize=65536)
def of_name(name: str) -> str | None:
    """The kind that a param or an output field is of, by the last word of its name that names one."""
    found = [kind for word in words(name) if (kind := of_word(word))]
    return found[-1] if found else None


def of_schema(properties: Mapping[str, Any], names: Iterable[str]) -> frozenset[str]:
    """The kinds of some of a schema's properties."""
    return frozenset(kind for name in names if name in properties and (kind := of_name(name)))
