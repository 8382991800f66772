"""Claims of steps: what a process may still do with one, who else may take it over, and what it costs."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.sql import database_now
from apps.executions import services
from apps.executions.calls import AWAY_LOOKS, LOOK_AGAIN
from apps.executions.models import Execution, ExecutionStep
from apps.executions.services import CLAIM, MAX_CLAIMS
from apps.executions.states import Mode
from apps.plans.shapes import Budget
from apps.principals.tenancy import Caller
from apps.tasks.models import LiveTask
from tests.executions.making import (
    REPORT,
    advance,
    begin,
    call_step,
    failure,
    make_plan,
    make_worker,
    make_writing_worker,
    money,
    queue_step,
    report,
    report_health,
    statuses,
)
from tests.executions.workers import WorkerServer
from tests.factories import pass_time

LATER = timedelta(minutes=1)


def keep_looking(execution: Execution, period: timedelta) -> None:
    """As the ticks do, as soon as a worker that is missed is to be looked for again."""
    for _ in range(period // LOOK_AGAIN):
        pass_time(LOOK_AGAIN)
        advance(execution)


def claim_and_die(caller: Caller, execution: Execution) -> services.Claim:
    """What a process leaves behind that dies between claiming a step and calling."""
    with caller.acting():
        (claimed,) = services.look(execution.pk, may_call=True)
    return claimed


def step(caller: Caller, step_id: str = "a") -> ExecutionStep:
    with caller.acting():
        return ExecutionStep.objects.get(step_id=step_id)


def everything(caller: Caller) -> list[Any]:
    with caller.acting():
        return [list(model.objects.order_by("pk").values()) for model in (Execution, ExecutionStep, LiveTask)]


def test_writing_tool_without_an_answer_is_called_once(kee: Caller, server: WorkerServer) -> None:
    make_writing_worker(kee, server, constraints={"timeout_seconds": 1})
    execution = begin(kee, [{**call_step("a", "hold"), "worker_id": "writer"}, REPORT])

    for _ in range(3):
        advance(execution)
        pass_time(LATER)

    assert server.calls == {"hold": 1}
    done = report(kee, execution)
    assert done.status == "failed"
    assert (failure(done)["code"], failure(done)["retryable"]) == ("outcome_unknown", False)


def test_lost_call_of_a_writing_tool_is_not_repeated(kee: Caller, server: WorkerServer) -> None:
    make_writing_worker(kee, server)
    execution = begin(kee, [{**call_step("a"), "worker_id": "writer"}, REPORT])
    claim_and_die(kee, execution)
    pass_time(LATER)

    advance(execution)

    assert failure(report(kee, execution))["code"] == "outcome_unknown"
    assert not server.calls


@pytest.mark.parametrize(
    "make_step",
    [lambda: call_step("a"), lambda: call_step("a", "complain"), lambda: queue_step("a")],
    ids=["answered", "refused", "queued"],
)
def test_result_of_an_older_claim_is_dropped(
    kee: Caller, texter: WorkerServer, make_step: Callable[[], dict[str, Any]]
) -> None:
    execution = begin(kee, [make_step(), REPORT])
    first = claim_and_die(kee, execution)
    pass_time(LATER)
    second = claim_and_die(kee, execution)
    assert (first.fencing_token, second.fencing_token, statuses(kee, execution)["a"]) == (1, 2, "calling")
    before = everything(kee)

    services._renew(first)
    services._carry_out([first])

    assert (first.lost.is_set(), second.lost.is_set()) == (True, False)
    assert everything(kee) == before
    services._carry_out([second])
    assert statuses(kee, execution)["a"] != "calling"


def test_renewed_claim_lasts_another_period(kee: Caller, texter: WorkerServer) -> None:
    execution = begin(kee, [call_step("a"), REPORT])
    claim = claim_and_die(kee, execution)
    for _ in range(3):
        pass_time(CLAIM - timedelta(seconds=1))
        services._renew(claim)
        assert step(kee).call_expires_at == database_now() + CLAIM

        advance(execution)

        assert (step(kee).status, step(kee).attempts, claim.lost.is_set()) == ("calling", 1, False)
    assert not texter.calls
    pass_time(CLAIM)
    advance(execution)
    assert (step(kee).status, step(kee).attempts) == ("complete", 2)


def test_step_is_given_up_after_too_many_lost_claims(kee: Caller, texter: WorkerServer) -> None:
    execution = begin(kee, [call_step("a"), REPORT])
    for _ in range(MAX_CLAIMS):
        claim_and_die(kee, execution)
        pass_time(LATER)

    advance(execution)

    (result,) = report(kee, execution).results
    assert (result.status, (result.error or {})["code"]) == ("failed", "claims_exhausted")
    assert (step(kee).attempts, texter.calls["echo"]) == (MAX_CLAIMS, 0)


def test_calls_are_counted_in_the_order_of_their_workers(kee: Caller, server: WorkerServer) -> None:
    names = ("zeta", "alpha", "mu")
    for name in names:
        make_worker(kee, server, name)
    execution = begin(kee, [*({**call_step(name), "worker_id": name} for name in names), REPORT])

    with CaptureQueriesContext(connection) as captured, kee.acting():
        claimed = services.look(execution.pk, may_call=True)

    asked = [query["sql"] for query in captured if "asked_at" in query["sql"]]
    found = [name for sql in asked for name in names if f"'{name}'" in sql]
    # First whether each may be called, in the order of the plan; then what may be sent to it.
    assert (found[:-3], found[-3:]) == (list(names), sorted(names))
    assert len(claimed) == 3


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
    execution = begin(kee, steps, mode=mode, budget=Budget(max_total_cost=0.1))
    for _ in range(3):
        claim_and_die(kee, execution)
        pass_time(LATER)

    advance(execution)

    with kee.acting():
        assert LiveTask.objects.count() == 1
    assert (step(kee).status, step(kee).attempts) == ("queued", 4)
    assert (money(report(kee, execution).total_cost), step(kee).cost) == (Decimal("0.1"), Decimal("0.1"))


ONE = Budget(max_total_cost=1)


@pytest.mark.parametrize("may_call", [True, False], ids=["who calls", "who does not call"])
@pytest.mark.parametrize(
    ("first", "came_of_it"),
    [
        (call_step("a", estimated_cost=0.1), ("canceled", Decimal("0.1"))),
        ({**call_step("a", estimated_cost=0.1), "worker_id": "writer"}, ("failed", Decimal("0.1"))),
        ({**queue_step("a", estimated_cost=0.1), "worker_id": "writer"}, ("canceled", Decimal("0.1"))),
    ],
    ids=["may run twice", "may have run", "was no task yet"],
)
def test_lost_call_is_not_repeated_after_a_halt(
    kee: Caller,
    texter: WorkerServer,
    first: dict[str, Any],
    came_of_it: tuple[str, Decimal],
    *,
    may_call: bool,
) -> None:
    make_writing_worker(kee, texter)
    execution = begin(kee, [first, call_step("b", estimated_cost=9), REPORT], budget=ONE)
    claim_and_die(kee, execution)
    pass_time(LATER)

    with kee.acting():
        assert not services.look(execution.pk, may_call=may_call)

    done = report(kee, execution)
    assert (done.status, texter.calls) == ("budget_exceeded", {})
    assert (statuses(kee, execution)["a"], money(done.total_cost)) == came_of_it


def test_higher_present_price_is_charged(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server, hints={"expected_runtime": "fast", "cost_estimate": 0.01})
    steps = [call_step("a", estimated_cost=0.01), call_step("b", estimated_cost=0.01, depends_on=["a"]), REPORT]
    execution = begin(kee, steps, budget=Budget(max_total_cost=0.05))
    make_worker(kee, server, hints={"expected_runtime": "fast", "cost_estimate": 0.04})

    advance(execution)

    done = report(kee, execution)
    assert (done.status, money(done.total_cost), server.calls) == ("budget_exceeded", Decimal("0.04"), {"echo": 1})


@pytest.mark.parametrize("bound", ["max_total_cost", "max_cost_per_step"])
@pytest.mark.parametrize(
    ("of_plan", "given", "fit"),
    [(0.15, None, 1), (0.15, "9", 1), (0.3, "0.15", 1), (0.3, "9", 2)],
    ids=["none is given", "a wider one is given", "a tighter one is given", "both steps fit"],
)
def test_bounds_of_the_plan_hold_for_its_execution(
    kee: Caller, texter: WorkerServer, bound: str, *, of_plan: float, given: str | None, fit: int
) -> None:
    bounds: dict[str, Any] = {} if given is None else {bound: float(given)}
    budget = Budget(**bounds)
    with kee.acting():
        steps = [call_step("a", estimated_cost=0.1), call_step("b", estimated_cost=0.2), REPORT]
        plan_id = make_plan(kee, steps, constraints={bound: of_plan})
    execution = begin(kee, [], plan_id=plan_id, budget=budget)
    assert begin(kee, [], plan_id=plan_id, budget=budget).pk == execution.pk

    advance(execution)

    done, ended = report(kee, execution), [("budget_exceeded", Decimal("0.1")), ("complete", Decimal("0.3"))][fit - 1]
    assert ((done.status, money(done.total_cost)), texter.calls) == (ended, {"echo": fit})


@pytest.mark.parametrize(
    ("endpoint", "tool", "code", "charged"),
    [(None, "crash", "worker_broke", "0.1"), ("http://127.0.0.1:9/mcp", "echo", "worker_unreachable", "0")],
    ids=["broken", "not reached"],
)
def test_step_is_charged_once_if_its_call_may_have_run(
    kee: Caller, server: WorkerServer, *, endpoint: str | None, tool: str, code: str, charged: str
) -> None:
    make_worker(kee, server, endpoint=endpoint or server.endpoint)
    execution = begin(kee, [call_step("a", tool, estimated_cost=0.1), REPORT], budget=Budget(max_total_cost=0.15))

    for _ in range(3):
        advance(execution)
        pass_time(LATER)

    done = report(kee, execution)
    assert failure(done)["code"] == code
    assert (money(done.total_cost), step(kee).cost, step(kee).attempts) == (Decimal(charged), Decimal(charged), 3)


@pytest.mark.parametrize("status", ["degraded", "maintenance", "offline"])
def test_step_waits_for_an_unavailable_worker(kee: Caller, texter: WorkerServer, status: str) -> None:
    execution = begin(kee, [call_step("a", estimated_cost=0.1), queue_step("b"), REPORT])
    report_health(kee, status)
    advance(execution)
    before = statuses(kee, execution)

    pass_time(timedelta(seconds=100))
    report_health(kee, "healthy")
    advance(execution)

    assert (before["a"], before["b"]) == ("pending", "pending")
    assert statuses(kee, execution) == {"a": "complete", "b": "queued", "report": "pending"}
    assert money(report(kee, execution).total_cost) == Decimal("0.1")


@pytest.mark.parametrize("downtime", ["before the first look", "between two looks", "none"])
def test_absence_of_a_worker_counts_without_our_downtime(kee: Caller, texter: WorkerServer, downtime: str) -> None:
    execution = begin(kee, [call_step("a"), REPORT])
    if downtime == "before the first look":
        claim_and_die(kee, execution)
        pass_time(timedelta(minutes=10))
    report_health(kee, "offline")
    advance(execution)
    if downtime == "between two looks":
        pass_time(LOOK_AGAIN + timedelta(hours=1))
        advance(execution)
        keep_looking(execution, (AWAY_LOOKS - 2) * LOOK_AGAIN)
    else:
        keep_looking(execution, (AWAY_LOOKS - 1) * LOOK_AGAIN)
    before = statuses(kee, execution)["a"]
    keep_looking(execution, LOOK_AGAIN)

    (result,) = report(kee, execution).results
    assert (before, result.status, (result.error or {})["code"]) == ("pending", "failed", "worker_unavailable")
