"""Periodic jobs of handoff."""

import logging
from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from apps.core.ticks import tick
from apps.handoff import files
from apps.handoff.items import Refused

logger = logging.getLogger(__name__)


@tick(every=timedelta(hours=1))
def clean_repositories() -> None:
    """Clean the folders of the configured repositories. One that is gone or read-only does not hinder the others."""
    for root in settings.HANDOFF_REPOSITORIES:
        try:
            files.clean(files.repository_of(root), kept=settings.HANDOFFS_KEPT, now=timezone.now())
        except (Refused, OSError) as exc:
            logger.warning("handoffs of %s were not cleaned up: %s", root, exc)
