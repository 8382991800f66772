"""An agent makes a plan of its own, and carries it out to the decision, all of it over MCP."""

from collections.abc import Iterator

import pytest

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from tests.executions.making import do_task, handmade, make_worker, post_approval
from tests.executions.workers import WorkerServer, serving
from tests.factories import make_caller, make_token
from tests.journeys.test_bundled_workers import ask
from tests.server import Server


@pytest.fixture
def texter() -> Iterator[WorkerServer]:
    with serving() as worker:
        yield worker


def test_a_plan_of_ones_own_is_judged_kept_carried_out_and_decided(
    acme: Tenant, server: Server, texter: WorkerServer
) -> None:
    kee = make_caller(acme, "Kee")
    make_worker(kee, texter)
    token = make_token(acme, "Kee")

    assert ask(server, token, "validate_plan", plan=handmade())["valid"]
    plan_id = ask(server, token, "submit_plan", plan=handmade())["plan_id"]
    execution_id = ask(server, token, "execute_delegation_plan", plan_id=plan_id)["execution_id"]
    do_task(make_caller(acme, "hands", Kind.WORKER), {"text": "hello", "length": 5, "items": []})
    waiting = ask(server, token, "execute_delegation_plan", plan_id=plan_id)
    post_approval(acme, kee)
    asked = ask(server, token, "execute_delegation_plan", plan_id=plan_id)
    decided = ask(server, token, "decide_step", execution_id=execution_id, step_id="ask", decision="accept")

    assert [one["status"] for one in (waiting, asked, decided)] == ["queued", "needs_escalation", "complete"]
    report = ask(server, token, "get_plan_status", plan_id=plan_id)
    assert (report["status"], report["steps_complete"]) == ("complete", 5)
    assert texter.calls == {"shout": 1}
