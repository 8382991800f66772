"""Asking a small model about the gaps of a plan: one call, outside of transactions, and whatever comes of it is only a suggestion."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import structlog
from django.conf import settings

from apps.core import outbound
from apps.core.outbound import CallFailed
from apps.plans.suggestions import Suggested, answer, gaps_of, question

logger = structlog.get_logger(__name__)

_DEADLINE: Final = timedelta(seconds=5)
_OK: Final = 200


def asks_a_model() -> bool:
    """Has the operator named an endpoint?"""
    return bool(settings.PLANNER_MODEL_URL)


def suggestions(*, document: Mapping[str, Any]) -> Suggested:
    """What the model says of a refusal's gaps; nothing if it does not answer in time, or otherwise than asked."""
    gaps = gaps_of(document)
    if not gaps:
        return Suggested()
    headers = {"Content-Type": "application/json"}
    if settings.PLANNER_MODEL_TOKEN:
        headers["Authorization"] = f"Bearer {settings.PLANNER_MODEL_TOKEN}"
    body = question(document["intent"], gaps, model=settings.PLANNER_MODEL)
    try:
        came = outbound.post(settings.PLANNER_MODEL_URL, body=body, headers=headers, deadline=_DEADLINE)
    except CallFailed as failure:
        logger.warning("plans.model_silent", code=failure.code, reason=str(failure))
        return Suggested()
    if came.status != _OK:
        logger.warning("plans.model_refused", status=came.status)
        return Suggested()
    return answer(came.body, document["intent"], gaps)
