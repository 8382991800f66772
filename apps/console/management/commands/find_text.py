"""List the rows of a tenant whose free text holds some words."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from apps.core import erasure
from apps.principals.selectors import tenant_named
from apps.principals.tenancy import acting_as_system


class Command(BaseCommand):
    help = "List the rows of a tenant whose text holds these words, in any case. Changes nothing; reads whole tables."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("tenant", help="the tenant's slug")
        parser.add_argument("words", help="what to look for, such as a name")
        parser.add_argument("--limit", type=int, default=100, help="rows of each table (100)")

    def handle(self, *args: Any, **options: Any) -> None:
        with acting_as_system("an operator looks for words in free text"), erasure.redacting():
            tenant = tenant_named(options["tenant"])
            for hit in erasure.search(tenant.pk, options["words"], limit=options["limit"]):
                self.stdout.write(f"{hit.table}:{hit.number}\t{hit.excerpt}")
