"""Enroll a key: manifests of MCP workers that it signs are trusted up to a ceiling.

Either a key of this machine, which is made if its file does not exist, or the public half (a JWK) of somebody else's key:

    manage.py enroll_worker_key --name bundled --ceiling verified --private-file FILE
    manage.py enroll_worker_key --name acme-ocr --ceiling sandbox --public-file FILE
"""

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from joserfc.jwk import OKPKey

from apps.core.errors import DomainError
from apps.principals import selectors as principals
from apps.principals.tenancy import acting_as_system
from apps.workers import trust
from apps.workers.services import registry
from apps.workers.trust import Tier


class Command(BaseCommand):
    """The id of the key is its name and the beginning of its thumbprint."""

    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.add_argument("--tenant", default="default")
        parser.add_argument("--name", required=True, help="beginning of the key's id")
        parser.add_argument("--ceiling", required=True, choices=Tier.values)
        where = parser.add_mutually_exclusive_group(required=True)
        where.add_argument("--private-file", type=Path, help="file of the private half; made if it does not exist")
        where.add_argument("--public-file", type=Path, help="file of the public half")

    def handle(
        self,
        *_args: Any,
        tenant: str,
        name: str,
        ceiling: str,
        private_file: Path,
        public_file: Path | None,
        **_options: Any,
    ) -> None:
        try:
            found = _private_key(private_file, name) if public_file is None else _public_key(public_file, name)
            public = json.dumps({member: found[member] for member in ("kty", "crv", "x")})
            with acting_as_system("enroll a worker key"):
                tenant_id = principals.tenant_named(tenant).pk
                registry.enroll_key(tenant_id=tenant_id, key_id=found["kid"], public_key=public, ceiling=Tier(ceiling))
        except DomainError as refusal:
            raise CommandError(refusal.detail) from refusal
        self.stdout.write(f"{found['kid']} may grant {ceiling}")


def _public_key(file: Path, name: str) -> dict[str, str]:
    text = trust.public_key(file.read_text(encoding="utf-8"))
    return {**json.loads(text), "kid": _key_id(name, OKPKey.import_key(json.loads(text)))}


def _key_id(name: str, key: OKPKey) -> str:
    return f"{name}-{key.thumbprint()[:12]}"


def _private_key(file: Path, name: str) -> dict[str, str]:
    """Read the key in the file. If there is none, write a new key atomically, readable by its owner alone."""
    try:
        found: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        key = OKPKey.generate_key("Ed25519", private=True)
        members = {member: str(value) for member, value in key.as_dict(private=True).items()}
        found = {**members, "kid": _key_id(name, key)}
        part = file.with_name(f"{file.name}.part")
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        part.write_text(json.dumps(found), encoding="utf-8")
        part.replace(file)
    return found
