"""Recall: how much of what answers a question it finds, in conversations that the user brings."""

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from django.utils import timezone
from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError

from apps.memory.selectors import recall
from apps.memory.services import store_observation
from apps.memory.vectors import embed_memories, meaning_of
from apps.principals import services as principals
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system, on_behalf_of
from benchmarks import load
from benchmarks.bench import Bench
from benchmarks.report import Row, percentiles

NEEDS_DATA = True
AT: Final = (5, 10)
_GOALS: Final = {("turns", 5): 72.0, ("turns", 10): 80.0, ("sessions", 5): 90.0, ("sessions", 10): 95.0}
# As many hits as it takes to see which sessions come first.
_DEEP: Final = 200
# What is measured is what an embedder knows, not how fast this machine is.
_PATIENCE: Final = timedelta(seconds=20)
# Forms of dates beside ISO 8601.
_DATES: Final = ("%Y/%m/%d", "%Y/%m/%d (%a) %H:%M", "%d %B %Y", "%d %B, %Y", "%B %d, %Y", "%I:%M %p on %d %B, %Y")


class MalformedData(Exception):
    """The file is not of the form that docs/benchmarks.md describes; the message says where."""


def moment(text: str | None) -> datetime | None:
    """When a session was; None for a date that can't be read."""
    for form in (None, *_DATES):
        try:
            found = datetime.fromisoformat(text or "") if form is None else datetime.strptime(text or "", form)  # noqa: DTZ007
        except ValueError:
            continue
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return None


# What memory takes.
_Id = Annotated[str, BeforeValidator(str), StringConstraints(max_length=200, pattern=r"^[^\x00]+$")]
_Speaker = Annotated[str, StringConstraints(max_length=100, pattern=r"^[^\x00]*$")]
_Text = Annotated[str, StringConstraints(max_length=65_536, pattern=r"^[^\x00]*$")]
_Date = Annotated[datetime | None, BeforeValidator(moment)]


class Turn(BaseModel):
    id: _Id
    speaker: _Speaker
    text: _Text


class Session(BaseModel):
    id: _Id
    date: _Date = None
    turns: list[Turn]


class Conversation(BaseModel):
    id: _Id
    sessions: list[Session]


class Question(BaseModel):
    """A question, and the turns that answer it."""

    conversation: _Id
    question: str
    evidence: frozenset[_Id]


class Data(BaseModel):
    """A whole file."""

    model_config = ConfigDict(frozen=True)
    conversations: list[Conversation]
    questions: list[Question]


def read(path: Path) -> Data:
    """Read a file.

    :raises MalformedData: if it is not of the form.
    """
    form = f"{path} is not of the form in docs/benchmarks.md"
    try:
        data = Data.model_validate(json.loads(path.read_text()))
    except ValidationError as exc:
        first = exc.errors()[0]
        raise MalformedData(f"{form}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from exc
    except (OSError, ValueError) as exc:
        raise MalformedData(f"{form}: {exc}") from exc
    for one in data.conversations:
        ids = [turn.id for session in one.sessions for turn in session.turns]
        if repeated := sorted({found for found in ids if ids.count(found) > 1}):
            raise MalformedData(f"{form}: the turn {repeated[0]!r} of {one.id!r} is there more than once.")
    if unknown := {asked.conversation for asked in data.questions} - {one.id for one in data.conversations}:
        raise MalformedData(f"{form}: it asks about the conversation {min(unknown)!r}, which it does not hold.")
    return data


@dataclass(slots=True)
class Figures:
    """Of each question the share of its evidence that was found, by how far down one looks; and how long asking took."""

    turns: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    sessions: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Among the first sessions, in the order in which the hits name them."""
    seconds: list[float] = field(default_factory=list)
    missing: int = 0
    """Questions whose evidence is not in the file."""

    @staticmethod
    def share(found: Sequence[float]) -> float:
        """The mean, in percent."""
        return 100 * sum(found) / len(found) if found else 0.0


def measure(data: Data, *, prefix: str = "recall") -> Figures:
    """Store every conversation in a tenant of its own, turn by turn, and ask its questions."""
    figures = Figures()
    for number, conversation in enumerate(data.conversations):
        caller = _agent(f"{prefix}-{number}")
        session_of = {turn.id: session.id for session in conversation.sessions for turn in session.turns}
        turn_of = {
            _store(caller, session, turn): turn.id for session in conversation.sessions for turn in session.turns
        }
        while embed_memories():
            pass
        for asked in data.questions:
            if asked.conversation == conversation.id:
                _ask(caller, asked, figures, turn_of, session_of)
    return figures


def _agent(slug: str) -> Caller:
    now = timezone.now()
    with acting_as_system("measuring"):
        tenant = principals.create_tenant(slug=slug, name=slug, now=now)
        return on_behalf_of(principals.add_principal(tenant_id=tenant.pk, name="agent", kind=Kind.AI, now=now))


def _store(caller: Caller, session: Session, turn: Turn) -> str:
    told: dict[str, Any] = {"conversation_id": session.id, "occurred_at": session.date}
    with caller.acting():
        now = timezone.now()
        return store_observation(author=caller, text=turn.text, speaker=turn.speaker, now=now, **told).ref


def _ask(
    caller: Caller, asked: Question, figures: Figures, turn_of: dict[str, str], session_of: dict[str, str]
) -> None:
    evidence = asked.evidence & session_of.keys()
    if not evidence:
        figures.missing += 1
        return
    meant = meaning_of(asked.question, patience=_PATIENCE)
    with caller.acting():
        began = time.perf_counter()
        hits = recall(asked.question, caller=caller, limit=max(AT), meant=meant)
        figures.seconds.append(time.perf_counter() - began)
        deep = recall(asked.question, caller=caller, limit=_DEEP, meant=meant)
    found = [turn_of[hit.ref] for hit in hits]
    sessions = list(dict.fromkeys(session_of[turn_of[hit.ref]] for hit in deep))
    wanted = {session_of[turn] for turn in evidence}
    for k in AT:
        figures.turns[k].append(len(evidence & set(found[:k])) / len(evidence))
        figures.sessions[k].append(len(wanted & set(sessions[:k])) / len(wanted))


def run(bench: Bench) -> Iterator[Row]:
    """The share of the evidence that is found, at the level of turns and of sessions."""
    try:
        data = read(bench.file or Path())
    except MalformedData as exc:
        raise SystemExit(str(exc)) from exc
    figures: Figures = load.apart(partial(_measured, data))
    note = f"{len(figures.seconds):,} questions; {figures.missing:,} more name no turn that is there."
    for (level, k), goal in _GOALS.items():
        share = Figures.share(getattr(figures, level)[k])
        times: Any = percentiles(figures.seconds) if (level, k) == ("turns", max(AT)) else {}
        row = Row(case=f"evidence recall at {k}, {level}", unit="%", ours=share, note=note, **times)
        yield row.judged(f"{goal:.0f} %", met=share >= goal)


def _measured(data: Data) -> Figures:
    figures = measure(data)
    # Pickled: a factory that is a lambda is not.
    figures.turns, figures.sessions = dict(figures.turns), dict(figures.sessions)
    return figures
