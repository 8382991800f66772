"""What is remembered of subjects, item by item."""

import re
from datetime import datetime
from typing import Annotated

from django.utils import timezone
from pydantic import AfterValidator, Field, StringConstraints

from apps.core.operations import Route, operation
from apps.core.schemas import Input, Moment, Output, Text
from apps.memory import selectors, services
from apps.memory.models import Item, Subject
from apps.memory.references import item_ref
from apps.memory.services import ItemDraft
from apps.memory.states import ItemType
from apps.memory.texts import one_line
from apps.memory.tools.shapes import Label, Ref, Share, SubjectId
from apps.principals.tenancy import Caller


def _seen(said: str) -> str:
    if not one_line(said):
        raise ValueError("holds nothing that anybody sees")
    return said


Saying = Annotated[Text, StringConstraints(min_length=1, max_length=2_000, pattern=r"\S"), AfterValidator(_seen)]
ItemRef = Annotated[str, StringConstraints(pattern=r"^(item:)?[1-9][0-9]{0,17}$")]


def number_of(ref: str) -> int:
    """The number in `item:12`."""
    return int(re.sub(r"^item:", "", ref))


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
    evidence: Annotated[list[Ref], Field(max_length=100)] = Field(default_factory=list)
    """References to what it rests on: `observation:12`, `task:task_7`. What is cited of memory must be there."""
    valid_from: Moment | None = None
    """Since when it is so, if not from now on."""
    valid_to: Moment | None = None
    """Until when it is so, if that is known."""
    supersedes: ItemRef | None = None
    """The item (`item:12`) in whose place this one stands."""


class ItemOutput(Output):
    """Something remembered of a subject."""

    ref: str
    type: ItemType
    text: str
    slot: str | None
    confidence: float
    """As it was said; envelopes show it faded."""
    source: str
    stated: bool
    evidence: list[str]
    valid_from: datetime
    valid_to: datetime | None
    said_at: datetime
    recorded_at: datetime
    superseded_at: datetime | None
    superseded_by: str | None


class RememberedFact(Output):
    status: str
    """`stored`, `merged` with what said the same, or `superseded` what said otherwise."""
    item: ItemOutput
    replaced: list[str]
    """The items in whose place it stands."""


def _listed(item: Item, subject: Subject) -> ItemOutput:
    """An item as its subject wants it shown."""
    shown = selectors.dates_of(subject)
    return ItemOutput(
        ref=item.ref,
        type=ItemType(item.type),
        text=item.text,
        slot=item.slot,
        confidence=item.confidence,
        source=item.source,
        stated=item.stated,
        evidence=item.evidence,
        valid_from=shown(item.valid_from),
        valid_to=item.valid_to and shown(item.valid_to),
        said_at=shown(item.said_at),
        recorded_at=shown(item.recorded_at),
        superseded_at=item.superseded_at and shown(item.superseded_at),
        superseded_by=None if item.superseded_by_id is None else item_ref(item.superseded_by_id),
    )


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
    return RememberedFact(
        status=remembered.outcome,
        item=_listed(remembered.item, remembered.item.subject),
        replaced=[item_ref(number) for number in remembered.replaced],
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
    following = found[-1].pk if len(found) == given.limit else None
    return Items(items=[_listed(item, subject) for item in found], next_before=following)
