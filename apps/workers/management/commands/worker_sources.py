"""Where workers are looked for: `manage.py worker_sources add NAME --kind pull --address URL --principal NAME`; `secret`; `list`; `remove`."""

import json
from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core.errors import DomainError
from apps.principals import selectors as principals
from apps.principals.models import Principal
from apps.principals.tenancy import acting_as_system
from apps.workers import selectors, services
from apps.workers.states import SourceKind

_WHY = "worker sources"


class Command(BaseCommand):
    """Sources of workers of one tenant. What is found at them is registered for the principal that answers for them."""

    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="look for workers there from now on")
        add.add_argument("name")
        add.add_argument("--kind", required=True, choices=SourceKind.values)
        add.add_argument("--address", required=True, help="an address, or of kind static the YAML file")
        add.add_argument("--principal", required=True, help="who answers for what is found")
        add.add_argument(
            "--settings",
            default="{}",
            help="JSON: `prefix`, `user` (etcd), `service` (consul), and `worker`: what is said of workers that say nothing, "
            'like {"worker": {"worker_id": "files", "side_effects": {"filesystem": "read", "network": "none"}}}',
        )
        add.add_argument("--every", type=int, default=300, metavar="SECONDS", help="how often each place is asked")
        add.add_argument("--secret-file", type=Path, help="holds the password of etcd's user, or Consul's token")
        secret = verbs.add_parser("secret", help="another password or token for a source that has one")
        secret.add_argument("name")
        secret.add_argument("--secret-file", type=Path, required=True)
        remove = verbs.add_parser("remove", help="look there no more; what was found there alone leaves")
        remove.add_argument("name")
        listed = verbs.add_parser("list", help="the sources, what they name, and what is wrong with it")
        listed.add_argument("--json", action="store_true")
        for verb in (add, secret, remove, listed):
            verb.add_argument("--tenant", default="default")

    def handle(self, *_args: Any, verb: str, tenant: str, **options: Any) -> None:
        try:
            with acting_as_system(_WHY):
                tenant_id = principals.tenant_named(tenant).pk
                if verb == "add":
                    self._add(tenant_id, **options)
                elif verb == "secret":
                    services.change_secret(
                        tenant_id=tenant_id, name=options["name"], secret=_secret(options["secret_file"])
                    )
                    self.stdout.write(f"{options['name']} is told another secret from now on")
                elif verb == "remove":
                    left = services.remove_source(tenant_id=tenant_id, name=options["name"])
                    self.stdout.write(f"{options['name']} is removed; {left} workers have left")
                else:
                    self._list(tenant_id, as_json=options["json"])
        except DomainError as refusal:
            raise CommandError(refusal.detail) from refusal

    def _add(self, tenant_id: int, **options: Any) -> None:
        try:
            settings = json.loads(options["settings"])
        except ValueError as exc:
            raise CommandError(f"--settings is no JSON: {exc}") from exc
        if not isinstance(settings, dict):
            raise CommandError("--settings is a JSON object.")
        principal_id = principals.principal_id_named(options["principal"], tenant_id=tenant_id)
        kind = SourceKind(options["kind"])
        address = options["address"]
        source = services.add_source(
            principal=Principal.objects.get(pk=principal_id),
            name=options["name"],
            kind=kind,
            address=str(Path(address).resolve()) if kind == SourceKind.STATIC else address,
            settings=settings,
            secret=_secret(options["secret_file"]) if options["secret_file"] else "",
            every=timedelta(seconds=options["every"]),
        )
        self.stdout.write(f"{source.name} is looked at from now on")

    def _list(self, tenant_id: int, *, as_json: bool) -> None:
        found = selectors.sources(tenant_id=tenant_id)
        if as_json:
            self.stdout.write(json.dumps(found))
            return
        for source in found:
            self.stdout.write(f"{source['name']}  {source['kind']}  {source['address']}  {source['fault'] or 'ok'}")
            for place in source["places"]:
                self.stdout.write(f"  {place['key']}  {place['worker_id'] or '-'}  {place['fault'] or 'ok'}")


def _secret(file: Path) -> str:
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as exc:
        raise CommandError(f"{file} can't be read.") from exc
    if not secret:
        raise CommandError(f"{file} is empty.")
    return secret
