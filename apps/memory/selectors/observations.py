"""Observations by reference."""

from django.db.models import Exists, OuterRef, Q, QuerySet

from apps.memory.errors import UnknownMemory
from apps.memory.models import Observation
from apps.memory.references import observation_number
from apps.memory.selectors.subjects import known_to
from apps.principals.tenancy import Caller


def observations_known_to(viewer: Caller) -> QuerySet[Observation]:
    """The observations of the viewer's tenant but those about a subject that is not shared with it, and the forgotten."""
    known = known_to(viewer).filter(pk=OuterRef("session__subject_id"))
    return Observation.objects.exclude(text="").filter(Q(session=None) | Q(session__subject=None) | Exists(known))


def observation_of(ref: str, *, viewer: Caller) -> Observation:
    """The observation of this reference, with the session that it was said in.

    :raises MalformedMemoryReference: if it is none.
    :raises UnknownMemory: if the tenant has no such observation, it was forgotten, or it is about a subject that the viewer may
        not know.
    """
    rows = observations_known_to(viewer).filter(pk=observation_number(ref))
    found = rows.select_related("session__subject").first()
    if found is None:
        raise UnknownMemory(f"There is no {ref[:60]!r}.")
    return found
