"""Finding memories: which statement it takes, and what that answers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from apps.core.sql import hot_cursor
from apps.memory.questions import Question
from apps.memory.sql.meaning import Meant, recall_by_meaning
from apps.memory.sql.recalling import (
    NEWEST,
    NEWEST_FILTERED,
    NEWEST_FILTERED_OF_DOMAIN,
    NEWEST_OF_DOMAIN,
    RECALL,
    RECALL_NARROWED,
    RECALL_OF_DOMAIN,
    RECALL_OF_SUBJECT,
)

# The newest passages of a word that are scored (see also _ENOUGH there), of a question that is not narrowed.
_SCORED: Final = 600
# The best by their own words, to which common words and what stands around them are added.
_LEADING: Final = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A memory as a recall statement answers it."""

    ref: str
    text: str
    domain: str
    confidence: float
    metadata: dict[str, Any]
    author: str
    recorded_at: datetime
    occurred_at: datetime | None
    speaker: str
    conversation_id: str
    score: float
    terms: tuple[str, ...]
    """Words of the question that it has, with another form or name in their place before them in parentheses."""
    told: tuple[str, ...]
    """Words of the question that say who said it, or when."""
    is_among: bool
    """What was said around it adds to its score."""
    has_phrase: bool
    is_alike: bool
    """It means much the same, says the embedder."""


def find(
    *,
    question: Question,
    tenant_id: int,
    scope: int = 0,
    domain: str | None,
    filters: Mapping[str, Any],
    as_of: datetime | None,
    since: datetime | None = None,
    meant: Meant | None = None,
    limit: int,
) -> list[Found]:
    """The memories of a scope that match best; with an empty question, the newest.

    Where a word stands in thousands of passages its newest are considered, and the newest of those that a question is
    narrowed to.

    :param since: leave out what was said at this moment or before.
    :param meant: what the question means, for passages that mean the same in other words.
    """
    given: dict[str, Any] = {
        "tenant": tenant_id,
        "scope": scope,
        "domain": domain,
        "filters": json.dumps(filters),
        "as_of": as_of or "infinity",
        "since": since or "-infinity",
        "limit": limit,
    }
    if question.text.strip():
        narrowed = domain is not None or bool(filters) or as_of is not None
        given |= asking(question, limit=limit)
        at_large = RECALL_OF_SUBJECT if scope else RECALL
        statement = at_large if not narrowed else RECALL_NARROWED if domain is None else RECALL_OF_DOMAIN
        if meant is not None:
            given["meant"] = meant.vector
            statement = recall_by_meaning(
                meant.embedder,
                meant.dimensions,
                narrowed=narrowed,
                of_domain=domain is not None,
                of_subject=scope != 0,
            )
    elif filters:
        statement = NEWEST_FILTERED if domain is None else NEWEST_FILTERED_OF_DOMAIN
    else:
        statement = NEWEST if domain is None else NEWEST_OF_DOMAIN
    with hot_cursor() as cursor:
        cursor.execute(statement, given)
        rows = cursor.fetchall()
    return [_found(*row) for row in rows]


def asking(question: Question, *, limit: int) -> dict[str, Any]:
    """What RECALL takes of a question besides what narrows it."""
    return {
        "query": question.text,
        "said": [said for said, _ in question.forms],
        "also": [also for _, also in question.forms],
        "names": question.names,
        "proper": question.proper,
        "pairs": question.pairs,
        "scored": _SCORED,
        "leading": max(limit, _LEADING),
    }


def _found(*row: Any) -> Found:
    ref, text, domain, confidence, metadata, author, recorded_at, occurred_at, speaker, conversation_id, *why = row
    score, terms, told, is_among, has_phrase, is_alike = why
    return Found(
        ref=ref,
        text=text,
        domain=domain,
        confidence=confidence,
        metadata=json.loads(metadata),
        author=author,
        recorded_at=recorded_at,
        occurred_at=occurred_at,
        speaker=speaker,
        conversation_id=conversation_id,
        score=score,
        terms=_listed(terms),
        told=_listed(told),
        is_among=is_among,
        has_phrase=has_phrase,
        is_alike=is_alike,
    )


def _listed(words: str | None) -> tuple[str, ...]:
    return tuple(sorted(words.split(", "))) if words else ()
