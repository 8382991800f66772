"""Observations by reference."""

from apps.memory.errors import UnknownMemory
from apps.memory.models import Observation
from apps.memory.references import observation_number
from apps.memory.selectors.subjects import may_know
from apps.principals.tenancy import Caller


def observation_of(ref: str, *, viewer: Caller) -> Observation:
    """The observation of this reference, with the session that it was said in.

    :raises MalformedMemoryReference: if it is none.
    :raises UnknownMemory: if the tenant has no such observation, or it is about a subject that the viewer may not know.
    """
    found = Observation.objects.select_related("session__subject").filter(pk=observation_number(ref)).first()
    subject = found.session.subject if found is not None and found.session is not None else None
    if found is None or (subject is not None and not may_know(subject, viewer)):
        raise UnknownMemory(f"There is no {ref[:60]!r}.")
    return found
