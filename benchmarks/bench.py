"""What a suite is handed: how much to do, who acts, and the processes of the product."""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
from django.conf import settings
from django.utils import timezone

from apps.principals import services
from apps.principals.models import Principal
from apps.principals.scopes import FORBIDDEN, Kind, Scope
from apps.principals.tenancy import Caller, acting_as_system, on_behalf_of
from benchmarks.web import Processes
from config.stack.folders import DataFolder

SOURCE: Final = "bench"
AGENTS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much a run does. A suite takes its own volumes from these."""

    rounds: int
    """How often ours and its peers take turns."""
    seconds: float
    """How long one turn lasts."""
    memories: int
    """How many memories there are at most where recall is measured."""
    workers: int
    """How many MCP workers are registered, with ten tools each."""
    tools: int
    """How many tools a planner knows at most."""
    clients: int = 8


# The figures of a tiny run mean nothing; it shows that a suite works.
SCALES: Final = {
    "tiny": Scale(rounds=1, seconds=0.2, memories=200, workers=5, tools=100, clients=2),
    "quick": Scale(rounds=3, seconds=0.5, memories=10_000, workers=200, tools=2_000),
    "full": Scale(rounds=5, seconds=4, memories=100_000, workers=1_000, tools=20_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The run that a suite is a part of. One tenant, a service that posts, and agents that read."""

    scale: Scale
    poster: Caller
    agents: list[Caller]
    tokens: list[str]
    """The agents' tokens: each may do everything that an agent may, and post as the source."""
    machine: dict[str, Any]
    processes: Processes
    file: Path | None

    @classmethod
    def begin(cls, scale: Scale, *, data: Path, file: Path | None) -> "Bench":
        """Begin on a migrated database that nobody else uses."""
        (data / "log").mkdir(parents=True, exist_ok=True)
        now = timezone.now()
        with acting_as_system("measuring"):
            tenant = services.create_tenant(slug="bench", name="Bench", now=now)

            def add(name: str, kind: Kind) -> Principal:
                return services.add_principal(tenant_id=tenant.pk, name=name, kind=kind, now=now)

            agents = [add(f"agent-{number}", Kind.AI) for number in range(AGENTS)]
            scopes = frozenset(Scope) - {Scope.ADMIN} - FORBIDDEN[Kind.AI]
            tokens = [
                services.issue_token(principal=agent, scopes=scopes, source_systems=[SOURCE], now=now).secret.text
                for agent in agents
            ]
            return cls(
                scale=scale,
                poster=on_behalf_of(add("poster", Kind.SERVICE)),
                agents=[on_behalf_of(agent) for agent in agents],
                tokens=tokens,
                machine=_machine(),
                processes=Processes(DataFolder(data)),
                file=file,
            )


def _machine() -> dict[str, Any]:
    """The machine that the figures are true of."""
    with psycopg.connect(settings.DATABASE_URL, autocommit=True) as connection:
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < 1:
            connection.execute("select pg_logical_emit_message(true, 'bench', 'x')", prepare=True)
            done += 1
        server = connection.info.parameter_status("server_version")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "postgresql": server,
        "commits_per_second": done,
    }
