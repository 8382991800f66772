"""Where somebody's words can stand, so that what is to be forgotten is found everywhere.

Each app registers its places in its `erasure.py`. Most are tables: the columns in which words may stand, and what is
done with a row that has to lose them. Files, and what processes keep in memory, are places of their own. All of this
runs as the system, within one transaction, for one tenant.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any, Final, Protocol

from django.db import connection

from apps.core.spellings import PLAIN_GIVEN, in_addresses, in_json, plain, plain_sql, words_of

# The signs of a reference beside letters and digits. It begins and ends with none of them: there they are a sentence's, or
# set it off, as in `USER:alice: yes` and `_USER:alice_`.
_SIGN: Final = r"[_:@.+~\-]"
# What is one in ASCII: what stands before a reference begins with capitals.
_PART: Final = r"[A-Za-z0-9_:@.+~\-]"
# Of what stands in an address for another sign, or in one within another, what is none of them.
_ESCAPED: Final = r"(?:0[9AaDd]|2[0-9CcFf]|3[B-Fb-f]|5[BbCcDd]|60|7[BbCcDd])"
_SET_OFF: Final = rf"(?<={_SIGN})(?<!{_PART}{_SIGN})|(?<={_SIGN}{_SIGN})(?<!{_PART}{_SIGN}{_SIGN})"
# And as `mailto:` or `id:` does. No expression looks behind itself for so many signs or fewer.
_LED_IN: Final = "|".join(rf"(?<=[a-z]{{{signs}}}:)(?<!{_PART}[a-z]{{{signs}}}:)" for signs in range(2, 11))
_BEFORE: Final = (
    rf"(?<!{_PART})|{_SET_OFF}|{_LED_IN}|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{{4}})|(?<=%{_ESCAPED})|(?<=%25{_ESCAPED})"
)
# How addresses, and encoders of JSON that spell out what is ASCII, write such signs.
_CODED: Final = r"(?:40|3[Aa]|2[BbDdEe]|5[Ff]|7[Ee])"
_SIGNS: Final = rf"(?:{_SIGN}|%(?:25)?{_CODED}|\\u00{_CODED})*"
# In an address a letter beyond ASCII is one as well; quotation marks and dashes (%E2%80%99) are none.
_GOES_ON: Final = r"(?:(?!_)\w|%(?:25)?(?!E2%(?:25)?80|e2%(?:25)?80)[89A-Fa-f][0-9A-Fa-f])"
_AFTER: Final = rf"(?!{_SIGNS}{_GOES_ON})"
# Shorter texts stand as parts of words that are about something else.
_TELLING: Final = 12
# Of scripts that set spaces between words.
_LETTER: Final = "[a-z0-9\u00df-\u024f\u0370-\u052f\u1e00-\u1fff]"
_BEGINS: Final = rf"(?<!{_LETTER})"
_ENDS: Final = rf"(?!{_LETTER})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is looked for: things in which the reference stands and, if there are any, one of the texts.

    The reference is whole where no letter or digit follows or precedes it, with any of `_:@.+~-` between them or none,
    but for a word of small letters and a colon before it, and for what a JSON text or an address writes in place of a
    sign: `\\n`, `\\u00e4`, `%20`. Where it is empty, the texts alone are looked for, as :mod:`apps.core.spellings`
    compares words; a short one as words of its own, not as a part of others. One without
    letters or digits is found nowhere: it tells nothing that others do not say as well.
    """

    tenant_id: int
    reference: str
    texts: Sequence[str] = ()

    def stands_in(self, text: str) -> bool:
        """Whether it stands in a text, which may be JSON."""
        return self.looker()(text)

    def looker(self) -> Callable[[str], bool]:
        """What says of many texts whether it stands there."""
        forms, whole, says = self.references, self.of_reference, self.finder()

        def is_named(text: str) -> bool:
            # Most texts are told by this, which costs a fraction of what the expression does.
            return any(form in text for form in forms) and re.search(whole, text) is not None

        return lambda text: (not self.reference or is_named(text)) and (not self.texts or says(text))

    def finder(self) -> Callable[[str], bool]:
        """What says of many texts whether one of these stands there, whatever the reference."""
        of_texts = self.of_texts

        def is_found(text: str) -> bool:
            told = plain(text)
            return any(form in told and (not words or re.search(words, told) is not None) for form, words in of_texts)

        return is_found

    @property
    def references(self) -> Sequence[str]:
        """The reference in every form in which it stands somewhere, whole or not."""
        return list(dict.fromkeys([*in_json(self.reference), *in_addresses(self.reference)]))

    @property
    def of_reference(self) -> str:
        """As a regular expression that PostgreSQL and Python read alike."""
        forms = "|".join(_escaped(form) for form in self.references)
        return rf"({_BEFORE})({forms}){_AFTER}"

    @property
    def of_texts(self) -> Sequence[tuple[str, str]]:
        """The texts, plain; of short ones the words too, as such an expression."""
        return [
            (form, _words(form) if len(text) < _TELLING else "")
            for text in self.texts
            for form in [words_of(text)]
            if any(map(str.isalnum, form))
        ]


# Of the places within one run of signs at which a reference may end, the first so many.
_ENDINGS: Final = 8
_ENDING: Final = re.compile(rf"(?<!{_SIGN}){_AFTER}")
# What follows is written by other signs, none of which is one of a reference.
_ENDING_AS_WRITTEN: Final = re.compile(rf"(?<!{_SIGN})(?![A-Za-z0-9])")
# How others write signs: JSON, and addresses.
_WRITTEN: Final = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})")
_IN_ADDRESSES: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_IN_ADDRESSES_WITHIN: Final = re.compile(r"(?:%25[0-9A-Fa-f]{2})+")
# With a sign that a name may begin with, as it is or as others write it.
_NAMED: Final = r"(?::[\w:@.+~\-%\\\x80-\U0010ffff]|%(?:25)?3[Aa])"


def _sign(written: re.Match[str]) -> str:
    """The sign that JSON writes so."""
    high, low, alone = written.groups()
    return chr(int(alone, 16)) if alone else chr(0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF))


def _signs(written: re.Match[str]) -> str:
    """The signs that an address writes so."""
    return bytes.fromhex(written[0].replace("%25", "%").replace("%", "")).decode(errors="replace")


class _Read:
    """A text as it reads with the signs that others stand for. It is read once, however often one looks into it."""

    def __init__(self, text: str, written: re.Pattern[str], read: Callable[[re.Match[str]], str]) -> None:
        self._text = text
        self._spans: list[tuple[int, int]] = []
        self._after: list[int] = []
        """Where, of what is read, that begins which follows each span."""
        pieces: list[str] = []
        length, end = 0, 0
        for found in written.finditer(text):
            pieces += [text[end : found.start()], read(found)]
            length += len(pieces[-2]) + len(pieces[-1])
            end = found.end()
            self._spans.append(found.span())
            self._after.append(length)
        self._read = "".join([*pieces, text[end:]])

    def from_(self, place: int, length: int) -> str:
        """So many signs from a place of the text on, or a few more."""
        number = bisect_right(self._spans, (place, len(self._text))) - 1
        if number < 0:
            return self._read[place : place + length]
        end, after = self._spans[number][1], self._after[number]
        # Within the signs of others none is read in the place of what is left of them.
        left, begin = self._text[place:end], after + max(place - end, 0)
        return left + self._read[begin : begin + length]


def references_in(text: str, *, kind: str, name: str, longest: int) -> Iterator[set[str]]:
    """Every reference of a form that a :class:`Wanted` of it would find in a text, which may be JSON or an address.

    At each place where one may begin, those that may. Signs that are neither letters nor digits and are not ASCII may end a
    reference or belong to it: what ends at one of the first few of these is found. Where signs are written by others, what
    may end there is found as well.

    :param kind: a regular expression of what stands before the colon of a reference, and `name` of what follows it.
    :param longest: how many signs a reference has at most.
    """
    whole = re.compile(f"{kind}:{name}")
    read = [
        _Read(text, _WRITTEN, _sign),
        _Read(text, _IN_ADDRESSES, _signs),
        _Read(text, _IN_ADDRESSES_WITHIN, _signs),
    ]
    for place in re.finditer(rf"(?={kind}{_NAMED})(?:{_BEFORE})", text):
        begin = place.end()
        told = text[begin : begin + longest + 1]
        found = set(_ends(told, whole, _ENDING, longest))
        for other in {one.from_(begin, longest + 1) for one in read} - {told}:
            found.update(_ends(other, whole, _ENDING_AS_WRITTEN, longest))
        yield found


def _ends(told: str, whole: re.Pattern[str], ending: re.Pattern[str], longest: int) -> Iterator[str]:
    """The references with which a text may begin."""
    if (run := whole.match(told)) is None:
        return
    places = (place.start() for place in ending.finditer(told, 1))
    for end in islice(takewhile(lambda end: end <= min(run.end(), longest), places), _ENDINGS):
        if whole.fullmatch(told, 0, end):
            yield told[:end]


def _words(form: str) -> str:
    begins, ends = (re.match(_LETTER, edge) is not None for edge in (form[0], form[-1]))
    return f"{_BEGINS if begins else ''}{_escaped(form)}{_ENDS if ends else ''}"


def _escaped(text: str) -> str:
    """Every sign that is neither letter nor digit stands for itself."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


class Place(Protocol):
    """Somewhere that words can stand."""

    @property
    def name(self) -> str: ...

    def count(self, wanted: Wanted) -> int:
        """In how many things here it stands."""

    def erase(self, wanted: Wanted) -> int:
        """Take it from here; answers from how many things."""


# More than things hang from each other.
_PASSES: Final = 20
# Whole tables of millions of rows are read, and a statement that was cut off would be cut off each time.
_LONGEST: Final = "1h"
_ENTER: Final = (
    "select set_config('gatehouse.redacting', 'on', true), set_config('statement_timeout', %(longest)s, true)"
)
_LEAVE: Final = "select set_config('gatehouse.redacting', '', true), set_config('statement_timeout', %(usual)s, true)"

FORGOTTEN: Final = '{"gatehouse:forgotten": true}'
"""What stands in the place of a document that was forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a table in which words stand.

    `redacted` says what becomes of a row's columns, as SQL; without it the row is removed, and where it is empty the
    place is only looked at: names and references, of which nothing can be taken. `also` is SQL for rows that are to be
    erased although nothing stands in them: what hangs from rows that have been erased. Where texts are wanted these rows
    stay, since they may say something else; `copied` is SQL for rows that go all the same, made of the words of others.
    `beside` are the columns that refer to what else is read with a row, where texts are wanted, and what that is: the
    reference may stand there, or the texts.
    `tenant` is SQL for the rows of a tenant.
    """

    table: str
    columns: Sequence[str]
    redacted: Mapping[str, str] | None = None
    also: str = ""
    copied: str = ""
    beside: Sequence[tuple[str, "Rows"]] = ()
    tenant: str = "tenant_id = %(tenant)s"
    alias: str = ""

    @property
    def name(self) -> str:
        return self.alias or self.table

    def count(self, wanted: Wanted) -> int:
        with connection.cursor() as cursor:
            cursor.execute(f"select count(*) from {self.table} where {self.found(wanted)}", _given(wanted))
            number: int = cursor.fetchone()[0]
        return number

    def numbers(self, wanted: Wanted, *, among: str = "", **given: Any) -> list[int]:
        """The primary keys of the rows in which it stands.

        :param among: SQL for the rows that are looked at, with what it is given by name.
        """
        found = self.found(wanted) + (f" and {among}" if among else "")
        with connection.cursor() as cursor:
            cursor.execute(f"select id from {self.table} where {found} order by id", {**_given(wanted), **given})
            return [pk for (pk,) in cursor.fetchall()]

    def erasable(self, wanted: Wanted) -> list[int]:
        """The primary keys of the rows that :meth:`erase` would take something from."""
        with connection.cursor() as cursor:
            cursor.execute(f"select id from {self.table} where {self._erased(wanted)}", _given(wanted))
            return [pk for (pk,) in cursor.fetchall()]

    def erase(self, wanted: Wanted) -> int:
        if self.redacted == {}:
            return 0
        with connection.cursor() as cursor:
            cursor.execute(self._erasing(self._erased(wanted)), _given(wanted))
            return int(cursor.rowcount)

    def _erasing(self, erased: str) -> str:
        if self.redacted is None:
            return f"delete from {self.table} where {erased}"
        changes = ", ".join(f"{column} = {value}" for column, value in self.redacted.items())
        return f"update {self.table} set {changes} where {erased}"

    def _erased(self, wanted: Wanted) -> str:
        found = self.found(wanted)
        for others in (self.copied, "" if wanted.texts else self.also):
            if others:
                found = f"{self.tenant} and (({found}) or ({others}))"
        if not self.redacted:
            return found
        # What is as it should be is not found again.
        unlike = " or ".join(f"{column} is distinct from {value}" for column, value in self.redacted.items())
        return f"({found}) and ({unlike})"

    def found(self, wanted: Wanted) -> str:
        """SQL for the rows in which it stands."""
        if not self.beside or not wanted.texts:
            return self._found_alone(wanted)
        named, said = replace(wanted, texts=()), replace(wanted, reference="")
        whom, what = [self._found_alone(named)], [self._found_alone(said)]
        for column, rows in self.beside:
            whom.append(f"{column} in (select id from {rows.table} where {rows.found(named)})")
            # One by one: only of few rows that is told.
            what.append(
                f"exists (select from {rows.table} where id = {self.table}.{column} and {rows.found(said)} offset 0)"
            )
        return f"{self.tenant} and ({' or '.join(whom)}) and ({' or '.join(what)})"

    def _found_alone(self, wanted: Wanted) -> str:
        # One text of all columns, because the reference may stand in one of them and what was said in another.
        said = "concat_ws(E'\\n', " + ", ".join(f"{column}::text" for column in self.columns) + ")"
        found = self.tenant
        if wanted.reference:
            # Most rows are told by this, which costs a fraction of what the expression does.
            forms = " or ".join(f"strpos({said}, %(form_{number})s) > 0" for number in range(len(wanted.references)))
            found += f" and ({forms}) and {said} ~ %(reference)s"
        if wanted.texts:
            # There may be more than a regular expression can hold.
            found += (
                f" and exists (select from (select {plain_sql(said)} as said offset 0) plain,"
                " unnest(%(texts)s::text[], %(words)s::text[]) t(form, words)"
                " where strpos(plain.said, form) > 0 and (words = '' or plain.said ~ words))"
            )
        return found


def _given(wanted: Wanted) -> dict[str, Any]:
    forms = {f"form_{number}": form for number, form in enumerate(wanted.references)}
    texts, words = zip(*of_texts, strict=True) if (of_texts := wanted.of_texts) else ((), ())
    return {
        "tenant": wanted.tenant_id, "reference": wanted.of_reference, "texts": list(texts), "words": list(words),
        **PLAIN_GIVEN, **forms,
    }  # fmt: skip


_places: Final[dict[str, Place]] = {}


def register(*places: Place) -> None:
    """Add places where words can stand."""
    for place in places:
        if place.name in _places:
            raise ValueError(f"The place {place.name!r} is registered twice.")
        _places[place.name] = place


def all_places() -> list[Place]:
    """Every registered place, by name."""
    return [_places[name] for name in sorted(_places)]


def erase(wanted: Wanted) -> dict[str, int]:
    """Erase it everywhere, within :func:`redacting`; answers from how many things of each place, if from any.

    Places are gone through again until nothing is found: what hangs from an erased thing may stand in an earlier one. What
    others go on writing meanwhile is not waited for without end: what is there then, :func:`remaining` tells.
    In the order of their registration, by which files, that no transaction brings back, come after the rows beneath them.
    """
    erased: dict[str, int] = {}
    for _ in range(_PASSES):
        found = {place.name: number for place in _places.values() if (number := place.erase(wanted))}
        if not found:
            break
        for name, number in found.items():
            erased[name] = erased.get(name, 0) + number
    return erased


def remaining(wanted: Wanted) -> dict[str, int]:
    """Where it stands still, and in how many things."""
    return {place.name: number for place in all_places() if (number := place.count(wanted))}


@contextmanager
def redacting() -> Iterator[None]:
    """Within it the system may take words from rows that never change otherwise, and reads tables as long as that takes."""
    with connection.cursor() as cursor:
        cursor.execute("select current_setting('statement_timeout')")
        (usual,) = cursor.fetchone()
        cursor.execute(_ENTER, {"longest": _LONGEST})
        yield
        cursor.execute(_LEAVE, {"usual": usual})
