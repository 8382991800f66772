"""Observations by reference."""

from django.db.models import Exists, OuterRef, Q

from apps.memory.errors import UnknownMemory
from apps.memory.models import Observation
from apps.memory.references import observation_number
from apps.memory.selectors.subjects import known_to
from apps.principals.tenancy import Caller


def observation_of(ref: str, *, viewer: Caller) -> Observation:
    """The observation of this reference, with the session that it was said in.

    :raises MalformedMemoryReference: if it is none.
    :raises UnknownMemory: if the tenant has no such observation, or it is about a subject that the viewer may not know.
    """
    known = known_to(viewer).filter(pk=OuterRef("session__subject_id"))
    shared = Q(session=None) | Q(session__subject=None) | Exists(known)
    rows = Observation.objects.filter(shared, pk=observation_number(ref))
    found = rows.select_related("session__subject").first()
    if found is None:
        raise UnknownMemory(f"There is no {ref[:60]!r}.")
    return found
