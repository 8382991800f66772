"""Who asks for work and who does it, each a process: ``python -m apps.chaos.actors '{…}'``.

Everybody chooses by a seed, and everybody does with a task what its params plan for the run: complete it, fail it,
give it back, forget it, come late with it. Plain Python, over HTTP, as any stranger would.
"""

import json
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from apps.chaos.client import Client
from apps.chaos.history import Json, Recorder
from apps.chaos.requesters import Requester
from apps.chaos.workers import Worker


@dataclass(slots=True)
class Stop:
    """Set by SIGTERM: finish what is at hand, and end."""

    asked: bool = False

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True

    def __call__(self) -> bool:
        return self.asked


def main(given: Json) -> None:
    """Act until SIGTERM."""
    stop = Stop()
    signal.signal(signal.SIGTERM, stop.ask)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    recorder = Recorder(Path(given["history"]))
    # No secret: the same seed gives each of them the same choices.
    chance = random.Random(f"{given['seed']} {given['name']}")  # noqa: S311
    client = Client(
        actor=given["actor"],
        tenant=given["tenant"],
        token=given["token"],
        port=given["port"],
        swallowing_port=given["swallowing_port"],
        recorder=recorder,
        chance=chance,
        name=given["name"],
    )
    try:
        if given["role"] == "worker":
            Worker(client=client, chance=chance, skew=given["skew"], stop=stop).run()
        else:
            Requester(client=client, chance=chance, rate=given["rate"], stop=stop, plans=given["plans"]).run()
    finally:
        client.close()
        recorder.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
