"""Recall: how much of what answers a question it finds, in conversations that the user brings."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from django.utils import timezone

from apps.memory.selectors import recall
from apps.memory.services import store_observation
from apps.memory.vectors import embed_memories, meaning_of
from apps.principals import services as principals
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system, on_behalf_of
from benchmarks.bench import Bench
from benchmarks.data import BadData, Conversations, Message, Question, Session, read_conversations
from benchmarks.measure import Row, apart, percentiles

AT: Final = (5, 10)
_GOALS: Final = {("messages", 5): 72.0, ("messages", 10): 80.0, ("sessions", 5): 90.0, ("sessions", 10): 95.0}
# As many hits as it takes to see which sessions come first.
_DEEP: Final = 200
# What is measured is what an embedder knows, not how fast this machine is.
_PATIENCE: Final = timedelta(seconds=20)


@dataclass(slots=True)
class Figures:
    """Of each question the share of its evidence that was found, by how far down one looks; and how long asking took."""

    messages: dict[int, list[float]] = field(default_factory=lambda: {k: [] for k in AT})
    sessions: dict[int, list[float]] = field(default_factory=lambda: {k: [] for k in AT})
    """Among the first sessions, in the order in which the hits name them."""
    seconds: list[float] = field(default_factory=list)
    missing: int = 0
    """Questions whose evidence is not in the file."""

    @staticmethod
    def share(found: Sequence[float]) -> float:
        """The mean, in percent."""
        return 100 * sum(found) / len(found) if found else 0.0


def measure(data: Conversations, *, prefix: str = "recall") -> Figures:
    """Store every conversation in a tenant of its own, message by message, and ask its questions."""
    figures = Figures()
    for number, conversation in enumerate(data.conversations):
        caller = _agent(f"{prefix}-{number}")
        session_of = {message.id: session.id for session in conversation.sessions for message in session.messages}
        message_of = {
            _store(caller, session, message): message.id
            for session in conversation.sessions
            for message in session.messages
        }
        while embed_memories():
            pass
        for asked in data.questions:
            if asked.conversation == conversation.id:
                _ask(caller, asked, figures, message_of, session_of)
    return figures


def _agent(slug: str) -> Caller:
    now = timezone.now()
    with acting_as_system("measuring"):
        tenant = principals.create_tenant(slug=slug, name=slug, now=now)
        return on_behalf_of(principals.add_principal(tenant_id=tenant.pk, name="agent", kind=Kind.AI, now=now))


def _store(caller: Caller, session: Session, message: Message) -> str:
    told: dict[str, Any] = {"conversation_id": session.id, "occurred_at": session.date}
    with caller.acting():
        now = timezone.now()
        return store_observation(author=caller, text=message.text, speaker=message.speaker, now=now, **told).ref


def _ask(
    caller: Caller, asked: Question, figures: Figures, message_of: dict[str, str], session_of: dict[str, str]
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
    found = [message_of[hit.ref] for hit in hits]
    sessions = list(dict.fromkeys(session_of[message_of[hit.ref]] for hit in deep))
    wanted = {session_of[message] for message in evidence}
    for k in AT:
        figures.messages[k].append(len(evidence & set(found[:k])) / len(evidence))
        figures.sessions[k].append(len(wanted & set(sessions[:k])) / len(wanted))


def run(bench: Bench) -> Iterator[Row]:
    """The share of the evidence that is found, at the level of messages and of sessions."""
    try:
        data = read_conversations(bench.file or Path())
    except BadData as exc:
        raise SystemExit(str(exc)) from exc
    figures: Figures = apart(partial(measure, data))
    note = f"{len(figures.seconds):,} questions; {figures.missing:,} more name no message that is there."
    for (level, k), goal in _GOALS.items():
        share = Figures.share(getattr(figures, level)[k])
        times: Any = percentiles(figures.seconds) if (level, k) == ("messages", max(AT)) else {}
        row = Row(case=f"evidence recall at {k}, {level}", unit="%", ours=share, note=note, **times)
        yield row.judged(f"{goal:.0f} %", met=share >= goal)
