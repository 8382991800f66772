"""A general manager hands parts of a wish to departments, which plan and carry them out with workers of their own."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from config.typed import PRODUCT
from tests import waiters
from tests.bundled_workers.processes import GRADIENTS, write_pdf
from tests.chaos.ground import Ground, prepared
from tests.commands import run
from tests.server import ask, ready_plan

SCRIPT: Final = PRODUCT / "examples" / "delegates" / "department.py"
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


def token(principal: str, kind: str, *scopes: str, source: str | None = None) -> list[str]:
    source_system = () if source is None else ("--source-system", source)
    scope_arguments = (part for scope in scopes for part in ("--scope", scope))
    return ["--principal", principal, "--kind", kind, *source_system, *scope_arguments]


def start_bundled(ground: Ground, names: tuple[str, ...], worker_tokens: Mapping[str, str]) -> None:
    """The workers that come with the product, as its supervisor starts them."""
    for name in names:
        script = ["-c", DATA_SCANNER] if name in DATA.pool else []
        ground.add_bundled(name, worker_tokens[name], *script)


def start_department(above: Ground, department: Department, below: Ground, *, asking: str) -> None:
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
    above.add(department.name, str(SCRIPT), "--port", "0", **about)


def manage(ground: Ground, *command: str) -> None:
    done = run(sys.executable, "manage.py", *command, env=ground.environment)
    assert done.returncode == 0, done.stderr


def until(happened: Callable[[], Any], what: str, ground: Ground) -> Any:
    return waiters.until(happened, lambda: f"{what}\n{json.dumps(ground.logs(), indent=1)}", seconds=PATIENCE)


def carried_out(ground: Ground, secret: str, plan_id: str) -> dict[str, Any]:
    """Have a plan carried out, put the results together when asked to, and wait for its end."""
    begun = ask(ground.url, secret, "execute_delegation_plan", plan_id=plan_id)

    def report() -> dict[str, Any] | None:
        found = ask(ground.url, secret, "get_plan_status", plan_id=plan_id)
        for step in found["steps"]:
            if (step["step_type"], step["status"]) == ("aggregate", "awaiting"):
                ask(
                    ground.url,
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
    caused_by_ref: str | None
    caused_by: str | None
    pairs_with: str | None


_FACTS: Final = """
    select jsonb_build_object('receipt_id', r.receipt_id, 'event_type', r.event_type, 'recipient', q.name,
        'surface', r.surface, 'caused_by_ref', r.caused_by_ref, 'caused_by', c.receipt_id, 'pairs_with', p.receipt_id)
    from receipts_receipt r join principals_principal q on q.id = r.recipient_id
    left join receipts_receipt c on c.id = r.caused_by_id
    left join receipts_receipt p on p.id = r.pairs_with_id
    order by r.id
"""


def facts(ground: Ground) -> dict[str, Fact]:
    """Every receipt of a deployment, by its id."""
    return {row["receipt_id"]: Fact(**row) for (row,) in ground.ask_database(_FACTS)}


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


pytestmark = pytest.mark.long

KEE: Final = ("plans", "tasks:queue", "inbox", "memory")
WORKER: Final = ("workers:register", "tasks:work")


def workers_ready(ground: Ground, secret: str, names: tuple[str, ...]) -> None:
    def ready() -> bool:
        found = ask(ground.url, secret, "list_workers")["workers"]
        return {one["worker_id"] for one in found} >= set(names)

    until(ready, f"the registration of {names}", ground)


def inbox_of(known: dict[str, Fact], principal: str) -> list[str]:
    return sorted(fact.event_type for fact in known.values() if (fact.recipient, fact.surface) == (principal, "inbox"))


def ends_of_tasks(known: dict[str, Fact], recipient: str) -> list[str]:
    return [
        fact.receipt_id for fact in known.values() if fact.event_type == "task_complete" and fact.recipient == recipient
    ]


@contextmanager
def deployment_of(department: Department, home: Ground) -> Iterator[Ground]:
    """A product with a database of its own for one department, which sends home what the general manager is told there."""
    tokens = {
        "manager": token("general-manager", "delegate", "plans"),
        "operator": token("Ada", "ai", "admin"),
        **{name: token(name, "worker", *WORKER) for name in department.pool},
    }
    with prepared(settings="config.settings", tokens=tokens) as away:
        operator = away.tokens["operator"]
        secret = home.tokens[f"deliveries of {department.name}"]
        target = {"url": home.url, "token": secret, "known_as": department.name}
        put(away, operator, "/api/v1/remote-targets/home", target)
        put(away, operator, "/api/v1/remote-routes/general-manager", {"target": "home", "remote_name": "delegate"})
        start_bundled(away, department.pool, away.tokens)
        workers_ready(away, away.tokens["manager"], department.pool)
        start_department(home, department, away, asking=away.tokens["manager"])
        yield away


def test_departments_of_their_own_deployments_report_home_and_the_chain_goes_through_all(tmp_path: Path) -> None:
    documents, data = tmp_path / "documents", tmp_path / "data"
    documents.mkdir()
    write_pdf(documents / "gradients.pdf", GRADIENTS, title="On gradients")
    data.mkdir()
    (data / "incidents.csv").write_text("when,what\n")
    folder = PRODUCT / "examples"
    departments = (RESEARCH, CODE, DATA)
    tokens = {"kee": token("Kee", "ai", *KEE)}
    for one in departments:
        tokens[one.name] = token(one.name, "worker", *WORKER)
        tokens[f"deliveries of {one.name}"] = token(
            f"deliveries-of-{one.name}", "service", "receipts:write", source=one.name
        )
    with prepared(settings="config.settings", tokens=tokens) as home, ExitStack() as others:
        away = {one.name: others.enter_context(deployment_of(one, home)) for one in departments}
        kee = home.tokens["kee"]
        workers_ready(home, kee, tuple(away))

        plan = ready_plan(
            home.url,
            kee,
            intent=f'Analyze the codebase at "{folder}", index all PDFs in "{documents}", and list the files in "{data}"',
        )
        report = carried_out(home, kee, plan["plan_id"])

        assert report["status"] == "complete", report
        results = {one["worker_id"]: one for one in report["results"] if one["worker_id"]}
        assert set(results) == set(away)
        steps = {one["worker_id"]: one for one in plan["steps"] if one.get("worker_id")}
        top = {name: is_the_same_chain_there(away[name], plan, steps[name], results[name]) for name in away}

        def all_home() -> bool:
            told = Counter(fact.event_type for fact in facts(home).values() if fact.recipient == "delegate")
            return all(told[event] >= len(away) for event in ("plan_created", "plan_complete", "escalation"))

        until(all_home, "the deliveries of all departments", home)
        here = facts(home)
        reported = [fact for fact in here.values() if (fact.recipient, fact.event_type) == ("delegate", "escalation")]
        # A plan that was confirmed follows from the one that asked for it.
        mine = [one.event_type for one in upwards(here, plan["receipt_id"])]
        assert (mine[0], mine[-1]) == ("plan_created", "task_received")
        for fact in reported:
            events = [one.event_type for one in upwards(here, fact.receipt_id)]
            below = events[1 : -len(mine)]
            assert (events[0], {*below}, events[-len(mine) :]) == ("escalation", {"plan_created"}, mine)
        # The same receipts, by the same ids, on both sides: the chain goes from one to the other.
        assert {fact.caused_by for fact in reported} == set(top.values())
        for receipt_id in top.values():
            assert plan["receipt_id"] in {one.receipt_id for one in upwards(here, receipt_id)}
        assert inbox_of(here, "delegate") == ["escalation"] * len(away)
        assert [open_obligations(ground) for ground in (home, *away.values())] == [0, 0, 0, 0]


def is_the_same_chain_there(
    away: Ground, plan: dict[str, Any], handed_on: dict[str, Any], result: dict[str, Any]
) -> str:
    """See that what a department did hangs, in its own deployment, from a plan which names the one above; that one's receipt."""
    manager = away.tokens["manager"]
    below = ask(away.url, manager, "get_plan_status", plan_id=result["key_findings"]["plan_id"])
    assert below["status"] == "complete"
    asked = ask(away.url, manager, "get_plan", plan_id=below["plan_id"])
    path = handed_on["params"]["delegation_path"]
    assert (len(path), asked["plan"]["delegation_path"]) == (1, path)
    there = facts(away)
    # What made it, or the plan that it confirms, is a receipt of the other deployment, named and not known here.
    assert upwards(there, below["receipt_id"])[-1].caused_by_ref == plan["receipt_id"]
    ends = ends_of_tasks(there, "delegate")
    for end in ends:
        chain = upwards(there, end)
        assert [fact.event_type for fact in chain[:3]] == ["task_complete", "task_queued", "plan_created"]
        assert chain[2].receipt_id == below["receipt_id"]
    # Research indexes and code analyzes for long; a list is had at once, by a direct call.
    assert len(ends) == (0 if handed_on["worker_id"] == DATA.name else 1)
    assert inbox_of(there, "delegate") == ["task_complete"] * len(ends)
    receipt_id: str = below["receipt_id"]
    return receipt_id


def put(ground: Ground, secret: str, path: str, body: dict[str, Any]) -> None:
    answer = httpx2.put(
        f"{ground.url}{path}",
        json=body,
        headers={"Authorization": f"Bearer {secret}"},
        timeout=30,
        trust_env=False,
    )
    assert answer.is_success, answer.text
