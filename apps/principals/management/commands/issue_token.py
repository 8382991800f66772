"""Issue a token from the command line, creating the tenant and the principal when they are missing."""

import json
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from apps.core.errors import DomainError
from apps.principals import services
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.selectors import NameTaken
from apps.principals.tenancy import acting_as_system


class Command(BaseCommand):
    help = "Issue a token; the tenant and principal are created when missing. The token is shown once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--principal", required=True, metavar="NAME", help="who will act with the token")
        parser.add_argument(
            "--kind", choices=Kind.values, help="what the principal is when it is created (default: ai)"
        )
        parser.add_argument(
            "--parent", metavar="NAME", help="to whom the principal reports when it is created (default: nobody)"
        )
        parser.add_argument(
            "--tenant", default="default", metavar="SLUG", help="whose data it acts on (default: default)"
        )
        parser.add_argument(
            "--scope",
            action="append",
            choices=Scope.values,
            default=[],
            dest="scopes",
            help="what the token may do; give it once for each scope, at least one",
        )
        parser.add_argument(
            "--source-system",
            action="append",
            default=[],
            dest="source_systems",
            metavar="NAME",
            help="a source system in whose name it may post receipts; give it once for each",
        )
        parser.add_argument(
            "--label", default="issue_token", help="a note by which people know the token (default: issue_token)"
        )
        output = parser.add_mutually_exclusive_group()
        output.add_argument(
            "--json", action="store_true", help="print one JSON object with token, principal and tenant"
        )
        output.add_argument(
            "--shell", action="store_true", help="print the line that sets GATEHOUSE_URL and GATEHOUSE_TOKEN in a shell"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["scopes"]:
            raise CommandError("A token without scopes may do nothing: name at least one with --scope.")
        now = timezone.now()
        try:
            with acting_as_system("issue_token"):
                tenant = services.create_tenant(slug=options["tenant"], name=options["tenant"], now=now)
                named = Principal.objects.filter(tenant=tenant).named(options["principal"])
                principal = named.first()
                parent = _parent(tenant, options["parent"])
                if principal is None:
                    kind = Kind(options["kind"] or Kind.AI)
                    try:
                        principal = services.add_principal(
                            tenant_id=tenant.pk, name=options["principal"], kind=kind, parent=parent, now=now
                        )
                    except NameTaken:  # by another of these commands, just now
                        principal = named.get()
                if options["kind"] not in {None, principal.kind}:
                    raise CommandError(
                        f"{principal.name} exists and is of the kind {principal.kind}, not {options['kind']}: "
                        "leave --kind out, or take another name."
                    )
                if parent not in {None, principal.parent}:
                    raise CommandError(
                        f"{principal.name} exists and reports to {principal.parent or 'nobody'}, not {parent}: "
                        "leave --parent out, or take another name."
                    )
                issued = services.issue_token(
                    principal=principal,
                    scopes=[Scope(scope) for scope in options["scopes"]],
                    source_systems=options["source_systems"],
                    label=options["label"],
                    now=now,
                )
        except DomainError as refusal:
            raise CommandError(refusal.detail) from refusal
        answer = {"token": issued.secret.text, "principal": principal.name, "tenant": tenant.slug}
        if options["json"]:
            self.stdout.write(json.dumps(answer))
        elif options["shell"]:
            self.stdout.write(f"export GATEHOUSE_URL={settings.PUBLIC_URL} GATEHOUSE_TOKEN={issued.secret.text}")
        else:
            self.stdout.write(issued.secret.text)


def _parent(tenant: Tenant, name: str | None) -> Principal | None:
    """:raises CommandError: if the tenant has no principal of this name."""
    if name is None:
        return None
    found = Principal.objects.filter(tenant=tenant).named(name).first()
    if found is None:
        raise CommandError(f"There is no principal {name[:50]!r} to report to: issue a token to it first.")
    return found
