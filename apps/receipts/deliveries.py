"""How a receipt is sent to an inbox service elsewhere, and what the answers mean."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

from apps.core.metrics import Counter, Histogram
from apps.core.outbound import Answer, CallFailed
from apps.core.strict_json import storable
from apps.delivery.models import Delivery, Endpoint, Target
from apps.delivery.senders import Delivered, Later, Payload, Refused, Sender, Verdict, postponed
from apps.principals.scopes import Kind
from apps.receipts.models import FlushClass, Receipt, Surface

_PATHS: Final = {
    Endpoint.INBOX: "/internal/inbox/receipt",
    Endpoint.UNIVERSAL: "/internal/receipt",
    Endpoint.GATEHOUSE: "/internal/receipt",
}
# What DeleGates' receipts have been counted under from the first.
_EMISSIONS: Final = Counter(
    "delegate_receipt_emissions_total",
    "Receipts of a DeleGate sent to an inbox service elsewhere.",
    ["delegate_id", "success"],
)
_EMISSION: Final = Histogram("delegate_receipt_emission_duration_seconds", "How long sending one took.")
_MAX_KEY: Final = 200
_MAX_SAID: Final = 500
_MAX_ID: Final = 100
_MAX_ANSWER_BYTES: Final = 64 * 1024
_MENDABLE: Final = frozenset({401, 403, 407, 408, 421, 425, 429})
"""Statuses that an operator, or time, can change. The remote is up, so its other deliveries may go."""
_CONFLICTS: Final = frozenset({"dedupe_conflict", "receipt_id_conflict"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    endpoint: str
    receipt_id: str
    uuid: UUID
    delegate: str | None
    """The DeleGate that posted the receipt, if one did."""


class ReceiptSender(Sender):
    """Receipts for principals that have moved. A delivery that only fails is given up after about a day and a half."""

    longest_pause = timedelta(hours=1)
    max_attempts = 50

    def prepare(self, target: Target, delivery: Delivery, now: datetime) -> Payload:
        """The JSON is the same for the same receipt each time, so that the remote recognizes a repetition, unless the target
        came to know this deployment by another source system."""
        receipt = Receipt.objects.select_related("poster", "caused_by", "pairs_with").get(pk=delivery.object_id or 0)
        endpoint = Endpoint(target.endpoint or "")
        known_as = target.known_as or ""
        members = _members(receipt, recipient=delivery.recipient or "", endpoint=endpoint, known_as=known_as)
        stated = {name: value for name, value in members.items() if value is not None}
        return Payload(
            url=target.url.rstrip("/") + _PATHS[endpoint],
            body=json.dumps(stated, ensure_ascii=False).encode(),
            message_id=receipt.receipt_id,
            max_answer_bytes=_MAX_ANSWER_BYTES,
            context=_Context(
                endpoint=endpoint,
                receipt_id=receipt.receipt_id,
                uuid=receipt.uuid,
                delegate=receipt.poster.name if receipt.poster.kind == Kind.DELEGATE else None,
            ),
        )

    def judge(self, payload: Payload, outcome: Answer | CallFailed, *, seconds: float, now: datetime) -> Verdict:
        """Success must be proven: an answer that does not name the stored receipt has delivered nothing."""
        verdict = self._judge(payload, outcome, seconds=seconds, now=now)
        if payload.context.delegate is not None:
            _EMISSIONS.labels(payload.context.delegate, str(isinstance(verdict, Delivered)).lower()).inc()
            _EMISSION.observe(seconds)
        return verdict

    def _judge(self, payload: Payload, outcome: Answer | CallFailed, *, seconds: float, now: datetime) -> Verdict:
        if isinstance(outcome, CallFailed):
            return super().judge(payload, outcome, seconds=seconds, now=now)
        status, answer = outcome.status, _object(outcome.body)
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return _stored(answer, payload.context) or Later(
                code="not_a_receipt", said=f"Answered {status} without naming a stored receipt."
            )
        if status == HTTPStatus.CONFLICT:
            return _conflict(answer, payload.context)
        said = f"Answered {status}: {_reason(answer)}" if _reason(answer) else f"Answered {status}."
        if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _MENDABLE:
            return Refused(code=f"http_{status}", said=said)
        return postponed(outcome, said, now, unwell=status not in _MENDABLE)


def _members(receipt: Receipt, *, recipient: str, endpoint: Endpoint, known_as: str) -> dict[str, Any]:
    """References are sent as receipt ids, which both sides know; a uuid is known here only.

    :param known_as: the source system under which the target knows this deployment, or blank; the key then carries
        the source that it is unique for.
    """
    members = {
        "recipient_ai": recipient,
        "source_system": known_as or receipt.source_system,
        "dedupe_key": _key(receipt, known_as),
        "title": receipt.title,
        "summary": receipt.summary,
        "metadata": receipt.metadata,
    }
    if endpoint != Endpoint.INBOX:
        members |= {
            "receipt_id": receipt.receipt_id,
            "event_type": receipt.event_type,
            "artifact_pointer": receipt.artifact_pointer,
            "artifact_location": receipt.artifact_location,
            "requires_action": receipt.requires_action,
            "suggested_next_step": receipt.suggested_next_step,
            "caused_by_receipt_id": receipt.caused_by.receipt_id if receipt.caused_by else receipt.caused_by_ref,
            "pairs_with": receipt.pairs_with.receipt_id if receipt.pairs_with else receipt.pairs_with_ref,
        }
    if endpoint == Endpoint.GATEHOUSE:
        group = {
            "resource_ref": receipt.resource_ref,
            "event_family": receipt.event_family,
            "flush_class": receipt.flush_class if receipt.flush_class != FlushClass.NORMAL else None,
            "summary_hint": receipt.summary_hint,
            "break_thread": receipt.break_thread or None,
            "groupable": receipt.groupable,
        }
        members |= {
            "group": {name: value for name, value in group.items() if value is not None} or None,
            "delivery_handle": receipt.delivery_handle,
            "surface": Surface.LEDGER if receipt.surface == Surface.LEDGER else Surface.INBOX,
        }
    return members


def _key(receipt: Receipt, known_as: str) -> str:
    if not known_as:
        return receipt.dedupe_key
    # The length keeps apart keys that would read the same when joined.
    key = f"{len(receipt.source_system)}:{receipt.source_system}:{receipt.dedupe_key}"
    return key if len(key) <= _MAX_KEY else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def _object(content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _stored(answer: Mapping[str, Any], sent: _Context, prefix: str = "") -> Delivered | Refused | None:
    receipt_id, uuid = _id(answer.get(f"{prefix}receipt_id")), _uuid(answer.get(f"{prefix}uuid"))
    is_inbox = sent.endpoint == Endpoint.INBOX
    # A mere inbox makes ids of its own; elsewhere the receipt keeps its id, and has another uuid.
    if uuid == sent.uuid or (is_inbox and receipt_id == sent.receipt_id):
        return Refused(
            code="came_back", said="The answer names the receipt that was sent: this target leads back here."
        )
    proof = receipt_id if is_inbox else uuid
    return None if proof is None else Delivered(remote_id=str(proof))


def _conflict(answer: Mapping[str, Any], sent: _Context) -> Verdict:
    """A duplicate counts as delivered, if the answer names the receipt that it repeats."""
    error = answer.get("error")
    if error in _CONFLICTS:
        return Refused(code=str(error), said=_reason(answer) or "Answered 409.")
    stored = _stored(answer, sent, "existing_") if error in {None, "duplicate_receipt"} else None
    return stored or Later(code="http_409", said="Answered 409 without saying what is in the way.")


def _reason(answer: Mapping[str, Any]) -> str:
    words = [answer.get(name) for name in ("error", "code", "message", "detail")]
    return storable(": ".join(word for word in words if isinstance(word, str) and word)[:_MAX_SAID])


def _id(value: Any) -> str | None:
    return storable(value) if isinstance(value, str) and 0 < len(value) <= _MAX_ID else None


def _uuid(value: Any) -> UUID | None:
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None
