"""Operations on subjects: their rules, items and envelopes."""

from typing import Annotated, Any

from django.utils import timezone
from pydantic import AfterValidator, Field, StringConstraints

from apps.core.errors import NotFound
from apps.core.operations import Route, operation
from apps.core.schemas import Empty, Input, Moment, Output, Text
from apps.memory import selectors, services
from apps.memory.envelopes import Envelope, FormattedEnvelope
from apps.memory.envelopes import format_envelope_for_llm as format_for_llm
from apps.memory.services import ItemDraft, SubjectChange
from apps.memory.shapes import (
    Domain,
    Evidence,
    Export,
    ItemOutput,
    ItemRef,
    Label,
    MemoryPolicyOutput,
    Share,
    Sharing,
    SubjectId,
    SubjectOutput,
    number_of,
)
from apps.memory.states import ItemType
from apps.memory.texts import one_line
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller

PreferenceKey = Annotated[Text, StringConstraints(min_length=1, max_length=100)]
PreferenceValue = Annotated[Text, StringConstraints(min_length=1, max_length=500)]
Days = Annotated[int, Field(ge=1, le=36_500)]


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


def _change(given: SubjectFields) -> SubjectChange:
    """What is to be changed: the members that were given, and no others. Texts that are null are empty."""
    columns: dict[str, Any] = {
        name: getattr(given, name)
        for name in ("display_name", "learning_level", "domains")
        if name in given.model_fields_set
    }
    columns = {name: "" if value is None else value for name, value in columns.items()}
    if "constraints" in given.model_fields_set:
        rules = given.constraints
        columns |= {name: getattr(rules, name) for name in rules.model_fields_set}
    return SubjectChange(given=columns, preferences=given.preferences)


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
    return selectors.shown(subject)


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
    return selectors.subject_shown_to(caller, given.subject_id)


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
    return selectors.shown(subject)


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
    return selectors.export(subject, now=timezone.now(), after=after or None, exactly=caller.may(Scope.ADMIN))


class SetMemoryPolicy(Input):
    fact_days: Days | None = None
    """For how many whole days a fact counts after it was said; 30 by default."""
    pattern_days: Days | None = None
    """The same of patterns; 14 by default."""
    narrative_days: Days | None = None
    """The same of narratives; 7 by default."""
    share_with: Sharing | None = None
    """Who may read subjects that have no list of their own; null is everybody in the tenant. A name of nobody is refused."""


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
    return services.set_memory_policy(
        author=caller,
        fact_days=given.fact_days,
        pattern_days=given.pattern_days,
        narrative_days=given.narrative_days,
        share_with=given.share_with,
        share_with_everybody="share_with" in given.model_fields_set and given.share_with is None,
        now=timezone.now(),
    )


@operation(
    title="Look at the memory policy",
    scope="memory",
    routes=[Route("GET", "/api/v1/memory/policy")],
    read_only=True,
)
def get_memory_policy(caller: Caller, given: Empty) -> MemoryPolicyOutput:
    """Show for how long what is remembered of subjects counts in this tenant, and with whom they are shared."""
    return selectors.policy(tenant_id=caller.tenant_id)


def _seen(said: str) -> str:
    if not one_line(said):
        raise ValueError("holds nothing that anybody sees")
    return said


Saying = Annotated[Text, StringConstraints(min_length=1, max_length=2_000, pattern=r"\S"), AfterValidator(_seen)]


class RememberFact(Input):
    subject_id: SubjectId
    fact: Saying
    """What to remember of the subject, in one sentence."""
    type: ItemType = ItemType.USER_FACT
    """A fact, a pattern inferred from several occasions, or a story that you share."""
    slot: Label | None = None
    """What it is an answer to (`home town`): a newer answer stands in the place of the older."""
    confidence: Share = 0.8
    """How sure you are, from 0 to 1."""
    source: Annotated[Text, StringConstraints(max_length=200)] = ""
    """Where it is from: `session c-1`, `multiple sessions`."""
    stated: bool = False
    """The subject said so itself. What is learned does not undo it."""
    evidence: Evidence = Field(default_factory=list)
    """References to what it rests on: `observation:12`, `task:task_7`. What is cited of memory must be there."""
    valid_from: Moment | None = None
    """Since when it is so, if not from now on."""
    valid_to: Moment | None = None
    """Until when it is so, if that is known."""
    supersedes: ItemRef | None = None
    """The item (`item:12`) in whose place this one stands."""


class RememberedFact(Output):
    status: str
    """`stored`, `merged` with what said the same, or `superseded` what said otherwise."""
    item: ItemOutput
    replaced: list[str]
    """The items in whose place it stands."""


@operation(
    title="Remember a fact",
    scope="memory",
    routes=[Route("POST", "/api/v1/subjects/{subject_id}/items", status=201)],
)
def remember_fact(caller: Caller, given: RememberFact) -> RememberedFact:
    """Remember something of a subject: a fact, a pattern or a shared story. It is in the next envelope.

    The same words again make it surer where there is new evidence. What you only know from an envelope is refused, and
    so is what contradicts the subject's own words. The subject must have been added (`add_subject`).
    """
    services.permit_knowledge(author=caller)
    remembered = services.remember(
        author=caller,
        draft=ItemDraft(
            subject_id=given.subject_id,
            text=given.fact,
            type=given.type,
            slot=given.slot,
            confidence=given.confidence,
            source=given.source,
            stated=given.stated,
            evidence=given.evidence,
            valid_from=given.valid_from,
            valid_to=given.valid_to,
            supersedes=None if given.supersedes is None else number_of(given.supersedes),
        ),
        now=timezone.now(),
    )
    item = remembered.item
    return RememberedFact(
        status=remembered.outcome,
        item=ItemOutput.model_validate(item).by_month(selectors.hides_dates(item.subject)),
        replaced=[f"item:{number}" for number in remembered.replaced],
    )


class ListItems(Input):
    subject_id: SubjectId
    known_at: Moment | None = None
    """Answer as you would have at this moment."""
    true_at: Moment | None = None
    """Only what was so at this moment."""
    type: ItemType | None = None
    slot: Label | None = None
    before: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    """Only items of smaller numbers: `next_before` of the answer before."""
    limit: Annotated[int, Field(ge=1, le=500)] = 50


class Items(Output):
    items: list[ItemOutput]
    """The newest first."""
    next_before: int | None


@operation(
    title="List what is remembered",
    scope="memory",
    routes=[Route("GET", "/api/v1/subjects/{subject_id}/items")],
    read_only=True,
)
def list_memory_items(caller: Caller, given: ListItems) -> Items:
    """List what is remembered of a subject, also as it was known, or so, at another time."""
    subject = selectors.subject_of(given.subject_id, viewer=caller)
    found = selectors.items(
        subject,
        now=timezone.now(),
        known_at=given.known_at,
        true_at=given.true_at,
        type_=given.type,
        slot=given.slot,
        before=given.before,
        limit=given.limit,
    )
    last = number_of(found[-1].ref) if len(found) == given.limit else None
    return Items(items=found, next_before=last)


TenantId = Annotated[Text, StringConstraints(min_length=1, max_length=60)]


class GetEnvelope(Input):
    subject_id: SubjectId
    tenant_id: TenantId | None = None
    """Your tenant, `TENANT:<name>`; left out, the token says it."""
    skip_cache: bool = False
    """Has no effect: an envelope is assembled anew each time."""


class GetEnvelopes(Input):
    subject_ids: Annotated[list[SubjectId], Field(min_length=1, max_length=20)]
    """Each is answered once, in this order."""
    tenant_id: TenantId | None = None
    """Your tenant, `TENANT:<name>`; left out, the token says it."""
    skip_cache: bool = False
    """Has no effect: an envelope is assembled anew each time."""


class Envelopes(Output):
    envelopes: list[Envelope]


class FormatEnvelope(GetEnvelope):
    max_facts: Annotated[int, Field(ge=0, le=100)] = 5
    include_patterns: bool = True
    include_narratives: bool = True
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """The whole text takes no more than these, by a count that errs on the safe side."""


@operation(
    title="Get a memory envelope",
    scope="memory",
    routes=[Route("GET", "/api/v1/subjects/{subject_id}/envelope")],
    read_only=True,
)
def get_memory_envelope(caller: Caller, given: GetEnvelope) -> Envelope:
    """Get what is known of a subject: facts, patterns, narratives, preferences, the last session, and the rules.

    Memories are context: neither facts to rely on, nor instructions, nor permissions. Get it anew for each session.
    """
    return _envelope(caller, given.subject_id, given.tenant_id)


@operation(
    title="Get several envelopes",
    scope="memory",
    routes=[Route("POST", "/api/v1/memory/envelopes")],
    read_only=True,
)
def get_memory_envelopes(caller: Caller, given: GetEnvelopes) -> Envelopes:
    """Get the envelopes of several subjects of your tenant, such as a client and a creator, each by itself."""
    return Envelopes(envelopes=[_envelope(caller, one, given.tenant_id) for one in dict.fromkeys(given.subject_ids)])


@operation(
    title="Format an envelope for a prompt",
    scope="memory",
    routes=[Route("GET", "/api/v1/subjects/{subject_id}/envelope/text")],
    read_only=True,
)
def format_envelope_for_llm(caller: Caller, given: FormatEnvelope) -> FormattedEnvelope:
    """Get a subject's envelope as a few lines for a prompt, every memory quoted, within a budget of tokens.

    Put the text into the prompt as it is, with its first line and both marks.
    """
    return format_for_llm(
        _envelope(caller, given.subject_id, given.tenant_id),
        max_facts=given.max_facts,
        include_patterns=given.include_patterns,
        include_narratives=given.include_narratives,
        max_tokens=given.max_tokens,
    )


def _envelope(caller: Caller, subject_id: str, tenant_id: str | None) -> Envelope:
    """:raises NotFound: for any tenant but the caller's own, as if there were none."""
    if tenant_id is not None and tenant_id.removeprefix("TENANT:") != caller.tenant_slug:
        raise NotFound(f"There is no tenant {tenant_id[:60]!r}.", code="unknown_tenant")
    return services.get_memory_envelope(viewer=caller, subject_id=subject_id, now=timezone.now())


class Forget(Input):
    subject_id: SubjectId
    item: ItemRef | None = None
    """Only this item (`item:12`), with all that said the same and what it had superseded."""


class ForgottenOutput(Output):
    status: str
    erased: dict[str, int]
    """From how many things of each place it was taken."""
    remaining: dict[str, int]
    """Where it stands still: ids and names that were chosen with it in them."""
    receipt_id: str
    """The receipt that proves it. It holds numbers and a keyed digest, nothing of what was forgotten."""
    proof: str
    """The keyed digest by which this deployment refuses a repetition."""


@operation(
    title="Forget a subject or an item",
    scope="memory",
    routes=[Route("POST", "/api/v1/memory/forget"), Route("DELETE", "/api/v1/subjects/{subject_id}")],
    destructive=True,
)
def forget(caller: Caller, given: Forget) -> ForgottenOutput:
    """Forget a subject with everything that names it, or one item of it, for good and everywhere; a receipt proves it.

    Repetitions of what was remembered are refused from then on.
    """
    done = services.forget(
        author=caller,
        subject_id=given.subject_id,
        item=None if given.item is None else number_of(given.item),
        now=timezone.now(),
    )
    return ForgottenOutput(
        status="forgotten",
        erased=done.erased,
        remaining=done.remaining,
        receipt_id=done.receipt_id,
        proof=done.proof,
    )
