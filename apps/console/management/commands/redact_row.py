"""Redact one row of a tenant."""

from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from apps.core import erasure
from apps.principals.selectors import tenant_named
from apps.principals.tenancy import acting_as_system

# A bigint holds any number of so many.
_DIGITS: Final = 18


class Command(BaseCommand):
    help = "Erase the texts of one row, as find_text lists it: receipts_receipt:12."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("tenant", help="the tenant's slug")
        parser.add_argument("row", help="table:number")

    def handle(self, *args: Any, **options: Any) -> None:
        table, _, number = options["row"].partition(":")
        if table not in erasure.redactable() or not number.isdecimal() or len(number) > _DIGITS:
            raise CommandError(f"Give table:number, where the table is one of {', '.join(erasure.redactable())}.")
        with acting_as_system("an operator redacts a row"), erasure.redacting():
            if not erasure.redact(tenant_named(options["tenant"]).pk, table, int(number)):
                raise CommandError("There is no such row of the tenant, or nothing is left to redact in it.")
