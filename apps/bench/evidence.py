"""Whether recall finds what answers a question: conversations with questions, read from a file and asked of the product."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from django.utils import timezone

from apps.memory.selectors import recall
from apps.memory.services import embed_memories, meaning_of, store_observation
from apps.principals import services as principals
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system, on_behalf_of

AT: Final = (5, 10)
# As many hits as it takes to see which sessions come first.
_DEEP: Final = 200
# What is measured is what an embedder knows, not whether this machine hears of it in time for whoever asks.
_PATIENCE: Final = timedelta(seconds=20)
# What dates of conversations look like elsewhere than in ISO 8601.
_DATES: Final = (
    "%Y/%m/%d",
    "%Y/%m/%d (%a) %H:%M",
    "%d %B %Y",
    "%d %B, %Y",
    "%B %d, %Y",
    "%I:%M %p on %d %B, %Y",
)


class MalformedData(Exception):
    """The file is not of the form that docs/benchmarks.md describes; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    id: str
    session: str
    at: datetime | None
    speaker: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question, and the turns that answer it."""

    question: str
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    turns: Sequence[Turn]
    questions: Sequence[Asked]


@dataclass(slots=True)
class Figures:
    """Of each question the share of its evidence that was found, by how far down one looks; and how long asking took."""

    turns: dict[int, list[float]] = field(default_factory=lambda: {k: [] for k in AT})
    sessions: dict[int, list[float]] = field(default_factory=lambda: {k: [] for k in AT})
    """Among the first sessions, in the order in which the hits name them."""
    covered: dict[int, list[float]] = field(default_factory=lambda: {k: [] for k in AT})
    """Among the sessions of the first hits."""
    seconds: list[float] = field(default_factory=list)
    missing: int = 0
    """Questions left out, since no turn is known to answer them."""

    @staticmethod
    def share(found: Sequence[float]) -> float:
        """In percent."""
        return 100 * sum(found) / len(found) if found else 0.0


def read(path: Path) -> list[Conversation]:
    """What the file holds.

    :raises MalformedData: if it is of another form.
    :raises OSError: if it can't be read.
    """
    try:
        data = json.loads(path.read_text())
        asked = list(data["questions"])
        known = [one["id"] for one in data["conversations"]]
        _refuse_repeated("conversation", known)
        if unknown := [q["conversation"] for q in asked if q["conversation"] not in known]:
            raise MalformedData(f"{path} asks about the conversation {str(unknown[0])[:60]!r}, which it does not hold.")
        return [
            _conversation(one, [q for q in asked if q["conversation"] == one["id"]]) for one in data["conversations"]
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise MalformedData(f"{path} is not of the form in docs/benchmarks.md: {type(exc).__name__} {exc}") from exc


def _conversation(one: Mapping[str, Any], asked: Iterable[Mapping[str, Any]]) -> Conversation:
    turns = [
        Turn(
            id=str(turn["id"]),
            session=str(session["id"]),
            at=moment(session.get("date")),
            speaker=str(turn["speaker"]),
            text=str(turn["text"]),
        )
        for session in one["sessions"]
        for turn in session["turns"]
    ]
    _refuse_repeated("turn", [turn.id for turn in turns])
    for turn in turns:
        _refuse_unstorable(turn)
    questions = [Asked(question=q["question"], evidence=frozenset(map(str, q["evidence"]))) for q in asked]
    return Conversation(turns=turns, questions=questions)


def _refuse_repeated(kind: str, ids: Sequence[str]) -> None:
    """:raises MalformedData: if two of these have one id."""
    if repeated := [one for one, times in Counter(ids).items() if times > 1]:
        raise MalformedData(f"The {kind} {str(repeated[0])[:60]!r} is there more than once.")


def _refuse_unstorable(turn: Turn) -> None:
    """:raises MalformedData: if memory would not take the turn, for its signs or its lengths."""
    told = {"session": (turn.session, 200), "speaker": (turn.speaker, 100), "text": (turn.text, 65_536)}
    for name, (text, longest) in told.items():
        if len(text) > longest or "\x00" in text or text != text.encode(errors="ignore").decode():
            raise MalformedData(
                f"Memory takes no {name} of more than {longest:,} characters, or of signs that are none: {turn.id[:60]!r}."
            )


def moment(text: str | None) -> datetime | None:
    """When a session was; None where nothing is said that can be read."""
    if not text:
        return None
    try:
        read_as: datetime | None = datetime.fromisoformat(text)
    except ValueError:
        read_as = next((found for form in _DATES if (found := _read_as(text, form))), None)
    return read_as and (read_as if read_as.tzinfo else read_as.replace(tzinfo=UTC))


def _read_as(text: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(text.strip(), form).replace(tzinfo=UTC)
    except ValueError:
        return None


def measure(conversations: Sequence[Conversation], *, prefix: str = "recall") -> Figures:
    """Store every conversation as a tenant of its own would, turn by turn, and ask its questions.

    With an embedder, where this deployment names one.
    """
    figures = Figures()
    for number, conversation in enumerate(conversations):
        told = _Told(conversation, _agent(f"{prefix}-{number}"))
        for asked in conversation.questions:
            told.ask(asked, figures)
    return figures


def _agent(slug: str) -> Caller:
    now = timezone.now()
    with acting_as_system("measuring"):
        tenant = principals.create_tenant(slug=slug, name=slug, now=now)
        return on_behalf_of(principals.add_principal(tenant_id=tenant.pk, name="agent", kind=Kind.AI, now=now))


class _Told:
    """A conversation as an agent remembers it."""

    def __init__(self, conversation: Conversation, caller: Caller) -> None:
        self._caller = caller
        self._session_of = {turn.id: turn.session for turn in conversation.turns}
        self._turn_of = {self._stored(turn): turn.id for turn in conversation.turns}
        while embed_memories():
            continue

    def _stored(self, turn: Turn) -> str:
        with self._caller.acting():
            return store_observation(
                author=self._caller,
                text=turn.text,
                speaker=turn.speaker,
                conversation_id=turn.session,
                occurred_at=turn.at,
                now=timezone.now(),
            ).ref

    def ask(self, asked: Asked, figures: Figures) -> None:
        evidence = asked.evidence & self._session_of.keys()
        if not evidence:
            figures.missing += 1
            return
        meant = meaning_of(asked.question, patience=_PATIENCE)
        with self._caller.acting():
            began = time.perf_counter()
            hits = recall(asked.question, caller=self._caller, limit=max(AT), meant=meant)
            figures.seconds.append(time.perf_counter() - began)
            deep = recall(asked.question, caller=self._caller, limit=_DEEP, meant=meant)
        found = [self._turn_of[hit.ref] for hit in hits]
        sessions = list(dict.fromkeys(self._session_of[self._turn_of[hit.ref]] for hit in deep))
        wanted = {self._session_of[turn] for turn in evidence}
        for k in AT:
            covered = {self._session_of[turn] for turn in found[:k]}
            figures.turns[k].append(len(evidence & set(found[:k])) / len(evidence))
            figures.sessions[k].append(len(wanted & set(sessions[:k])) / len(wanted))
            figures.covered[k].append(len(wanted & covered) / len(wanted))
