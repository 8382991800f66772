"""Make the remote target that the environment names."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from apps.core.errors import DomainError
from apps.delivery import services
from apps.delivery.models import Endpoint, Target
from apps.principals.selectors import tenant_named
from apps.principals.tenancy import acting_as_system


class Command(BaseCommand):
    help = (
        "Make the remote target 'memorygate' out of MEMORYGATE_URL and MEMORYGATE_SERVICE_TOKEN, or change its address "
        "and token. Without them, nothing is done."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        url, token = settings.MEMORYGATE_URL, settings.MEMORYGATE_SERVICE_TOKEN
        if not url:
            return
        if not token:
            raise CommandError("MEMORYGATE_URL is set, MEMORYGATE_SERVICE_TOKEN is not.")
        try:
            with acting_as_system("default_target"):
                tenant_id = tenant_named("default").pk
                known = Target.objects.filter(tenant_id=tenant_id, name=services.DEFAULT_TARGET).first()
                target = services.put_remote(
                    tenant_id=tenant_id,
                    name=services.DEFAULT_TARGET,
                    url=url,
                    token=token,
                    endpoint=Endpoint((known and known.endpoint) or Endpoint.UNIVERSAL),
                    known_as=known.known_as if known else None,
                    timeout_seconds=known.timeout_seconds if known else 5,
                    now=timezone.now(),
                )
        except DomainError as refusal:
            raise CommandError(refusal.detail) from refusal
        self.stdout.write(f"{target} is at {target.url}")
