"""Enroll a key that may sign workers' manifests: `manage.py enroll_worker_key --key-id bundled --ceiling verified --private-file FILE`."""

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
    """Trust what a key signs, up to a ceiling. A private key is made where the file does not hold one yet, for its owner alone to read."""

    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--tenant", default="default")
        parser.add_argument("--key-id", required=True)
        parser.add_argument("--ceiling", required=True, choices=Tier.values)
        parser.add_argument("--private-file", required=True, type=Path)

    def handle(self, *_args: Any, tenant: str, key_id: str, ceiling: str, private_file: Path, **_options: Any) -> None:
        private = _private_key(private_file, key_id)
        public = json.dumps({name: private[name] for name in ("kty", "crv", "x")})
        with acting_as_system("enroll a worker key"):
            tenant_id = principals.tenant_named(tenant).pk
            services.enroll_key(tenant_id=tenant_id, key_id=key_id, public_key=public, ceiling=Tier(ceiling))
        self.stdout.write(f"{key_id} may grant {ceiling}; its private half is in {private_file}")


def _private_key(file: Path, key_id: str) -> dict[str, str]:
    """The key in the file; a new one is written where there is none, complete or not at all."""
    try:
        found: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        key = OKPKey.generate_key("Ed25519", private=True)
        found = {**{name: str(value) for name, value in key.as_dict(private=True).items()}, "kid": key_id}
        part = file.with_name(f"{file.name}.part")
        part.touch(mode=0o600)
        part.write_text(json.dumps(found), encoding="utf-8")
        part.replace(file)
    return found
