"""Lease tokens: proof that a run was granted to this holder, checked without a query."""

import base64
import hmac
import re
from dataclasses import dataclass
from typing import Final

from django.conf import settings

from apps.core.errors import Forbidden
from apps.core.ids import parse_ref

_TOKEN: Final = re.compile(r"lt_([1-9][0-9]{0,17})\.([1-9][0-9]{0,8})\.([A-Za-z0-9_-]{43})", re.ASCII)


class BadLeaseToken(Forbidden):
    """The token was not issued to this caller for this task. It says nothing about the task."""

    code = "bad_lease_token"


@dataclass(frozen=True, slots=True)
class Lease:
    """A run that its holder has proved to hold, or to have held; the fencing token says which run."""

    task_id: int
    fencing_token: int


def sign(*, tenant_id: int, holder_id: int, task_id: int, fencing_token: int) -> str:
    """The token of a run, `lt_<task>.<fencing_token>.<mac>`. It is not stored anywhere."""
    mac = _mac(settings.LEASE_KEYS[0], tenant_id, holder_id, task_id, fencing_token)
    return f"lt_{task_id}.{fencing_token}.{mac}"


def prove(token: str, *, tenant_id: int, holder_id: int, task_id: int) -> Lease:
    """What a token proves, in constant time and without a query.

    :raises BadLeaseToken: if no key of this deployment made it for this tenant, holder and task.
    """
    named, fencing_token, mac = _split(token)
    proved = False
    for key in settings.LEASE_KEYS:
        # Every key is tried, whichever fits, so that time tells nothing.
        proved |= hmac.compare_digest(_mac(key, tenant_id, holder_id, named, fencing_token).encode(), mac.encode())
    if not proved or named != task_id:
        raise BadLeaseToken("This lease token was not issued to you for this task.")
    return Lease(task_id=task_id, fencing_token=fencing_token)


def task_of(ref: str) -> int:
    """The number in `task_7`.

    :raises Malformed: if it is no reference to a task.
    """
    return parse_ref("task", ref)


def _split(token: str) -> tuple[int, int, str]:
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise BadLeaseToken("This lease token was not issued to you for this task.")
    return int(match[1]), int(match[2]), match[3]


def _mac(key: str, tenant_id: int, holder_id: int, task_id: int, fencing_token: int) -> str:
    message = f"lease:{tenant_id}:{holder_id}:{task_id}:{fencing_token}".encode()
    return base64.urlsafe_b64encode(hmac.digest(key.encode(), message, "sha256")).rstrip(b"=").decode()
