"""What is remembered about a question."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apps.memory import sql
from apps.memory.envelopes import last_moment
from apps.memory.errors import ClashingFilters
from apps.memory.questions import read
from apps.memory.selectors.subjects import dates_of, unknown
from apps.memory.texts import tokens
from apps.principals.tenancy import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A memory that was recalled, and why."""

    ref: str
    text: str
    score: float
    why: str
    domain: str
    confidence: float
    metadata: dict[str, Any]
    author: str
    recorded_at: datetime
    occurred_at: datetime | None
    speaker: str
    conversation_id: str


def recall(
    query: str = "",
    *,
    caller: Caller,
    domain: str | None = None,
    subject_id: str | None = None,
    filters: Mapping[str, Any] | None = None,
    as_of: datetime | None = None,
    limit: int = 10,
    max_tokens: int | None = None,
    meant: sql.Meant | None = None,
) -> list[Hit]:
    """What the caller's tenant remembers about a question, best first; without a question, the newest.

    What is about a subject is found by those alone who name it, and may know it: its items and what was said in
    conversations with it.

    :param subject_id: only what is remembered of this subject; then `domain` is a type of items.
    :param filters: paths into the metadata and the values that must stand there (`{"plan.id": "p-1"}`); a leading
        `metadata.` is understood.
    :param as_of: answer as one would have at this moment; at the end of its month, where the subject's dates are told by the month.
    :param limit: how many to answer at most; never more than `sql.MOST`.
    :param max_tokens: leave out the hits whose texts would go over this budget, as :func:`apps.memory.texts.tokens` counts.
    :param meant: what an embedder says that the question means.
    :raises UnknownSubject: if there is no such subject, or it is not shared with the caller.
    :raises ClashingFilters: if one names a place that another fills.
    """
    subject = None if subject_id is None else _readable(caller, subject_id)
    if subject is not None and not subject.memory_enabled:
        return []
    if subject is not None and subject.anonymize_dates:
        as_of = as_of and last_moment(as_of)
    found = sql.find(
        question=read(query),
        tenant_id=caller.tenant_id,
        scope=0 if subject is None else subject.pk,
        domain=domain,
        filters=_nested(filters or {}),
        as_of=as_of,
        since=None if subject is None else subject.since,
        meant=meant,
        limit=min(limit, sql.MOST),
    )
    shown = dates_of(subject)
    hits = [
        Hit(
            ref=one.ref,
            text=one.text,
            score=round(one.score, 4),
            why=_why(one),
            domain=one.domain,
            confidence=one.confidence,
            metadata=one.metadata,
            author=one.author,
            recorded_at=shown(one.recorded_at),
            occurred_at=one.occurred_at and shown(one.occurred_at),
            speaker=one.speaker,
            conversation_id=one.conversation_id,
        )
        for one in found
    ]
    return hits if max_tokens is None else _within_budget(hits, max_tokens)


def _readable(caller: Caller, subject_id: str) -> sql.Readable:
    found = sql.readable(tenant_id=caller.tenant_id, subject_id=subject_id, viewer=caller.name)
    if found is None:
        raise unknown(subject_id)
    return found


def _why(found: sql.Found) -> str:
    reasons = []
    if found.terms:
        reasons.append(f"has {', '.join(found.terms)}")
    if found.has_phrase:
        reasons.append("has words together as the question does")
    if found.told:
        reasons.append(f"{', '.join(found.told)} is who said it, or when")
    if found.is_among:
        reasons.append("what was said around it is about this")
    if found.is_alike:
        reasons.append("means much the same, says the embedder")
    return "; ".join(reasons) or "among the newest"


def _nested(filters: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` as the document that must be contained: `{"a": {"b": 1}}`."""
    document: dict[str, Any] = {}
    placed = [(path.removeprefix("metadata.").split("."), path, value) for path, value in filters.items()]
    # What others add to comes before them.
    for (*parents, last), path, value in sorted(placed, key=lambda one: len(one[0])):
        place = document
        for name in parents:
            deeper = place.get(name, {})
            if not isinstance(deeper, dict):
                raise ClashingFilters(f"What stands at {path[:60]!r} can't stand beside another of the filters.")
            # What was given stays as it is.
            place[name] = place = dict(deeper)
        if last in place:
            raise ClashingFilters(f"What stands at {path[:60]!r} can't stand beside another of the filters.")
        place[last] = value
    return document


def _within_budget(hits: list[Hit], max_tokens: int) -> list[Hit]:
    kept: list[Hit] = []
    left = max_tokens
    for hit in hits:
        cost = tokens(hit.text)
        if cost <= left:
            left -= cost
            kept.append(hit)
    return kept
