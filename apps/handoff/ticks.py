"""What handoff does by itself."""

from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from apps.core.ticks import tick
from apps.handoff import services, sweeping


@tick(every=timedelta(hours=1))
def tidy() -> None:
    """Forget handoffs that were inherited long ago."""
    services.tidy(before=timezone.now() - settings.HANDOFFS_KEPT)


@tick(every=timedelta(hours=1))
def clean_repositories() -> None:
    """Clean up the folders of the repositories that the deployment was told of."""
    sweeping.clean(settings.HANDOFF_REPOSITORIES, kept=settings.HANDOFFS_KEPT, now=timezone.now())
