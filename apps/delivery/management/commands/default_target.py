"""Make the remote target that the environment names."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from apps.core.errors import DomainError
from apps.delivery.models import Endpoint
from apps.delivery.services import targets
from apps.principals.selectors import tenant_named
from apps.principals.tenancy import acting_as_system


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
            "--endpoint",
            default=Endpoint.UNIVERSAL,
            choices=Endpoint.values,
            help="the endpoint that it has (default: universal)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        url, token = settings.MEMORYGATE_URL, settings.MEMORYGATE_SERVICE_TOKEN
        if not url:
            return
        if not token:
            raise CommandError("MEMORYGATE_URL is set, MEMORYGATE_SERVICE_TOKEN is not.")
        try:
            with acting_as_system("default_target"):
                target = targets.put_remote(
                    tenant_id=tenant_named(options["tenant"]).pk,
                    name=targets.DEFAULT_TARGET,
                    url=url,
                    endpoint=Endpoint(options["endpoint"]),
                    token=token,
                    now=timezone.now(),
                )
        except DomainError as refusal:
            raise CommandError(refusal.detail) from refusal
        self.stdout.write(f"{target} is at {target.url}")
