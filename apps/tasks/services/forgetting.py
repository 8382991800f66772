"""Files that hold what is to be forgotten."""

from collections.abc import Iterator

from django.core.files.storage import storages
from django.db import connection

from apps.core.erasure import FORGOTTEN, Wanted
from apps.tasks import selectors
from apps.tasks.models import Artifact
from apps.tasks.pointers import artifact_pointer


def artifacts_holding(*, wanted: Wanted) -> int:
    """In how many of a tenant's artifacts it stands. Reads all of them."""
    return sum(1 for _ in _holding(wanted))


def remove_artifacts(*, wanted: Wanted) -> int:
    """Remove the artifacts in which it stands, and those of tasks that were forgotten: rows and files."""
    going = {artifact.pk: artifact for artifact in [*_holding(wanted), *_of_forgotten(wanted)]}
    for artifact in going.values():
        place = selectors.place_of(artifact.tenant_id, artifact.digest)
        storages["artifacts"].delete(place)
    Artifact.objects.filter(pk__in=going).delete()
    return len(going)


def _holding(wanted: Wanted) -> Iterator[Artifact]:
    for artifact in Artifact.objects.filter(tenant_id=wanted.tenant_id).order_by("pk").iterator():
        place = selectors.place_of(artifact.tenant_id, artifact.digest)
        # A file that can't be read is not there for anybody else either.
        if storages["artifacts"].exists(place):
            with storages["artifacts"].open(place) as file:
                if wanted.stands_in(file.read().decode(errors="replace")):
                    yield artifact


def _of_forgotten(wanted: Wanted) -> list[Artifact]:
    if wanted.texts:
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            "select result_pointer from tasks_terminalrecord where tenant_id = %s and content = %s::jsonb"
            " and result_pointer is not null",
            [wanted.tenant_id, FORGOTTEN],
        )
        pointers = {pointer for (pointer,) in cursor.fetchall()}
    return [
        artifact
        for artifact in Artifact.objects.filter(tenant_id=wanted.tenant_id)
        if artifact_pointer(artifact.digest) in pointers
    ]
