"""End the trust in a key for good: `manage.py revoke_worker_key --key-id bundled-x1 --why "the laptop is gone"`."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core.errors import DomainError
from apps.principals import selectors as principals
from apps.principals.tenancy import acting_as_system
from apps.workers.services import registry


class Command(BaseCommand):
    """All MCP workers that the key has signed are untrusted at once, and its signatures are refused."""

    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--tenant", default="default")
        parser.add_argument("--key-id", required=True)
        parser.add_argument("--why", required=True, help="recorded in the history of each worker")

    def handle(self, *_args: Any, tenant: str, key_id: str, why: str, **_options: Any) -> None:
        try:
            with acting_as_system("revoke a worker key"):
                tenant_id = principals.tenant_named(tenant).pk
                stripped = registry.revoke_key(tenant_id=tenant_id, key_id=key_id, why=why)
        except DomainError as refusal:
            raise CommandError(refusal.detail) from refusal
        self.stdout.write(f"{key_id} is revoked; {stripped} workers are untrusted now")
