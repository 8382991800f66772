"""HTTP around the operations: negotiation, methods, bodies, headers, the log, and a database that is away."""

import asyncio
import json
import os
import socket
from typing import Any, Final

import psycopg
import pytest
from django.db import OperationalError, connection
from django.test import Client

from apps.core import problems
from apps.core.sql import DatabaseAway, database_now, retried
from apps.principals.models import Tenant
from apps.principals.tenancy import acting_as_system
from tests.asgi import ask
from tests.factories import make_token

pytestmark = pytest.mark.django_db
_JSON: Final = "application/json"
_POST: Final = "/api/v1/receipts"
_DOOR: Final = "/internal/inbox/receipt"
_RECEIPT: Final = {"recipient_ai": "Kee", "source_system": "ci", "dedupe_key": "ci:a:b:1", "summary": "Done"}


def _receipt(**changed: Any) -> bytes:
    return json.dumps(_RECEIPT | changed).encode()


@pytest.fixture
def token(tenant: Tenant) -> str:
    return make_token(tenant, name="Kee", source_systems=["ci"])


def _ask(
    method: str, path: str, body: bytes = b"", *, token: str | None, content_type: str = _JSON, accept: str = ""
) -> Any:
    headers = ({"Authorization": f"Bearer {token}"} if token else {}) | ({"Accept": accept} if accept else {})
    return Client().generic(method, path, body, content_type=content_type, headers=headers)


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (_POST, _receipt(title="é\u2028😀", metadata={"é": "\u2029"}), 201, None),
        (_POST, _receipt(recipient_ai="Nobody"), 404, "unknown_recipient"),
        (_POST, _receipt(nonesuch=1), 422, "invalid"),
        (_POST, _receipt(title="x" * 201), 422, "invalid"),
        (_POST, _receipt(summary="x" * 16_385), 413, "too_large"),
        (_POST, _receipt(summary="ä" * 9000), 413, "too_large"),
        (_POST, _receipt(metadata={"a": "x" * 65_536}), 413, "too_large"),
        (_POST, b"", 422, "invalid"),
        (_POST, b"[1]", 422, "invalid"),
        (_POST, b'{"title": "a", "title": "b"}', 400, "malformed_json"),
        (_POST, b'{"metadata": {"n": "\\u0000"}}', 422, "unstorable_json"),
        (_POST, b"[" * 100_000, 422, "unstorable_json"),
        (_POST, b" " * 600_000, 413, "body_too_large"),
        (_POST, b" " * 9_000_000, 413, "body_too_large"),
        (_DOOR, _receipt(), 200, None),
        (_DOOR, _receipt(group={"flush_class": "soon"}), 422, "invalid"),
        (_DOOR, b"{", 400, "malformed_json"),
    ],
)
def test_body_is_read_or_refused_by_code(token: str, path: str, body: bytes, status: int, code: str | None) -> None:
    answer = _ask("POST", path, body, token=token)
    document = answer.json()
    assert (answer.status_code, document.get("code", document.get("error"))) == (status, code)
    problem = _JSON if status < 300 or path == _DOOR else "application/problem+json"
    assert answer.headers["Content-Type"] == problem


@pytest.mark.parametrize(
    ("query", "code", "detail"),
    [
        ("limit=2&limit=3", "invalid", "/limit: Given more than once."),
        ("source_system=%ff", "malformed", "The query is not UTF-8."),
        ("source_system=%ed%a0%80", "malformed", "The query is not UTF-8."),
        ("&".join(["limit=2"] * 1001), "malformed", "The query has more than 1000 parameters."),
        ("limit=2&limit=3&wait=1", "invalid", "/limit: Given more than once."),
    ],
)
def test_ambiguous_query_is_refused_by_name(token: str, query: str, code: str, detail: str) -> None:
    answer = _ask("GET", f"/api/v1/inbox?{query}", token=token).json()
    assert (answer["code"], answer["detail"]) == (code, detail)


@pytest.mark.parametrize(
    ("content_type", "accept", "status"),
    [
        ("application/json; charset=utf-8", _JSON, 201),
        ("APPLICATION/JSON", "*/*", 201),
        ("text/plain", "*/*", 415),
        ("", "*/*", 415),
        (_JSON, "text/html", 406),
        (_JSON, "application/json; indent=4", 201),
        (_JSON, "text/html, application/json;q=0.5", 201),
    ],
)
def test_content_is_negotiated(token: str, content_type: str, accept: str, status: int) -> None:
    answer = _ask("POST", _POST, _receipt(), token=token, content_type=content_type, accept=accept)
    assert answer.status_code == status
    if status == 415:
        assert "Content-Type: application/json" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "last_event_id", "code", "pointer"),
    [
        ("?wait=61", "", "invalid", "/wait"),
        ("?wait=nan", "", "invalid", "/wait"),
        ("?wait=1&nonesuch=1", "", "invalid", "/nonesuch"),
        ("/stream?wait=3", "", "invalid", "/wait"),
        ("/stream", "ent_4", "invalid", "/after"),
        ("?after=2&wait=50", "", "ahead_of_inbox", "/after"),
        ("/stream?after=2", "", "ahead_of_inbox", "/after"),
        ("/stream?after=1", "2", "ahead_of_inbox", "/after"),
    ],
)
def test_impossible_wait_is_refused_with_its_place(
    token: str, path: str, last_event_id: str, code: str, pointer: str
) -> None:
    _ask("POST", _POST, _receipt(), token=token)
    headers = {"Authorization": f"Bearer {token}", "Last-Event-ID": last_event_id}
    answer = Client().get(f"/api/v1/inbox{path}", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_lease_without_work_is_an_empty_answer(token: str) -> None:
    for given, status in (({}, 204), ({"wait_seconds": 31}, 422)):
        answer = _ask("POST", "/api/v1/tasks/lease", json.dumps({"queues": ["default"], **given}).encode(), token=token)
        assert (answer.status_code, bool(answer.content)) == (status, status != 204)


@pytest.mark.parametrize("path", ["/api/v1/whoami", "/api/v1/inbox?wait=50", "/api/v1/workers", "/api/v1/inbox/stream"])
def test_head_is_answered_as_get_without_waiting(token: str, path: str) -> None:
    assert _ask("HEAD", path, token=token).status_code == 200
    assert _ask("HEAD", path, token=None).status_code == 401


@pytest.mark.parametrize("path", ["/api/v1/whoami", "/api/v1/inbox", "/api/v1/inbox/stream", "/mcp"])
def test_other_methods_are_refused_with_those_allowed(token: str, path: str) -> None:
    for method in ("PUT", "PATCH", "DELETE", "GET" if path == "/mcp" else "POST"):
        answer = _ask(method, path, token=token, accept="text/event-stream" if path == "/mcp" else "")
        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
        assert ("POST" if path == "/mcp" else "GET") in answer.headers["Allow"]
    assert _ask("OPTIONS", path, token=token).status_code == 200


@pytest.mark.parametrize("authorization", ["", "{token}", "Token {token}"])
def test_request_without_bearer_token_is_told_its_form(token: str, authorization: str) -> None:
    headers = {"Authorization": authorization.format(token=token)} if authorization else {}
    refused = Client(headers=headers).get("/api/v1/receipts")
    assert (refused.status_code, refused.json()["code"]) == (401, "not_authenticated")
    assert "Authorization: Bearer TOKEN" in refused.json()["detail"]
    assert token not in refused.content.decode()


def _asgi(path: str, *, host: str = "localhost", **more: Any) -> tuple[int, dict[str, str], str]:
    """The status, the headers and the body, by the product's ASGI application."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(ask(path, send, host=host, **more))
    headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]).decode()


@pytest.mark.parametrize("path", ["/api/v1/whoami", "/api/v1/nothing/of/the/kind", "/workers/nobody/tools", "/mcp"])
def test_every_answer_carries_its_length_and_the_security_headers(path: str) -> None:
    status, headers, body = _asgi(path)
    assert status in {401, 403, 404, 405}
    assert headers["content-length"] == str(len(body.encode()))
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "set-cookie" not in headers


@pytest.mark.parametrize("query", ["", "wait=0.01"])
def test_answer_after_a_wait_carries_what_every_answer_does(
    transactional_db: None, caplog: pytest.LogCaptureFixture, tenant: Tenant, query: str
) -> None:
    caplog.set_level("INFO")
    status, headers, body = _asgi("/api/v1/inbox", query=query, authorization=f"Bearer {make_token(tenant)}")
    assert (status, headers["content-type"]) == (200, _JSON)
    assert headers["content-length"] == str(len(body))
    assert headers["x-frame-options"] == "DENY"
    finished = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    ends = [event for event in finished if event["event"] == "request_finished"]
    assert [(event["code"], event["tenant"], event["principal"]) for event in ends] == [(200, "acme", "Kee")]


def test_unknown_host_is_refused_at_operations_and_pages() -> None:
    for path in ("/api/v1/whoami", "/mcp", "/livez"):
        status, _, body = _asgi(path, host="elsewhere.example")
        assert (status, json.loads(body)["code"]) == (400, "unknown_host")
        assert "GATEHOUSE_HOSTS" in json.loads(body)["detail"]


def test_refusal_names_the_id_of_its_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    _, _, body = _asgi("/api/v1/nowhere")
    events = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    assert "request_finished" in {event["event"] for event in events}
    assert json.loads(body)["trace_id"] in {event.get("request_id") for event in events}


def test_pages_go_through_all_middleware() -> None:
    status, headers, _ = _asgi("/admin/login/")
    assert status == 200
    assert "csrftoken" in headers["set-cookie"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("/", "/admin/"), ("/admin", "/admin/"), ("/api/docs", "/api/docs/"), ("/api/schema", "/api/schema/")],
)
def test_short_address_leads_to_its_page(typed: str, meant: str) -> None:
    answer = Client().get(typed)
    assert (answer.status_code, answer.headers["Location"]) == (302, meant)
    assert Client().post(typed).status_code == 405


def test_absent_database_is_asked_once(transactional_db: None) -> None:
    asked = []

    def run() -> None:
        asked.append(1)
        raise OperationalError("server closed the connection unexpectedly")

    with pytest.raises(DatabaseAway):
        retried(run)
    assert asked == [1]


def test_database_limit_is_a_defect(transactional_db: None) -> None:
    def run() -> None:
        raise OperationalError("too long") from psycopg.errors.ProgramLimitExceeded("string is too long for tsvector")

    with pytest.raises(OperationalError) as failure:
        retried(run)
    assert problems.handle(failure.value, {}) is None


def test_lost_session_is_an_absent_database(transactional_db: None) -> None:
    connection.ensure_connection()
    with socket.socket(fileno=os.dup(connection.connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)

    def run() -> None:
        with acting_as_system("test"):
            database_now()

    with pytest.raises(DatabaseAway):
        retried(run)
    connection.close()
