"""What the server asks its client while a tool runs: a request on the stream of the client's own.

The client posts its answer to whichever process it reaches. Redis hands it to the process that holds the stream, for
the principal that was asked and nobody else.
"""

import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from time import monotonic
from typing import Any, Final

import mcp_types as mcp
import redis
from pydantic import ValidationError

from apps.core.errors import DomainError, Unavailable
from apps.core.notifications import HEARTBEAT_SECONDS, broker, check_place, in_thread, listening, notify, place
from apps.mcp.protocol import Exchange, ProtocolError
from apps.principals.tenancy import Caller

# How long a person behind a client may take.
ANSWER_SECONDS: Final = 300


class Unanswered(Unavailable):
    """The client was asked, and its answer did not come or can't be used."""

    code = "unanswered"


def elicit(text: str, fields: Mapping[str, Mapping[str, Any]]) -> mcp.ElicitRequest:
    """A form with these fields, by their JSON schemas; without any, the text asks for a yes."""
    schema = {"type": "object", "properties": dict(fields), "required": [*fields]}
    return mcp.ElicitRequest(params=mcp.ElicitRequestFormParams(message=text, requested_schema=schema))


class Question:
    """A request of the server's own, for clients of revisions that can be asked so."""

    answer: mcp.Result
    """Once it was asked."""

    def __init__(self, exchange: Exchange, request: mcp.Request[Any, Any]) -> None:
        self._caller = exchange.caller
        self._version = exchange.envelope.version
        self._method = request.method
        body = request.model_dump(by_alias=True, mode="json", exclude_none=True)
        self._sent = mcp.JSONRPCRequest(jsonrpc="2.0", id=secrets.token_urlsafe(16), **body)

    async def asked(self) -> AsyncGenerator[mcp.JSONRPCRequest | None, None]:
        """The request for the stream, then None for each heartbeat, until there is an answer.

        :raises Unanswered: if there is none in time, or the client refuses.
        """
        try:
            check_place(self._caller)
        except DomainError as exc:
            raise Unanswered(exc.detail) from exc
        key = _key(self._caller, self._sent.id)
        ends = monotonic() + ANSWER_SECONDS
        try:
            with place(self._caller):
                async with listening([key]) as listener:
                    await in_thread(lambda: broker().set(key, b"", ex=ANSWER_SECONDS))
                    yield self._sent
                    while not (found := await in_thread(partial(_take, key))):
                        if (left := ends - monotonic()) <= 0:
                            raise Unanswered("The client did not answer in time.")
                        await listener.received(min(HEARTBEAT_SECONDS, left))
                        yield None
        except redis.RedisError as exc:
            raise Unanswered("The client's answer can't be received just now.") from exc
        self.answer = self._read(json.loads(found))

    def _read(self, message: Any) -> mcp.Result:
        if "error" in message:
            raise Unanswered(f"The client does not answer: {message['error']['message'][:500]}")
        try:
            return mcp.methods.parse_client_result(self._method, self._version, message["result"])
        except ValidationError as exc:
            raise Unanswered("The client's answer has not the shape that was asked for.") from exc


def hand_over(caller: Caller, answer: mcp.JSONRPCResponse | mcp.JSONRPCError) -> None:
    """Give an answer to the stream that waits for it.

    :raises ProtocolError: if this caller was not asked, or was and did not answer in time.
    :raises Unavailable: if it can't be given just now.
    """
    key = _key(caller, answer.id)
    try:
        # Only what somebody waits for is kept.
        awaited = broker().set(key, answer.model_dump_json(), xx=True, keepttl=True)
    except redis.RedisError as exc:
        raise Unavailable("The answer can't be passed on just now.") from exc
    if not awaited:
        raise ProtocolError(mcp.INVALID_REQUEST, "Nobody waits for this answer.")
    notify(key)


def _take(key: str) -> bytes:
    """The answer; nothing while it is awaited, or if it was forgotten."""
    found: Any = broker().get(key)
    if found:
        broker().delete(key)
    return found or b""


def _key(caller: Caller, question_id: object) -> str:
    return f"gatehouse:mcp:answer:{caller.principal_id}:{str(question_id)[:100]}"
