"""Operations over REST, as a client asks for them."""

import json
from typing import Any

from django.test import Client


def ask(method: str, path: str, token: str, body: Any = None) -> tuple[int, Any]:
    """The status and the document of an answer; a path without a slash at its beginning is one of `/api/v1/`."""
    answer = Client().generic(
        method,
        path if path.startswith("/") else f"/api/v1/{path}",
        "" if body is None else json.dumps(body),
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    return answer.status_code, answer.json() if answer.content else None
