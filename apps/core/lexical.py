"""Words of texts, and the constants of BM25."""

import re
import unicodedata
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")

K1: Final = 1.2
B: Final = 0.6


def words(text: str) -> list[str]:
    """Split text into lower-case words; snake_case and camelCase come apart."""
    if text.isascii() and text == text.lower():
        return _WORD.findall(text)
    normal = unicodedata.normalize("NFKC", text)
    return [word.casefold() for word in _WORD.findall(_CAMEL.sub(" ", normal))]
