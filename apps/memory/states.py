"""The kinds of memories."""

from django.db.models import TextChoices


class Kind(TextChoices):
    """What a memory is. It is the first part of the memory's reference, `observation:123`."""

    OBSERVATION = "observation"
    PATTERN = "pattern"
    CONCEPT = "concept"
    ITEM = "item"


class ItemType(TextChoices):
    """What an item of a subject is: stated or observed, inferred from several occasions, or a story that is shared."""

    USER_FACT = "USER_FACT"
    USER_PATTERN = "USER_PATTERN"
    SHARED_NARRATIVE = "SHARED_NARRATIVE"
