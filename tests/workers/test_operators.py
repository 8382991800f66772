"""What operators do about MCP workers: in the console, and with `manage.py mcp_workers`."""

import json
import os
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import Client
from django.urls import reverse

from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.workers import services as registry
from apps.workers.models import SigningKey, SourceEntry, Worker, WorkerSource
from tests.factories import make_tenant
from tests.workers.factories import enroll, make_key, make_manifest, public_half, register, signed, typed

SENT = {"_form_submitted": "on", "reason": "ticket 7"}
Key = dict[str, str]


@pytest.fixture
def worker(kee: Caller) -> Worker:
    """A verified worker."""
    key = make_key("vendor-key")
    with acting_as(kee):
        enroll(kee, key)
        return register(kee, signed(make_manifest(), key)).worker


def seen(worker: Worker) -> Worker:
    with acting_as_system("test"):
        return Worker.objects.get(pk=worker.pk)


def page(client: Client, model: str, pk: int) -> str:
    return client.get(reverse(f"admin:workers_{model}_change", args=[pk])).content.decode()


def act(client: Client, model: str, name: str, *pk: int, **given: Any) -> int:
    return client.post(reverse(f"admin:workers_{model}_{name}", args=pk), {**SENT, **given}).status_code


def logged() -> list[str]:
    return [entry.change_message for entry in LogEntry.objects.order_by("pk")]


def test_worker_page_shows_trust_tools_and_history(console: Client, kee: Caller, worker: Worker) -> None:
    text = page(console, "worker", worker.pk)
    assert "signed by vendor-key" in text
    assert "Calls an hour: <strong>50</strong>" in text
    with acting_as(kee):
        register(kee, make_manifest())

    text = page(console, "worker", worker.pk)

    assert "the manifest is not signed, or names no key" in text
    assert "verified to untrusted" in text
    assert "the tier untrusted does not allow read" in text


def test_operator_revokes_a_key(console: Client, kee: Caller, worker: Worker) -> None:
    with acting_as(kee):
        stored = SigningKey.objects.get()

    act(console, "signingkey", "revoke", stored.pk)

    assert seen(worker).tier_reason == "the key vendor-key was revoked: ticket 7"
    assert logged() == ["Revoke: ticket 7"]


# Commands


def run(*command: str | Path) -> str:
    answer = StringIO()
    with transaction.atomic():
        call_command("mcp_workers", *map(str, command), "--tenant", "acme", stdout=answer)
    return answer.getvalue()


def test_commands_make_enroll_and_revoke_keys(as_kee: Caller, tmp_path: Path) -> None:
    private, public = tmp_path / "private.json", tmp_path / "public.json"
    for _ in range(2):
        run("enroll-key", "--name", "bundled", "--ceiling", "verified", "--private-file", private)
    made = json.loads(private.read_text())
    public.write_text(public_half(make_key()))
    theirs = run("enroll-key", "--name", "ocr", "--ceiling", "sandbox", "--public-file", public)

    assert private.stat().st_mode & 0o777 == 0o600
    keys = dict(SigningKey.objects.values_list("key_id", "ceiling"))
    assert keys == {made["kid"]: "verified", theirs.split()[0]: "sandbox"}
    assert not SigningKey.objects.filter(public_key__contains=made["d"]).exists()
    assert register(as_kee, signed(make_manifest(), made)).worker.effective_tier == "verified"
    assert "1 MCP workers are untrusted" in run("revoke-key", "--key-id", made["kid"], "--why", "left us")
    with pytest.raises(CommandError, match="No key 'nobody' is enrolled"):
        run("revoke-key", "--key-id", "nobody", "--why", "x")
    public.write_text(json.dumps(make_key()))
    with pytest.raises(CommandError, match="public half"):
        run("enroll-key", "--name", "ocr", "--ceiling", "sandbox", "--public-file", public)
    for content in ("nonsense", "{}"):
        private.write_text(content)
        with pytest.raises(CommandError, match="holds no private key"):
            run("enroll-key", "--name", "x", "--ceiling", "sandbox", "--private-file", private)


def test_command_adds_lists_and_removes_sources(as_kee: Caller, file: Path, tmp_path: Path) -> None:
    file.write_text(yaml.safe_dump({"workers": [make_manifest("one")]}))
    secret = tmp_path / "secret"
    secret.write_text("a password\n")
    there = ["--address", "http://127.0.0.1:9/mcp", "--principal", "Kee"]
    run("add-source", "mine", "--kind", "static", "--address", "elsewhere", "--principal", "Kee")
    run("change-source", "mine", "--address", os.path.relpath(file))
    registry.discover()
    entry = SourceEntry.objects.get()
    make_tenant("other")
    with pytest.raises(CommandError, match="There is no MCP worker 'one'"):
        call_command("mcp_workers", "approve", "one", "--all", "--tenant", "other")
    run("add-source", "e", "--kind", "etcd", *there, "--prefix", "/w/", "--user", "gate", "--secret-file", secret)
    run("add-source", "c", "--kind", "consul", *there, "--service", "mcp", "--secret-file", secret)
    run("add-source", "p", "--kind", "pull", *there, "--worker", '{"worker_id": "files"}', "--every", "60")

    assert (entry.source.address, str(entry.worker), entry.fault) == (str(file), "one", None)
    assert {source.name: source.options for source in WorkerSource.objects.all()} == {
        "mine": {},
        "e": {"prefix": "/w/", "user": "gate"},
        "c": {"service": "mcp"},
        "p": {"worker": {"worker_id": "files"}},
    }
    assert "mine is removed; 1 MCP workers have left" in run("remove-source", "mine")
    for command, fault in (
        (["add-source", "q", "--kind", "pull", *there, "--worker", "[]"], "is no JSON object"),
        (["add-source", "q", "--kind", "pull", *there, "--every", "1"], "every 5 seconds at most"),
        (["change-source", "e", "--every", "0"], "every 5 seconds at most"),
        (["change-source", "mine", "--secret-file", str(tmp_path / "nothing")], "can't be read"),
        (["change-source", "mine", "--secret-file", str(secret)], "There is no source 'mine'"),
        (["rebuild", "--tenant", "nobody"], "There is no tenant"),
    ):
        with pytest.raises(CommandError, match=fault), transaction.atomic():
            call_command("mcp_workers", *command, *([] if "--tenant" in command else ["--tenant", "acme"]))


@pytest.mark.ci
@pytest.mark.django_db(transaction=True)
def test_commands_work_in_a_shell(kee: Caller, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a password")
    etcd = "--kind etcd --address http://127.0.0.1:9 --principal Kee --prefix /w/ --user gate --worker {}"
    key = f"enroll-key --name x --ceiling sandbox --private-file {tmp_path / 'key.json'}"

    assert typed(*key.split(), "--tenant", "acme").endswith("may grant sandbox")
    added = typed("add-source", "e", *etcd.split(), "--secret-file", str(secret), "--tenant", "acme")
    assert added == "e is looked at from now on, and its MCP workers every 60 s"
    missing = typed("remove-source", "nothing", "--tenant", "acme", code=1)
    assert missing == "CommandError: There is no source 'nothing'."
