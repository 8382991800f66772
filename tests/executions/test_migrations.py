"""The migrations of executions on tables that are not empty."""

import pytest
from django.core.management import call_command

from apps.executions.models import Execution, ExecutionStep
from apps.principals.tenancy import Caller
from tests.executions.making import REPORT, advance, begin, call_step, make_worker, queue_step
from tests.executions.workers import WorkerServer
from tests.factories import make_caller, make_tenant

pytestmark = pytest.mark.django_db(transaction=True)


def ends(caller: Caller, execution: Execution) -> dict[str, int | None]:
    with caller.acting():
        steps = ExecutionStep.objects.filter(execution=execution).order_by("position")
        return {step.step_id: step.ended_nth for step in steps}


def test_steps_that_ended_before_they_were_numbered_are_numbered_as_they_ended(server: WorkerServer) -> None:
    kee = make_caller(make_tenant("acme"))
    make_worker(kee, server)
    done = begin(kee, [{**REPORT, "depends_on": ["late"]}, call_step("late", depends_on=["early"]), call_step("early")])
    under_way = begin(kee, [queue_step("open"), call_step("early")])
    for execution in (done, under_way):
        advance(execution)
    before = {execution.pk: ends(kee, execution) for execution in (done, under_way)}
    assert before == {done.pk: {"report": 3, "late": 2, "early": 1}, under_way.pk: {"open": None, "early": 1}}
    try:
        call_command("migrate", "executions", "0001", verbosity=0)
    finally:
        call_command("migrate", "executions", verbosity=0)

    assert {execution.pk: ends(kee, execution) for execution in (done, under_way)} == before
