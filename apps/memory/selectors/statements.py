"""Statements by their very words."""

from apps.memory.models import Concept, Observation, Pattern


def saying(text: str) -> str | None:
    """A memory that says exactly this, as a whole and still, about no subject and outside of conversations: its reference."""
    told = (
        Observation.objects.filter(text=text, session=None, superseded_at=None),
        Pattern.objects.filter(text=text),
        Concept.objects.filter(description=text).exclude(description=""),
    )
    return next((memory.ref for memories in told for memory in memories[:1]), None)
