"""What a result pointer of the hub leads to, for workers whose tools take one.

`inline:` pointers hold the document, `artifact:` pointers are fetched from the hub that `GATEHOUSE_URL`
names. No other pointer is followed.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from http import HTTPStatus
from typing import Any, Final

import anyio
import httpx2
from worker_kit import refused

MAX_BYTES: Final = 8 * 1_048_576
FETCH_SECONDS: Final = 5.0
ARTIFACT: Final = re.compile(r"artifact:(?://)?(?:sha256[:/-])?([0-9a-f]{64})", re.ASCII)
ENVELOPES: Final = ("result", "payload", "structuredContent", "structured_content", "content")


async def resolve(pointer: str, *, limit: int = MAX_BYTES) -> Any:
    """Return the JSON document behind a pointer.

    :raises ToolError: if it is of a kind that is not followed, or does not lead to JSON in time and size.
    """
    scheme, _, rest = pointer.strip().partition(":")
    if scheme == "inline" and rest:
        return decoded(rest if rest.lstrip().startswith("{") else from_base64(rest), limit)
    artifact = ARTIFACT.fullmatch(pointer.strip())
    if artifact:
        return decoded(await fetched(artifact[1], limit), limit)
    if scheme == "artifact":
        raise refused("bad_pointer", "An artifact: pointer names the SHA-256 of its content in 64 hexadecimal digits")
    raise refused(
        "unknown_pointer",
        f"Pointers of the kind {scheme[:40]!r} are not followed: give an artifact: or inline: pointer, or the document itself",
    )


async def fetched(digest: str, limit: int) -> bytes:
    """Return an artifact's content from the hub, and from nowhere else."""
    hub, token = os.environ.get("GATEHOUSE_URL", ""), os.environ.get("GATEHOUSE_TOKEN", "")
    if not (hub and token):
        raise refused(
            "no_hub", "This worker knows no hub to fetch artifacts from: GATEHOUSE_URL and GATEHOUSE_TOKEN are not set"
        )
    content = bytearray()
    try:
        with anyio.fail_after(FETCH_SECONDS):
            async with (
                httpx2.AsyncClient(follow_redirects=False, trust_env=False, timeout=FETCH_SECONDS) as http,
                http.stream(
                    "GET",
                    f"{hub.rstrip('/')}/api/v1/artifacts/{digest}",
                    headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
                ) as answer,
            ):
                if answer.status_code != HTTPStatus.OK:
                    raise refused("hub_refused", f"The hub answered {answer.status_code} for artifact {digest}")
                async for chunk in answer.aiter_raw():
                    content += chunk
                    if len(content) > limit:
                        raise refused("too_large", f"Artifact {digest} is over the limit of {limit} bytes")
    except (TimeoutError, httpx2.TimeoutException):
        raise refused(
            "hub_away", f"The hub did not deliver artifact {digest} within {FETCH_SECONDS:.0f} seconds"
        ) from None
    except (httpx2.HTTPError, OSError) as away:
        raise refused("hub_away", f"The hub could not be asked for artifact {digest}: {type(away).__name__}") from None
    return bytes(content)


def from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise refused("bad_pointer", "The inline: pointer does not hold base64url") from None


def decoded(content: str | bytes, limit: int) -> Any:
    if len(content) > limit:
        raise refused("too_large", f"The document is over the limit of {limit} bytes")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise refused("not_json", "The pointer does not lead to a JSON document") from None


def unwrapped(document: Any, key: str) -> Any:
    """Return the object that has a key, also where a hub has wrapped it as the result of a call."""
    for _ in range(3):
        if not isinstance(document, dict) or key in document:
            break
        document = next((document[name] for name in ENVELOPES if isinstance(document.get(name), dict)), None)
    return document
