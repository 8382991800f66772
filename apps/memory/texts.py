"""Text as it is compared with other text, and as it may stand on a line among others. Pure."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator
from itertools import chain
from typing import Final

# What Unicode calls default ignorable: nobody sees it, and it can carry a message. Those among them that Python
# calls printable; the others it does not let through anyway.
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
_BREAKS: Final = frozenset({"Cc", "Zl", "Zp", "Zs"})
_NO_LETTERS: Final = frozenset({"Cf", "Cs", "Co", "Cn"})
_ENDS: Final = " .!?…;:,"


def one_line(text: str) -> str:
    """The text on one line, without anything that is not seen: controls, marks of direction, characters of no width.

    What separates words, lines or paragraphs becomes a space.
    """
    seen = text if text.isprintable() else "".join(_printable(text))
    return " ".join((seen if seen.isascii() else seen.translate(_DROPPED)).split())


def _printable(text: str) -> Iterator[str]:
    for character in text:
        category = unicodedata.category(character)
        if category in _BREAKS:
            yield " "
        elif category not in _NO_LETTERS:
            yield character


def quoted(text: str) -> str:
    """The text on one line between quotation marks, which it can't close."""
    return json.dumps(one_line(text), ensure_ascii=False)


def bare(text: str) -> str:
    """The text without the full stop, or the like, at its end, unless it is nothing else."""
    return text.strip().rstrip(_ENDS) or text


def same_text(text: str) -> bytes:
    """What texts have in common that say the same in the same words: case, width, spacing and full stops don't tell."""
    told = one_line(unicodedata.normalize("NFKC", one_line(text))).casefold()
    return hashlib.sha256((told.rstrip(_ENDS) or told).encode()).digest()


_LETTERS: Final = re.compile(r"[A-Za-z]+")


def tokens(text: str) -> int:
    """How many tokens of a model's context the text takes at most: three letters each, or one of anything else.

    Of what is not ASCII, one for each byte: no model that reads bytes makes more of it.
    """
    letters = _LETTERS.findall(text)
    rest = len(text.encode(errors="surrogatepass")) - sum(map(len, letters)) - text.count(" ")
    return sum((len(word) + 2) // 3 for word in letters) + rest
