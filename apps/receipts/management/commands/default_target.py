"""Make the remote target that the environment names."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from apps.core.errors import DomainError
from apps.principals.selectors import tenant_named
from apps.principals.tenancy import acting_as_system
from apps.receipts import services
from apps.receipts.states import Door


class Command(BaseCommand):
    help = (
        "Make or change the remote target 'memorygate' out of MEMORYGATE_URL and MEMORYGATE_SERVICE_TOKEN. "
        "Without them, nothing is done."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--tenant", default="default", metavar="SLUG", help="whose receipts may go there (default: default)"
        )
        parser.add_argument(
            "--door", default=Door.UNIVERSAL, choices=Door.values, help="the door that it has (default: universal)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        url, token = settings.MEMORYGATE_URL, settings.MEMORYGATE_SERVICE_TOKEN
        if not url:
            return
        if not token:
            raise CommandError("MEMORYGATE_URL is set, MEMORYGATE_SERVICE_TOKEN is not.")
        try:
            with acting_as_system("default_target"):
                target = services.put_target(
                    tenant_id=tenant_named(options["tenant"]).pk,
                    name=services.DEFAULT_TARGET,
                    base_url=url,
                    door=Door(options["door"]),
                    token=token,
                    now=timezone.now(),
                )
        except DomainError as refusal:
            raise CommandError(refusal.detail) from refusal
        self.stdout.write(f"{target} is at {target.base_url}")
