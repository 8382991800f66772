"""Enroll the key in a file, made where there is none: `manage.py enroll_worker_key --name bundled --ceiling verified --private-file FILE`."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand
from joserfc.jwk import OKPKey

from apps.principals import selectors as principals
from apps.principals.tenancy import acting_as_system
from apps.workers import services
from apps.workers.trust import Tier


class Command(BaseCommand):
    """Trust the manifests that a key signs, up to a ceiling. The key's id is the name and the key's thumbprint."""

    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--tenant", default="default")
        parser.add_argument("--name", required=True, help="what the key's id begins with")
        parser.add_argument("--ceiling", required=True, choices=Tier.values)
        parser.add_argument(
            "--private-file", required=True, type=Path, help="where its private half lies, or shall lie"
        )

    def handle(self, *_args: Any, tenant: str, name: str, ceiling: str, private_file: Path, **_options: Any) -> None:
        private = _private_key(private_file, name)
        public = json.dumps({member: private[member] for member in ("kty", "crv", "x")})
        with acting_as_system("enroll a worker key"):
            tenant_id = principals.tenant_named(tenant).pk
            services.enroll_key(tenant_id=tenant_id, key_id=private["kid"], public_key=public, ceiling=Tier(ceiling))
        self.stdout.write(f"{private['kid']} may grant {ceiling}; its private half is in {private_file}")


def _private_key(file: Path, name: str) -> dict[str, str]:
    """The key in the file; where there is none, a new one is written, for its owner alone to read, complete or not at all."""
    try:
        found: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        key = OKPKey.generate_key("Ed25519", private=True)
        members = {member: str(value) for member, value in key.as_dict(private=True).items()}
        found = {**members, "kid": f"{name}-{key.thumbprint()[:12]}"}
        part = file.with_name(f"{file.name}.part")
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        part.write_text(json.dumps(found), encoding="utf-8")
        part.replace(file)
    return found
