"""The Celery application. PostgreSQL holds every fact; a message is a hint that may be lost or doubled."""

import os
from typing import Any, NoReturn

from celery import Celery, platforms
from celery.signals import beat_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
app = Celery("gatehouse")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(related_name="jobs")


@beat_init.connect
def _end_at_once(sender: Any, **_: Any) -> None:
    """End beat at SIGTERM or SIGINT, whatever it does. Celery's own way asks the database from within the signal: while
    beat asks it, it waits for itself."""

    def end(*_: object) -> NoReturn:
        sender.stop()
        raise KeyboardInterrupt

    platforms.signals.update(SIGTERM=end, SIGINT=end)
