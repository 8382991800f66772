"""What the server asks its client on a stream, and who may answer it."""

from collections.abc import Mapping
from typing import Any, cast

import anyio
import pytest
from anyio import run
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, JSONRPCRequest

from apps.core.notifications import in_thread
from apps.mcp import asking
from apps.mcp.asking import Question, Unanswered
from apps.mcp.protocol import Envelope, Exchange
from apps.principals.models import Tenant
from tests.factories import make_caller, make_token
from tests.mcp.raw import post

NAME = ElicitRequest(
    params=ElicitRequestFormParams(
        message="Who?", requested_schema={"type": "object", "properties": {"name": {"type": "string"}}}
    )
)
ACCEPTED = {"action": "accept", "content": {"name": "Kee"}}


def ask(acme: Tenant, *answers: tuple[str, Mapping[str, Any]]) -> tuple[list[int], Question]:
    """Ask Kee, and post these answers, each by its token; the statuses of these posts and the question."""
    envelope = Envelope(id=1, method="tools/call", params=None, version="2025-11-25", capabilities={})
    exchange = Exchange(caller=make_caller(acme), envelope=envelope, body_size=0, credential=cast(Any, None))
    question, said = Question(exchange, NAME), []

    async def converse() -> None:
        with anyio.fail_after(30):
            async for sent in question.asked():
                if isinstance(sent, JSONRPCRequest):
                    assert sent.method == "elicitation/create"
                    for token, answer in answers:
                        body = {"jsonrpc": "2.0", "id": sent.id, **answer}
                        said.append((await in_thread(lambda t=token, b=body: post(b, t))).status_code)  # type: ignore[misc]

    run(converse)
    return said, question


def test_only_who_was_asked_answers(acme: Tenant) -> None:
    token, another = make_token(acme), make_token(acme, "Another")
    said, question = ask(acme, (another, {"result": {"action": "decline"}}), (token, {"result": ACCEPTED}))
    assert said == [400, 202]
    assert question.answer == ElicitResult(action="accept", content={"name": "Kee"})


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"error": {"code": -1, "message": "No one is here."}}, "No one is here."),
        ({"result": {"action": "perhaps"}}, "shape"),
    ],
)
def test_answer_that_is_none_ends_the_wait(acme: Tenant, answer: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(Unanswered, match=sentence):
        ask(acme, (make_token(acme), answer))


def test_nobody_waits_for_ever(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 1)
    with pytest.raises(Unanswered, match="in time"):
        ask(acme)
