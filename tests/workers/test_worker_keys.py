"""Enrolling a key from the command line, and that the workers' own signature is the one that the registry reads."""

import importlib.util
import json
import sys
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest
from django.core.management import call_command
from joserfc.jwk import OKPKey

from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as_system
from apps.workers.models import SigningKey
from apps.workers.trust import Tier
from tests.factories import make_tenant
from tests.workers.factories import enroll, make_key, make_manifest, register

KIT = Path(__file__).resolve().parents[2] / "examples" / "workers" / "worker_kit.py"


@pytest.fixture(scope="module")
def worker_kit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("worker_kit_under_test", KIT)
    if spec is None or spec.loader is None:
        pytest.fail(f"{KIT} is not there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def enroll_by_command(file: Path, ceiling: str = "verified") -> str:
    answer = StringIO()
    options = ["--tenant", "acme", "--name", "bundled", "--ceiling", ceiling, "--private-file", str(file)]
    call_command("enroll_worker_key", *options, stdout=answer)
    return answer.getvalue()


def test_a_key_is_made_once_for_its_owner_alone_and_enrolled_once(tenant: Tenant, tmp_path: Path) -> None:
    file = tmp_path / "worker-key"

    enroll_by_command(file)
    private = file.read_text()
    enroll_by_command(file)

    assert file.read_text() == private
    assert file.stat().st_mode & 0o777 == 0o600
    with acting_as_system("test"):
        keys = list(SigningKey.objects.all())
    assert [(key.key_id, key.ceiling) for key in keys] == [(json.loads(private)["kid"], "verified")]
    assert json.loads(private)["d"] not in keys[0].public_key


def test_two_stacks_on_one_database_have_keys_of_their_own(tenant: Tenant, tmp_path: Path) -> None:
    enroll_by_command(tmp_path / "one")
    enroll_by_command(tmp_path / "two")

    with acting_as_system("test"):
        assert SigningKey.objects.count() == 2


def test_the_kits_signature_is_the_one_that_the_registry_reads(as_kee: Caller, worker_kit: ModuleType) -> None:
    key = make_key()
    enroll(as_kee, key, Tier.VERIFIED)

    done = register(as_kee, worker_kit.signed(make_manifest(), OKPKey.import_key(dict(key))))

    assert done.worker.effective_tier == "verified"


def test_the_kit_says_what_is_wrong_with_a_key(worker_kit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    public = {name: value for name, value in make_key().items() if name != "d"}
    for text in ("nonsense", "[]", "{}", json.dumps(public)):
        monkeypatch.setenv("GATEHOUSE_WORKER_KEY", text)
        with pytest.raises(ValueError, match="GATEHOUSE_WORKER_KEY holds no private Ed25519 key"):
            worker_kit.key_from_environment()


def test_a_key_counts_in_its_own_tenant_only(as_kee: Caller, worker_kit: ModuleType) -> None:
    key = make_key()
    other = make_tenant("other")
    with acting_as_system("test"):
        SigningKey.objects.create(
            tenant=other, key_id="bundled", public_key="x", ceiling="trusted", enrolled_at=other.created_at
        )

    done = register(as_kee, worker_kit.signed(make_manifest(), OKPKey.import_key(dict(key))))

    assert done.worker.effective_tier == "untrusted"
