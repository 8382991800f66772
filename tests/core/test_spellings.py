"""Words are compared alike by Python and by the database."""

import json
import sys
import unicodedata

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from apps.core.spellings import PLAIN_GIVEN, in_addresses, in_json, plain, plain_sql

pytestmark = pytest.mark.django_db
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


@given(st.text(st.sampled_from('\\\\\\nrtu00e4" \n\u00a0A\u03a3\u03c3\u0130i\u0307é\u00ad'), max_size=30))
def test_escapes_are_compared_alike(text: str) -> None:
    assert by_the_database([text]) == [plain(text)]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")), st.integers(0, 3), st.booleans())
def test_a_text_is_found_however_often_json_stands_within_json(text: str, depth: int, readable: bool) -> None:
    told = text
    for _ in range(depth):
        told = json.dumps({"told": told}, ensure_ascii=not readable)
    assert any(plain(form).strip() in plain(told) for form in in_json(text))


def test_a_text_is_written_for_addresses_within_addresses() -> None:
    assert set(in_addresses("a:+")) == {
        "a%3A%2B", "a%3a%2b", "a%253A%252B", "a%253a%252b", "a:%2B", "a:%2b", "a:%252B", "a:%252b", "a:+",
    }  # fmt: skip
