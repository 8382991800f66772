"""How a text is spelled where it stands within others, which may be JSON or addresses. Pure.

Words are compared in a plain form, alike in Python and in PostgreSQL: without what nobody sees, in one width, in small
letters, with one space wherever there is any, with the signs that JSON spells out (`\\u00e4`), and without the backslashes
that JSON and arrays set before a sign, however often one is written within another. In `CORP\\nina` nobody can tell whether a
line ends or a backslash stands: it reads both ways.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Final
from urllib.parse import quote

# A backslash, from the first of several on: none is read twice, however many there are.
_RUN: Final = r"(?<!\\)\\"
# Soft hyphens, joiners and others of no width, marks of direction.
_UNSEEN: Final = "".join(
    map(chr, (0xAD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF))
)
_DROPPED: Final = rf"{_RUN}*[{_UNSEEN}]"
# In what is one small letter locales differ: the dot of a capital i, the sigma at the end of a word; and one is two capitals.
_SMALL: Final = (("\u0307", ""), ("\u03c2", "\u03c3"), ("\u00df", "ss"))
# What remains of them in one width: PostgreSQL's own class depends on the locale.
_SPACE: Final = "[\x08-\r\x1c-\x20\x85\u1680\u2028\u2029]"
_SPACES: Final = rf"(?:{_SPACE}|{_RUN}+(?:[nrtbf]|(?={_SPACE})))+"
_LOOSE: Final = r"\\+"
# So many backslashes, or more, that no encoder sets before the next sign, or that it might: they stand for themselves in a
# text as it is, and in one within JSON, where one ends a line.
_LITERAL: Final = tuple(rf"{fewest}(?=[^\x01-/:-@\[-`{{-\x7f])" for fewest in (rf"{_RUN}+", rf"{_RUN}\\+"))
# Signs as JSON writes them, where every backslash is doubled: two units of UTF-16, or one that stands alone.
_PAIR: Final = r"(?<!\\)(?:\\\\)+(u[dD][89abAB][0-9a-fA-F]{2})(?:\\\\)+(u[dD][c-fC-F][0-9a-fA-F]{2})"
_UNIT: Final = r"(?<!\\)(?:\\\\)+(u(?!0000|[dD][89a-fA-F])[0-9a-fA-F]{4})"
# Those, with one backslash, and backslashes that are doubled: as PostgreSQL's own function reads them.
_SPELLED: Final = r"\\(?:u([dD][89abAB]..)\\u(....)|u(....)|(\\))"


def words_of(text: str) -> str:
    """A text as it is looked for in plain ones."""
    return plain(text).partition("\n")[0].strip()


def plain(text: str) -> str:
    """A text as others are looked for in it: each way to read it is a line."""
    told = unicodedata.normalize("NFKC", re.sub(_DROPPED, "", _spelled(text))).lower()
    for letter, other in _SMALL:
        told = told.replace(letter, other)
    told = unicodedata.normalize("NFKC", told)
    if "\\" not in told:
        return re.sub(_SPACES, " ", told)
    readings = (told, *(re.sub(literal, " ", told) for literal in _LITERAL))
    return "\n".join(re.sub(_LOOSE, "", re.sub(_SPACES, " ", reading)) for reading in readings)


def _spelled(text: str) -> str:
    """The text with the signs that JSON spells out."""
    if "\\u" not in text:
        return text
    doubled = text.replace("\\", r"\\")
    return re.sub(_SPELLED, _sign, re.sub(_UNIT, r"\\\1", re.sub(_PAIR, r"\\\1\\\2", doubled)))


def _sign(spelled: re.Match[str]) -> str:
    high, low, alone, backslash = spelled.groups()
    if high is not None:
        return chr(0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF))
    return backslash or chr(int(alone, 16))


def plain_sql(text: str) -> str:
    """SQL for the plain form of what this SQL is, with :data:`PLAIN_GIVEN`."""
    doubled = r"replace(as_is, '\', '\\')"
    paired = rf"regexp_replace({doubled}, %(plain_pair)s, '\\\1\\\2', 'g')"
    spelled = rf"unistr(regexp_replace({paired}, %(plain_unit)s, '\\\1', 'g'))"
    # In most texts there is none.
    spelled = rf"case when strpos(as_is, '\u') = 0 then as_is else {spelled} end"
    told = f"lower(normalize(regexp_replace({spelled}, %(plain_dropped)s, '', 'g'), NFKC))"
    for letter, other in _SMALL:
        told = f"replace({told}, '{letter}', '{other}')"
    readings = [
        "told",
        *(f"regexp_replace(told, %(plain_literal_{number})s, ' ', 'g')" for number in range(len(_LITERAL))),
    ]
    lines = ", ".join(f"regexp_replace({_spaced(reading)}, %(plain_loose)s, '', 'g')" for reading in readings)
    # What is computed once is not computed in each place where it is named.
    return (
        rf"(select case when strpos(told, '\') = 0 then {_spaced('told')} else concat_ws(E'\n', {lines}) end"  # noqa: S608  # constants
        f" from (select normalize({told}, NFKC) as told from (select {text} as as_is offset 0) given offset 0) small)"
    )


def _spaced(told: str) -> str:
    return f"regexp_replace({told}, %(plain_spaces)s, ' ', 'g')"


PLAIN_GIVEN: Final = {
    "plain_dropped": _DROPPED, "plain_spaces": _SPACES, "plain_loose": _LOOSE, "plain_pair": _PAIR, "plain_unit": _UNIT,
    **{f"plain_literal_{number}": literal for number, literal in enumerate(_LITERAL)},
}  # fmt: skip


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
