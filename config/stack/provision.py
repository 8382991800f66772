"""Bring the database up to date in one process: ``python -m config.stack.provision``.

Standard input holds the tokens to issue as JSON: lists of arguments of ``issue_token``, by name. The arguments are the
password file and the bundled workers' key file. The answer is JSON on standard output. Everything may be repeated.
"""

import io
import json
import os
import sys
from contextlib import redirect_stdout

import django
from django.core.management import CommandError, call_command

from config.unreachable import told_in_a_sentence

# The exit code that says: the last line of standard error is for the person at the terminal.
REFUSED = 4


def provision(*, password_file: str, worker_key_file: str, tokens: dict[str, list[str]]) -> dict[str, object]:
    """Migrate, write the schedules, add the operator, the tokens and the default target, trust the bundled workers' key."""
    call_command("migrate", interactive=False, verbosity=0)
    call_command("sync_schedules")
    call_command("ensure_operator", "--username", "admin", "--password-file", password_file)
    issued = {name: _issue(arguments) for name, arguments in tokens.items()}
    call_command("default_target")
    call_command("source_tokens")
    call_command(
        "mcp_workers", "enroll-key", "--name", "bundled", "--ceiling", "verified", "--private-file", worker_key_file
    )
    return {"migrations": _applied_migrations(), "tokens": issued}


def _issue(arguments: list[str]) -> str:
    answer = io.StringIO()
    call_command("issue_token", *arguments, "--json", stdout=answer)
    token: str = json.loads(answer.getvalue())["token"]
    return token


def _applied_migrations() -> int:
    from django.db import connection  # noqa: PLC0415  # needs the settings, which are read below
    from django.db.migrations.recorder import MigrationRecorder  # noqa: PLC0415

    return len(MigrationRecorder(connection).applied_migrations())


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    with redirect_stdout(sys.stderr), told_in_a_sentence(REFUSED):
        try:
            outcome = provision(password_file=sys.argv[1], worker_key_file=sys.argv[2], tokens=json.load(sys.stdin))
        except CommandError as refusal:
            sys.stderr.write(f"{refusal}\n")
            raise SystemExit(REFUSED) from None
    sys.stdout.write(json.dumps(outcome))
