"""By what it is known again that was forgotten: its words with whom they name, or with the conversation that they are of."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from django.db.models import Model, Q, QuerySet

from apps.core.erasure import Rows, Wanted
from apps.memory import selectors
from apps.memory.models import (
    Concept,
    ConceptRevision,
    Item,
    Observation,
    Pattern,
    PatternRevision,
    Relationship,
    Session,
    Subject,
)
from apps.memory.references import texts_in
from apps.memory.selectors import Thing
from apps.memory.texts import same_texts, telling

# Where words stand in what is about somebody.
ITEMS: Final = Rows(table="memory_item", columns=["text", "slot", "source", "evidence"])
OBSERVATIONS: Final = Rows(table="memory_observation", columns=["text", "speaker", "domain", "evidence", "metadata"])
CONCEPTS: Final = Rows(table="memory_concept", columns=["key", "name", "type", "aliases", "description", "metadata"])
CONCEPT_REVISIONS: Final = Rows(
    table="memory_conceptrevision",
    columns=["type", "aliases", "description", "metadata"],
    redacted={"type": "''", "aliases": "'{}'", "description": "''", "metadata": "'{}'", "is_forgotten": "true"},
)
RELATIONSHIPS: Final = Rows(
    table="memory_relationship",
    columns=["type", "description"],
    beside=[("source_id", CONCEPTS), ("target_id", CONCEPTS)],
)
PATTERNS: Final = Rows(table="memory_pattern", columns=["category", "name", "text", "evidence"])
PATTERN_REVISIONS: Final = Rows(
    table="memory_patternrevision", columns=["text", "evidence"], redacted={"text": "''", "evidence": "'[]'"}
)
SUBJECTS: Final = Rows(
    table="memory_subject",
    columns=["key", "display_name", "learning_level", "domains", "preferences", "share_with"],
)
# What a session says, and what stands there once that is forgotten. What it is called stands as long as it does.
SAYS: Final[Mapping[str, Any]] = {"platform": "", "title": "", "summary": "", "topics": [], "tone": ""}
CALLED: Final = "conversation_id"
SESSIONS: Final = Rows(table="memory_session", columns=[CALLED, *SAYS])
SUMMARIES: Final = Rows(table="memory_session", columns=[*SAYS])
CONVERSATIONS: Final = Rows(table="memory_session", columns=[CALLED])
ABOUT: Final = "subject_id = %(subject)s"
SAID_WITH: Final = "session_id in (select id from memory_session where subject_id = %(subject)s)"

# What conversations are held on says nothing of anybody, and comes again with each of them.
_LABELS: Final = ("platform",)
# By what a conversation is known again.
_KNOWN_BY: Final = ("principal_id", CALLED, "was_called")
# In the place of a subject, where it is asked first whether something was said of any.
_OF_ANY: Final = "said"


def of_any(digest: bytes) -> Thing:
    """Words that were forgotten of somebody, whoever that is."""
    return (_OF_ANY, digest)


def digests_of_any(things: Iterable[Thing]) -> set[bytes]:
    """Of which words these things are :func:`of_any`."""
    return {thing[1] for thing in things if thing[0] == _OF_ANY and isinstance(thing[1], bytes)}


def said_in(principal_id: int, called: bytes, digest: bytes, at: datetime | None = None) -> Thing:
    """What was said in a conversation: known again by its words, or, where these are anybody's, by its moment too.

    :param called: see :func:`called`.
    """
    thing: Thing = ("turn", str(principal_id), called, digest)
    return thing if at is None else (*thing, at.astimezone(UTC).isoformat())


def called(conversation_id: str) -> bytes:
    """What is kept of the id of a conversation that is over and has it no longer."""
    return hashlib.sha256(conversation_id.encode(errors="surrogatepass")).digest()


def known_by(words: Iterable[str], others: Iterable[object]) -> dict[bytes, bool]:
    """What a thing that is written may be known again by, and whether it tells something.

    :param words: the words themselves, which are so however few they are.
    :param others: texts and documents beside them, of which only what tells something is none of anybody's.
    """
    return same_texts(filter(None, words)) | dict.fromkeys(telling(texts_in(*others)), True)


def overwritten(session: Session, given: Mapping[str, Any]) -> list[bytes]:
    """The marks of what a session says no longer if it says this, where that tells something."""
    told = [
        getattr(session, name)
        for name, value in given.items()
        if name not in _LABELS and value is not None and getattr(session, name) != value
    ]
    name = _called(session)
    return [
        selectors.mark_of(*said_in(session.principal_id, name, digest)) for digest in sorted(telling(texts_in(*told)))
    ]


def marks_of_items(subject_id: str, items: QuerySet[Item]) -> set[bytes]:
    """Those of all the texts of these items of a subject."""
    found = items.order_by().values_list("text_digest", flat=True).distinct()
    return _marks_of_subject(subject_id, map(bytes, found))


def marks_of_sessions(sessions: QuerySet[Session]) -> set[bytes]:
    """Those of all that was said in these sessions, and of what they say, or said earlier.

    However few the words of a summary are: it is written to tell something.
    """
    marks: set[bytes] = set()
    for session in sessions:
        told = [getattr(session, name) for name in SAYS if name not in _LABELS]
        marks |= _marks_in(session, known_by([session.summary], told))
        marks |= set(map(bytes, session.overwritten))
    turns = Observation.objects.filter(session__in=sessions).exclude(text="").select_related("session")
    for turn in turns.only("text", "occurred_at", *(f"session__{name}" for name in _KNOWN_BY)).iterator():
        marks |= _marks_of_turn(turn, known_by([turn.text], []))
    return marks


def marks_of_own(subject: Subject, words: Wanted) -> set[bytes]:
    """Those of what holds these words and is about the subject by its key, and of what its sessions said earlier."""
    marks: set[bytes] = set()
    for earlier in Session.objects.filter(subject=subject).values_list("overwritten", flat=True):
        # Of what stands there no longer nobody knows whether it held them.
        marks |= set(map(bytes, earlier))
    for told in TOLD:
        if told.own is not None:
            rows, among = told.own
            numbers = set(rows.numbers(words, among=among, subject=subject.pk))
            marks |= _marks_of_words(subject.key, words, told, numbers, Q(pk__in=numbers))
    return marks | _marks_of_entries(subject, subject.key, words)


def marks_of_naming(wanted: Wanted) -> set[bytes]:
    """Those of what names a subject and, if there are any, holds these words: what the name alone does not tell.

    With a session goes whatever was said in it, with a pattern or a concept what hangs from it.
    """
    numbers = {told.rows.name: set(told.rows.numbers(wanted)) for told in TOLD if wanted.texts or told.rows is SESSIONS}
    marks = marks_of_sessions(Session.objects.filter(pk__in=numbers[SESSIONS.name]))
    words = replace(wanted, reference="")
    if not wanted.texts:
        return marks
    for told in TOLD:
        found = Q(pk__in=numbers[told.rows.name])
        for rows, field in told.of:
            found |= Q(**{f"{field}__in": numbers[rows.name]})
        marks |= _marks_of_words(wanted.reference, words, told, numbers[told.rows.name], found)
    for other in Subject.objects.filter(pk__in=SUBJECTS.numbers(wanted)).exclude(key=wanted.reference):
        marks |= _marks_of_entries(other, wanted.reference, wanted)
    return marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Rows that tell something, as what is forgotten of them is known again."""

    rows: Rows
    all: QuerySet[Any]
    words: Sequence[str]
    """The columns of their words themselves."""
    of: Sequence[tuple[Rows, str]] = ()
    """What else they go with, by which field."""
    own: tuple[Rows, str] | None = None
    """Where they are about a subject by its key: the columns that are looked at, and SQL for these rows."""
    beside: Sequence[tuple[str, "Told"]] = ()
    """What is read with them, by which attribute."""

    def known(self, row: Model, holds: Callable[[str], bool]) -> dict[bytes, bool]:
        """By what of it, and of what is read with it, that holds the words a row is known again."""
        words = texts_in(*(getattr(row, name) for name in self.words))
        others = texts_in(*(getattr(row, name) for name in self.rows.columns if name not in self.words))
        known = known_by([text for text in words if holds(text)], [text for text in others if holds(text)])
        for name, told in self.beside:
            known |= told.known(getattr(row, name), holds)
        return known

    def known_else(self, row: Model) -> dict[bytes, bool]:
        """By what it is known again in which these tell nothing, or of which only all together hold them."""
        return dict.fromkeys(telling(texts_in(*(getattr(row, name) for name in self.words))), True)


_CONCEPTS: Final = Told(rows=CONCEPTS, all=Concept.objects.all(), words=["name", "aliases", "description"])
TOLD: Final = (
    Told(rows=ITEMS, all=Item.objects.all(), words=["text"], own=(ITEMS, ABOUT)),
    Told(
        rows=OBSERVATIONS,
        all=Observation.objects.prefetch_related("session"),
        words=["text"],
        own=(OBSERVATIONS, SAID_WITH),
    ),
    Told(rows=SESSIONS, all=Session.objects.all(), words=["title", "summary"], own=(SUMMARIES, ABOUT)),
    Told(rows=PATTERNS, all=Pattern.objects.all(), words=["name", "text"]),
    Told(rows=PATTERN_REVISIONS, all=PatternRevision.objects.all(), words=["text"], of=[(PATTERNS, "pattern")]),
    _CONCEPTS,
    Told(
        rows=CONCEPT_REVISIONS,
        all=ConceptRevision.objects.all(),
        words=["aliases", "description"],
        of=[(CONCEPTS, "concept")],
    ),
    Told(
        rows=RELATIONSHIPS,
        all=Relationship.objects.select_related("source", "target"),
        words=["description"],
        of=[(CONCEPTS, "source"), (CONCEPTS, "target")],
        beside=[("source", _CONCEPTS), ("target", _CONCEPTS)],
    ),
)
"""All that tells of subjects in memory, whose own rows aside."""


def _marks_of_words(subject_id: str, words: Wanted, told: Told, numbers: Collection[int], found: Q) -> set[bytes]:
    """Those of what holds these words, said of a subject or again in its conversation.

    :param numbers: the rows that hold them; others, which go with some of these, may.
    """
    marks: set[bytes] = set()
    holds = words.finder()
    for row in told.all.filter(found):
        known = told.known(row, holds) or (told.known_else(row) if row.pk in numbers else {})
        marks |= _marks_of_subject(subject_id, known)
        if isinstance(row, Session):
            marks |= _marks_in(row, known)
        if isinstance(row, Observation):
            marks |= _marks_of_turn(row, known or known_by([row.text], []))
    return marks


def _marks_of_entries(subject: Subject, named: str, wanted: Wanted) -> set[bytes]:
    """Those of what a subject parts with, and of what in it holds the words; said of this one, or of another that it names."""
    entries = [entry for entry in subject.entries if wanted.stands_in(entry)]
    holds = wanted.finder()
    parts = [part for entry in entries for part in entry.split("\n", 1) if holds(part)]
    return _marks_of_subject(named, known_by(entries, parts))


def _marks_of_subject(subject_id: str, digests: Iterable[bytes]) -> set[bytes]:
    things: list[Thing] = [thing for digest in digests for thing in ((subject_id, digest), of_any(digest))]
    return {selectors.mark_of(*thing) for thing in things}


def _marks_in(session: Session, known: Collection[bytes]) -> set[bytes]:
    name = _called(session)
    return {selectors.mark_of(*said_in(session.principal_id, name, digest)) for digest in known}


def _marks_of_turn(turn: Observation, known: Mapping[bytes, bool]) -> set[bytes]:
    session = turn.session
    if session is None:
        return set()
    name = _called(session)
    return {
        selectors.mark_of(*said_in(session.principal_id, name, digest, None if tells else turn.occurred_at))
        for digest, tells in known.items()
    }


def _called(session: Session) -> bytes:
    return called(session.conversation_id) if session.was_called is None else bytes(session.was_called)
