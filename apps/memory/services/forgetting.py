"""Forgetting on request and after the days that a subject allows."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import Q, QuerySet

from apps.core import erasure
from apps.core.ids import random_id
from apps.digests import services as inboxes
from apps.digests.services import Poster, ReceiptDraft
from apps.memory import selectors, sql
from apps.memory.models import Concept, Forgotten, Item, Observation, Passage, Pattern, Session, Subject
from apps.memory.references import item_ref, observation_ref, pattern_ref
from apps.memory.services.subjects import holding, revised
from apps.principals.tenancy import Caller, acting_as_system
from apps.receipts.models import Surface

# The source and the type of the receipts that prove an erasure.
SOURCE: Final = "memory"
EVENT: Final = "memory_forgotten"
_AUDIT_KEPT: Final = timedelta(days=365)
_AT_ONCE: Final = 1_000
_PARTS: Final = 100
_SWEEP: Final = "what has had its days is deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What was forgotten: how many rows of each table were erased, and how many still name the subject."""

    erased: dict[str, int]
    remaining: dict[str, int]
    receipt_id: str
    proof: str
    """A keyed digest of the id of the subject, or of the subject and the item."""


@transaction.atomic
def forget(*, author: Caller, subject_id: str, now: datetime, item: int | None = None) -> Erasure:
    """Forget a subject, or one item of it, and leave a receipt.

    With a subject go its items, its sessions with their turns, and every row that names it by key. With an item go the
    items that say the same or were superseded by them, and the turns of the subject's sessions that they cite. From both
    goes what rests on the erased rows alone: observations and patterns whose evidence they were. Other rows lose the
    reference. Free text that mentions the subject stays (docs/security.md).

    :raises UnknownSubject: if there is none, or it is not shared with the author.
    :raises UnknownMemory: if the subject has no such item.
    """
    known = selectors.subject_of(subject_id, viewer=author)
    if item is not None:
        selectors.item_of(known, item)  # what is not there is not waited for
    with acting_as_system("something is forgotten on request"), erasure.redacting():
        sql.await_turn(author.tenant_id)
        subject = _held(author, subject_id)
        erased = _forget_item(subject, item) if item is not None else _forget_subject(subject)
        _forget_derived(author.tenant_id, erased)
        if item is None:
            remaining = erasure.remaining(author.tenant_id, subject_id)
            digest = selectors.mark_of(subject_id)
            Forgotten.objects.bulk_create(
                [Forgotten(tenant_id=author.tenant_id, digest=digest, forgotten_at=now)], ignore_conflicts=True
            )
        else:
            remaining = {}
            digest = selectors.mark_of(subject_id, item_ref(item))
            revised(subject, now)
    counts = {name: len(numbers) for name, numbers in erased.items() if numbers}
    receipt_id = _receipt(author, counts, remaining, digest.hex(), now)
    return Erasure(erased=counts, remaining=remaining, receipt_id=receipt_id, proof=digest.hex())


def _held(author: Caller, subject_id: str) -> Subject:
    """The subject, locked after its sessions and those that name it: writers lock sessions before subjects.

    :raises UnknownSubject: if somebody else has forgotten it meanwhile.
    """
    while True:
        with suppress(_Overtaken), transaction.atomic():
            subject = selectors.subject_of(subject_id, viewer=author)
            named = partial(erasure.named, tenant_id=author.tenant_id, key=subject.key)
            sessions = Session.objects.filter(Q(subject=subject) | Q(pk__in=named("memory_session")))
            held = list(sessions.order_by("pk").select_for_update(of=("self",), no_key=True))
            of_items = Item.objects.filter(pk__in=named("memory_item")).values("subject")
            subjects = Q(pk=subject.pk) | Q(pk__in=named("memory_subject")) | Q(pk__in=of_items)
            list(holding(Subject.objects.filter(subjects)))
            if Session.objects.filter(subject=subject).exclude(pk__in=[one.pk for one in held]).exists():
                raise _Overtaken
            return selectors.subject_of(subject_id, viewer=author)


class _Overtaken(Exception):
    """A conversation with the subject has begun meanwhile."""


def _forget_subject(subject: Subject) -> dict[str, set[int]]:
    sessions = set(Session.objects.filter(subject=subject).values_list("pk", flat=True))
    turns = set(_said(sessions).values_list("pk", flat=True))
    items = set(Item.objects.filter(subject=subject).values_list("pk", flat=True))
    forget_sessions(sessions)
    sql.drop_subject(subject.pk, common=sql.COMMON)
    erased = {
        "memory_subject": {subject.pk}, "memory_session": sessions, "memory_observation": turns, "memory_item": items,
    }  # fmt: skip
    for table, numbers in erasure.erase(subject.tenant_id, subject.key).items():
        erased.setdefault(table, set()).update(numbers)
    return erased


def _forget_item(subject: Subject, number: int) -> dict[str, set[int]]:
    items = set(sql.lineage(subject_pk=subject.pk, item_pk=selectors.item_of(subject, number).pk))
    evidence = Item.objects.filter(pk__in=items).values_list("evidence", flat=True)
    cited = {ref.removeprefix("observation:") for refs in evidence for ref in refs if ref.startswith("observation:")}
    turns = set(Observation.objects.filter(pk__in=cited, session__subject=subject).values_list("pk", flat=True))
    forget_items(items)
    forget_observations(turns)
    return {"memory_item": items, "memory_observation": turns}


def _forget_derived(tenant_id: int, erased: dict[str, set[int]]) -> None:
    """Forget what rests on erased memories alone, and what rests on that; other rows lose the reference."""
    kinds = {"memory_item": item_ref, "memory_observation": observation_ref, "memory_pattern": pattern_ref}
    fresh = {kind: set(erased.get(kind, ())) for kind in kinds}
    while refs := [kinds[kind](number) for kind, numbers in fresh.items() for number in numbers]:
        fresh = sql.resting_on(tenant_id, refs)
        forget_observations(fresh["memory_observation"])
        forget_patterns(fresh["memory_pattern"])
        sql.drop_evidence(tenant_id, refs)
        for kind, numbers in fresh.items():
            erased.setdefault(kind, set()).update(numbers)


def _receipt(author: Caller, erased: Mapping[str, int], remaining: Mapping[str, int], proof: str, now: datetime) -> str:
    """A receipt that something was forgotten, with numbers and the proof, and nothing of what."""
    posted = inboxes.post(
        poster=Poster.of(author),
        draft=ReceiptDraft(
            recipient_id=author.principal_id,
            source_system=SOURCE,
            event_type=EVENT,
            dedupe_key=f"{SOURCE}:{EVENT}:{random_id('gone')}:v1",
            title="Forgotten on request",
            summary=f"{sum(erased.values())} rows were erased; {sum(remaining.values())} names remain.",
            metadata={"proof": proof, "erased": erased, "remaining": remaining, "forgotten_at": now.isoformat()},
            surface=Surface.LEDGER,
        ),
        now=now,
    )
    return posted.receipt_id


def forget_items(numbers: Iterable[int], /) -> None:
    """Delete items of any subjects."""
    rows = Item.objects.filter(pk__in=list(numbers))
    revise_subjects(rows.values_list("subject_id", flat=True))
    _unindex(Passage.objects.filter(item__in=rows))
    rows.delete()


def forget_sessions(numbers: Iterable[int], /) -> None:
    """Delete sessions and the words of their turns; a session that had turns keeps its row, which says nothing."""
    pks = list(numbers)
    rows = Session.objects.filter(pk__in=pks)
    revise_subjects(rows.filter(subject__isnull=False).values_list("subject_id", flat=True))
    forget_observations(_said(pks).values_list("pk", flat=True))
    for session in rows.filter(turns__gt=0):
        Session.objects.filter(pk=session.pk).update(
            conversation_id=random_id("forgotten"), subject=None, platform="", title="", summary="", topics=[], tone="",
            is_forgotten=True,
        )  # fmt: skip
    rows.filter(turns=0).delete()


def _said(sessions: Iterable[int]) -> QuerySet[Observation]:
    return Observation.objects.filter(session__in=list(sessions)).exclude(text="")


def forget_observations(numbers: Iterable[int], /) -> None:
    """Erase the words of observations and of their search index; the rows stay, since others refer to them."""
    rows = Observation.objects.filter(pk__in=list(numbers))
    _unindex(Passage.objects.filter(observation__in=rows))
    rows.update(text="", speaker="", domain="", evidence=[], metadata={})


def forget_patterns(numbers: Iterable[int], /) -> None:
    """Delete patterns with all their revisions."""
    rows = Pattern.objects.filter(pk__in=list(numbers))
    _unindex(Passage.objects.filter(pattern__in=rows))
    rows.delete()


def forget_concepts(numbers: Iterable[int], /) -> None:
    """Delete concepts with their names, revisions and relationships."""
    rows = Concept.objects.filter(pk__in=list(numbers))
    _unindex(Passage.objects.filter(concept__in=rows))
    rows.delete()


def _unindex(passages: QuerySet[Passage]) -> None:
    sql.drop_passages(passages.values_list("pk", flat=True), common=sql.COMMON)


def revise_subjects(numbers: Iterable[int], /) -> None:
    """Raise the revision of these subjects, so that no cached envelope of them is used again."""
    for subject in holding(Subject.objects.filter(pk__in=set(numbers))):
        revised(subject, subject.revised_at)


def forget_expired() -> int:
    """Delete what subjects wish to have deleted after so many days, and old notes of readers.

    A part of it at each call, as the system, each subject by itself. Answers of how many subjects something had had its
    days, and how many notes are gone.
    """
    with acting_as_system(_SWEEP), connection.cursor() as cursor:
        cursor.execute(sql.EXPIRED, {"limit": _AT_ONCE})
        subjects = [pk for (pk,) in cursor.fetchall()]
    return sum(_forget_expired_of(subject) for subject in subjects) + _drop_old_loads()


def _drop_old_loads() -> int:
    """Drop old notes of readers, a part at a time; what is left after so many parts goes at the next call."""
    kept: dict[str, Any] = {"kept": _AUDIT_KEPT, "limit": _AT_ONCE}
    dropped = 0
    for _ in range(_PARTS):
        with acting_as_system(_SWEEP), connection.cursor() as cursor:
            cursor.execute(sql.DROP_OLD_LOADS, kept)
            part = int(cursor.rowcount)
        dropped += part
        if part < _AT_ONCE:
            break
    return dropped


def _forget_expired_of(subject_pk: int) -> bool:
    """Delete what of a subject has had its days; says whether there was any."""
    was_any, goes_on = False, True
    while goes_on:
        with acting_as_system(_SWEEP), erasure.redacting():
            gone, goes_on = _forget_some_expired_of(subject_pk)
        was_any = was_any or gone
    return was_any


def _forget_some_expired_of(subject_pk: int) -> tuple[bool, bool]:
    """Whether anything has been deleted now, and whether there is more."""
    if not sql.try_turn(subject_pk):
        return False, False
    given: dict[str, Any] = {"subject": subject_pk, "limit": _AT_ONCE}
    with connection.cursor() as cursor:
        cursor.execute(sql.EXPIRED_SESSIONS, given)
        rows = cursor.fetchall()
        sessions = [pk for pk, is_whole in rows if is_whole]
        cursor.execute(sql.EXPIRED_TURNS, {**given, "sessions": [pk for pk, is_whole in rows if not is_whole]})
        turns = [pk for (pk,) in cursor.fetchall()]
        Subject.objects.filter(pk=subject_pk).select_for_update(no_key=True).first()
        cursor.execute(sql.EXPIRED_ITEMS, given)
        items = [pk for (pk,) in cursor.fetchall()]
        for forgetting, numbers in ((forget_sessions, sessions), (forget_observations, turns), (forget_items, items)):
            if numbers:
                forgetting(numbers)
        cursor.execute(sql.NEXT_EXPIRY, given)
        due = cursor.fetchone()
    gone = bool(sessions or turns or items)
    return gone, gone and due == (True,)
