"""Subjects: whom memories are about, and what may be done with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import DateTimeField, ExpressionWrapper, F, Value
from django.db.models.functions import Least

from apps.core.errors import Conflict
from apps.core.sql import violated_constraint
from apps.memory import selectors
from apps.memory.errors import (
    MemoryDisabled,
    SettledByAnother,
    SharedByAnother,
    SubjectExists,
    TooManyPreferences,
)
from apps.memory.models import MemoryPolicy, Subject, SubjectQuerySet
from apps.principals import selectors as principals
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller

MOST_PREFERENCES: Final = 50
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectChange:
    """What is to be another way with a subject; what is left out stays. Of preferences, null takes one back."""

    given: Mapping[str, Any]
    """By the names of the row's columns."""
    preferences: Mapping[str, str | None] | None = None


@transaction.atomic
def add_subject(
    *, author: Caller, subject_id: str, change: SubjectChange, now: datetime, remember_again: bool = False
) -> Subject:
    """Begin to remember somebody.

    :param remember_again: somebody who was forgotten on request wants to be remembered.
    :raises SubjectExists: if it is remembered already.
    :raises UnknownPrincipal: if it is to be shared with nobody's name.
    :raises MemoryDisabled: if it wants nothing remembered, and something is told of it.
    :raises Conflict: `forgotten`, if it was forgotten on request.
    """
    subject = Subject(
        tenant_id=author.tenant_id,
        key=subject_id,
        added_by_id=author.principal_id,
        author_id=author.principal_id,
        created_at=now,
        revised_at=now,
    )
    _refuse_nobody(author, change.given.get("share_with"), before=None)
    _apply(subject, change)
    try:
        with transaction.atomic():
            subject.save(force_insert=True)
    except IntegrityError as exc:
        if violated_constraint(exc) != "memory_subject_key_once":
            raise
        raise SubjectExists(f"{subject_id[:60]!r} is remembered already.") from exc
    # Not sooner: a transaction that forgets it has ended by now.
    if not remember_again and selectors.is_forgotten(subject_id, tenant_id=author.tenant_id):
        raise Conflict(
            "This subject was forgotten on request; it is remembered at its own wish alone (`remember_again`).",
            code="forgotten",
        )
    return subject


@transaction.atomic
def update_subject(*, author: Caller, subject_id: str, change: SubjectChange, now: datetime) -> Subject:
    """Change what is known of a subject itself, or what may be done with memories of it.

    :raises UnknownSubject: if there is none, or it is not shared with the author, who has not added it either.
    :raises SharedByAnother: if others are to know it, and the author neither added it nor administers the tenant.
    :raises SettledByAnother: if it is to forbid less than before, and the author neither added it nor administers the tenant.
    :raises UnknownPrincipal: if it is to be shared with nobody's name, which it was not before.
    :raises MemoryDisabled: if it wants nothing remembered then, and something is told of it; that may be taken back.
    :raises TooManyPreferences: if it would have more than :data:`MOST_PREFERENCES`.
    """
    subject = holding(selectors.settled_by(author).filter(key=subject_id)).first()
    if subject is None:
        raise selectors.unknown(subject_id)
    if _shares(subject, change):
        _may_share(author, subject)
        _refuse_nobody(author, change.given["share_with"], before=subject.share_with)
    if _lifts(subject, change):
        _may_lift(author, subject)
    _apply(subject, change)
    subject.author_id = author.principal_id
    if "delete_after_days" in change.given:
        # The sweep finds out when it is.
        subject.expires_at = None if subject.delete_after_days is None else now
    subject.rev += 1
    subject.revised_at = now
    subject.save()
    return subject


@transaction.atomic
def set_memory_policy(
    *,
    author: Caller,
    now: datetime,
    fact_days: int | None = None,
    pattern_days: int | None = None,
    narrative_days: int | None = None,
    share_with: Sequence[str] | None = None,
    share_with_everybody: bool = False,
) -> MemoryPolicy:
    """Settle for how long items count in the tenant, and who may read subjects that do not say so themselves.

    What is left out stays as it was.

    :raises UnknownPrincipal: if they are to be shared with nobody's name, which they were not before.
    """
    default = selectors.policy(tenant_id=author.tenant_id)
    MemoryPolicy.objects.bulk_create(
        [
            MemoryPolicy(
                tenant_id=author.tenant_id,
                fact_days=default.windows.fact_days,
                pattern_days=default.windows.pattern_days,
                narrative_days=default.windows.narrative_days,
                revised_at=now,
            )
        ],
        ignore_conflicts=True,
    )
    policy = MemoryPolicy.objects.select_for_update(no_key=True).get(tenant_id=author.tenant_id)
    days = {"fact_days": fact_days, "pattern_days": pattern_days, "narrative_days": narrative_days}
    for name, value in days.items():
        if value is not None:
            setattr(policy, name, value)
    if share_with is not None or share_with_everybody:
        _refuse_nobody(author, share_with, before=policy.share_with)
        policy.share_with = None if share_with is None else list(share_with)
    policy.author_id = author.principal_id
    policy.revised_at = now
    policy.save()
    return policy


def held(author: Caller, subject_id: str) -> Subject | None:
    """The subject of this id, which nobody else changes before the transaction ends; None if there is none.

    What is not shared with the author is not there, and is not waited for.
    """
    return holding(selectors.known_to(author).filter(key=subject_id)).first()


def holding(subjects: SubjectQuerySet) -> SubjectQuerySet:
    """These subjects, held once they are read, in the order in which everybody holds them."""
    return subjects.order_by("pk").select_for_update(no_key=True, of=("self",))


def held_to_write(author: Caller, subject_id: str) -> Subject:
    """The subject of this id, held, for something to be remembered of it.

    :raises UnknownSubject: if there is none, or it is not shared with the author.
    :raises MemoryDisabled: if it wants nothing remembered.
    """
    return to_be_written(held(author, subject_id), subject_id)


def to_be_written(subject: Subject | None, subject_id: str) -> Subject:
    """The subject that was found under this id, if something may be remembered of it.

    :raises UnknownSubject: if there is none.
    :raises MemoryDisabled: if it wants nothing remembered.
    """
    if subject is None:
        raise selectors.unknown(subject_id)
    if not subject.memory_enabled:
        raise MemoryDisabled(f"{subject_id[:60]!r} wants nothing remembered.")
    return subject


def revised(subject: Subject, now: datetime, *, since: datetime | None = None) -> None:
    """Say that an envelope of the subject, which the caller holds, may say something else from now on.

    :param since: from when the oldest of what is stored of it now is, if that was said before.
    """
    # The least of what there is: null where nothing is ever deleted.
    expires_at = Least(
        "expires_at",
        ExpressionWrapper(
            Value(since or now, DateTimeField()) + F("delete_after_days") * Value(_DAY), output_field=DateTimeField()
        ),
    )
    Subject.objects.filter(pk=subject.pk).update(rev=F("rev") + 1, revised_at=now, expires_at=expires_at)


def _shares(subject: Subject, change: SubjectChange) -> bool:
    """Whether others are to know it."""
    return bool(change.given.get("share_with", subject.share_with) != subject.share_with)


def _lifts(subject: Subject, change: SubjectChange) -> bool:
    """Whether it is to forbid less of those who may know it than it does."""
    to_be = {name: change.given.get(name, getattr(subject, name)) for name in _SETTLED}
    days, kept = subject.delete_after_days, to_be["delete_after_days"]
    return (
        to_be["memory_enabled"] > subject.memory_enabled
        or to_be["learn_patterns"] > subject.learn_patterns
        or to_be["anonymize_dates"] < subject.anonymize_dates
        or (days is not None and (kept is None or kept > days))
    )


def _may_share(author: Caller, subject: Subject) -> None:
    """Nobody shuts out others by naming itself alone.

    :raises SharedByAnother: if the author may not say.
    """
    if not _settles(author, subject):
        raise SharedByAnother(f"Who may know {subject.key[:60]!r} is for who added it to say, or for an administrator.")


def _may_lift(author: Caller, subject: Subject) -> None:
    """What the subject forbids would forbid nothing, were it lifted by whom it binds.

    :raises SettledByAnother: if the author may not lift it.
    """
    if not _settles(author, subject):
        raise SettledByAnother(
            f"What {subject.key[:60]!r} has settled is lifted by who added it alone, or by an administrator."
        )


def _settles(author: Caller, subject: Subject) -> bool:
    """Of a subject of which nobody knows who added it, anybody does."""
    return subject.added_by_id in {None, author.principal_id} or author.may(Scope.ADMIN)


def _refuse_nobody(author: Caller, share_with: Sequence[str] | None, *, before: Sequence[str] | None) -> None:
    """Nobody is shut out by a slip. A name that stands there may have become nobody's since: its owner may be renamed.

    :raises UnknownPrincipal: if one of the names that are new is nobody's.
    """
    added = set(share_with or ()).difference(before or ())
    if added:
        principals.refuse_unknown(sorted(added), tenant_id=author.tenant_id)


# What a subject may forbid those who may know it.
_SETTLED: Final = ("memory_enabled", "learn_patterns", "anonymize_dates", "delete_after_days")
# What is known of a subject itself, beside what it prefers.
_TOLD: Final = ("display_name", "learning_level", "domains")


def _apply(subject: Subject, change: SubjectChange) -> None:
    """
    :raises MemoryDisabled: if something is told of a subject that wants nothing remembered; it may be taken back.
    :raises TooManyPreferences: if it would have more than :data:`MOST_PREFERENCES`.
    """
    for name, value in change.given.items():
        setattr(subject, name, value)
    if change.preferences is not None:
        merged = {**subject.preferences, **change.preferences}
        chosen = {key: value for key, value in merged.items() if value is not None}
        if len(chosen) > max(MOST_PREFERENCES, len(subject.preferences)):
            raise TooManyPreferences(f"{subject.key[:60]!r} would have more than {MOST_PREFERENCES} preferences.")
        subject.preferences = chosen
    told = [change.given.get(name) for name in _TOLD] + list((change.preferences or {}).values())
    if not subject.memory_enabled and any(told):
        raise MemoryDisabled(f"{subject.key[:60]!r} wants nothing remembered.")
