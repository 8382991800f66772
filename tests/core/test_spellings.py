"""Words are compared alike by Python and by the database."""

import json
import sys
import unicodedata

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from apps.core.erasure import Wanted
from apps.core.spellings import PLAIN_GIVEN, in_addresses, plain, plain_sql, words_of

pytestmark = pytest.mark.django_db
# Signs as JSON writes them, and what looks like it.
SPELLED = [
    r"\u00C9",
    r"\\u00c9",
    r"\ud83d\ude00",
    r"\\uD83D\\uDE00",
    r"\ud83d",
    r"\ude00",
    r"\u0000",
    r"\u000",
    r"\u200b",
]
ASSIGNED = [
    sign for sign in map(chr, range(1, sys.maxunicode + 1)) if unicodedata.category(sign) not in {"Cn", "Co", "Cs"}
]


def by_the_database(texts: list[str]) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"select {plain_sql('t')} from unnest(%(texts)s::text[]) with ordinality u(t, nth) order by nth",
            {**PLAIN_GIVEN, "texts": texts},
        )
        return [told for (told,) in cursor.fetchall()]


def test_every_sign_is_compared_alike() -> None:
    texts = [f"a{sign}B" for sign in ASSIGNED]
    found = by_the_database(texts)
    assert [(text, told) for text, told in zip(texts, found, strict=True) if plain(text) != told] == []


@given(
    st.lists(
        st.sampled_from([*'\\\\\\nrtu00e4" \n\u00a0A\u03a3\u03c3\u0130i\u0307é\u00ad', *SPELLED]), max_size=30
    ).map("".join)
)
def test_escapes_are_compared_alike(text: str) -> None:
    assert by_the_database([text]) == [plain(text)]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")), st.integers(0, 3), st.booleans())
def test_a_text_is_found_however_often_json_stands_within_json(text: str, depth: int, readable: bool) -> None:
    told = text
    for _ in range(depth):
        told = json.dumps({"told": told}, ensure_ascii=not readable)
    assert words_of(text) in plain(told)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (r"CORP\nina", "Nina"), (r"CORP\anna", "Anna"), (r"CORP\Éva", "Éva"), (r"CORP\9lives", "9lives"),
        (json.dumps("CORP\\nina\nloves"), "Nina"), (json.dumps("CORP\\nina\nis here"), "Nina is here"),
        (json.dumps("line\nina"), "ina"),
        (json.dumps("CAFÉ CRÈME"), "Café crème"), (json.dumps(json.dumps("CAFÉ CRÈME")), "Café crème"),
        (r"CAF\u00c9 CR\u00C8ME", "Café crème"), (r"\ud83d\ude00 ok", "\U0001f600 ok"), (r"a\u0026b\u00adc", "a&bc"),
        ("J\u030c \u0391\u0345", "\u01f0 \u1fb3"),
    ],
)  # fmt: skip
def test_what_is_written_two_ways_is_found_by_either(told: str, words: str) -> None:
    assert Wanted(tenant_id=0, reference="", texts=[words]).stands_in(told)


def test_no_backslash_of_many_is_read_twice() -> None:
    text = "\\" * 200_000
    assert (by_the_database([text]), plain(text)) == (["\n\n"], "\n\n")


def test_a_text_is_written_for_addresses_within_addresses() -> None:
    assert set(in_addresses("a:+")) == {
        "a%3A%2B", "a%3a%2b", "a%253A%252B", "a%253a%252b", "a:%2B", "a:%2b", "a:%252B", "a:%252b", "a:+",
    }  # fmt: skip
