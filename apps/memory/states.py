"""The kinds of things that are remembered of a subject."""

from django.db.models import TextChoices


class ItemType(TextChoices):
    """What an item is: stated or observed, inferred from several occasions, or a story that is shared."""

    USER_FACT = "USER_FACT"
    USER_PATTERN = "USER_PATTERN"
    SHARED_NARRATIVE = "SHARED_NARRATIVE"
