"""Recall: how much of what answers a question it finds, in conversations that the user brings."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from apps.memory.selectors import recall
from apps.memory.services import store_observation
from apps.memory.vectors import embed_memories, meaning_of
from apps.principals.tenancy import Caller
from benchmarks.bench import Bench
from benchmarks.data import Conversations, Message, Question, Session, read_conversations
from benchmarks.measure import Row, apart, percentiles
from tests.factories import make_caller, make_tenant

OURS: Final = Path(settings.BASE_DIR) / "tests/memory/conversations.json"
_MOST: Final = 10
# By level and by how far down one looks.
_GOALS: Final = {("messages", 5): 72.0, ("messages", _MOST): 80.0, ("sessions", 5): 90.0, ("sessions", _MOST): 95.0}
# As many hits as it takes to see which sessions come first.
_DEEP: Final = 200
# What is measured is what an embedder knows, not how fast this machine is.
_PATIENCE: Final = timedelta(seconds=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What came of all questions whose evidence is in the file."""

    shares: Mapping[tuple[str, int], float]
    """How much of the evidence is among so many messages, and among the first sessions that the hits name, in per cent."""
    seconds: Sequence[float]
    """How long asking each took."""
    missing: int
    """How many other questions there are."""


def measure(data: Conversations, *, prefix: str = "recall") -> Figures:
    """Store every conversation in a tenant of its own, message by message, and ask its questions."""
    found = list[tuple[float, dict[tuple[str, int], float]]]()
    for number, conversation in enumerate(data.conversations):
        caller = make_caller(make_tenant(f"{prefix}-{number}"))
        told = [(session, message) for session in conversation.sessions for message in session.messages]
        session_of = {message.id: session.id for session, message in told}
        message_of = {_store(caller, session, message): message.id for session, message in told}
        while embed_memories():
            pass
        for asked in data.questions:
            if asked.conversation == conversation.id and asked.evidence & session_of.keys():
                found.append(_ask(caller, asked, message_of, session_of))
    shares = {key: 100 * fmean(one[key] for _, one in found) for key in _GOALS} if found else dict.fromkeys(_GOALS, 0.0)
    return Figures(shares=shares, seconds=[took for took, _ in found], missing=len(data.questions) - len(found))


def _store(caller: Caller, session: Session, message: Message) -> str:
    told: dict[str, Any] = {"conversation_id": session.id, "occurred_at": session.date}
    with caller.acting():
        now = timezone.now()
        return store_observation(author=caller, text=message.text, speaker=message.speaker, now=now, **told).ref


def _ask(
    caller: Caller, asked: Question, message_of: dict[str, str], session_of: dict[str, str]
) -> tuple[float, dict[tuple[str, int], float]]:
    """How long it took, and the share of the evidence that was found."""
    meant = meaning_of(asked.question, patience=_PATIENCE)
    with caller.acting():
        began = time.perf_counter()
        hits = recall(asked.question, caller=caller, limit=_MOST, meant=meant)
        took = time.perf_counter() - began
        deep = recall(asked.question, caller=caller, limit=_DEEP, meant=meant)
    wanted = {"messages": asked.evidence & session_of.keys()}
    wanted["sessions"] = {session_of[message] for message in wanted["messages"]}
    found = {"messages": [message_of[hit.ref] for hit in hits]}
    found["sessions"] = list(dict.fromkeys(session_of[message_of[hit.ref]] for hit in deep))
    shares = {(level, k): len(wanted[level] & {*found[level][:k]}) / len(wanted[level]) for level, k in _GOALS}
    return took, shares


def run(bench: Bench) -> Iterator[Row]:
    """The share of the evidence that is found, at the level of messages and of sessions."""
    file = bench.file if bench.file and bench.file.is_file() else OURS
    figures: Figures = apart(partial(measure, read_conversations(file)))
    note = f"{len(figures.seconds):,} questions; {figures.missing:,} more name no message that is there."
    for (level, k), goal in _GOALS.items():
        share = figures.shares[level, k]
        times: Any = percentiles(figures.seconds) if (level, k) == ("messages", _MOST) else {}
        row = Row(case=f"evidence recall at {k}, {level}", unit="%", ours=share, note=note, **times)
        yield row.judged(f"{goal:.0f} %", met=share >= goal)
