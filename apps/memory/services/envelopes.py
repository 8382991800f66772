"""Handing out envelopes, with an audit record of who was given which."""

import hashlib
from datetime import datetime
from typing import Final

from apps.core.sealing import keyed_digest
from apps.memory import envelopes, selectors, sql
from apps.memory.envelopes import Envelope
from apps.principals.tenancy import Caller

_AUDIT: Final = "memory.envelope"


def get_memory_envelope(*, viewer: Caller, subject_id: str, now: datetime) -> Envelope:
    """What is known of a subject at this moment. Runs within its caller's transaction.

    :raises UnknownSubject: if there is no such subject, or it is not shared with the viewer.
    """
    known = sql.known(tenant_id=viewer.tenant_id, subject_id=subject_id, viewer=viewer.name, now=now)
    if known is None:
        raise selectors.unknown(subject_id)
    envelope = envelopes.assemble(known, tenant_slug=viewer.tenant_slug, now=now)
    content = envelope.model_dump_json(exclude={"metadata"})
    digest = keyed_digest(_AUDIT, hashlib.sha256(content.encode()).digest())
    if not sql.note_load(
        subject_pk=known.subject_pk, viewer_id=viewer.principal_id, rev=known.rev, digest=digest, now=now
    ):
        raise selectors.unknown(subject_id)
    return envelope
