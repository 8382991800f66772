"""Kinds of entries and reasons of snapshots."""

from django.db import models


class Kind(models.TextChoices):
    ITEM = "item"
    DIGEST_SNAPSHOT = "digest_snapshot"


class FlushReason(models.TextChoices):
    """Why a snapshot was made. All but `narrow` surface something new."""

    WINDOW = "window"
    SIZE = "size"
    IMMEDIATE = "immediate"
    ROLLOVER = "rollover"
    LIFECYCLE = "lifecycle"
    NARROW = "narrow"
