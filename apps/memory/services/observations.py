"""Observations, each findable at once."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.memory import selectors, sql
from apps.memory.errors import AlreadySuperseded
from apps.memory.models import Observation, Passage
from apps.principals.tenancy import Caller


@transaction.atomic
def store_observation(
    *,
    author: Caller,
    text: str,
    now: datetime,
    domain: str = "",
    confidence: float = 0.8,
    evidence: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    occurred_at: datetime | None = None,
    supersedes: str | None = None,
) -> Observation:
    """Remember one statement, findable at once.

    :param supersedes: the reference of an older statement in whose place this one stands from now on.
    :raises UnknownMemory: if there is no such older statement.
    :raises AlreadySuperseded: if another statement stands in its place already.
    """
    observation = Observation.objects.create(
        tenant_id=author.tenant_id,
        author_id=author.principal_id,
        text=text,
        domain=domain,
        confidence=confidence,
        evidence=list(evidence),
        metadata=dict(metadata or {}),
        occurred_at=occurred_at or now,
        recorded_at=now,
    )
    if supersedes is not None:
        older = selectors.observation_of(supersedes)
        replaced = Observation.objects.filter(pk=older.pk, superseded_at=None).update(
            superseded_at=now, superseded_by=observation
        )
        if not replaced:
            raise AlreadySuperseded(f"{older} has been superseded already.")
    passage = Passage.objects.create(
        tenant_id=author.tenant_id, observation=observation, domain=domain, recorded_at=now
    )
    sql.index_words(passage.pk, text, observations=1 if supersedes is None else 0, passages=1)
    return observation
