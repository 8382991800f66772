"""One sentence in place of a traceback: the settings are wrong, or the database can't be reached."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError

from config.stack.servers import LOGINS
from config.typed import typed


@contextmanager
def told_in_a_sentence(code: int) -> Iterator[None]:
    """Exit with this code and one sentence. Other errors pass."""
    try:
        yield
    except ImproperlyConfigured as fault:
        sys.stderr.write(f"{fault}\n")
        raise SystemExit(code) from None
    except OperationalError as failure:
        cause = failure.__cause__
        # What a server answered carries a state; that no server answered does not.
        if not isinstance(cause, psycopg.OperationalError) or cause.sqlstate is not None:
            raise
        sys.stderr.write(f"{_sentence(cause)}\n")
        raise SystemExit(code) from None


def _sentence(cause: psycopg.OperationalError) -> str:
    reason = str(cause).strip().splitlines()[0]
    if named := [name for name in LOGINS if os.environ.get(name)]:
        return f"The database that {' or '.join(named)} names can't be reached: {reason}"
    if not (settings.DATA_DIR / "stack.json").exists():
        return f"Nothing runs with its data in {settings.DATA_DIR}; start {typed('up')}, or name the folder of what runs in GATEHOUSE_DATA."
    return f"The database of what runs with its data in {settings.DATA_DIR} can't be reached: {reason}"
