"""A plain request is answered without DRF as it would be with it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from django.db import transaction
from django.test import Client

from apps.core.api import views
from apps.core.operations import Operation, Route
from apps.principals.models import Tenant
from tests.factories import make_token
from tests.interfaces.asking import ROUTED, least

_JSON: Final = "application/json"
_POST: Final = "/api/v1/receipts"
_DOOR: Final = "/internal/inbox/receipt"
_RECEIPT: Final = {"recipient_ai": "Kee", "source_system": "ci", "dedupe_key": "ci:a:b:1", "summary": "Done"}
Asked = tuple[str, str, bytes]
# A stream has a view of its own.
SYNCHRONOUS: Final = [(declared, route) for declared, route in ROUTED if not declared.streams]


def _receipt(**changed: Any) -> bytes:
    return json.dumps(_RECEIPT | changed).encode()


_REQUESTS: Final[dict[str, Asked]] = {
    "good": ("POST", _POST, _receipt()),
    "posted_before": ("POST", _POST, _receipt(dedupe_key="ci:before:b:1")),
    "other_content": ("POST", _POST, _receipt(dedupe_key="ci:before:b:1", summary="Other")),
    "unknown_recipient": ("POST", _POST, _receipt(recipient_ai="Nobody")),
    "foreign_source": ("POST", _POST, _receipt(source_system="other")),
    "unknown_member": ("POST", _POST, _receipt(nonesuch=1)),
    "wrong_types": ("POST", _POST, _receipt(title=5, requires_action="yes")),
    "long_title": ("POST", _POST, _receipt(title="x" * 201)),
    "long_summary": ("POST", _POST, _receipt(summary="x" * 16_385)),
    "beyond_ascii": ("POST", _POST, _receipt(title="é\u2028😀", metadata={"é": "\u2029"})),
    "no_body": ("POST", _POST, b""),
    "no_object": ("POST", _POST, b"[1]"),
    "no_json": ("POST", _POST, b"{"),
    "no_utf8": ("POST", _POST, b'{"title": "\xff"}'),
    "key_twice": ("POST", _POST, b'{"title": "a", "title": "b"}'),
    "nan": ("POST", _POST, b'{"metadata": {"n": NaN}}'),
    "infinite": ("POST", _POST, b'{"metadata": {"n": 1e999}}'),
    "long_integer": ("POST", _POST, b'{"metadata": {"n": [9223372036854775808]}}'),
    "nul": ("POST", _POST, b'{"metadata": {"n": "\\u0000"}}'),
    "surrogate": ("POST", _POST, b'{"metadata": {"n": "\\ud800"}}'),
    "deep": ("POST", _POST, b'{"metadata": ' + b"[" * 40 + b"]" * 40 + b"}"),
    "deepest": ("POST", _POST, b"[" * 100_000),
    "over_the_route": ("POST", _POST, b" " * 600_000),
    "over_the_server": ("POST", _POST, b" " * 9_000_000),
    "door": ("POST", _DOOR, _receipt()),
    "door_posted_before": ("POST", _DOOR, _receipt(dedupe_key="ci:before:b:1")),
    "door_foreign_source": ("POST", _DOOR, _receipt(source_system="other")),
    "door_malformed": ("POST", _DOOR, b"{"),
    "batch": ("POST", f"{_POST}/batch", json.dumps({"receipts": [_RECEIPT, {**_RECEIPT, "title": "x"}]}).encode()),
    "number_in_address": ("GET", "/api/v1/inbox?limit=2&after=0", b""),
    "no_number_in_address": ("GET", "/api/v1/inbox?limit=many", b""),
    "twice_in_address": ("GET", "/api/v1/inbox?limit=2&limit=3", b""),
    "no_text_in_address": ("GET", "/api/v1/inbox?source_system=%ff", b""),
    "format": ("GET", "/api/v1/inbox?format=xml", b""),
    "path": ("GET", "/api/v1/receipts/nothing", b""),
    "missing_scope": ("POST", "/api/v1/tokens", b"{}"),
    "nothing_to_lease": ("POST", "/api/v1/tasks/lease", b'{"queues": ["empty"]}'),
}


@contextmanager
def _undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def _ask(asked: Asked, token: str | None, media_type: str = _JSON, accept: str | None = None) -> Any:
    method, path, body = asked
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with _undone():
        return Client().generic(
            method, path, body, content_type=media_type, headers=headers | ({"Accept": accept} if accept else {})
        )


def _alike(monkeypatch: pytest.MonkeyPatch, asked: Asked, token: str | None, **more: str) -> int:
    """The status, which both ways answer with the same headers and, but for what is made new, the same document."""
    plain = _ask(asked, token, **more)
    monkeypatch.setattr(views, "_is_plain", lambda *_: False)
    other = _ask(asked, token, **more)

    assert plain.status_code == other.status_code
    assert _headers(plain) == _headers(other)
    assert _document(plain) == _document(other)
    return int(plain.status_code)


def _headers(answer: Any) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name != "Content-Length"}


def _document(answer: Any) -> Any:
    if not answer.content:
        return b""
    document = json.loads(answer.content)
    if answer.status_code < 300:
        return sorted(document)
    return {name: value for name, value in document.items() if name != "trace_id"}


@pytest.fixture
def token(tenant: Tenant) -> str:
    token = make_token(tenant, name="Kee", source_systems=["ci"])
    made = Client().generic(
        "POST",
        _POST,
        _receipt(dedupe_key="ci:before:b:1"),
        content_type=_JSON,
        headers={"Authorization": f"Bearer {token}"},
    )
    assert made.status_code == 201
    return token


@pytest.mark.parametrize("name", _REQUESTS)
def test_a_plain_request_is_answered_as_by_drf(monkeypatch: pytest.MonkeyPatch, token: str, name: str) -> None:
    assert _alike(monkeypatch, _REQUESTS[name], token) < 500


@pytest.mark.parametrize(
    ("query", "code", "detail"),
    [
        ("limit=2&limit=3", "invalid", "/limit: Given more than once."),
        ("source_system=%ff", "malformed", "The query is not UTF-8."),
        ("source_system=%ed%a0%80", "malformed", "The query is not UTF-8."),
        ("&".join(["limit=2"] * 1001), "malformed", "The query has more than 1000 parameters."),
    ],
)
@pytest.mark.parametrize("wait", ["", "&wait=1"])
def test_a_query_that_can_be_read_two_ways_is_refused_by_name(
    token: str, query: str, code: str, detail: str, wait: str
) -> None:
    answer = _ask(("GET", f"/api/v1/inbox?{query}{wait}", b""), token)

    assert answer.status_code in {400, 422}
    assert (answer.json()["code"], answer.json()["detail"]) == (code, detail)


@pytest.mark.parametrize("name", ["good", "no_json", "door", "path", "missing_scope"])
@pytest.mark.parametrize("shown", [None, "ght_00000000_" + "a" * 43, "no token at all"])
def test_who_shows_no_valid_token_is_refused_alike(
    monkeypatch: pytest.MonkeyPatch, token: str, name: str, shown: str | None
) -> None:
    assert _alike(monkeypatch, _REQUESTS[name], shown) in {401, 403}


@pytest.mark.parametrize(
    ("media_type", "accept", "status"),
    [
        ("application/json; charset=utf-8", _JSON, 201),
        ("APPLICATION/JSON", "*/*", 201),
        ("text/plain", "*/*", 415),
        (_JSON, "text/html", 406),
        (_JSON, "application/json; indent=4", 201),
        (_JSON, "text/html, application/json;q=0.5", 201),
    ],
)
def test_what_is_to_be_negotiated_is_negotiated(
    monkeypatch: pytest.MonkeyPatch, token: str, media_type: str, accept: str, status: int
) -> None:
    asked = _REQUESTS["good"]
    assert _alike(monkeypatch, asked, token, media_type=media_type, accept=accept) == status


@pytest.mark.parametrize(
    ("declared", "route"), SYNCHRONOUS, ids=lambda one: one.name if isinstance(one, Operation) else one.method
)
def test_every_operation_answers_alike(
    monkeypatch: pytest.MonkeyPatch, token: str, declared: Operation, route: Route
) -> None:
    path = route.path.format(**least(route))
    assert _alike(monkeypatch, (route.method, path, b""), token) < 500


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT"])
def test_other_methods_are_answered_alike(monkeypatch: pytest.MonkeyPatch, token: str, method: str) -> None:
    assert _alike(monkeypatch, (method, "/api/v1/inbox", b""), token) in {200, 405}
