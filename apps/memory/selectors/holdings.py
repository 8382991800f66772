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
    """How much a tenant remembers."""
    kinds = ("observations", "patterns", "concepts")
    sums = Tally.objects.filter(tenant_id=tenant_id).aggregate(**{kind: Sum(kind, default=0) for kind in kinds})
    return Holdings(**{kind: int(sums[kind]) for kind in kinds})
