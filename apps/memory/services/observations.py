"""Observations, each findable at once."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Greatest

from apps.memory import selectors, sql
from apps.memory.errors import AboutAnother, AlreadySuperseded
from apps.memory.models import Observation, Passage
from apps.memory.services.evidence import evidence_of
from apps.memory.services.sessions import take_turn
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
    conversation_id: str | None = None,
    speaker: str = "",
) -> Observation:
    """Remember one statement, findable at once.

    :param conversation_id: the author's conversation that it was said in, as the next turn; recall takes what was
        said around it into account. One that is not known yet begins. What is said with a subject is about it.
    :param speaker: who said it.
    :param supersedes: the reference of an older statement in whose place this one stands from now on; by a clock that is
        behind, from when the older one was recorded.
    :raises MalformedMemoryReference: if one should name a memory, and does not.
    :raises UnknownMemory: if there is no such older statement, or not all the evidence, or it was forgotten, or is about a subject
        that is not shared with the author.
    :raises AboutAnother: if it is about another subject, or about one where this is about none.
    :raises AlreadySuperseded: if another statement stands in its place already.
    :raises ConversationFull: if the conversation takes no more turns.
    """
    refs = evidence_of(author, evidence).refs
    turn = None
    if conversation_id is not None:
        at = min(occurred_at or now, now)
        turn = take_turn(principal=author, conversation_id=conversation_id, at=at, now=now)
    observation = Observation.objects.create(
        tenant_id=author.tenant_id,
        author_id=author.principal_id,
        session=None if turn is None else turn.session,
        speaker=speaker,
        text=text,
        domain=domain,
        confidence=confidence,
        evidence=refs,
        metadata=dict(metadata or {}),
        occurred_at=occurred_at or now,
        recorded_at=now,
    )
    if supersedes is not None:
        older = selectors.observation_of(supersedes, viewer=author)
        if older.scope != (turn.session.scope if turn else 0):
            raise AboutAnother(f"{older} is not about the same as what is to stand in its place.")
        replaced = Observation.objects.filter(pk=older.pk, superseded_at=None).update(
            superseded_at=Greatest("recorded_at", Value(now)), superseded_by=observation
        )
        if not replaced:
            raise AlreadySuperseded(f"{older} has been superseded already.")
        sql.supersede_passages(observations=[older.pk])
    passage = Passage.objects.create(
        **({"id": turn.place} if turn else {}),
        tenant_id=author.tenant_id,
        observation=observation,
        scope=turn.session.scope if turn else 0,
        domain=domain,
        recorded_at=now,
    )
    dated = "" if occurred_at is None else f" {occurred_at:%B %Y}"
    sql.index_words(passage.pk, text, context=speaker + dated, observations=1 if supersedes is None else 0, passages=1)
    return observation
