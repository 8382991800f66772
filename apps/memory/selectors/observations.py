"""Observations by reference."""

from apps.memory.errors import UnknownMemory
from apps.memory.models import Observation
from apps.memory.references import observation_number


def observation_of(ref: str) -> Observation:
    """The observation of this reference.

    :raises MalformedMemoryReference: if it is none.
    :raises UnknownMemory: if the tenant has no such observation.
    """
    observation = Observation.objects.filter(pk=observation_number(ref)).first()
    if observation is None:
        raise UnknownMemory(f"There is no {ref[:60]!r}.")
    return observation
