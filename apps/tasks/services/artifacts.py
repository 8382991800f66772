"""Results on their way in: small ones travel in the record, larger ones become artifacts first."""

import hashlib
from typing import Any, Final

from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages

from apps.core.errors import FieldError, Invalid
from apps.core.ids import format_ref
from apps.core.sql import database_now
from apps.principals.tenancy import acting_in
from apps.tasks import selectors
from apps.tasks.errors import ArtifactsUnavailable, ArtifactTooLarge, InvalidPointer, UnknownArtifact
from apps.tasks.models import Artifact
from apps.tasks.pointers import (
    ARTIFACT,
    INLINE,
    MAX_INLINE_BYTES,
    artifact_digest,
    artifact_pointer,
    inline_bytes,
    scheme_of,
)
from apps.tasks.shapes import Delivery

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
    """Make a result fit to be recorded. Called before the transaction, because it may write a file.

    A result over 64 KiB as JSON becomes an artifact.

    :raises Invalid: if both a result and a pointer are given.
    :raises InvalidPointer: if the pointer has no scheme, is `inline:`, or names an artifact that is not there.
    :raises ArtifactTooLarge: if the result is over the deployment's limit.
    :raises ArtifactsUnavailable: if the storage fails.
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
    """Store bytes under their SHA-256 and return the pointer; the same bytes are stored once per tenant.

    The file is there before the row that vouches for it. Call it outside a transaction: it waits for a disk.

    :raises ArtifactTooLarge: if they are over the deployment's limit.
    :raises ArtifactsUnavailable: if the storage fails.
    """
    if len(content) > settings.ARTIFACT_MAX_BYTES:
        raise ArtifactTooLarge(f"{len(content)} bytes; an artifact may have {settings.ARTIFACT_MAX_BYTES}.")
    digest = hashlib.sha256(content).hexdigest()
    try:
        _write(storages["artifacts"], selectors.place_of(tenant_id, digest), content)
    except OSError as exc:
        raise ArtifactsUnavailable("The storage of artifacts does not take this one just now.") from exc
    with acting_in(tenant_id, "storing an artifact"):
        Artifact.objects.bulk_create(
            [
                Artifact(
                    tenant_id=tenant_id,
                    digest=digest,
                    media_type=media_type,
                    size=len(content),
                    created_at=database_now(),
                )
            ],
            ignore_conflicts=True,
        )
    return artifact_pointer(digest)


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
    """Put the bytes at their place; what a crash left there half-written is replaced."""
    if storage.exists(place):
        if storage.size(place) == len(content):
            return
        storage.delete(place)
    written = storage.save(place, ContentFile(content))
    if written != place:
        # A rival has stored the same bytes at this moment.
        storage.delete(written)
