"""Results on their way in and out: small ones are stored with the task, larger ones as artifacts."""

import hashlib
from typing import Any, Final

from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages
from django.db import transaction

from apps.core.errors import FieldError, Invalid, TooLarge, Unavailable
from apps.core.ids import format_ref
from apps.core.sql import database_now
from apps.principals.tenancy import Caller, acting_in
from apps.tasks import selectors
from apps.tasks.models import Artifact, FinishedTask
from apps.tasks.results import (
    ARTIFACT,
    INLINE,
    MAX_INLINE_BYTES,
    InvalidPointer,
    UnknownArtifact,
    artifact_digest,
    artifact_pointer,
    inline_bytes,
    scheme_of,
)
from apps.tasks.services.ending import refuse_strangers
from apps.tasks.shapes import Delivery, TaskResult

_JSON: Final = "application/json"


class Nothing:
    """Stands for a result that was not given; null is a result."""


NOTHING: Final = Nothing()


def prepare(
    *,
    tenant_id: int,
    task_id: int,
    result: Any = NOTHING,
    pointer: str | None = None,
    channel: str | None = None,
    checksum: str | None = None,
) -> Delivery:
    """Make a result fit to be recorded. Call it before the transaction, because it may write a file.

    A result over 64 KiB as JSON becomes an artifact.

    :raises Invalid: if both a result and a pointer are given.
    :raises InvalidPointer: if the pointer has no scheme, is `inline:`, or names an artifact that is not there.
    :raises TooLarge: `artifact_too_large` if the result is over the deployment's limit.
    :raises Unavailable: `artifacts_unavailable` if the storage fails.
    """
    if pointer is not None:
        if result is not NOTHING:
            raise Invalid("Give a result or a result_pointer.", errors=[FieldError("/result", "excludes a pointer")])
        return _elsewhere(tenant_id, pointer, channel, checksum)
    if result is NOTHING:
        return Delivery(channel=channel, checksum=checksum)
    content = inline_bytes(result)
    if len(content) <= MAX_INLINE_BYTES:
        return Delivery(
            channel=channel or INLINE,
            pointer=f"{INLINE}:{format_ref('task', task_id)}",
            content=result,
            inline=True,
            checksum=f"sha256:{hashlib.sha256(content).hexdigest()}",
            size=len(content),
            media_type=_JSON,
        )
    stored = store_artifact(tenant_id=tenant_id, content=content, media_type=_JSON)
    return _elsewhere(tenant_id, stored, channel, None)


def store_artifact(*, tenant_id: int, content: bytes, media_type: str) -> str:
    """Store bytes under their SHA-256 and return the pointer; equal bytes are stored once for a tenant.

    The file is written before its row. Call it outside a transaction, because it waits for a disk.

    :raises TooLarge: `artifact_too_large` if they are over the deployment's limit.
    :raises Unavailable: `artifacts_unavailable` if the storage fails.
    """
    if len(content) > settings.ARTIFACT_MAX_BYTES:
        raise TooLarge(
            f"{len(content)} bytes; an artifact may have {settings.ARTIFACT_MAX_BYTES}.", code="artifact_too_large"
        )
    digest = hashlib.sha256(content).hexdigest()
    try:
        _write(storages["artifacts"], selectors.place_of(tenant_id, digest), content)
    except OSError as exc:
        raise Unavailable(
            "The storage of artifacts does not take this one just now.", code="artifacts_unavailable"
        ) from exc
    with acting_in(tenant_id, "storing an artifact"):
        stored = Artifact(
            tenant_id=tenant_id, digest=digest, media_type=media_type, size=len(content), created_at=database_now()
        )
        Artifact.objects.bulk_create([stored], ignore_conflicts=True)
    return artifact_pointer(digest)


def pointer_of(content: bytes) -> str:
    """The pointer that :func:`store_artifact` answers for a content."""
    return artifact_pointer(hashlib.sha256(content).hexdigest())


def _elsewhere(tenant_id: int, pointer: str, channel: str | None, checksum: str | None) -> Delivery:
    scheme = scheme_of(pointer)
    if scheme == INLINE:
        raise InvalidPointer(
            "An inline result is sent as `result`.", errors=[FieldError("/result_pointer", "is inline")]
        )
    if scheme != ARTIFACT:
        return Delivery(channel=channel or scheme, pointer=pointer, checksum=checksum)
    try:
        with acting_in(tenant_id, "looking up an artifact"):
            stored = selectors.artifact(tenant_id=tenant_id, digest=artifact_digest(pointer))
    except UnknownArtifact as exc:
        raise InvalidPointer(
            "There is no such artifact.", errors=[FieldError("/result_pointer", "names no artifact")]
        ) from exc
    return Delivery(
        channel=channel or scheme,
        pointer=pointer,
        checksum=f"sha256:{stored.digest}",
        size=stored.size,
        media_type=stored.media_type,
    )


def _write(storage: Storage, place: str, content: bytes) -> None:
    """Write the bytes to their place; a half-written file is replaced."""
    if storage.exists(place):
        if storage.size(place) == len(content):
            return
        storage.delete(place)
    written = storage.save(place, ContentFile(content))
    if written != place:
        # A rival has stored the same bytes at this moment.
        storage.delete(written)


@transaction.atomic
def fetch_result(*, caller: Caller, task_id: int) -> TaskResult:
    """A task's result without the content of an artifact; notes the time of the first call.

    :raises NotFound: `unknown_task` if the caller neither asked for it nor is to be told of it.
    :raises Conflict: `not_finished` if it is still open.
    """
    refuse_strangers(caller=caller, task_ids=[task_id])
    FinishedTask.objects.filter(task_id=task_id, fetched_at=None).update(fetched_at=database_now())
    return selectors.result(format_ref("task", task_id))
