"""Cleaning up the folders of several repositories, each for itself."""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from apps.handoff import cli, places
from apps.handoff.errors import Refused

logger = logging.getLogger(__name__)


def clean(roots: Iterable[Path], *, kept: timedelta, now: datetime) -> int:
    """Remove what was shown or taken longer ago than it is kept; answers how many files.

    A repository that is gone, or can't be written, does not hinder the others.
    """
    removed = 0
    for root in roots:
        try:
            removed += len(cli.cleaned(places.find(root), kept=kept, now=now))
        except (Refused, OSError) as exc:
            logger.warning("handoffs of %s were not cleaned up: %s", root, exc)
    return removed
