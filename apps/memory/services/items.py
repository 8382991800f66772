"""What is remembered of subjects: said again it grows surer, said otherwise the newer stands, and history stays."""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from django.db import connection, transaction
from django.db.models import Value
from django.db.models.functions import Greatest

from apps.memory import selectors, sql
from apps.memory.envelopes import OFTEN
from apps.memory.errors import (
    AlreadySuperseded,
    Echo,
    ImpossiblePeriod,
    PatternsNotLearned,
    StatementStands,
    UnusableName,
)
from apps.memory.models import Item, Passage, Subject
from apps.memory.references import LONGEST_KEY, key_of
from apps.memory.services.evidence import Evidence, evidence_of
from apps.memory.services.subjects import held_to_write, revised
from apps.memory.states import ItemType
from apps.memory.texts import as_sought, bare, one_line, same_text
from apps.principals.tenancy import Caller

# Nothing that was only said twice is certain.
_SUREST: Final = 0.99
_END: Final = datetime.max.replace(tzinfo=UTC)
# What says that a text comes from here is no evidence for it, and `item-7` may say so as well.
_ECHO: Final = re.compile(r"(envelope|item)(:.*|-[0-9]+\W*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDraft:
    """What is to be remembered of a subject.

    `slot` names what it is an answer to (`home town`): a newer answer stands in the place of the older. `stated` says
    that the subject said so itself. Without `valid_from` it is so from now on; without `valid_to` without an end.
    """

    subject_id: str
    text: str
    type: ItemType = ItemType.USER_FACT
    slot: str | None = None
    confidence: float = 0.8
    source: str = ""
    stated: bool = False
    evidence: Sequence[str] = ()
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    supersedes: int | None = None


class Outcome(StrEnum):
    """What became of a draft."""

    STORED = "stored"
    MERGED = "merged"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """An item as it stands now, and the items that it stands in the place of."""

    item: Item
    outcome: Outcome
    replaced: list[int]


@transaction.atomic
def remember(*, author: Caller, draft: ItemDraft, now: datetime) -> Remembered:
    """Remember something of a subject.

    The same words at the same time are one item, unless they answer different questions: evidence grows, and with it or
    another witness how sure it is. Words that answer none are taken for the answer of these words that was said last. What
    answers the same question for the same time is superseded for that time, and stays known for the rest of its own.

    :raises UnknownSubject: if there is none, or it is not shared with the author.
    :raises MemoryDisabled: if the subject wants nothing remembered.
    :raises PatternsNotLearned: if it is a pattern, and the subject wants none learned.
    :raises Echo: if the author was given this text as a memory of the subject and brings no evidence of its own.
    :raises StatementStands: if the subject itself has said otherwise.
    :raises MalformedMemoryReference: if some evidence should name a memory, and does not.
    :raises UnknownMemory: if there is no item to supersede, or not all the evidence, for the author.
    :raises AlreadySuperseded: if another stands in its place already.
    :raises ImpossiblePeriod: if it ends before it begins.
    :raises UnusableName: if its slot can't be a name.
    """
    if draft.slot is not None and not 0 < len(key_of(draft.slot)) <= LONGEST_KEY:
        raise UnusableName(f"{draft.slot[:60]!r} can't be the name of a slot.")
    subject = held_to_write(author, draft.subject_id)
    digest = same_text(draft.text)
    evidence = evidence_of(author, draft.evidence)
    draft = replace(draft, evidence=evidence.refs)
    own = _own(subject, draft, evidence)
    _permit(author, subject, draft, own=own)
    current = Item.objects.filter(subject=subject, superseded_at=None)
    period = _Period(draft.valid_from or now, draft.valid_to or _END)
    said = current.filter(type=draft.type, text_digest=digest).true_between(period.begin, period.end)
    slot, same = _of_one_question(draft.slot, list(said.order_by("-said_at", "-pk")))
    met = _Met(digest=digest, same=same, own=own, period=_merged_period(draft, same, now))
    rivals = current.filter(slot_key=key_of(slot)).true_between(met.period.begin, met.period.end) if slot else []
    replaced = {item.pk: item for item in [*same, *rivals]}
    if draft.supersedes is not None:
        older = _superseded(subject, draft.supersedes)
        replaced[older.pk] = older
    if not draft.stated:
        _yield_to_statements(replaced.values(), met)
    item = _written(author, subject, replace(draft, slot=slot), met, now)
    _supersede(item, replaced.values(), same, now)
    item.save(force_insert=True)
    _index(item)
    revised(subject, now)
    outcome = Outcome.MERGED if same else Outcome.SUPERSEDED if replaced else Outcome.STORED
    return Remembered(item=item, outcome=outcome, replaced=sorted(replaced))


@dataclass(frozen=True, slots=True)
class _Period:
    """From a moment up to another; what has no end ends with the calendar."""

    begin: datetime
    end: datetime

    def meets(self, other: "_Period") -> bool:
        return self.begin < other.end and other.begin < self.end

    def covers(self, other: "_Period") -> bool:
        return self.begin <= other.begin and other.end <= self.end

    @property
    def valid_to(self) -> datetime | None:
        return None if self.end == _END else self.end


def _period_of(item: Item) -> _Period:
    return _Period(item.valid_from, item.valid_to or _END)


def _of_one_question(slot: str | None, said: Sequence[Item]) -> tuple[str | None, list[Item]]:
    """What a text answers, and those that say it and answer that, or nothing, among all that say it, the newest first."""
    slot = slot or next((item.slot for item in said if item.slot), None)
    key = slot and key_of(slot)
    return slot, [item for item in said if item.slot_key in (None, key)]


def _merged_period(draft: ItemDraft, same: Collection[Item], now: datetime) -> _Period:
    """What the draft says of its time stands; of what it does not say, what was known before."""
    begin = draft.valid_from or min([now, *(item.valid_from for item in same)])
    end = draft.valid_to or max((_period_of(item).end for item in same), default=_END)
    if end <= begin:
        raise ImpossiblePeriod("What ends before it begins was never so.")
    return _Period(begin, end)


def _texts(text: str) -> set[bytes]:
    """The text, as it may have been served: formatted, each stands on a line in quotation marks, a pattern after a word
    that was perhaps never stored."""
    line = text.strip().removeprefix("- ")
    often = line[: len(OFTEN)] if line.lower().startswith(OFTEN) else ""
    rest = line[len(often) :]
    said = _unquoted(rest)
    return set(map(same_text, [text, rest, said, often + said]))


def _unquoted(text: str) -> str:
    """The text without the quotation marks around it, if there are some."""
    quotation = bare(text)
    if len(quotation) < len('""') or {quotation[0], quotation[-1]} != {'"'}:
        return text
    with suppress(ValueError):
        return str(json.loads(quotation))
    return quotation[1:-1]


def _own(subject: Subject, draft: ItemDraft, evidence: Evidence) -> frozenset[str]:
    """The evidence that counts: what is not from envelopes, nor says the same by one who had been given it in one."""
    texts = _texts(draft.text)
    echoes = {
        ref
        for ref, cited in evidence.cited.items()
        if not texts.isdisjoint(_texts(cited.text))
        and selectors.was_served(subject, cited.author_id, texts, until=cited.written_at)
    }
    return frozenset(ref for ref in evidence.refs if ref not in echoes and not _says_it_is_from_here(ref))


def _says_it_is_from_here(ref: str) -> bool:
    return _ECHO.fullmatch(as_sought(one_line(ref))) is not None


def _permit(author: Caller, subject: Subject, draft: ItemDraft, *, own: Collection[str]) -> None:
    if draft.type == ItemType.USER_PATTERN and not subject.learn_patterns:
        raise PatternsNotLearned(f"{draft.subject_id[:60]!r} wants no patterns learned.")
    if draft.stated or own:
        return
    if selectors.was_served(subject, author.principal_id, _texts(draft.text)):
        raise Echo("You were given this as a memory of the subject; bring evidence of your own, or its own words.")


def _superseded(subject: Subject, number: int) -> Item:
    older = selectors.item_of(subject, number)
    if older.superseded_at is not None:
        raise AlreadySuperseded(f"{older} has been superseded already.")
    return older


def _yield_to_statements(replaced: Iterable[Item], met: "_Met") -> None:
    """What is learned agrees with the subject's own words where it says the same, to their question, for all their time."""
    agreed = {item.pk for item in met.same if met.period.covers(_period_of(item))}
    for item in replaced:
        if item.stated and item.pk not in agreed:
            raise StatementStands(
                "The subject itself has said otherwise; what is learned does not undo that.", existing=item.ref
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Met:
    """What a draft meets: the items that say the same, for what time it is to stand with them, and what evidence counts."""

    digest: bytes
    same: list[Item]
    own: frozenset[str]
    period: _Period


def _written(author: Caller, subject: Subject, draft: ItemDraft, met: _Met, now: datetime) -> Item:
    """The item as it is to stand, not yet saved; its number is drawn, because what it replaces must name it first."""
    evidence = list(dict.fromkeys([ref for item in met.same for ref in item.evidence] + list(draft.evidence)))
    is_new_witness = not selectors.has_said(subject, author, draft.type, met.digest, slot=draft.slot)
    return Item(
        id=_next_number(),
        tenant_id=author.tenant_id,
        subject=subject,
        author_id=author.principal_id,
        type=draft.type,
        text=draft.text,
        text_digest=met.digest,
        slot=draft.slot,
        slot_key=draft.slot and key_of(draft.slot),
        confidence=_grown(draft, met, is_new_witness=is_new_witness),
        source=draft.source or next((item.source for item in met.same if item.source), ""),
        stated=draft.stated or any(item.stated for item in met.same),
        evidence=evidence,
        valid_from=met.period.begin,
        valid_to=met.period.valid_to,
        said_at=now,
        recorded_at=now,
    )


def _grown(draft: ItemDraft, met: _Met, *, is_new_witness: bool) -> float:
    """Two witnesses are surer than one; who says the same thing twice is not."""
    if not met.same:
        return draft.confidence
    before = max(item.confidence for item in met.same)
    known = {ref for item in met.same for ref in item.evidence}
    if met.own - known or is_new_witness:
        return max(before, min(_SUREST, 1 - (1 - before) * (1 - draft.confidence)))
    return max(before, draft.confidence)


def _supersede(item: Item, replaced: Iterable[Item], same: Collection[Item], now: datetime) -> None:
    """Put the item in the place of others; what they say of other times goes on being known.

    Where this writer's clock is behind, they are superseded at the moment at which they were recorded, and not before.
    """
    merged = {one.pk for one in same}
    taken = _period_of(item)
    replaced = list(replaced)
    if replaced:
        sql.supersede_passages(items=[older.pk for older in replaced])
    for older in replaced:
        Item.objects.filter(pk=older.pk).update(
            superseded_at=Greatest("recorded_at", Value(now)), superseded_by=item.pk
        )
        whole = _period_of(older)
        # What is superseded by name and was so at another time was never so.
        if older.pk in merged or not taken.meets(whole):
            continue
        rest = [_Period(whole.begin, min(whole.end, taken.begin)), _Period(max(whole.begin, taken.end), whole.end)]
        for remainder in [_remainder(older, part, now) for part in rest if part.begin < part.end]:
            remainder.save(force_insert=True)
            _index(remainder)


def _index(item: Item) -> None:
    """Make an item findable for those who ask about its subject."""
    passage = Passage.objects.create(
        tenant_id=item.tenant_id,
        item=item,
        scope=item.subject_id,
        domain=item.type,
        recorded_at=item.recorded_at,
    )
    sql.index_words(passage.pk, item.text, passages=1)


def _remainder(older: Item, part: _Period, now: datetime) -> Item:
    rest = copy(older)
    rest.pk = None
    rest.valid_from, rest.valid_to = part.begin, part.valid_to
    rest.recorded_at = now
    return rest


def _next_number() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select nextval(pg_get_serial_sequence('memory_item', 'id'))")
        number: int = cursor.fetchone()[0]
    return number
