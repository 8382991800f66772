"""Subjects, and what may be done with memories of them."""

from datetime import datetime
from typing import Annotated, Any, Final

from django.utils import timezone
from pydantic import Field, StringConstraints

from apps.core.operations import Route, operation
from apps.core.schemas import Empty, Input, Name, Output, Text
from apps.memory import selectors, services
from apps.memory.envelopes import Constraints
from apps.memory.models import Subject
from apps.memory.services import SubjectChange
from apps.memory.tools.shapes import Domain, SubjectId
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller

PreferenceKey = Annotated[Text, StringConstraints(min_length=1, max_length=100)]
PreferenceValue = Annotated[Text, StringConstraints(min_length=1, max_length=500)]
Days = Annotated[int, Field(ge=1, le=36_500)]
Sharing = Annotated[list[Name], Field(max_length=200)]


class ConstraintsChange(Input):
    """Rules for memories of the subject; what is left out stays. Whoever may change the subject may make them stricter; who
    added it may lift them, and who administers the tenant."""

    memory_enabled: bool = True
    """Whether anything may be remembered of it, or shown."""
    learn_patterns: bool = True
    """Whether patterns may be learned."""
    share_with: Sharing | None = None
    """The principals that may read it: null is the tenant's default, an empty list is nobody. Who added the subject may
    change this, and who administers the tenant. A name of nobody is refused."""
    anonymize_dates: bool = False
    """Whether dates are given by the month alone."""
    delete_after_days: Days | None = None
    """So many days after it was said, what was said is deleted; null keeps it."""


class SubjectFields(Input):
    display_name: Annotated[Text, StringConstraints(max_length=200)] | None = None
    """What to call it."""
    learning_level: Annotated[Text, StringConstraints(max_length=50)] | None = None
    """`beginner`, `intermediate`, `advanced`, or what you distinguish."""
    domains: Annotated[list[Domain], Field(max_length=50)] = Field(default_factory=list)
    """Its fields of interest."""
    preferences: Annotated[dict[PreferenceKey, PreferenceValue | None], Field(max_length=50)] = Field(
        default_factory=dict
    )
    """`communication_style`, `detail_level`, `explanation_style` and others; null takes one back."""
    constraints: ConstraintsChange = Field(default_factory=ConstraintsChange)


class AddSubject(SubjectFields):
    subject_id: SubjectId
    """A kind in capitals and a name, such as `USER:246030816692404234`."""
    remember_again: bool = False
    """It was forgotten on request and wishes to be remembered again."""


class UpdateSubject(SubjectFields):
    subject_id: SubjectId


class SubjectOutput(Output):
    """A subject, but for what is remembered of it."""

    subject_id: str
    display_name: str | None
    learning_level: str | None
    domains: list[str]
    preferences: dict[str, str]
    constraints: Constraints
    rev: int
    """Grows with everything that is written about the subject."""
    created_at: datetime
    revised_at: datetime


_COLUMNS: Final = ("display_name", "learning_level", "domains")


def _change(given: SubjectFields) -> SubjectChange:
    """What is to be changed: the members that were given, and no others. Texts that are null are empty."""
    columns: dict[str, Any] = {name: getattr(given, name) for name in _COLUMNS if name in given.model_fields_set}
    columns = {name: "" if value is None else value for name, value in columns.items()}
    if "constraints" in given.model_fields_set:
        rules = given.constraints
        columns |= {name: getattr(rules, name) for name in rules.model_fields_set}
    return SubjectChange(given=columns, preferences=given.preferences)


def _shown(subject: Subject) -> SubjectOutput:
    shown, is_told = selectors.dates_of(subject), subject.memory_enabled
    return SubjectOutput(
        subject_id=subject.key,
        display_name=subject.display_name or None,
        learning_level=(is_told and subject.learning_level) or None,
        domains=subject.domains if is_told else [],
        preferences=subject.preferences if is_told else {},
        constraints=Constraints.model_validate(subject),
        rev=subject.rev,
        created_at=shown(subject.created_at),
        revised_at=shown(subject.revised_at),
    )


@operation(
    title="Add a subject",
    scope="memory",
    routes=[Route("POST", "/api/v1/subjects", status=201)],
)
def add_subject(caller: Caller, given: AddSubject) -> SubjectOutput:
    """Begin to remember somebody: a user, a client, a creator. What you settle here holds before anything is remembered.

    Who was forgotten on request is not added again by a repetition.
    """
    subject = services.add_subject(
        author=caller,
        subject_id=given.subject_id,
        change=_change(given),
        remember_again=given.remember_again,
        now=timezone.now(),
    )
    return _shown(subject)


class OfSubject(Input):
    subject_id: SubjectId


@operation(
    title="Look at a subject",
    scope="memory",
    routes=[Route("GET", "/api/v1/subjects/{subject_id}")],
    read_only=True,
)
def get_subject(caller: Caller, given: OfSubject) -> SubjectOutput:
    """Show a subject's name, preferences, constraints and revision. What is remembered of it is in its envelope.

    Who added a subject may look at it so, though it is not shared with them. Of one that wants nothing remembered only its name and its constraints are shown.
    """
    return _shown(selectors.subject_settled_by(caller, given.subject_id))


@operation(
    title="Change a subject",
    scope="memory",
    routes=[Route("PATCH", "/api/v1/subjects/{subject_id}")],
    idempotent=True,
)
def update_subject(caller: Caller, given: UpdateSubject) -> SubjectOutput:
    """Change a subject's name, preferences or constraints. What you leave out stays, also within the constraints.

    Who added a subject may change it, though it is not shared with them.
    """
    subject = services.update_subject(
        author=caller, subject_id=given.subject_id, change=_change(given), now=timezone.now()
    )
    return _shown(subject)


class Export(Output):
    """What is stored about a subject: of each list a thousand at once, in the order in which it was stored."""

    subject: dict[str, Any]
    items: list[dict[str, Any]]
    sessions: list[dict[str, Any]]
    envelopes_loaded: list[dict[str, Any]]
    turns: list[dict[str, Any]]
    """What was said in its sessions."""
    next_items_after: int | None
    """Ask for the next thousand with this; null: that was all. So with each of these."""
    next_sessions_after: int | None
    next_envelopes_loaded_after: int | None
    next_turns_after: int | None


After = Annotated[int, Field(ge=1, lt=2**63)]


class ExportSubject(OfSubject):
    """With any of these only what follows in the lists that are named; without, the first of everything."""

    items_after: After | None = None
    """Only the next items: `next_items_after` of the answer before."""
    sessions_after: After | None = None
    """The next sessions, likewise."""
    envelopes_loaded_after: After | None = None
    """The next notes of who was given envelopes, likewise."""
    turns_after: After | None = None
    """The next turns, likewise."""


@operation(
    title="Export a subject",
    scope="memory",
    routes=[Route("GET", "/api/v1/subjects/{subject_id}/export")],
    read_only=True,
)
def export_subject(caller: Caller, given: ExportSubject) -> Export:
    """Everything that is stored about a subject, as JSON, a thousand rows of each list at once: itself, each item with its
    history, its sessions, what was said in them, and to whom envelopes of it were given. Where its dates are anonymized, those
    who administer the tenant get them exactly."""
    subject = selectors.subject_of(given.subject_id, viewer=caller)
    asked = {name: getattr(given, f"{name}_after") for name in selectors.PARTS}
    after = {name: number for name, number in asked.items() if number is not None}
    found = selectors.export(subject, now=timezone.now(), after=after or None, exactly=caller.may(Scope.ADMIN))
    return Export(
        subject=found.subject,
        **{name: found.rows.get(name, []) for name in selectors.PARTS},
        **{f"next_{name}_after": found.following.get(name) for name in selectors.PARTS},
    )


class MemoryPolicyOutput(Output):
    """What the tenant has settled for all its subjects."""

    fact_days: int
    pattern_days: int
    narrative_days: int
    share_with: list[str] | None
    """Null: everybody in the tenant."""


class SetMemoryPolicy(Input):
    fact_days: Days | None = None
    """For how many whole days a fact counts after it was said; 30 unless settled."""
    pattern_days: Days | None = None
    """The same of patterns; 14 unless settled."""
    narrative_days: Days | None = None
    """The same of narratives; 7 unless settled."""
    share_with: Sharing | None = None
    """Who may read subjects that do not say so themselves; null is everybody in the tenant. A name of nobody is refused."""


@operation(
    title="Set the memory policy",
    scope="admin",
    routes=[Route("PUT", "/api/v1/memory/policy")],
    idempotent=True,
)
def set_memory_policy(caller: Caller, given: SetMemoryPolicy) -> MemoryPolicyOutput:
    """Settle for how long what is remembered of subjects counts, and with whom they are shared unless they say so.

    What you leave out stays as it was.
    """
    services.set_memory_policy(
        author=caller,
        fact_days=given.fact_days,
        pattern_days=given.pattern_days,
        narrative_days=given.narrative_days,
        share_with=given.share_with,
        share_with_everybody="share_with" in given.model_fields_set and given.share_with is None,
        now=timezone.now(),
    )
    return _policy(caller)


@operation(
    title="Look at the memory policy",
    scope="memory",
    routes=[Route("GET", "/api/v1/memory/policy")],
    read_only=True,
)
def get_memory_policy(caller: Caller, given: Empty) -> MemoryPolicyOutput:
    """Show for how long what is remembered of subjects counts in this tenant, and with whom they are shared."""
    return _policy(caller)


def _policy(caller: Caller) -> MemoryPolicyOutput:
    settled = selectors.policy(tenant_id=caller.tenant_id)
    windows = settled.windows
    return MemoryPolicyOutput(
        fact_days=windows.fact_days,
        pattern_days=windows.pattern_days,
        narrative_days=windows.narrative_days,
        share_with=settled.share_with,
    )
