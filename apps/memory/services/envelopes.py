"""Handing out envelopes: never stale, and with a note of who was given which."""

import hashlib
from datetime import datetime
from functools import partial
from typing import Final

from django.db import transaction

from apps.core.sealing import keyed_digest
from apps.memory import cache, envelopes, selectors, sql
from apps.memory.cache import Key, Stamp
from apps.memory.envelopes import SCHEMA_VERSION, Envelope
from apps.principals.tenancy import Caller

_AUDIT: Final = "memory.envelope"


def get_memory_envelope(*, viewer: Caller, subject_id: str, now: datetime, skip_cache: bool = False) -> Envelope:
    """What is known of a subject, as it stands in the database at this moment.

    Runs within its caller's transaction. An envelope that this process has made is used again as long as the subject is at the revision that it was made at.

    :param skip_cache: make it anew.
    :raises UnknownSubject: if there is no such subject, or it is not shared with the viewer.
    """
    key = Key(viewer.tenant_id, subject_id, viewer.principal_id, SCHEMA_VERSION)
    if not skip_cache:
        row = sql.revision(tenant_id=viewer.tenant_id, subject_id=subject_id, viewer=viewer.name)
        if row is None:
            raise selectors.unknown(subject_id)
        text = cache.envelopes.get(key, Stamp(*row), now=now)
        if text is not None:
            return envelopes.load(text)
    known = sql.known(tenant_id=viewer.tenant_id, subject_id=subject_id, viewer=viewer.name, now=now)
    if known is None:
        raise selectors.unknown(subject_id)
    made = envelopes.assemble(known, tenant_slug=viewer.tenant_slug, now=now)
    text = made.envelope.model_dump_json()
    content = made.envelope.model_dump_json(exclude={"metadata"})
    digest = keyed_digest(_AUDIT, hashlib.sha256(content.encode()).digest())
    if not sql.note_load(
        subject_pk=known.subject_pk,
        viewer_id=viewer.principal_id,
        rev=known.rev,
        digest=digest,
        since=made.since,
        now=now,
    ):
        raise selectors.unknown(subject_id)
    stamp = Stamp(known.subject_pk, known.rev, known.policy_rev)
    # What this transaction has written itself may yet be undone.
    keep = partial(cache.envelopes.put, key, stamp, text, made_at=now, until=made.until)
    transaction.on_commit(keep, robust=True)
    return made.envelope
