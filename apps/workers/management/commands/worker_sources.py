"""Sources of MCP workers: `manage.py worker_sources add NAME --kind pull --address URL --principal NAME`; `secret`; `list`; `remove`.

    manage.py worker_sources add files --kind pull --address https://files.example.com/mcp --principal agent \\
        --worker '{"worker_id": "files", "side_effects": {"filesystem": "read", "network": "none"}}'
    manage.py worker_sources add shared --kind etcd --address https://etcd.example.com:2379 --principal agent \\
        --prefix /workers/ --user gatehouse --secret-file password.txt
    manage.py worker_sources add services --kind consul --address https://consul.example.com:8501 --principal agent \\
        --service mcp-worker --secret-file token.txt
"""

import json
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core.errors import DomainError
from apps.principals import selectors as principals
from apps.principals.models import Principal
from apps.principals.tenancy import acting_as_system
from apps.workers import selectors
from apps.workers.models import SourceKind
from apps.workers.services import discovery


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise ArgumentTypeError(f"{text!r} is no JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"{text!r} is no JSON object")
    return found


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="add a source")
        add.add_argument("name")
        add.add_argument("--kind", required=True, choices=SourceKind.values)
        add.add_argument("--address", required=True, help="a URL; the path of the YAML file for kind static")
        add.add_argument("--principal", required=True, help="the principal that the workers are registered for")
        add.add_argument("--prefix", help="etcd: the prefix of the keys (default: /gatehouse/workers/)")
        add.add_argument("--user", help="etcd: the user; its password stands in --secret-file")
        add.add_argument("--service", help="Consul: the name of the service (default: mcp-worker)")
        add.add_argument(
            "--worker", type=_json_object, metavar="JSON", help="defaults for workers that have no manifest"
        )
        add.add_argument(
            "--every", type=int, default=300, metavar="SECONDS", help="how often each worker is asked (default: 300)"
        )
        add.add_argument("--secret-file", type=Path, help="holds the password of etcd's user, or Consul's token")
        secret = verbs.add_parser("secret", help="replace the password or token of a source")
        secret.add_argument("name")
        secret.add_argument("--secret-file", type=Path, required=True)
        remove = verbs.add_parser("remove", help="remove a source, and the workers that only it lists")
        remove.add_argument("name")
        listed = verbs.add_parser("list", help="list the sources with their workers and faults")
        listed.add_argument("--json", action="store_true")
        for verb in (add, secret, remove, listed):
            verb.add_argument("--tenant", default="default")

    def handle(self, *_args: Any, verb: str, tenant: str, **given: Any) -> None:
        try:
            with acting_as_system("worker sources"):
                tenant_id = principals.tenant_named(tenant).pk
                if verb == "add":
                    self._add(tenant_id, **given)
                elif verb == "secret":
                    secret = _secret(given["secret_file"])
                    discovery.change_secret(tenant_id=tenant_id, name=given["name"], secret=secret)
                    self.stdout.write(f"{given['name']} has another secret from now on")
                elif verb == "remove":
                    left = discovery.remove_source(tenant_id=tenant_id, name=given["name"])
                    self.stdout.write(f"{given['name']} is removed; {left} workers have left")
                else:
                    self._list(tenant_id, as_json=given["json"])
        except DomainError as refusal:
            raise CommandError(refusal.detail) from refusal

    def _add(self, tenant_id: int, **given: Any) -> None:
        principal_id = principals.principal_id_named(given["principal"], tenant_id=tenant_id)
        kind, address = SourceKind(given["kind"]), given["address"]
        options = {name: given[name] for name in ("worker", "prefix", "user", "service") if given[name] is not None}
        source = discovery.add_source(
            principal=Principal.objects.get(pk=principal_id),
            name=given["name"],
            kind=kind,
            address=str(Path(address).resolve()) if kind == SourceKind.STATIC else address,
            options=options,
            secret=_secret(given["secret_file"]) if given["secret_file"] else "",
            every=timedelta(seconds=given["every"]),
        )
        self.stdout.write(f"{source.name} is looked at from now on, and its workers every {given['every']} s")

    def _list(self, tenant_id: int, *, as_json: bool) -> None:
        found = selectors.sources(tenant_id=tenant_id)
        if as_json:
            self.stdout.write(json.dumps(found))
            return
        for source in found:
            self.stdout.write(f"{source['name']}  {source['kind']}  {source['address']}  {source['fault'] or 'ok'}")
            for entry in source["entries"]:
                self.stdout.write(f"  {entry['key']}  {entry['worker_id'] or '-'}  {entry['fault'] or 'ok'}")


def _secret(file: Path) -> str:
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as exc:
        raise CommandError(f"{file} can't be read.") from exc
    if not secret:
        raise CommandError(f"{file} is empty.")
    return secret
