"""Bodies that come in chunks and name no length, through a real web process."""

from collections.abc import Iterator

import httpx2
import pytest

from apps.principals.models import Tenant
from tests.factories import make_token
from tests.mcp.conftest import Server


def _chunks(*parts: bytes) -> Iterator[bytes]:
    yield from parts


@pytest.mark.parametrize(
    ("chunks", "status", "code"),
    [
        ([b'{"entries"', b': ["ent_1"], "nonsense": 1}'], 422, "invalid"),
        ([b'{"entr', b'ies": ["ent_999999999"]}'], 404, "unknown_entry"),
    ],
)
def test_a_chunked_body_is_read_like_any_other(
    server: Server, acme: Tenant, chunks: list[bytes], status: int, code: str
) -> None:
    answer = httpx2.post(
        f"{server.url}/api/v1/inbox/ack",
        content=_chunks(*chunks),
        headers={"Authorization": f"Bearer {make_token(acme)}", "Content-Type": "application/json"},
        timeout=60,
    )
    assert (answer.status_code, answer.json()["code"]) == (status, code)
