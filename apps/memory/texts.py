"""Text as it is compared with other text, and as it may stand on a line among others. Pure."""

import hashlib
import json
import re
import unicodedata
from collections import Counter
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


class _Printable(dict[int, int | str | None]):
    """What stands in the place of each character; it is found out once of each."""

    def __missing__(self, character: int) -> int | str | None:
        category = unicodedata.category(chr(character))
        seen = " " if category in _BREAKS else None if category in _NO_LETTERS else character
        self[character] = seen
        return seen


_PRINTABLE: Final = _Printable()
_ENDS: Final = " .!?…;:,"
# Those of other scripts, by which texts that were stored are not told to be the same.
_OTHER_ENDS: Final = (
    "\u3002\u3001\uff0e\uff0c\uff01\uff1f\uff1b\uff1a\uff61\uff64\u0964\u0965\u06d4\u061f\u060c\u061b\u037e\u0589\u1362"
)
# The most bytes that a sign takes.
_WIDEST: Final = 4


def one_line(text: str) -> str:
    """The text on one line, without anything that is not seen: controls, marks of direction, characters of no width.

    What separates words, lines or paragraphs becomes a space.
    """
    seen = text if text.isprintable() else text.translate(_PRINTABLE)
    return " ".join((seen if seen.isascii() else seen.translate(_DROPPED)).split())


def as_sought(text: str) -> str:
    """The text as its words are looked for: composed letters, width and ligatures don't tell words apart, nor do capitals."""
    return unicodedata.normalize("NFKC", text).casefold()


def beginning(text: str, most: int) -> str:
    """As much of the beginning of the text as takes no more bytes than these; no half of a sign."""
    return text if len(text) * _WIDEST <= most else text.encode()[:most].decode(errors="ignore")


# As json.dumps() would, which makes such a one for each text.
_QUOTED: Final = json.JSONEncoder(ensure_ascii=False).encode


def quoted(text: str) -> str:
    """The text on one line between quotation marks, which it can't close."""
    return _QUOTED(one_line(text))


def bare(text: str) -> str:
    """The text without the full stop, or the like, at its end, unless it is nothing else."""
    return text.strip().rstrip(_ENDS + _OTHER_ENDS) or text


def same_text(text: str) -> bytes:
    """What texts have in common that say the same in the same words: case, width, spacing and full stops don't tell."""
    return hashlib.sha256(_compared(text)).digest()


def _compared(text: str) -> bytes:
    told = one_line(unicodedata.normalize("NFKC", one_line(text))).casefold()
    return (told.rstrip(_ENDS) or told).encode()


_WORD: Final = re.compile(r"[A-Za-z0-9]+")
_PLAIN: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]{1,4}")
# Letters that hardly follow each other in words: what has any of these is spelled out, as are keys and codes.
_ODD: Final = re.compile(
    r"[^aeiouy]{5}|[aeiou]{4}|uu|ii|aa|wu|yi|iy|uw|h[fhn]|[jqvxz][^aeiouy]|[^aeiouyn][jqxz]|[bcdfgkmpw]{2}[^aeiouylr]"
    r"|[hwy][bcdfgjkmpqvwxz]|[bdfgkmpw][bdfgkpwv]|^[^aeiouyAEIOUY]+$"
)
_SPACES: Final = re.compile("  +")


def tokens(text: str) -> int:
    """How many tokens of a model's context the text takes, by a count that errs on the safe side.

    Three letters of a plain word make one, and so does each byte of anything else: no model that reads bytes makes more
    of it. One space between words costs nothing.
    """
    words = _WORD.findall(text)
    rest = len(text.encode(errors="surrogatepass")) - sum(map(len, words)) - text.count(" ")
    spaces = sum(len(run) - 1 for run in _SPACES.findall(text))
    # Words come again, and telling plain ones from others is what takes time.
    return sum(times * _tokens_of_word(word) for word, times in Counter(words).items()) + rest + spaces


def _tokens_of_word(word: str) -> int:
    return (len(word) + 2) // 3 if _PLAIN.fullmatch(word) and not _ODD.search(word) else len(word)
