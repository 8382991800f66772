r"""How a text is spelled where it stands within others, which may be JSON or addresses. Pure.

Words are compared in a plain form, alike in Python and in PostgreSQL: without what nobody sees, in one width, in small
letters, with one space wherever there is any, and without the backslashes that JSON and arrays set before a sign, however
often one is written within another. `\u00e4` stays as it is: who looks for words has to look for them so, too.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Final
from urllib.parse import quote

# Soft hyphens, joiners and others of no width, marks of direction.
_UNSEEN: Final = "".join(
    map(chr, (0xAD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF))
)
_DROPPED: Final = dict.fromkeys(map(ord, _UNSEEN))
# In what is one small letter locales differ: the dot of a capital i, the sigma at the end of a word; and one is two capitals.
_SMALL: Final = (("\u0307", ""), ("\u03c2", "\u03c3"), ("\u00df", "ss"))
# What remains of them in one width: PostgreSQL's own class depends on the locale.
_SPACES: Final = "(?:[\t-\r\x1c-\x20\x85\u1680\u2028\u2029]|\\\\+[nrtbf])+"
_LOOSE: Final = r"\\+(?!\\*u[0-9a-f]{4})"
_WRITTEN: Final = r"\\+(u[0-9a-f]{4})"


def plain(text: str) -> str:
    """A text as it is compared."""
    told = unicodedata.normalize("NFKC", text.translate(_DROPPED)).lower()
    for letter, other in _SMALL:
        told = told.replace(letter, other)
    return re.sub(_WRITTEN, r"\\\1", re.sub(_LOOSE, "", re.sub(_SPACES, " ", told)))


def plain_sql(text: str) -> str:
    """SQL for the plain form of what this SQL is, with :data:`PLAIN_GIVEN`."""
    told = f"lower(normalize(translate({text}, %(unseen)s, ''), NFKC))"
    for letter, other in _SMALL:
        told = f"replace({told}, '{letter}', '{other}')"
    for number, replaced in enumerate(("' '", "''", r"'\\\1'")):
        told = f"regexp_replace({told}, %(plain_{number})s, {replaced}, 'g')"
    return told


PLAIN_GIVEN: Final = {"unseen": _UNSEEN, "plain_0": _SPACES, "plain_1": _LOOSE, "plain_2": _WRITTEN}


def in_json(text: str) -> Sequence[str]:
    """A text as it is, and as encoders of JSON write it: some spell out what is not ASCII, some what HTML reads as its own."""
    escaped = json.dumps(text)[1:-1]
    readable = json.dumps(text, ensure_ascii=False)[1:-1]
    spelled = re.sub(r"[&<>'+`]|\\\"", lambda found: _unit(found[0][-1]), escaped)
    forms = (text, readable, escaped, re.sub("[&<>]", lambda found: _unit(found[0]), readable), spelled)
    return list(dict.fromkeys([*forms, *(_changed(_UNITS, form, str.upper) for form in (escaped, spelled))]))


_UNITS: Final = re.compile(r"(?<!\\)((?:\\\\)*\\u)([0-9a-f]{4})")


def _unit(sign: str) -> str:
    return f"\\u{ord(sign):04x}"


def _changed(units: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    return units.sub(lambda found: found[1] + change(found[2]), text)


def in_addresses(text: str) -> Iterator[str]:
    """A text as it stands in addresses, and in addresses within these: with no sign left, or with those that a path may hold,
    or any."""
    for kept in ("", ":", ":@", ":@+", ":@+!$&'()*,;=/?"):
        quoted = quote(text, safe=kept)
        # Forms write this sign otherwise than paths do.
        as_form = quoted.replace("~", "%7E")
        for form in (
            quoted,
            as_form,
            *(re.sub(r"%..", lambda found: found[0].lower(), one) for one in (quoted, as_form)),
        ):
            yield form
            yield form.replace("%", "%25")
