"""Issue a token from the command line, creating the tenant and the principal when they are missing."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from apps.core.errors import DomainError
from apps.principals import services
from apps.principals.models import Principal
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import acting_as_system


class Command(BaseCommand):
    help = "Issue a token; the tenant and principal are created when missing. The token is shown once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--principal", required=True)
        parser.add_argument("--kind", choices=Kind.values, default=Kind.AI)
        parser.add_argument("--tenant", default="default")
        parser.add_argument("--scope", action="append", choices=Scope.values, default=[], dest="scopes")
        parser.add_argument("--source-system", action="append", default=[], dest="source_systems")
        parser.add_argument("--label", default="issue_token")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        try:
            with acting_as_system("issue_token"):
                tenant = services.create_tenant(slug=options["tenant"], name=options["tenant"], now=now)
                principal = Principal.objects.filter(tenant=tenant).named(options["principal"]).first()
                if principal is None:
                    principal = services.add_principal(
                        tenant_id=tenant.pk, name=options["principal"], kind=Kind(options["kind"]), now=now
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
        self.stdout.write(json.dumps(answer) if options["json"] else issued.secret.text)
