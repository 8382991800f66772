"""Claims of steps: what a process may still do with one, who else may take it over, and what it costs."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.sql import database_now
from apps.executions.calls import LOOK_AGAIN, WORKER_AWAY
from apps.executions.models import Execution, ExecutionStep
from apps.executions.services import advancing
from apps.executions.services.starting import Budget
from apps.executions.services.steps import CLAIM, MAX_CLAIMS
from apps.executions.states import Mode
from apps.principals.tenancy import Caller
from apps.tasks.models import LiveTask
from apps.workers.services import health
from apps.workers.services import registry as workers
from apps.workers.trust import Tier
from tests.executions.making import (
    ANY,
    REPORT,
    advance,
    begin,
    call_step,
    failure,
    later,
    make_plan,
    make_worker,
    make_writing_worker,
    money,
    queue_step,
    report,
    statuses,
)
from tests.executions.workers import WorkerServer
from tests.workers.factories import enroll, make_key, signed

LATER = timedelta(minutes=1)


def keep_looking(execution: Execution, period: timedelta) -> None:
    """As the ticks do, as soon as a worker that is missed is to be looked for again."""
    for _ in range(period // LOOK_AGAIN):
        later(LOOK_AGAIN)
        advance(execution)


def claim_and_die(caller: Caller, execution: Execution) -> advancing.Claim:
    """What a process leaves behind that dies between claiming a step and calling."""
    with caller.acting():
        (claimed,) = advancing.look(execution.pk, may_call=True)
    return claimed


def step(caller: Caller, step_id: str = "a") -> ExecutionStep:
    with caller.acting():
        return ExecutionStep.objects.get(step_id=step_id)


def everything(caller: Caller) -> list[Any]:
    with caller.acting():
        return [list(model.objects.order_by("pk").values()) for model in (Execution, ExecutionStep, LiveTask)]


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


def test_writing_tool_without_an_answer_is_called_once(kee: Caller, server: WorkerServer) -> None:
    make_hurried_writer(kee, server)
    execution = begin(kee, [{**call_step("a", "hold"), "worker_id": "writer"}, REPORT])

    for _ in range(3):
        advance(execution)
        later(LATER)

    assert server.calls == {"hold": 1}
    done = report(kee, execution)
    assert done.status == "failed"
    error = done.results[0].error or {}
    assert (error["code"], error["retryable"]) == ("outcome_unknown", False)


@pytest.mark.parametrize(
    "make_step",
    [lambda: call_step("a"), lambda: call_step("a", "complain"), lambda: queue_step("a")],
    ids=["answered", "refused", "queued"],
)
def test_result_of_an_older_claim_is_dropped(
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


def test_renewed_claim_lasts_another_period(kee: Caller, server: WorkerServer) -> None:
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


def test_step_is_given_up_after_too_many_lost_claims(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    for _ in range(MAX_CLAIMS):
        claim_and_die(kee, execution)
        later(LATER)

    advance(execution)

    (result,) = report(kee, execution).results
    assert (result.status, (result.error or {})["code"]) == ("failed", "claims_exhausted")
    assert (step(kee).attempts, server.calls["echo"]) == (MAX_CLAIMS, 0)


def test_calls_are_counted_in_the_order_of_their_workers(kee: Caller, server: WorkerServer) -> None:
    names = ("zeta", "alpha", "mu")
    for name in names:
        make_worker(kee, server, name)
    execution = begin(kee, [*({**call_step(name), "worker_id": name} for name in names), REPORT])

    with CaptureQueriesContext(connection) as captured, kee.acting():
        claimed = advancing.look(execution.pk, may_call=True)

    asked = [query["sql"] for query in captured if "asked_at" in query["sql"]]
    found = [name for sql in asked for name in names if f"'{name}'" in sql]
    # First whether each may be called, in the order of the plan; then what may be sent to it.
    assert (found[:-3], found[-3:]) == (list(names), sorted(names))
    assert len(claimed) == 3


def test_lost_claim_is_not_renewed(kee: Caller, server: WorkerServer) -> None:
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


@pytest.mark.parametrize(
    ("make_step", "mode"),
    [(queue_step, Mode.AUTO), (call_step, Mode.ASYNC_ONLY)],
    ids=["a step that queues", "a call in a mode that queues"],
)
def test_lost_claim_of_a_task_is_queued_by_the_next_process(
    kee: Caller, server: WorkerServer, make_step: Callable[..., dict[str, Any]], mode: Mode
) -> None:
    make_writing_worker(kee, server)
    steps = [{**make_step("a", estimated_cost=0.1), "worker_id": "writer"}, REPORT]
    execution = begin(kee, steps, mode=mode, budget=Budget(max_total_cost=Decimal("0.1")))
    for _ in range(3):
        claim_and_die(kee, execution)
        later(LATER)

    advance(execution)

    with kee.acting():
        assert LiveTask.objects.count() == 1
    assert (step(kee).status, step(kee).attempts, step(kee).reserved_cost) == ("queued", 4, None)
    assert (money(report(kee, execution).total_cost), step(kee).cost) == (Decimal("0.1"), Decimal("0.1"))


BUDGET = Budget(max_total_cost=Decimal("0.25"))
ONE = Budget(max_total_cost=Decimal(1))


@pytest.mark.parametrize("may_call", [True, False], ids=["who calls", "who does not call"])
@pytest.mark.parametrize(
    ("first", "came_of_it"),
    [
        (call_step("a", estimated_cost=0.1), ("canceled", Decimal("0.1"))),
        ({**call_step("a", estimated_cost=0.1), "worker_id": "writer"}, ("failed", Decimal("0.1"))),
        ({**queue_step("a", estimated_cost=0.1), "worker_id": "writer"}, ("canceled", Decimal(0))),
    ],
    ids=["may run twice", "may have run", "was no task yet"],
)
def test_lost_call_is_not_repeated_after_a_halt(
    kee: Caller,
    server: WorkerServer,
    first: dict[str, Any],
    came_of_it: tuple[str, Decimal],
    *,
    may_call: bool,
) -> None:
    make_worker(kee, server)
    make_writing_worker(kee, server)
    execution = begin(kee, [first, call_step("b", estimated_cost=9), REPORT], budget=ONE)
    claim_and_die(kee, execution)
    later(LATER)

    with kee.acting():
        assert not advancing.look(execution.pk, may_call=may_call)

    done = report(kee, execution)
    assert (done.status, server.calls) == ("budget_exceeded", {})
    assert (statuses(kee, execution)["a"], money(done.total_cost)) == came_of_it


def test_lost_calls_over_the_budget_are_not_repeated(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    steps = [call_step("a", estimated_cost=0.2), call_step("b", "shout", estimated_cost=0.01), REPORT]
    execution = begin(kee, steps, budget=BUDGET)
    with kee.acting():
        assert len(advancing.look(execution.pk, may_call=True)) == 2
    later(LATER)

    advance(execution)

    assert report(kee, execution).status == "budget_exceeded"
    assert statuses(kee, execution) == {"a": "failed", "b": "canceled", "report": "skipped"}
    assert not server.calls


def test_higher_present_price_is_charged(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server, hints={"expected_runtime": "fast", "cost_estimate": 0.01})
    steps = [call_step("a", estimated_cost=0.01), call_step("b", estimated_cost=0.01, depends_on=["a"]), REPORT]
    execution = begin(kee, steps, budget=Budget(max_total_cost=Decimal("0.05")))
    make_worker(kee, server, hints={"expected_runtime": "fast", "cost_estimate": 0.04})

    advance(execution)

    done = report(kee, execution)
    assert (done.status, money(done.total_cost), server.calls) == ("budget_exceeded", Decimal("0.04"), {"echo": 1})


@pytest.mark.parametrize("bound", ["max_total_cost", "max_cost_per_step"])
@pytest.mark.parametrize(
    ("of_plan", "given", "fit"),
    [(0.15, None, 1), (0.15, "9", 1), (0.25, "0.15", 1), (0.25, "9", 2)],
    ids=["none is given", "a wider one is given", "a tighter one is given", "two calls fit"],
)
def test_bounds_of_the_plan_hold_for_its_execution(
    kee: Caller, server: WorkerServer, bound: str, *, of_plan: float, given: str | None, fit: int
) -> None:
    make_worker(kee, server)
    bounds: dict[str, Any] = {} if given is None else {bound: Decimal(given)}
    budget = Budget(**bounds)
    with kee.acting():
        plan_id = make_plan(kee, [call_step("a", estimated_cost=0.1), REPORT], constraints={bound: of_plan})
    execution = begin(kee, [], plan_id=plan_id, budget=budget)
    assert begin(kee, [], plan_id=plan_id, budget=budget).pk == execution.pk

    for _ in range(fit):
        claim_and_die(kee, execution)
        later(LATER)
    advance(execution)

    done = report(kee, execution)
    assert (done.status, money(done.total_cost), server.calls) == ("budget_exceeded", Decimal("0.1") * fit, {})


def test_repeated_call_is_charged_again(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a", estimated_cost=0.1), REPORT], budget=BUDGET)
    claim_and_die(kee, execution)
    later(LATER)

    advance(execution)

    done = report(kee, execution)
    assert (done.status, money(done.total_cost)) == ("complete", Decimal("0.2"))
    assert (step(kee).attempts, step(kee).cost) == (2, Decimal("0.2"))


@pytest.mark.parametrize(
    "budget", [BUDGET, Budget(max_cost_per_step=Decimal("0.25"))], ids=["for the whole", "for each step"]
)
def test_call_over_the_budget_is_not_repeated(kee: Caller, server: WorkerServer, budget: Budget) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a", estimated_cost=0.1), REPORT], budget=budget)
    for _ in range(2):
        claim_and_die(kee, execution)
        later(LATER)

    advance(execution)

    done = report(kee, execution)
    assert server.calls == {}
    assert (done.status, money(done.total_cost), step(kee).attempts) == ("budget_exceeded", Decimal("0.2"), 2)
    assert failure(done)["code"] == "budget_exceeded"


def test_broken_call_is_charged_each_time(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a", "crash", estimated_cost=0.1), REPORT], budget=BUDGET)

    for _ in range(3):
        advance(execution)
        later(LATER)

    done = report(kee, execution)
    assert (done.status, money(done.total_cost)) == ("budget_exceeded", Decimal("0.2"))
    assert (step(kee).attempts, step(kee).cost) == (2, Decimal("0.2"))


def test_unreached_call_costs_nothing(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server, endpoint="http://127.0.0.1:9/mcp")
    execution = begin(kee, [call_step("a", estimated_cost=0.1), REPORT], budget=BUDGET)

    for _ in range(3):
        advance(execution)
        later(LATER)

    done = report(kee, execution)
    assert failure(done)["code"] == "worker_unreachable"
    assert (money(done.total_cost), step(kee).attempts, step(kee).cost) == (Decimal(0), 3, Decimal(0))


def say(caller: Caller, status: str) -> None:
    with caller.acting():
        health.heartbeat(caller=caller, worker_id="texter", status=status, current_load=0, available=True)


@pytest.mark.parametrize("status", ["degraded", "maintenance", "offline"])
def test_step_waits_for_an_unavailable_worker(kee: Caller, server: WorkerServer, status: str) -> None:
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
    assert money(report(kee, execution).total_cost) == Decimal("0.1")
    assert server.calls == {"echo": 1}


def test_wait_counts_from_the_first_look_at_the_absence(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    claim_and_die(kee, execution)
    later(timedelta(minutes=10))
    say(kee, "offline")
    advance(execution)
    keep_looking(execution, timedelta(seconds=115))
    before = statuses(kee, execution)["a"]
    say(kee, "healthy")

    keep_looking(execution, LOOK_AGAIN)

    assert (before, statuses(kee, execution)["a"]) == ("pending", "complete")
    assert step(kee).away_since is None


def test_downtime_of_this_side_does_not_count_as_absence(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    say(kee, "offline")
    advance(execution)
    keep_looking(execution, timedelta(seconds=100))
    later(timedelta(hours=1))
    advance(execution)
    keep_looking(execution, timedelta(seconds=10))
    before = statuses(kee, execution)["a"]

    keep_looking(execution, LOOK_AGAIN)

    assert (before, statuses(kee, execution)["a"]) == ("pending", "failed")


def test_step_fails_if_its_worker_stays_away(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    say(kee, "offline")
    advance(execution)
    keep_looking(execution, WORKER_AWAY)

    (result,) = report(kee, execution).results
    assert (result.status, (result.error or {})["code"]) == ("failed", "worker_unavailable")
