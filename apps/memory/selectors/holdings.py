"""How much there is."""

from dataclasses import dataclass

from django.db.models import Sum

from apps.memory.models import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """How much a tenant remembers."""

    observations: int
    patterns: int
    concepts: int


def holdings(*, tenant_id: int) -> Holdings:
    """How much a tenant remembers.

    What is about a subject is tallied with it, so that forgetting it takes that away: the sum reads a row of each subject
    that has any, off the index alone, and what was written since the last fold. It costs with the number of subjects, not with
    what is remembered of them.
    """
    kinds = ("observations", "patterns", "concepts")
    sums = Tally.objects.filter(tenant_id=tenant_id).aggregate(**{kind: Sum(kind, default=0) for kind in kinds})
    return Holdings(**{kind: int(sums[kind]) for kind in kinds})
