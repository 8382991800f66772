"""Bring the database up to date in one process: ``python -m config.stack.provision DATA TOKENS``.

TOKENS is JSON: the tokens to issue by name, each as the arguments of ``issue_token``. Those that are missing go into the
data folder's secrets. Everything may be repeated.
"""

import io
import json
import os
import secrets
import sys
from pathlib import Path

import django
from django.core.management import CommandError, call_command

from config.stack.folders import DataFolder, write_private
from config.unreachable import told_in_a_sentence


def provision(data: DataFolder, wanted: dict[str, list[str]]) -> None:
    """Migrate, write the schedules, add the operator, the tokens and the default target, trust the bundled workers' key."""
    if not data.password_file.exists():
        write_private(data.password_file, secrets.token_urlsafe(12) + "\n")
    call_command("migrate", interactive=False, verbosity=0)
    call_command("sync_schedules")
    call_command("ensure_operator", "--username", "admin", "--password-file", str(data.password_file))
    kept = data.secrets()
    tokens = kept["tokens"].setdefault(os.environ["DATABASE_URL"], {})
    for name, arguments in wanted.items():
        if name not in tokens:
            answer = io.StringIO()
            call_command("issue_token", *arguments, "--json", stdout=answer)
            tokens[name] = json.loads(answer.getvalue())["token"]
    data.keep_secrets(kept)
    write_private(data.token_file, tokens.get("agent", "") + "\n")
    call_command("default_target")
    call_command("source_tokens")
    key = str(data.worker_key_file)
    call_command("mcp_workers", "enroll-key", "--name", "bundled", "--ceiling", "verified", "--private-file", key)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    with told_in_a_sentence(1):
        try:
            provision(DataFolder(Path(sys.argv[1])), json.loads(sys.argv[2]))
        except CommandError as refusal:
            sys.exit(str(refusal))
