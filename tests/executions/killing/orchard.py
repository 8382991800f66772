"""A worker that writes down each call when it begins and when it ends: `python orchard.py fast|long --port 0`.

What it makes of something is told by that something, so that whoever knows the batch knows every result.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel
from worker_kit import Constraints, Hints, SideEffects, Worker

FAST: Final = "orchard"
LONG: Final = "cellar"
_CONSTRAINTS: Final[Constraints] = {"max_payload_bytes": 65_536, "timeout_seconds": 20, "rate_limit_per_hour": 36_000}
_NOTHING: Final[SideEffects] = {"filesystem": "none", "network": "none", "execution": "none"}
_SECONDS: Final = 0.4
# The tool that has an effect, if one is to have it. It answers at once, so that few of its calls are cut off.
_WRITES: Final = os.environ["ORCHARD_WRITES"]
_WRITING: Final[SideEffects] = {**_NOTHING, "filesystem": "write"}


class Apples(BaseModel):
    apples_pointer: str


class Clean(BaseModel):
    clean_pointer: str


class Juice(BaseModel):
    juice_pointer: str


class Cider(BaseModel):
    cider_id: str


class Note(BaseModel):
    note: str


async def _made(tool: str, source: str, kind: str) -> str:
    _write_down("begin", tool, source)
    if tool != _WRITES:
        await asyncio.sleep(_SECONDS)
    _write_down("end", tool, source)
    return f"{source}>{kind}"


def _write_down(what: str, tool: str, source: str) -> None:
    """One line, whole and at once, whoever else writes."""
    line = json.dumps({"what": what, "tool": tool, "batch": source.partition(">")[0], "at": time.time()}) + "\n"
    journal = os.open(Path(os.environ["ORCHARD_JOURNAL"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(journal, line.encode())
    finally:
        os.close(journal)


class _Worker(Worker):
    """A worker of which one tool may have an effect that the others do not have."""

    async def manifest(self) -> dict[str, Any]:
        manifest = await super().manifest()
        for tool in manifest["tools"]:
            if tool["name"] == _WRITES:
                tool["side_effects"] = _WRITING
        return manifest


def _worker(worker_id: str, description: str, hints: Hints, *, claimed_tier: Literal["trusted", "untrusted"]) -> Worker:
    return _Worker(
        worker_id=worker_id,
        description=description,
        capabilities=["apples"],
        constraints=_CONSTRAINTS,
        hints=hints,
        side_effects=_NOTHING,
        claimed_tier=claimed_tier,
        capacity=64,
    )


def fast() -> Worker:
    worker = _worker(
        FAST,
        "Works with apples in no time.",
        {"latency_band": "fast", "cost_band": "low", "expected_runtime": "fast"},
        claimed_tier="untrusted",
    )

    @worker.tool()
    async def pick_apples(batch: str) -> Apples:
        """Pick the apples of a batch."""
        return Apples(apples_pointer=await _made("pick_apples", batch, "apples"))

    @worker.tool()
    async def wash_apples(apples_pointer: str) -> Clean:
        """Wash picked apples."""
        return Clean(clean_pointer=await _made("wash_apples", apples_pointer, "clean"))

    @worker.tool()
    async def press_apples(clean_pointer: str) -> Juice:
        """Press washed apples into juice."""
        return Juice(juice_pointer=await _made("press_apples", clean_pointer, "juice"))

    @worker.tool()
    async def taste_cider(cider_id: str) -> Note:
        """Taste the cider."""
        return Note(note=await _made("taste_cider", cider_id, "taste"))

    return worker


def slow() -> Worker:
    worker = _worker(
        LONG,
        "Works with apples for a long time.",
        {"latency_band": "slow", "cost_band": "low", "expected_runtime": "long"},
        claimed_tier="trusted",
    )

    @worker.tool()
    async def ferment_juice(juice_pointer: str) -> Cider:
        """Ferment juice into cider."""
        return Cider(cider_id=await _made("ferment_juice", juice_pointer, "cider"))

    @worker.tool(changes_things=_WRITES == "weigh_cider")
    async def weigh_cider(cider_id: str) -> Note:
        """Weigh the cider."""
        return Note(note=await _made("weigh_cider", cider_id, "weight"))

    return worker


def main(argv: list[str]) -> Any:
    return {"fast": fast, "long": slow}[argv[0]]().main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
