"""A general manager hands parts of a wish to departments, which plan and carry them out with workers of their own."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from config.stack import programs
from tests.bundled_workers.pdfs import GRADIENTS, RECEIPTS, write_pdf
from tests.chaos.ground import Ground
from tests.journeys.departments import (
    BUNDLED,
    CODE,
    DATA,
    RESEARCH,
    Department,
    Fact,
    ask,
    carried_out,
    deployment,
    facts,
    open_obligations,
    start_bundled,
    start_department,
    token,
    until,
    upwards,
)

pytestmark = pytest.mark.long

KEE: Final = ("plans", "tasks:queue", "inbox", "memory")
WORKER: Final = ("workers:register", "tasks:work")


def workers_ready(ground: Ground, secret: str, names: tuple[str, ...]) -> None:
    def ready() -> bool:
        found = ask(ground, secret, "list_workers")["workers"]
        return {one["worker_id"] for one in found} >= set(names)

    until(ready, f"the registration of {names}", ground)


def inbox_of(known: dict[str, Fact], principal: str) -> list[str]:
    return sorted(fact.event_type for fact in known.values() if (fact.recipient, fact.surface) == (principal, "inbox"))


def ends_of_tasks(known: dict[str, Fact], recipient: str) -> list[str]:
    return [
        fact.receipt_id for fact in known.values() if fact.event_type == "task_complete" and fact.recipient == recipient
    ]


def test_departments_of_one_deployment_share_its_gate_and_have_an_inbox_each(tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    write_pdf(documents / "gradients.pdf", GRADIENTS, title="On gradients")
    write_pdf(documents / "receipts.pdf", RECEIPTS)
    data = tmp_path / "data"
    data.mkdir()
    (data / "incidents.csv").write_text("when,what\n")
    folder = programs.PRODUCT / "examples"
    departments = (RESEARCH, CODE, DATA)
    tokens = {
        "kee": token("Kee", "ai", *KEE),
        # With which a department is asked: by the root DeleGate, which is the general manager.
        "manager": token("delegate", "delegate", "plans"),
        "operator": token("Ada", "ai", "admin"),
        # A department's workers are those that it registers.
        **{name: token(one.name, "delegate", *WORKER) for one in departments for name in one.pool},
        **{one.name: token(f"{one.name}-door", "worker", *WORKER) for one in departments},
    }
    with deployment(tokens) as ground:
        kee = ground.tokens["kee"]
        for one in departments:
            put(ground, ground.tokens["operator"], f"/api/v1/delegates/{one.name}", {"principal": one.name})
        start_bundled(ground, BUNDLED, ground.tokens)
        workers_ready(ground, kee, BUNDLED)
        for one in departments:
            start_department(ground, one, ground, asking=ground.tokens["manager"], one_deployment=True)
        workers_ready(ground, kee, tuple(one.name for one in departments))

        plan = ask(
            ground,
            kee,
            "create_delegation_plan",
            intent=f"Analyze the Python codebase at {folder}, index all PDFs in {documents}, and list the files in {data}",
        )
        assert plan["status"] == "ready", plan["plan"]["missing"]
        asked = {step["worker_id"] for step in plan["steps"] if step.get("worker_id")}
        assert asked == {one.name for one in departments}
        report = carried_out(ground, kee, plan["plan_id"])

        assert report["status"] == "complete", report
        found = {one["worker_id"]: one for one in report["results"] if one["worker_id"]}
        assert set(found) == asked
        known = facts(ground)
        below = {one.name: ends_of_tasks(known, one.name) for one in departments}
        # Research indexes and code analyzes for long; a list is had at once, by a direct call.
        assert {name: len(ends) for name, ends in below.items()} == {"research-dept": 1, "code-dept": 1, "data-dept": 0}
        for end in (*below["research-dept"], *below["code-dept"]):
            chain = upwards(known, end)
            assert [fact.event_type for fact in chain] == [
                "task_complete",
                "task_queued",
                "plan_created",
                "plan_created",
                "task_received",
            ]
            assert chain[3].receipt_id == plan["receipt_id"]
            assert chain[4].recipient == "Kee"
        assert inbox_of(known, "research-dept") == inbox_of(known, "code-dept") == ["task_complete"]
        assert inbox_of(known, "delegate") == ["escalation"] * 3
        assert inbox_of(known, "Kee") == ["aggregate_requested", "task_complete", "task_complete", "task_complete"]
        closed = [fact for fact in known.values() if fact.event_type == "plan_complete"]
        assert len(closed) == 4
        assert open_obligations(ground) == 0


def test_what_a_department_does_for_an_execution_that_is_canceled_is_canceled_below() -> None:
    tokens = {
        "kee": token("Kee", "ai", *KEE),
        "manager": token("delegate", "delegate", "plans"),
        "operator": token("Ada", "ai", "admin"),
        **{name: token(CODE.name, "delegate", *WORKER) for name in CODE.pool},
        CODE.name: token(f"{CODE.name}-door", "worker", *WORKER),
    }
    with deployment(tokens) as ground:
        kee = ground.tokens["kee"]
        put(ground, ground.tokens["operator"], f"/api/v1/delegates/{CODE.name}", {"principal": CODE.name})
        start_bundled(ground, CODE.pool, ground.tokens)
        workers_ready(ground, kee, CODE.pool)
        start_department(ground, CODE, ground, asking=ground.tokens["manager"], one_deployment=True)
        workers_ready(ground, kee, (CODE.name,))
        # Long enough to be canceled meanwhile: the product, and all that it is installed with.
        plan = ask(ground, kee, "create_delegation_plan", intent=f"Analyze the Python codebase at '{programs.PRODUCT}'")
        assert plan["status"] == "ready", plan["plan"]["missing"]
        begun = ask(ground, kee, "execute_delegation_plan", plan_id=plan["plan_id"])

        def events() -> list[str]:
            return [fact.event_type for fact in facts(ground).values()]

        until(lambda: events().count("task_queued") == 2, "the task below", ground)
        ask(ground, kee, "cancel_execution", execution_id=begun["execution_id"])
        until(lambda: events().count("plan_canceled") == 2, "the end below", ground)

        assert "task_complete" not in events()
        assert open_obligations(ground) == 0


@contextmanager
def deployment_of(department: Department, home: Ground) -> Iterator[Ground]:
    """A product with a database of its own for one department, which sends home what the general manager is told there."""
    tokens = {
        "manager": token("general-manager", "delegate", "plans"),
        "operator": token("Ada", "ai", "admin"),
        **{name: token(name, "worker", *WORKER) for name in department.pool},
    }
    with deployment(tokens) as away:
        operator = away.tokens["operator"]
        secret = home.tokens[f"deliveries of {department.name}"]
        target = {"url": home.url, "token": secret, "known_as": department.name}
        put(away, operator, "/api/v1/remote-targets/home", target)
        put(away, operator, "/api/v1/remote-routes/general-manager", {"target": "home", "remote_name": "delegate"})
        start_bundled(away, department.pool, away.tokens)
        workers_ready(away, away.tokens["manager"], department.pool)
        start_department(home, department, away, asking=away.tokens["manager"], one_deployment=False)
        yield away


def test_departments_of_their_own_deployments_report_home_and_the_chain_goes_through_all(tmp_path: Path) -> None:
    documents, data = tmp_path / "documents", tmp_path / "data"
    documents.mkdir()
    write_pdf(documents / "gradients.pdf", GRADIENTS, title="On gradients")
    data.mkdir()
    (data / "incidents.csv").write_text("when,what\n")
    folder = programs.PRODUCT / "examples"
    departments = (RESEARCH, CODE, DATA)
    tokens = {"kee": token("Kee", "ai", *KEE)}
    for one in departments:
        tokens[one.name] = token(one.name, "worker", *WORKER)
        tokens[f"deliveries of {one.name}"] = token(
            f"deliveries-of-{one.name}", "service", "receipts:write", source=one.name
        )
    with deployment(tokens) as home, ExitStack() as others:
        away = {one.name: others.enter_context(deployment_of(one, home)) for one in departments}
        kee = home.tokens["kee"]
        workers_ready(home, kee, tuple(away))

        plan = ask(
            home,
            kee,
            "create_delegation_plan",
            intent=f"Analyze the Python codebase at {folder}, index all PDFs in {documents}, and list the files in {data}",
        )
        assert plan["status"] == "ready", plan["plan"]["missing"]
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
        for fact in reported:
            above = ["escalation", "plan_created", "plan_created", "task_received"]
            assert [one.event_type for one in upwards(here, fact.receipt_id)] == above
        # The same receipts, by the same ids, on both sides: the chain goes from one to the other.
        assert {fact.caused_by for fact in reported} == set(top.values())
        assert {here[receipt_id].caused_by for receipt_id in top.values()} == {plan["receipt_id"]}
        assert inbox_of(here, "delegate") == ["escalation"] * len(away)
        assert [open_obligations(ground) for ground in (home, *away.values())] == [0, 0, 0, 0]


def is_the_same_chain_there(
    away: Ground, plan: dict[str, Any], handed_on: dict[str, Any], result: dict[str, Any]
) -> str:
    """See that what a department did hangs, in its own deployment, from a plan which names the one above; that one's receipt."""
    manager = away.tokens["manager"]
    below = ask(away, manager, "get_plan_status", plan_id=result["key_findings"]["plan_id"])
    assert below["status"] == "complete"
    asked = ask(away, manager, "get_plan", plan_id=below["plan_id"])
    path = handed_on["params"]["delegation_path"]
    assert (len(path), asked["plan"]["delegation_path"]) == (1, path)
    there = facts(away)
    # What made it is a receipt of the other deployment, named and not known here.
    assert there[below["receipt_id"]].caused_by_ref == plan["receipt_id"]
    ends = ends_of_tasks(there, "delegate")
    for end in ends:
        chain = upwards(there, end)
        assert [fact.event_type for fact in chain] == ["task_complete", "task_queued", "plan_created"]
        assert chain[-1].receipt_id == below["receipt_id"]
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
