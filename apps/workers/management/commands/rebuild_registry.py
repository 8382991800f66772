"""Register the MCP workers again that memory holds and the registry has lost.

Each one is judged as if it registered now: a worker whose signature has expired comes back untrusted until it registers
again. Quarantined workers stay in quarantine. Unregistered workers, and those of disabled principals, stay unregistered.
Workers that the registry knows are left alone.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core.errors import DomainError
from apps.principals import selectors as principals
from apps.principals.tenancy import acting_as_system
from apps.workers.services import memory


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.add_argument("--tenant", default="default")

    def handle(self, *_args: Any, tenant: str, **_options: Any) -> None:
        try:
            with acting_as_system("rebuild the registry"):
                tenant_id = principals.tenant_named(tenant).pk
        except DomainError as refusal:
            raise CommandError(refusal.detail) from refusal
        restored = memory.restore(tenant_id=tenant_id)
        for one in restored:
            self.stdout.write(f"{one.worker_id}: {one.tier or 'left out'} ({one.reason})")
        self.stdout.write(f"{sum(one.tier is not None for one in restored)} workers registered again")
