"""Asking a language model for a plan: outside of transactions, within a time limit, and once for the same request."""

from collections.abc import Sequence
from datetime import timedelta
from hashlib import blake2b
from time import monotonic
from typing import Final

import rfc8785
from django.conf import settings

from apps.core import outbound
from apps.core.outbound import CallFailed
from apps.plans import metrics
from apps.plans.catalogue import Tool
from apps.plans.documents import ModelUse, can_be_told
from apps.plans.language_model import MOST_TOOLS, Api, Completion, Unusable, completion, proposal, question
from apps.plans.proposals import Asked, Proposal

_REPAIRS: Final = 2
_OK: Final = 200
_MOST_BYTES: Final = 256 * 1024
_MOST_KEPT: Final = 1_000
_MILLION: Final = 1_000_000


ANSWERS: Final[dict[bytes, str]] = {}
"""The answers that this process remembers."""


def may_ask() -> bool:
    """Has the operator named a model that may be asked?"""
    return bool(settings.PLANNER_MODEL_URL) and settings.PLANNER_USE_MODEL != "never"


def ask(*, tenant_id: int, asked: Asked, tools: Sequence[Tool]) -> tuple[Proposal | None, ModelUse]:
    """What the model proposes for a request over the best of these tools; None if nothing that can be used.

    An answer that can't be used is sent back with what is wrong, twice at most.
    """
    tools = tools[:MOST_TOOLS]
    key = _key(tenant_id, asked, tools)
    known = ANSWERS.get(key)
    if known is not None:
        return proposal(known, asked, tools), ModelUse(model=settings.PLANNER_MODEL)
    begun, api, calls = monotonic(), Api.of(settings.PLANNER_MODEL_URL), 0
    found, failure, repairs, spent = None, "", list[tuple[str, str]](), list[Completion]()
    while calls <= _REPAIRS:
        calls += 1
        body = question(asked, tools, model=settings.PLANNER_MODEL, api=api, repairs=repairs)
        try:
            came = completion(_called(body, api, settings.PLANNER_MODEL_SECONDS - (monotonic() - begun)), api=api)
        except (CallFailed, Unusable) as fault:
            failure = f"The model did not answer: {fault}"
            break
        spent.append(came)
        try:
            found = proposal(came.text, asked, tools)
        except Unusable as fault:
            failure = f"The model's answer can't be used: {fault}"
            repairs.append((came.text[:8_000], str(fault)))
            continue
        failure = "" if found else "The model finds no tool for this."
        if len(ANSWERS) >= _MOST_KEPT:
            ANSWERS.clear()
        ANSWERS[key] = came.text
        break
    tokens = (sum(one.input_tokens for one in spent), sum(one.output_tokens for one in spent))
    seconds = monotonic() - begun
    metrics.MODEL_SECONDS.observe(seconds)
    metrics.MODEL_CALLS.labels("failed" if found is None else "repaired" if repairs else "used").inc()
    return found, ModelUse(
        model=settings.PLANNER_MODEL,
        calls=calls,
        input_tokens=tokens[0],
        output_tokens=tokens[1],
        seconds=round(seconds, 3),
        cost=_cost(*tokens),
        failure=failure[:500] or None,
    )


def _called(body: bytes, api: Api, seconds: float) -> bytes:
    """:raises CallFailed: if there is no answer in time, or a refusal."""
    headers, token = {"Content-Type": "application/json"}, settings.PLANNER_MODEL_TOKEN
    if api == Api.ANTHROPIC:
        headers |= {"anthropic-version": "2023-06-01", **({"x-api-key": token} if token else {})}
    elif token:
        headers["Authorization"] = f"Bearer {token}"
    if seconds <= 0:
        raise outbound.TimedOut(f"No usable answer within {settings.PLANNER_MODEL_SECONDS:g} s.")
    deadline = timedelta(seconds=seconds)
    came = outbound.post(
        settings.PLANNER_MODEL_URL, body=body, headers=headers, deadline=deadline, max_answer_bytes=_MOST_BYTES
    )
    if came.status != _OK:
        raise CallFailed(f"The endpoint answered {came.status}.")
    return came.body


def _key(tenant_id: int, asked: Asked, tools: Sequence[Tool]) -> bytes:
    """What an answer depends on, but for the hour: values that are relative to it are checked anew at each use."""
    context = {name: value for name, value in asked.context.items() if can_be_told(value)}
    said = [tenant_id, settings.PLANNER_MODEL_URL, settings.PLANNER_MODEL, asked.intent, asked.now.date().isoformat()]
    return blake2b(rfc8785.dumps([*said, context, [tool.uid for tool in tools]]), digest_size=16).digest()


def _cost(input_tokens: int, output_tokens: int) -> float | None:
    prices = settings.PLANNER_MODEL_PRICES
    if not prices:
        return None
    return round((input_tokens * prices[0] + output_tokens * prices[1]) / _MILLION, 6)
