"""A general manager and its departments as real processes: DeleGates that are workers of the one above."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio

from config.stack import programs
from tests.chaos.ground import Ground, prepared
from tests.server import Server

SCRIPT: Final = programs.PRODUCT / "examples" / "delegates" / "department.py"
PATIENCE: Final = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Department:
    """What the general manager knows of a department, and which workers it has."""

    name: str
    tool: str
    does: str
    capabilities: str
    pool: tuple[str, ...]


RESEARCH: Final = Department(
    name="research-dept",
    tool="index_pdfs",
    does="Index the PDFs in a folder.",
    capabilities="research documents pdf literature",
    pool=("file-scanner", "pdf-indexer", "concept-extractor"),
)
CODE: Final = Department(
    name="code-dept",
    tool="analyze_code",
    does="Analyze a Python codebase or repository, and suggest optimizations.",
    capabilities="code codebase python repository",
    pool=("code-analyzer", "optimization-suggester"),
)
DATA: Final = Department(
    name="data-dept",
    tool="list_data_files",
    does="List the data files in a directory.",
    capabilities="data files",
    pool=("data-scanner",),
)
DATA_SCANNER: Final = """
import sys
sys.path.insert(0, "examples/workers")
from file_scanner import worker
worker.worker_id = "data-scanner"
sys.exit(worker.main())
"""
"""A scanner beside that of the research department: a worker is in one pool."""
BUNDLED: Final = (*RESEARCH.pool, *CODE.pool, *DATA.pool)


def token(principal: str, kind: str, *scopes: str, source: str | None = None) -> list[str]:
    source_system = () if source is None else ("--source-system", source)
    scope_arguments = (part for scope in scopes for part in ("--scope", scope))
    return ["--principal", principal, "--kind", kind, *source_system, *scope_arguments]


@contextmanager
def deployment(tokens: Mapping[str, list[str]]) -> Iterator[Ground]:
    """A whole product of its own, which trusts the key that its departments sign with."""
    with prepared(settings="config.settings", tokens=tokens) as ground:
        yield ground


def start_bundled(ground: Ground, names: tuple[str, ...], worker_tokens: Mapping[str, str]) -> None:
    """The workers that come with the product, as its supervisor starts them."""
    for name in names:
        script = programs.BUNDLED_WORKERS / f"{name.replace('-', '_')}.py"
        program = programs.bundled_worker(script, ground.data, ground.environment, token=worker_tokens[name])
        if name in DATA.pool:
            program = replace(program, argv=(sys.executable, "-c", DATA_SCANNER, "--port", "0"))
        ground.add(program)


def start_department(
    above: Ground, department: Department, below: Ground, *, asking: str, one_deployment: bool
) -> None:
    """Register a department at the deployment above, through which that one asks the deployment below.

    :param asking: a token of the deployment below: who stands there for the DeleGate above.
    """
    key = above.data.path / "department-key"
    manage(
        above, "mcp_workers", "enroll-key", "--name", "departments", "--ceiling", "trusted", "--private-file", str(key)
    )
    about = {
        "DEPARTMENT_NAME": department.name,
        "DEPARTMENT_TOOL": department.tool,
        "DEPARTMENT_DOES": department.does,
        "DEPARTMENT_CAPABILITIES": department.capabilities,
        "DEPARTMENT_URL": below.url,
        "DEPARTMENT_TOKEN": asking,
        "GATEHOUSE_TOKEN": above.tokens[department.name],
        "GATEHOUSE_WORKER_KEY": key.read_text(encoding="utf-8"),
    }
    if one_deployment:
        about["DEPARTMENT_DELEGATE"] = department.name
    program = programs.python_program(
        department.name, str(SCRIPT), "--port", "0", data=above.data, env={**above.environment, **about}
    )
    above.add(program)


def manage(ground: Ground, *command: str) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", *command],
        env=ground.environment,
        cwd=programs.PRODUCT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def ask(ground: Ground, secret: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool of a deployment over MCP."""

    async def answer() -> dict[str, Any]:
        async with Server(ground.url).client(secret) as client:
            given = await client.call_tool(tool, arguments)
            assert not given.is_error, given.content
            assert given.structured_content is not None
            content: dict[str, Any] = given.structured_content
            return content

    return anyio.run(answer)


def until(happened: Callable[[], Any], what: str, ground: Ground) -> Any:
    """What it answers as soon as it answers something."""
    deadline = time.monotonic() + PATIENCE
    while not (found := happened()):
        assert time.monotonic() < deadline, f"not in time: {what}\n{json.dumps(ground.logs(), indent=1)}"
        time.sleep(0.2)
    return found


def carried_out(ground: Ground, secret: str, plan_id: str) -> dict[str, Any]:
    """Have a plan carried out, put the results together when asked to, and wait for its end."""
    begun = ask(ground, secret, "execute_delegation_plan", plan_id=plan_id)

    def report() -> dict[str, Any] | None:
        found = ask(ground, secret, "get_plan_status", plan_id=plan_id)
        for step in found["steps"]:
            if (step["step_type"], step["status"]) == ("aggregate", "awaiting"):
                ask(
                    ground,
                    secret,
                    "submit_step_result",
                    execution_id=begun["execution_id"],
                    step_id=step["step_id"],
                    result={"all": "of it"},
                    summary="All departments have reported.",
                )
        return found if found["ended_at"] else None

    found: dict[str, Any] = until(report, "the end of the plan", ground)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A receipt as the database of one deployment holds it; links are those that were resolved there."""

    receipt_id: str
    event_type: str
    recipient: str
    surface: str
    summary: str
    caused_by_ref: str | None
    caused_by: str | None
    pairs_with: str | None
    plan_id: str | None


_FACTS: Final = """
    select r.receipt_id, r.event_type, q.name, r.surface, r.summary, r.caused_by_ref, c.receipt_id, p.receipt_id,
           r.metadata ->> 'plan_id'
    from receipts_receipt r join principals_principal q on q.id = r.recipient_id
    left join receipts_receipt c on c.id = r.caused_by_id
    left join receipts_receipt p on p.id = r.pairs_with_id
    order by r.id
"""


def facts(ground: Ground) -> dict[str, Fact]:
    """Every receipt of a deployment, by its id."""
    rows = ground.ask_database(_FACTS)
    names = (
        *("receipt_id", "event_type", "recipient", "surface", "summary", "caused_by_ref", "caused_by"),
        *("pairs_with", "plan_id"),
    )
    return {row[0]: Fact(**dict(zip(names, row, strict=True))) for row in rows}


def upwards(known: Mapping[str, Fact], receipt_id: str) -> list[Fact]:
    """A receipt and what it goes back to, by the links of one deployment: an answer to its question, all else to its cause."""
    found = []
    here: str | None = receipt_id
    while here is not None:
        fact = known[here]
        found.append(fact)
        here = fact.pairs_with or fact.caused_by
    return found


def open_obligations(ground: Ground) -> int:
    ((count,),) = ground.ask_database("select count(*) from receipts_obligation where closed_at is null")
    return int(count)
