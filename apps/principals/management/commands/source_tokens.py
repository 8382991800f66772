"""Accept the tokens that the environment names."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from apps.core.errors import DomainError
from apps.principals import services
from apps.principals.tenancy import acting_as_system


class Command(BaseCommand):
    help = (
        "Accept each <SOURCE>_SERVICE_TOKEN of the environment as the token with which that source posts receipts: "
        "ASYNCGATE_SERVICE_TOKEN is that of asyncgate. Another text ends the one before; without any, nothing is done."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        for variable, text in sorted(settings.SERVICE_TOKENS.items()):
            source = variable.removesuffix(settings.SERVICE_TOKEN_SUFFIX).lower()
            try:
                with acting_as_system("source_tokens"):
                    tenant = services.create_tenant(slug="default", name="default", now=now)
                    token = services.accept_token(
                        tenant_id=tenant.pk, source_system=source, text=text, label=variable, now=now
                    )
            except DomainError as refusal:
                raise CommandError(refusal.detail) from refusal
            self.stdout.write(f"{variable} {'is revoked' if token.revoked_at else f'posts as {source}'}")
