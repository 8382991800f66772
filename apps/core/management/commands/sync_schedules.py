"""Write the schedules that are declared in code into the tables that beat reads."""

from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction
from django_celery_beat.models import IntervalSchedule, PeriodicTask, PeriodicTasks

from apps.core import ticks


class Command(BaseCommand):
    help = "Write the declared ticks into beat's tables; run after migrate, safe to repeat."

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        declared = [tick for tick in ticks.all_ticks() if not tick.calls_out]
        for tick in declared:
            # Every worker process ticks as well, at the pace of each tick; a message costs more than a look.
            seconds = max(2, round(tick.every.total_seconds()))
            schedule, _ = IntervalSchedule.objects.get_or_create(every=seconds, period=IntervalSchedule.SECONDS)
            PeriodicTask.objects.update_or_create(
                name=f"tick: {tick.name}",
                defaults={
                    "task": "core.tick",
                    "interval": schedule,
                    "args": f'["{tick.name}"]',
                    "queue": "sweep",
                    # A tick that waited longer than its interval is superseded by the next one.
                    "expire_seconds": seconds,
                },
            )
        PeriodicTask.objects.filter(name__startswith="tick: ").exclude(
            name__in=[f"tick: {tick.name}" for tick in declared]
        ).delete()
        PeriodicTasks.update_changed()
        self.stdout.write(f"{len(declared)} ticks")
