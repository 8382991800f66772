"""JSON at the boundary: whatever is let in can be stored."""

import hashlib
import json
import math
from typing import Any

import pytest
import rfc8785
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core import strict_json
from apps.core.strict_json import NotJSON, UnstorableJSON

_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("body", "refusal", "pointer"),
    [
        (b"{", NotJSON, None),
        (b"\xff", NotJSON, None),
        (b'{"a": 1, "a": 2}', NotJSON, None),
        (b'{"a": NaN}', UnstorableJSON, None),
        (b'{"a": -Infinity}', UnstorableJSON, None),
        (b'{"a": 1e999}', UnstorableJSON, "/a"),
        (b'{"a": [0, "\\u0000"]}', UnstorableJSON, "/a/1"),
        (b'{"a\\u0000": 1}', UnstorableJSON, ""),
        (b'{"a/b": {"~": "\\ud800"}}', UnstorableJSON, "/a~1b/~0"),
        (b'{"a": 9223372036854775808}', UnstorableJSON, "/a"),
        (b'{"a": ' + b"9" * 400 + b"}", UnstorableJSON, "/a"),
        (b'{"a": 18446744073709551616}', UnstorableJSON, "/a"),
        (b'{"a": 1e64}', UnstorableJSON, "/a"),
        (b'{"a": [-1e300]}', UnstorableJSON, "/a/0"),
        (b'{"a": 9e-65}', UnstorableJSON, "/a"),
        (b'{"a": 5e-324}', UnstorableJSON, "/a"),
        (b"[" * 33 + b"]" * 33, UnstorableJSON, "/0" * 32),
        (b"[" * 200_000, UnstorableJSON, None),
    ],
)
def test_unstorable_json_is_refused_with_its_place(
    body: bytes, refusal: type[NotJSON | UnstorableJSON], pointer: str | None
) -> None:
    with pytest.raises(refusal) as caught:
        strict_json.loads(body)
    assert [error.pointer for error in caught.value.errors] == ([] if pointer is None else [pointer])


@pytest.mark.parametrize("number", [1e20, -1e23, 9.999999999999999e63, 1e-64, -0.0, 2.0**63, 12345678901234567890.0])
def test_stored_number_is_accepted_again(db: None, number: float) -> None:
    strict_json.check(number)
    with connection.cursor() as cursor:
        cursor.execute("select %s::jsonb", [json.dumps([number])])
        assert float(strict_json.loads(cursor.fetchone()[0].encode())[0]) == number


def test_thirty_two_levels_are_accepted() -> None:
    assert strict_json.loads(b"[" * 32 + b"]" * 32)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(document=_ANY)
def test_accepted_document_is_stored_unchanged(db: None, document: Any) -> None:
    try:
        strict_json.check(document)
    except UnstorableJSON:
        return
    with connection.cursor() as cursor:
        cursor.execute("select %s::jsonb", [json.dumps(document)])
        came_back = cursor.fetchone()[0]
    strict_json.loads(came_back.encode())
    # jsonb writes 1e20 as an integer; as a double it is the same number.
    assert json.loads(came_back, parse_int=float) == json.loads(json.dumps(document), parse_int=float)


@given(document=_ANY)
def test_digest_ignores_the_order_of_keys(document: Any) -> None:
    try:
        strict_json.check(document)
    except UnstorableJSON:
        return
    assert len(strict_json.digest(document)) == 32
    assert strict_json.digest(document) == strict_json.digest(_reversed(document))


def test_neighbouring_large_integers_differ_in_digest() -> None:
    assert strict_json.digest(2**53) != strict_json.digest(2**53 + 1)


def _reversed(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _reversed(document[key]) for key in reversed(document)}
    if isinstance(document, list):
        return [_reversed(value) for value in document]
    return -0.0 if isinstance(document, float) and document == 0 and not math.copysign(1, document) < 0 else document


@given(_ANY)
def test_digest_is_of_the_canonical_form(document: Any) -> None:
    try:
        strict_json.check(document)
        form = rfc8785.dumps(document)
    except (UnstorableJSON, rfc8785.CanonicalizationError):
        return
    assert strict_json.digest(document) == hashlib.sha256(form).digest()
