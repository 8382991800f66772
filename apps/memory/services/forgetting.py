"""Forgetting on request: everywhere, verified, with a receipt, and so that no repetition brings it back."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from django.db import connection, transaction
from django.db.models import Model, Q, QuerySet

from apps.core import erasure
from apps.core.erasure import Wanted
from apps.core.ids import random_id
from apps.digests import services as inboxes
from apps.digests.services import Poster, ReceiptDraft
from apps.memory import selectors, sql
from apps.memory.models import Concept, Item, Observation, Passage, Pattern, Session, Subject
from apps.memory.services.marks import (
    ABOUT,
    CALLED,
    CONCEPTS,
    CONVERSATIONS,
    ITEMS,
    OBSERVATIONS,
    PATTERNS,
    SAID_WITH,
    SAYS,
    SESSIONS,
    SUBJECTS,
    SUMMARIES,
    marks_of_items,
    marks_of_naming,
    marks_of_own,
    marks_of_sessions,
)
from apps.memory.services.subjects import revised
from apps.memory.texts import bare, same_text
from apps.principals.tenancy import Caller, acting_as_system
from apps.receipts.models import Surface

# The source and the type of the receipts that prove an erasure.
SOURCE: Final = "memory"
EVENT: Final = "memory_forgotten"
_AUDIT_KEPT: Final = timedelta(days=365)
_AT_ONCE: Final = 1_000
_PARTS: Final = 100
_SWEEP: Final = "what has had its days is deleted"

_Row = TypeVar("_Row", bound=Model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What was forgotten, in numbers: of how many things in each place, and where it stands still."""

    erased: dict[str, int]
    remaining: dict[str, int]
    receipt_id: str
    proof: str
    """The keyed digest by which the subject, or the item, is known again."""


@transaction.atomic
def forget(*, author: Caller, subject_id: str, now: datetime, item: int | None = None) -> Erasure:
    """Forget a subject, or one item of it with all that said the same and what it had superseded.

    With a subject goes everything that is about it: what is remembered of it, sessions with it, and whatever names it
    by its id in observations, receipts, digests, tasks, results, files, plans and executions. Of what can't be removed
    without breaking a chain the words are taken. With an item goes what is about the subject, or names it, and holds the
    item's words; a relationship is read with what it relates.

    `remaining` counts what names the subject and could not be erased: ids and names that clients have chosen.

    :raises UnknownSubject: if there is none, or it is not shared with the author.
    :raises UnknownMemory: if the subject has no such item.
    """
    # Who asks for what is not there waits for nobody's turn.
    known = selectors.subject_of(subject_id, viewer=author)
    thing = (known.key,) if item is None else (known.key, bytes(selectors.item_of(known, item).text_digest))
    with acting_as_system("something is forgotten on request"), erasure.redacting():
        sql.await_turn(author.tenant_id)
        sql.close_to_writers(author.tenant_id, known.key)
        done = None
        while done is None:
            with suppress(_Overtaken), transaction.atomic():
                done = _forget(author, subject_id, item, now)
    erased, remaining = done
    proof = selectors.mark_of(*thing).hex()
    return Erasure(
        erased=erased, remaining=remaining, receipt_id=_receipt(author, erased, remaining, proof, now), proof=proof
    )


class _Overtaken(Exception):
    """Others have begun to write of the subject, and hold what is to be forgotten now."""


def _forget(author: Caller, subject_id: str, item: int | None, now: datetime) -> tuple[dict[str, int], dict[str, int]]:
    """What was erased of each place, and what remains there."""
    subject = _held_with_what_names_it(author, subject_id)
    texts: list[str] = []
    remaining: dict[str, int] = {}
    if item is None:
        marks = {selectors.mark_of(subject.key)} | marks_of_items(subject.key, Item.objects.filter(subject=subject))
        marks |= marks_of_sessions(Session.objects.filter(subject=subject))
        erased = _erase(subject)
    else:
        said = _lineage(subject, item)
        texts = sorted(set(map(bare, said)))
        words = Wanted(tenant_id=author.tenant_id, reference="", texts=texts)
        going = Item.objects.filter(
            Q(pk__in=ITEMS.numbers(words, among=ABOUT, subject=subject.pk))
            | Q(text_digest__in=set(map(same_text, said))),
            subject=subject,
        )
        marks = marks_of_items(subject.key, going) | marks_of_own(subject, words)
        erased, remaining = _erase_words(subject, going, words)
        revised(subject, now)
    wanted = Wanted(tenant_id=author.tenant_id, reference=subject.key, texts=texts)
    marks |= marks_of_naming(wanted)
    erased = _added(erased, erasure.erase(wanted))
    sql.mark_forgotten(tenant_id=author.tenant_id, marks=marks, now=now)
    return erased, _added(remaining, erasure.remaining(wanted))


def _held_with_what_names_it(author: Caller, subject_id: str) -> Subject:
    """The subject, held, with all that names it in the order in which its writers hold that: sessions, subjects, the rest.

    What comes to name it later is not waited for: see :func:`_at_once`.

    :raises UnknownSubject: if there is none, or it is not shared with the author, who waits for nobody then.
    """
    subject = selectors.subject_of(subject_id, viewer=author)
    wanted = Wanted(tenant_id=author.tenant_id, reference=subject.key)
    with_it = Session.objects.filter(subject=subject)
    sessions = [*with_it.values_list("pk", flat=True), *SESSIONS.numbers(wanted)]
    held_sessions = _held(Session.objects.filter(pk__in=sessions))
    named = Item.objects.filter(pk__in=ITEMS.numbers(wanted)).values_list("subject_id", flat=True)
    telling = SUBJECTS.numbers(wanted)
    subjects = {subject.pk, *telling, *named, *(session.subject_id for session in held_sessions if session.subject_id)}
    _held(Subject.objects.filter(pk__in=subjects))
    if with_it.exclude(pk__in=[session.pk for session in held_sessions]).exists():
        raise _Overtaken
    _held(Concept.objects.filter(pk__in=CONCEPTS.numbers(wanted)))
    _held(Observation.objects.filter(pk__in=OBSERVATIONS.numbers(wanted)))
    _held(Pattern.objects.filter(pk__in=PATTERNS.numbers(wanted)))
    # As it is, now that nobody else changes it.
    return selectors.subject_of(subject_id, viewer=author)


def _held(rows: QuerySet[_Row]) -> list[_Row]:
    return list(rows.order_by("pk").select_for_update(of=("self",), no_key=True))


def _at_once(rows: QuerySet[_Row]) -> list[_Row]:
    """These rows, held, of which most are already; none is waited for, since its holder may wait for what is held here.

    :raises _Overtaken: if somebody else holds one of them.
    """
    found = list(rows.order_by("pk").select_for_update(of=("self",), no_key=True, skip_locked=True))
    if len(found) < rows.count():
        raise _Overtaken
    return found


def _lineage(subject: Subject, number: int) -> list[str]:
    """The texts of an item, of all that say the same of the subject, and of whatever these had superseded."""
    selectors.item_of(subject, number)
    return sql.lineage(subject_pk=subject.pk, item_pk=number)


def _erase(subject: Subject) -> dict[str, int]:
    """Remove the rows that are the subject's by their key."""
    sessions = Session.objects.filter(subject=subject).values_list("pk", flat=True)
    return {"memory_session": forget_sessions(sessions)} | sql.drop_subject(subject.pk, common=sql.COMMON)


def _erase_words(subject: Subject, items: QuerySet[Item], words: Wanted) -> tuple[dict[str, int], dict[str, int]]:
    """Remove items, and take from what else is the subject's by its key whatever holds these words; what holds them still."""
    turns = OBSERVATIONS.numbers(words, among=SAID_WITH, subject=subject.pk)
    summaries = Session.objects.filter(pk__in=SUMMARIES.numbers(words, among=ABOUT, subject=subject.pk))
    erased = {
        "memory_item": forget_items(items.values_list("pk", flat=True)),
        "memory_observation": forget_observations(turns),
        "memory_session": summaries.update(**SAYS),
    }
    return erased, {"memory_session": len(CONVERSATIONS.numbers(words, among=ABOUT, subject=subject.pk))}


def _added(numbers: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    """How many there are of each in both, where there are any."""
    return {name: sum_ for name in {**numbers, **others} if (sum_ := numbers.get(name, 0) + others.get(name, 0))}


def _receipt(author: Caller, erased: dict[str, int], remaining: dict[str, int], proof: str, now: datetime) -> str:
    """A receipt that says that something was forgotten, and nothing of what."""
    posted = inboxes.post(
        poster=Poster.of(author),
        draft=ReceiptDraft(
            recipient_id=author.principal_id,
            source_system=SOURCE,
            event_type=EVENT,
            dedupe_key=f"{SOURCE}:{EVENT}:{random_id('gone')}:v1",
            title="Forgotten on request",
            summary=f"{sum(erased.values())} things were erased; {sum(remaining.values())} names remain.",
            metadata={"proof": proof, "erased": erased, "remaining": remaining, "forgotten_at": now.isoformat()},
            surface=Surface.LEDGER,
        ),
        now=now,
    )
    return posted.receipt_id


def forget_items(numbers: Iterable[int], /) -> int:
    """Remove items of any subjects."""
    rows = Item.objects.filter(pk__in=list(numbers))
    _revise(rows.values_list("subject_id", flat=True))
    _unindex(Passage.objects.filter(item__in=rows))
    return rows.delete()[1].get("memory.Item", 0)


def forget_sessions(numbers: Collection[int], /) -> int:
    """Remove sessions and the words of their turns; where there are turns, the session stays as their place."""
    rows = Session.objects.filter(pk__in=list(numbers))
    found = _at_once(rows)
    _revise({session.subject_id for session in found})
    forget_observations(Observation.objects.filter(session__in=found).exclude(text="").values_list("pk", flat=True))
    for pk in rows.filter(turns__gt=0).values_list("pk", flat=True):
        nothing = {**SAYS, CALLED: random_id("forgotten"), "was_called": None, "overwritten": []}
        Session.objects.filter(pk=pk).update(**nothing, subject=None, is_forgotten=True)
    rows.filter(turns=0).delete()
    return len(found)


def forget_entries(wanted: Wanted, /) -> int:
    """Take out of what is told of subjects, such as they prefer, each entry in which it stands; answers of how many."""
    found = [one.pk for one in _telling(wanted) if one.part_with(_in_entries(one, wanted))]
    for subject in _at_once(Subject.objects.filter(pk__in=found)):
        subject.part_with(_in_entries(subject, wanted))
        told = {
            "learning_level": subject.learning_level,
            "domains": subject.domains,
            "preferences": subject.preferences,
        }
        Subject.objects.filter(pk=subject.pk).update(**told)
        revised(subject, subject.revised_at)
    return len(found)


def still_telling(wanted: Wanted, /) -> int:
    """Of how many subjects it stands in an entry, or in a name, which nobody takes away."""
    return sum(
        any(map(_in_entries(one, wanted), one.names)) or one.part_with(_in_entries(one, wanted))
        for one in _telling(wanted)
    )


def _telling(wanted: Wanted) -> QuerySet[Subject]:
    return Subject.objects.filter(pk__in=SUBJECTS.numbers(wanted))


def _in_entries(subject: Subject, wanted: Wanted) -> Callable[[str], bool]:
    """Whether it stands in an entry of a subject; in those of whom it is about nobody needs to be named."""
    is_its_own = subject.key == wanted.reference and wanted.texts
    return (replace(wanted, reference="") if is_its_own else wanted).stands_in


def _revise(subjects: Iterable[int | None]) -> None:
    for subject in _at_once(Subject.objects.filter(pk__in={pk for pk in subjects if pk is not None})):
        revised(subject, subject.revised_at)


def forget_observations(numbers: Collection[int], /) -> int:
    """Take the words of observations from them and from what they are found by; their numbers stay."""
    rows = Observation.objects.filter(pk__in=list(numbers))
    _at_once(rows)
    _unindex(Passage.objects.filter(observation__in=rows))
    return rows.update(text="", speaker="", domain="", evidence=[], metadata={})


def forget_patterns(numbers: Collection[int], /) -> int:
    """Remove patterns with all their revisions."""
    _at_once(Pattern.objects.filter(pk__in=numbers))
    _unindex(Passage.objects.filter(pattern_id__in=numbers))
    return Pattern.objects.filter(pk__in=numbers).delete()[1].get("memory.Pattern", 0)


def forget_concepts(numbers: Collection[int], /) -> int:
    """Remove concepts with their names and relationships."""
    _at_once(Concept.objects.filter(pk__in=numbers))
    _unindex(Passage.objects.filter(concept_id__in=numbers))
    return Concept.objects.filter(pk__in=numbers).delete()[1].get("memory.Concept", 0)


def _unindex(passages: QuerySet[Passage]) -> None:
    sql.drop_passages(passages.values_list("pk", flat=True), common=sql.COMMON)


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
        gone, goes_on = False, False
        # What somebody holds is swept another time.
        with suppress(_Overtaken), acting_as_system(_SWEEP), erasure.redacting():
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
