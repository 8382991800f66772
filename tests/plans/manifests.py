"""Workers that are run elsewhere in these tests, as the planner meets them: by what their own manifests say."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from apps.plans.catalogue import Catalogue, Offer, Tool
from apps.workers.trust import effects_of
from config.stack import programs
from tests.plans.shelf import offer, tool

_PRINT = """
import asyncio, importlib, json, sys
made = [getattr(importlib.import_module(module), name) for module, _, name in (one.partition(":") for one in sys.argv[1:])]
workers = [one if hasattr(one, "manifest") else one() for one in made]
print(json.dumps([asyncio.run(worker.manifest()) for worker in workers]))
"""


@cache
def bundled() -> Catalogue:
    """What the bundled workers offer."""
    return _catalogue(*(f"{script.stem}:worker" for script in programs.bundled_worker_scripts()))


def _catalogue(*workers: str) -> Catalogue:
    found = [one for manifest in _manifests(*workers) for one in _offered(manifest)]
    return Catalogue(len(found), [tool for tool, _ in found], [offer for _, offer in found])


def _manifests(*workers: str) -> list[dict[str, Any]]:
    path = str(programs.BUNDLED_WORKERS)
    told = subprocess.run(
        [sys.executable, "-c", _PRINT, *workers],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    manifests: list[dict[str, Any]] = json.loads(told.stdout)
    return manifests


def _offered(manifest: dict[str, Any]) -> Iterator[tuple[Tool, Offer]]:
    hints = {name: manifest["hints"][name] for name in ("expected_runtime", "latency_band")}
    for one in manifest["tools"]:
        effects = effects_of(one.get("side_effects") or manifest["side_effects"])
        made = tool(one["name"], one["description"], one["input_schema"], one["output_schema"])
        yield made, offer(manifest["worker_id"], made, *manifest["capabilities"], effects=effects, **hints)
