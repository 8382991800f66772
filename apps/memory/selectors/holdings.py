"""How much there is."""

from dataclasses import dataclass

from apps.memory import sql


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """How much a tenant remembers, beside what is about subjects."""

    observations: int
    patterns: int
    concepts: int


def holdings(*, tenant_id: int) -> Holdings:
    """How much a tenant remembers that is about no subject: what a question finds that names none.

    What is said with a subject is tallied with it, and its number is for those alone who may know it. The sum reads one row,
    and what was written since the last fold.
    """
    observations, patterns, concepts = sql.held(tenant_id=tenant_id)
    return Holdings(observations=observations, patterns=patterns, concepts=concepts)
