"""Patterns and their revisions."""

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from apps.memory import selectors, sql
from apps.memory.errors import UnknownMemory
from apps.memory.models import Passage, Pattern, PatternRevision
from apps.memory.references import observation_ref
from apps.principals.tenancy import Caller


@transaction.atomic
def update_pattern(
    *,
    author: Caller,
    category: str,
    pattern_name: str,
    pattern_text: str,
    confidence: float,
    now: datetime,
    evidence_observation_ids: Sequence[int] = (),
) -> Pattern:
    """Write down what was found to hold, or revise it; every revision is kept.

    No revision is older than the one before it: by a clock that is behind, it is written down when that one was.

    :raises UnknownMemory: if the tenant has not all of these observations, one was forgotten, or one is about a subject that
        is not shared with the author.
    """
    rows = selectors.observations_known_to(author).filter(pk__in=evidence_observation_ids)
    known = set(rows.values_list("pk", flat=True))
    if missing := [number for number in evidence_observation_ids if number not in known]:
        raise UnknownMemory(f"There is no {observation_ref(missing[0])!r}.")
    # Whoever forgets the pattern meanwhile is waited for; then another begins under its name.
    pattern, _ = Pattern.objects.select_for_update().get_or_create(
        tenant_id=author.tenant_id,
        category=category,
        name=pattern_name,
        defaults={
            "author_id": author.principal_id,
            "text": pattern_text,
            "confidence": confidence,
            "revision": 0,
            "recorded_at": now,
            "revised_at": now,
        },
    )
    now = max(now, pattern.revised_at)
    pattern.author_id = author.principal_id
    pattern.text = pattern_text
    pattern.confidence = confidence
    pattern.evidence = [observation_ref(number) for number in evidence_observation_ids]
    pattern.revision += 1
    pattern.revised_at = now
    pattern.save()
    PatternRevision.objects.create(
        tenant_id=author.tenant_id,
        author_id=author.principal_id,
        pattern=pattern,
        number=pattern.revision,
        text=pattern_text,
        confidence=confidence,
        evidence=pattern.evidence,
        recorded_at=now,
    )
    passage, created = Passage.objects.get_or_create(
        tenant_id=author.tenant_id, pattern=pattern, defaults={"domain": category, "recorded_at": pattern.recorded_at}
    )
    sql.index_words(
        passage.pk, f"{category} {pattern_name} {pattern_text}", patterns=int(created), passages=int(created)
    )
    return pattern
