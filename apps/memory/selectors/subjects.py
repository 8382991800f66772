"""Questions about subjects, for those who may know of them."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from django.db.models import Case, Exists, F, Func, OuterRef, Q, QuerySet, Value, When
from django.db.models.functions import Greatest, Least

from apps.core.sealing import keyed_digest, keyed_digests
from apps.memory.envelopes import Windows, first_moment, last_moment, lasts
from apps.memory.errors import UnknownMemory, UnknownSubject
from apps.memory.models import (
    EnvelopeLoaded,
    Forgotten,
    Item,
    MemoryPolicy,
    Observation,
    Session,
    Subject,
    SubjectQuerySet,
)
from apps.memory.references import item_ref, key_of
from apps.memory.selectors.narrowing import is_among
from apps.memory.states import ItemType
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller

_FORGOTTEN: Final = "memory.forgotten"
_END: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a tenant has settled for all its subjects."""

    windows: Windows
    share_with: list[str] | None


def policy(*, tenant_id: int) -> Policy:
    """A tenant's policy, which is the default where it has settled nothing."""
    row = MemoryPolicy.objects.filter(tenant_id=tenant_id).first()
    if row is None:
        return Policy(windows=Windows(), share_with=None)
    windows = Windows(fact_days=row.fact_days, pattern_days=row.pattern_days, narrative_days=row.narrative_days)
    return Policy(windows=windows, share_with=row.share_with)


def unknown(subject_id: str) -> UnknownSubject:
    """The one answer for a subject that is not there, and for one that the caller may not know of."""
    return UnknownSubject(f"Nothing is known of {subject_id[:60]!r}.")


def known_to(viewer: Caller) -> SubjectQuerySet:
    """The subjects of the viewer's tenant that are shared with it: found in one statement, as if there were no others.

    Who administers a tenant may set right what is shared with nobody.
    """
    rows = Subject.objects.filter(tenant_id=viewer.tenant_id)
    return rows if viewer.may(Scope.ADMIN) else rows.shared_with(viewer.name)


def settled_by(viewer: Caller) -> SubjectQuerySet:
    """The subjects that the viewer may look at and change themselves, whatever is remembered of them: those that are shared
    with it, and those that it added, lest it shut itself out for good."""
    rows = Subject.objects.filter(tenant_id=viewer.tenant_id)
    return rows if viewer.may(Scope.ADMIN) else rows.settled_by(viewer.name, principal_id=viewer.principal_id)


def subject_settled_by(viewer: Caller, subject_id: str) -> Subject:
    """:raises UnknownSubject: if there is no such subject, or the viewer may neither know it nor has added it."""
    return _found(settled_by(viewer), subject_id)


def subject_of(subject_id: str, *, viewer: Caller) -> Subject:
    """:raises UnknownSubject: if there is no such subject, or it is not shared with the viewer."""
    return _found(known_to(viewer), subject_id)


def _found(subjects: SubjectQuerySet, subject_id: str) -> Subject:
    subject = subjects.filter(key=subject_id).first()
    if subject is None:
        raise unknown(subject_id)
    return subject


class _Dated(Protocol):
    @property
    def anonymize_dates(self) -> bool: ...


def dates_of(subject: _Dated | None) -> Callable[[datetime], datetime]:
    """How moments are shown that have to do with a subject, or with none."""
    return first_moment if subject is not None and subject.anonymize_dates else _as_it_is


def _as_it_is(moment: datetime) -> datetime:
    return moment


def _dated(rows: Iterable[Mapping[str, Any]], shown: Callable[[datetime], datetime]) -> list[dict[str, Any]]:
    """Rows with their moments as they are shown."""
    return [
        {name: shown(value) if isinstance(value, datetime) else value for name, value in row.items()} for row in rows
    ]


def item_of(subject: Subject, number: int) -> Item:
    """:raises UnknownMemory: if the subject has no item of this number."""
    item = Item.objects.filter(subject=subject, pk=number).first()
    if item is None:
        raise UnknownMemory(f"There is no {item_ref(number)} of this subject.")
    return item


def items(
    subject: Subject,
    *,
    now: datetime,
    known_at: datetime | None = None,
    true_at: datetime | None = None,
    type_: str | None = None,
    slot: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[Item]:
    """What is remembered of a subject, as far as it has settled that it may be shown, the newest first.

    Where dates are given by the month, they are asked for by the month, too: what a month ended with is the answer to all
    of its moments.

    :param known_at: as one would have answered at this moment, else as of now.
    :param true_at: only what was so at this moment.
    :param before: only what was recorded before the item of this number.
    """
    if not subject.memory_enabled:
        return []
    if subject.anonymize_dates:
        known_at, true_at = known_at and last_moment(known_at), true_at and last_moment(true_at)
    asked = (
        Q(superseded_at=None)
        if known_at is None
        else Q(recorded_at__lte=known_at) & (Q(superseded_at=None) | Q(superseded_at__gt=known_at))
    )
    if true_at is not None:
        asked &= Q(valid_from__lte=true_at) & (Q(valid_to=None) | Q(valid_to__gt=true_at))
    asked &= _kept(subject, "said_at", now)
    narrowed = {"type": type_, "slot_key": None if slot is None else key_of(slot), "pk__lt": before}
    asked &= Q(**{name: value for name, value in narrowed.items() if value is not None})
    of_subject = Item.objects.filter(_of(subject), asked).select_related("author")
    return list(of_subject.order_by("subject_id", "-pk")[:limit])


def _of(subject: Subject) -> Func:
    return is_among("subject_id", subject.pk, "bigint")


def _kept(subject: Subject, said: str, now: datetime) -> Q:
    """What has not had its days, by the column that says since when they count."""
    days = subject.delete_after_days
    return Q() if days is None else Q(**{f"{said}__gt": now - timedelta(days=days)})


def is_shown(subject: Subject | None, said_at: datetime, *, now: datetime) -> bool:
    """Whether a subject lets be shown what was said of it at a moment; of none, everything is."""
    if subject is None:
        return True
    days = subject.delete_after_days
    return subject.memory_enabled and (days is None or said_at > now - timedelta(days=days))


def was_served(subject: Subject, viewer_id: int, texts: Collection[bytes], *, until: datetime = _END) -> bool:
    """Whether the viewer was given an envelope, at this moment at the latest, while one of these texts counted for it."""
    windows = policy(tenant_id=subject.tenant_id).windows
    lasted = Case(*(When(type=type_, then=Value(lasts(windows.days(type_)))) for type_ in ItemType))
    loads = EnvelopeLoaded.objects.filter(
        subject=subject,
        viewer_id=viewer_id,
        loaded_at__lte=until,
        loaded_at__gte=OuterRef("begun"),
        # The earliest of those that are set.
        loaded_at__lt=Least(OuterRef("superseded_at"), OuterRef("valid_to"), OuterRef("faded")),
    )
    said = Item.objects.filter(subject=subject, text_digest__in=list(texts))
    said = said.annotate(begun=Greatest("recorded_at", "valid_from"), faded=F("said_at") + lasted)
    return said.filter(Exists(loads)).exists()


def has_said(subject: Subject, author: Caller, type_: str, text: bytes, *, slot: str | None) -> bool:
    """Whether this author is among those who have said a text of the subject, whoever has said it since, to this question
    or to none."""
    said = Item.objects.filter(subject=subject, type=type_, text_digest=text, author_id=author.principal_id)
    return said.filter(Q(slot_key=None) | Q(slot_key=slot and key_of(slot))).exists()


def mark_of(*parts: str) -> bytes:
    """The keyed digest of a forgotten subject's id, or of that and an item's reference."""
    return keyed_digest(_FORGOTTEN, _joined(parts))


def is_forgotten(subject_id: str, *, tenant_id: int) -> bool:
    """Whether the subject of this id was forgotten on request."""
    digests = keyed_digests(_FORGOTTEN, _joined([subject_id]))
    return Forgotten.objects.filter(tenant_id=tenant_id, digest__in=digests).exists()


def _joined(parts: Sequence[str]) -> bytes:
    return b"".join(hashlib.sha256(part.encode(errors="surrogatepass")).digest() for part in parts)


AT_ONCE: Final = 1_000


# Each after a row, in the order of its index: memory_item_listed, memory_session_listed, memory_envelopeloaded_listed.
_IN_ORDER: Final = ("-subject_id", "pk")


def _items(subject: Subject, now: datetime, after: int) -> QuerySet[Item, Any]:
    rows = Item.objects.filter(_of(subject), _kept(subject, "said_at", now), pk__gt=after).order_by(*_IN_ORDER)
    return rows.values(
        "id", "type", "text", "slot", "confidence", "source", "stated", "evidence", "valid_from", "valid_to",
        "said_at", "recorded_at", "superseded_at", "superseded_by", author_name=F("author__name"),
    )  # fmt: skip


def _sessions(subject: Subject, now: datetime, after: int) -> QuerySet[Session, Any]:
    rows = Session.objects.filter(_of(subject), _kept(subject, "last_active_at", now), pk__gt=after)
    return rows.order_by(*_IN_ORDER).values(
        "id", "conversation_id", "platform", "title", "summary", "topics", "tone", "started_at", "last_active_at",
        principal_name=F("principal__name"),
    )  # fmt: skip


def _loads(subject: Subject, _: datetime, after: int) -> QuerySet[EnvelopeLoaded, Any]:
    """Who was given envelopes, which hold nothing that could have had its days."""
    loads = EnvelopeLoaded.objects.filter(_of(subject), pk__gt=after).order_by(*_IN_ORDER)
    return loads.values("id", "rev", "loaded_at", viewer_name=F("viewer__name"))


def _turns(subject: Subject, now: datetime, after: int) -> QuerySet[Observation, Any]:
    """What was said in sessions with a subject, one session after the other: by memory_session_listed and
    memory_observation_of_session.

    :raises UnknownMemory: if it is to follow an observation that there is not.
    """
    session = Observation.objects.filter(pk=after).values_list("session_id", flat=True).first() if after else 0
    if session is None:
        raise UnknownMemory(f"There is no turn of the number {after}.")
    sessions = Session.objects.filter(_of(subject), pk__gte=session).values("pk")
    turns = Observation.objects.alias(said_at=Least("occurred_at", "recorded_at")).exclude(text="")
    said = turns.filter(_kept(subject, "said_at", now), session__in=sessions)
    following = said.filter(session_id__gte=session).exclude(session_id=session, pk__lte=after)
    return following.order_by("session_id", "pk").values(
        "id", "speaker", "text", "domain", "confidence", "evidence", "metadata", "occurred_at", "recorded_at",
        "superseded_at", "superseded_by", author_name=F("author__name"), conversation_id=F("session__conversation_id"),
    )  # fmt: skip


# What an export has many rows of: those that follow a row, in the order in which they were stored; turns session by session.
PARTS: Final[Mapping[str, Callable[[Subject, datetime, int], QuerySet[Any, Any]]]] = {
    "items": _items,
    "sessions": _sessions,
    "envelopes_loaded": _loads,
    "turns": _turns,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A part of what is stored about a subject."""

    subject: dict[str, Any]
    rows: dict[str, list[dict[str, Any]]]
    """By the names of :data:`PARTS`, at most :data:`AT_ONCE` of each."""
    following: dict[str, int]
    """Of the parts that may have more, after which row that comes."""


def export(
    subject: Subject, *, now: datetime, after: Mapping[str, int] | None = None, exactly: bool = False
) -> Exported:
    """What is stored about a subject: itself, every item with its history, sessions, what was said in them, and who was
    given envelopes. What has had its days by now is as good as deleted.

    :param after: only what follows these rows, of the parts that are named; all parts from the first on, and the subject
        itself, unless given.
    :param exactly: with dates as they are, whatever the subject has settled.
    :raises UnknownMemory: if turns are to follow one that there is not.
    """
    shown = _as_it_is if exactly else dates_of(subject)
    begins = dict.fromkeys(PARTS, 0) if after is None else after
    rows = {name: _dated(PARTS[name](subject, now, begin)[:AT_ONCE], shown) for name, begin in begins.items()}
    return Exported(
        subject=_dated([_itself(subject)], shown)[0] if after is None else {},
        rows=rows,
        following={name: found[-1]["id"] for name, found in rows.items() if len(found) == AT_ONCE},
    )


def _itself(subject: Subject) -> dict[str, Any]:
    told = {
        name: getattr(subject, name)
        for name in (
            "key", "display_name", "learning_level", "domains", "preferences", "memory_enabled", "learn_patterns",
            "share_with", "anonymize_dates", "delete_after_days", "rev", "created_at", "revised_at",
        )
    }  # fmt: skip
    names = {name: who and who.name for name, who in (("added_by", subject.added_by), ("author_name", subject.author))}
    return {**told, **names}
