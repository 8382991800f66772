"""Claims of steps: what a process may still do with one, who else may take it over, and what it costs."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.sql import database_now
from apps.executions.models import Execution, ExecutionStep
from apps.executions.services import Budget, advancing
from apps.executions.services.beginning import CLAIM, MAX_CLAIMS
from apps.principals.tenancy import Caller
from apps.tasks.models import HotTask
from apps.workers import services as workers
from apps.workers.trust import Tier
from tests.executions.making import (
    ANY,
    REPORT,
    advance,
    begin,
    call_step,
    make_worker,
    queue_step,
    report,
    statuses,
)
from tests.executions.workers import WorkerServer
from tests.workers.factories import enroll, make_key, signed

LATER = timedelta(minutes=1)


def later(period: timedelta) -> None:
    """Move the database's clock, in the test's transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select set_config('gatehouse.now', (gatehouse_now() + make_interval(secs => %s))::text, true)",
            [period.total_seconds()],
        )


def claim_and_die(caller: Caller, execution: Execution) -> advancing.Claimed:
    """What a process leaves behind that dies between claiming a step and calling."""
    with caller.acting():
        (claimed,) = advancing.step_forward(execution.pk, may_call=True)
    return claimed


def step(caller: Caller, step_id: str = "a") -> ExecutionStep:
    with caller.acting():
        return ExecutionStep.objects.get(step_id=step_id)


def everything(caller: Caller) -> list[Any]:
    with caller.acting():
        return [list(model.objects.order_by("pk").values()) for model in (Execution, ExecutionStep, HotTask)]


def make_hurried_writer(caller: Caller, server: WorkerServer) -> None:
    """A worker whose tools change things and must answer within a second."""
    key = make_key()
    with caller.acting():
        enroll(caller, key, ceiling=Tier.TRUSTED)
        manifest = {
            "worker_id": "writer",
            "endpoint": server.endpoint,
            "tools": [{"name": "hold", "description": "hold", "input_schema": ANY}],
            "constraints": {"timeout_seconds": 1},
            "hints": {"expected_runtime": "fast"},
            "side_effects": {"filesystem": "write", "network": "none", "execution": "none"},
            "trust": {"tier": "trusted"},
        }
        workers.register(caller=caller, original=signed(manifest, key))


def test_a_writing_tool_that_was_reached_and_did_not_answer_is_called_once(kee: Caller, server: WorkerServer) -> None:
    make_hurried_writer(kee, server)
    execution = begin(kee, [{**call_step("a", "hold"), "worker_id": "writer"}, REPORT])

    for _ in range(3):
        advance(execution)
        later(LATER)

    assert server.calls == {"hold": 1}
    done = report(kee, execution)
    assert done.status == "failed"
    error = done.results[0]["error"]
    assert (error["code"], error["retryable"]) == ("outcome_unknown", False)


@pytest.mark.parametrize(
    "make_step",
    [lambda: call_step("a"), lambda: call_step("a", "complain"), lambda: queue_step("a")],
    ids=["answered", "refused", "queued"],
)
def test_what_the_holder_of_an_older_claim_brings_is_dropped_while_the_next_is_calling(
    kee: Caller, server: WorkerServer, make_step: Callable[[], dict[str, Any]]
) -> None:
    make_worker(kee, server)
    execution = begin(kee, [make_step(), REPORT])
    first = claim_and_die(kee, execution)
    later(LATER)
    second = claim_and_die(kee, execution)
    assert (first.fence, second.fence, statuses(kee, execution)["a"]) == (1, 2, "calling")
    before = everything(kee)

    advancing._carry_out([first])

    assert everything(kee) == before
    advancing._carry_out([second])
    assert statuses(kee, execution)["a"] != "calling"


def test_a_claim_that_is_renewed_stands_for_another_period_from_then(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    claim = claim_and_die(kee, execution)
    for _ in range(3):
        later(CLAIM - timedelta(seconds=1))
        advancing._renew(claim)
        assert step(kee).call_expires_at == database_now() + CLAIM

        advance(execution)

        assert (step(kee).status, step(kee).attempts, claim.lost.is_set()) == ("calling", 1, False)
    assert not server.calls
    later(CLAIM)
    advance(execution)
    assert (step(kee).status, step(kee).attempts) == ("complete", 2)


def test_a_step_of_which_every_process_dies_is_given_up(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    for _ in range(MAX_CLAIMS):
        claim_and_die(kee, execution)
        later(LATER)

    advance(execution)

    (result,) = report(kee, execution).results
    assert (result["status"], result["error"]["code"]) == ("failed", "claims_exhausted")
    assert (step(kee).attempts, server.calls["echo"]) == (MAX_CLAIMS, 0)


def test_calls_are_counted_in_the_order_of_their_workers_so_that_rounds_do_not_lock_each_other_out(
    kee: Caller, server: WorkerServer
) -> None:
    names = ("zeta", "alpha", "mu")
    for name in names:
        make_worker(kee, server, name)
    execution = begin(kee, [*({**call_step(name), "worker_id": name} for name in names), REPORT])

    with CaptureQueriesContext(connection) as captured, kee.acting():
        claimed = advancing.step_forward(execution.pk, may_call=True)

    asked = [query["sql"] for query in captured if "asked_at" in query["sql"]]
    found = [name for sql in asked for name in names if f"'{name}'" in sql]
    # First whether each may be called, in the order of the plan; then what may be sent to it.
    assert (found[:-3], found[-3:]) == (list(names), sorted(names))
    assert len(claimed) == 3


def test_a_claim_that_is_lost_is_not_renewed_and_its_holder_hears_of_it(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    first = claim_and_die(kee, execution)
    later(LATER)
    second = claim_and_die(kee, execution)
    later(timedelta(seconds=1))
    before = everything(kee)

    advancing._renew(first)

    assert (first.lost.is_set(), second.lost.is_set()) == (True, False)
    assert everything(kee) == before


BUDGET = Budget(max_total_cost=Decimal("0.25"))


def test_a_call_that_is_made_again_after_its_process_is_gone_is_paid_for_again(
    kee: Caller, server: WorkerServer
) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a", estimated_cost=0.1), REPORT], budget=BUDGET)
    claim_and_die(kee, execution)
    later(LATER)

    advance(execution)

    done = report(kee, execution)
    assert (done.status, done.total_cost) == ("complete", Decimal("0.2"))
    assert (step(kee).attempts, step(kee).cost) == (2, Decimal("0.2"))


@pytest.mark.parametrize(
    "budget", [BUDGET, Budget(max_cost_per_step=Decimal("0.25"))], ids=["for the whole", "for each step"]
)
def test_no_call_is_made_again_that_the_budget_does_not_pay_for(
    kee: Caller, server: WorkerServer, budget: Budget
) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a", estimated_cost=0.1), REPORT], budget=budget)
    for _ in range(2):
        claim_and_die(kee, execution)
        later(LATER)

    advance(execution)

    done = report(kee, execution)
    assert server.calls == {}
    assert (done.status, done.total_cost, step(kee).attempts) == ("budget_exceeded", Decimal("0.2"), 2)
    assert done.results[0]["error"]["code"] == "budget_exceeded"


def test_a_call_that_breaks_after_it_reached_its_worker_is_paid_for_each_time(
    kee: Caller, server: WorkerServer
) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a", "crash", estimated_cost=0.1), REPORT], budget=BUDGET)

    for _ in range(3):
        advance(execution)
        later(LATER)

    done = report(kee, execution)
    assert (done.status, done.total_cost) == ("budget_exceeded", Decimal("0.2"))
    assert (step(kee).attempts, step(kee).cost) == (2, Decimal("0.2"))


def test_a_call_that_never_reached_its_worker_costs_nothing(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server, endpoint="http://127.0.0.1:9/mcp")
    execution = begin(kee, [call_step("a", estimated_cost=0.1), REPORT], budget=BUDGET)

    for _ in range(3):
        advance(execution)
        later(LATER)

    done = report(kee, execution)
    assert done.results[0]["error"]["code"] == "worker_unreachable"
    assert (done.total_cost, step(kee).attempts, step(kee).cost) == (Decimal(0), 3, Decimal(0))


def say(caller: Caller, status: str) -> None:
    with caller.acting():
        workers.heartbeat(caller=caller, worker_id="texter", status=status, current_load=0, available=True)


@pytest.mark.parametrize("status", ["degraded", "maintenance", "offline"])
def test_a_step_waits_for_a_worker_that_takes_no_calls_just_now(kee: Caller, server: WorkerServer, status: str) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a", estimated_cost=0.1), queue_step("b"), REPORT])
    say(kee, status)
    advance(execution)
    before = statuses(kee, execution)

    later(timedelta(seconds=100))
    say(kee, "healthy")
    advance(execution)

    assert (before["a"], before["b"]) == ("pending", "pending")
    assert statuses(kee, execution) == {"a": "complete", "b": "queued", "report": "pending"}
    assert report(kee, execution).total_cost == Decimal("0.1")
    assert server.calls == {"echo": 1}


def test_a_call_that_is_taken_over_waits_for_its_worker_too(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    claim_and_die(kee, execution)
    later(CLAIM)
    say(kee, "offline")
    advance(execution)
    before = statuses(kee, execution)["a"]

    later(timedelta(seconds=10))
    say(kee, "healthy")
    advance(execution)

    assert (before, statuses(kee, execution)["a"]) == ("pending", "complete")


def test_a_worker_that_stays_away_fails_the_step(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    say(kee, "offline")
    advance(execution)
    later(timedelta(minutes=2, seconds=1))
    advance(execution)

    (result,) = report(kee, execution).results
    assert (result["status"], result["error"]["code"]) == ("failed", "worker_unavailable")
