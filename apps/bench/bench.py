"""What a suite is handed: how much to do, who acts, what runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from apps.bench import machine, world
from apps.bench.web import Processes
from apps.bench.world import World
from config.stack.folders import DataFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much a run does. A suite takes its own volumes from these."""

    rounds: int
    """How often ours and a baseline take turns."""
    seconds: float
    """How long one turn lasts."""
    receipts: int
    """How many lie there where growth is measured."""
    burst: int
    """How many come at once where a burst is measured."""
    things: int
    """What they are about where an inbox is kept busy."""
    memories: int
    """How many there are at most where recall is measured."""
    clients: int = 8


# Whether a suite works; its figures mean nothing.
TINY: Final = Scale(rounds=1, seconds=0.2, receipts=2_000, burst=40, things=10, memories=1_000, clients=2)
QUICK: Final = Scale(rounds=3, seconds=0.5, receipts=50_000, burst=250, things=50, memories=10_000)
FULL: Final = Scale(rounds=5, seconds=4, receipts=1_000_000, burst=1_000, things=200, memories=100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The run that a suite is a part of."""

    scale: Scale
    world: World
    machine: dict[str, Any]
    processes: Processes
    data_file: Path = Path()
    """What the user brings for suites that need data."""
    history: int | None = None
    """How many past plans of it are learned from; None: all."""

    @classmethod
    def begun(
        cls,
        scale: Scale,
        *,
        data: Path,
        home: Path | None,
        data_file: Path = Path(),
        history: int | None = None,
    ) -> "Bench":
        """On a migrated database that nobody else uses."""
        folder = DataFolder(data)
        (data / "log").mkdir(parents=True)
        return cls(
            scale=scale,
            world=world.make(),
            machine=machine.facts(home),
            processes=Processes(folder),
            data_file=data_file,
            history=history,
        )

    def fast_disk(self, fsyncs: int) -> bool:
        """Whether the disk does so many flushes a second that a goal which supposes them says something here."""
        return bool(max(self.machine["fsyncs_per_second"] or 0, self.machine["commits_per_second"]) >= fsyncs)
