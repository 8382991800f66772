"""Enroll a key whose manifests shall be trusted, up to a ceiling.

A key of this machine, made where its file does not exist, or the public half (a JWK) that somebody else has handed over:

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
from apps.workers import services, signing
from apps.workers.trust import Tier


class Command(BaseCommand):
    """Trust the manifests that a key signs, up to a ceiling. The key's id is the name and the key's thumbprint."""

    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.add_argument("--tenant", default="default")
        parser.add_argument("--name", required=True, help="what the key's id begins with")
        parser.add_argument("--ceiling", required=True, choices=Tier.values)
        where = parser.add_mutually_exclusive_group(required=True)
        where.add_argument("--private-file", type=Path, help="where its private half lies, or shall lie")
        where.add_argument("--public-file", type=Path, help="where its public half lies")

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
                services.enroll_key(tenant_id=tenant_id, key_id=found["kid"], public_key=public, ceiling=Tier(ceiling))
        except DomainError as refusal:
            raise CommandError(refusal.detail) from refusal
        self.stdout.write(f"{found['kid']} may grant {ceiling}")


def _public_key(file: Path, name: str) -> dict[str, str]:
    text = signing.public_key(file.read_text(encoding="utf-8"))
    return {**json.loads(text), "kid": _key_id(name, OKPKey.import_key(json.loads(text)))}


def _key_id(name: str, key: OKPKey) -> str:
    return f"{name}-{key.thumbprint()[:12]}"


def _private_key(file: Path, name: str) -> dict[str, str]:
    """The key in the file; where there is none, a new one is written, for its owner alone to read, complete or not at all."""
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
