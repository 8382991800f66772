"""Recall: how much of what answers a question it finds, in conversations that the user brings."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from apps.bench import evidence, load
from apps.bench.bench import Bench
from apps.bench.evidence import AT, Figures, MalformedData
from apps.bench.rows import Row, percentiles

NEEDS_DATA: Final = True
_GOALS: Final = {("turns", 5): 72.0, ("turns", 10): 80.0, ("sessions", 5): 90.0, ("sessions", 10): 95.0}


def run(bench: Bench) -> Iterator[Row]:
    """The share of the evidence that is found, at turn level and at session level."""
    try:
        conversations = evidence.read(bench.data_file)
    except (MalformedData, OSError) as exc:
        raise SystemExit(str(exc)) from exc
    figures: Figures = load.apart(partial(evidence.measure, conversations))
    asked, turns = len(figures.seconds), sum(len(one.turns) for one in conversations)
    about = f"{asked:,} questions about {turns:,} turns in {len(conversations):,} conversations, each a tenant's."
    if figures.missing:
        about += f" {figures.missing:,} more name no turn that is there."
    notes = {
        "turns": about,
        "sessions": "The first sessions, in the order in which the hits name them; of the sessions of the first "
        + " and ".join(f"{k} hits {Figures.share(figures.covered[k]):.1f} %" for k in AT)
        + ".",
    }
    for (level, k), goal in _GOALS.items():
        share = Figures.share(getattr(figures, level)[k])
        row = Row(
            case=f"evidence recall at {k}, {level}",
            unit="%",
            ours=share,
            **(percentiles(figures.seconds) if (level, k) == ("turns", max(AT)) else {}),
            note=notes[level] if k == min(AT) else "",
        )
        yield row.judged(f"{goal:.0f} %", met=share >= goal)
