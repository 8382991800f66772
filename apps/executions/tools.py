"""Operations of executions."""

from collections.abc import Mapping
from datetime import timedelta
from operator import attrgetter
from time import monotonic, sleep
from typing import Annotated, Any, Final, Literal

from django.utils import timezone
from pydantic import Field

from apps.core.errors import FieldError, Invalid
from apps.core.ids import encode_cursor
from apps.core.operations import Asks, Progress, Reply, Route, Waits, operation
from apps.core.schemas import Input, Moment, Output, Paged, Text
from apps.executions import calls, selectors, services
from apps.executions.calls import CallMode
from apps.executions.services import Decision
from apps.executions.shapes import CallOutcome, ExecutionReport, ExecutionSummary
from apps.executions.states import FINAL, Mode, Status, StepStatus, Strategy
from apps.executions.wakeups import execution_topic
from apps.plans import selectors as plans
from apps.plans import services as planning
from apps.plans.shapes import Budget, CreatePlan, Money, OnePlan, PlanAnswer, StepType
from apps.principals.tenancy import Caller

_PATIENCE: Final = timedelta(seconds=10)
_LOOK_SECONDS: Final = 0.05
_RESULT_BYTES: Final = 4 * 1024 * 1024
_BASE: Final = "/api/v1/executions"
_STATUS: Final = "/api/v1/plans/{plan_id}/execution"
_UNDER_WAY: Final = frozenset({Status.QUEUED, Status.EXECUTING, Status.NEEDS_ESCALATION})
_MESSAGE: Final = 500
_DONE: Final = "Read the result in `execution`; it is in your inbox too, see read_inbox."

StepId = Annotated[Text, Field(min_length=1, max_length=100)]


class ExecutionRef(Input):
    execution_id: Annotated[str, Field(max_length=40)]


class StepRef(ExecutionRef):
    step_id: StepId


class ExecutePlan(OnePlan):
    mode: Mode = Mode.AUTO
    """auto: fast steps directly, long ones as tasks. direct_only: direct steps are never queued. async_only: all are."""
    budget: Budget | None = None
    """The limits of the cost, by the estimates of the steps, or by their workers' present prices where those are higher."""
    strategy: Strategy = Strategy.SEQUENTIAL
    """What a failed step means: sequential and progressive end the plan, partial goes on with what there is, escalate
    also notifies you at once. progressive reports each step as it ends, to get_plan_status with wait and a progress
    token."""


class ExecutionStarted(Output):
    execution_id: str
    plan_id: str
    status: str
    """complete, partial (some results are there, others are under way), queued, or how the execution ended."""
    direct_results: list[dict[str, Any]]
    """The results of the steps that were called directly, one object per step with its step_id and result_pointer.
    A large result, or one that is no object, is only behind the pointer."""
    async_tasks: list[dict[str, Any]]
    """The tasks that are under way or done, as step_id and task_id."""
    steps_complete: int
    steps_total: int
    next_actions: list[str]


class CarryOut(CreatePlan):
    mode: Mode = Mode.AUTO
    """As in execute_delegation_plan."""


class CarriedOut(PlanAnswer):
    execution: ExecutionStarted | None
    """None: the plan is not ready; `next_step` says what to do."""


class AskPlanStatus(OnePlan):
    wait: Annotated[float, Field(ge=0, le=60)] = 0
    """Wait up to so many seconds until the execution is over or needs you; then the report comes, as it is."""


class SubmitResult(StepRef):
    result: Any = None
    """The combined result, any JSON."""
    result_pointer: Annotated[Text, Field(min_length=1, max_length=2000)] | None = None
    """Where the combined result is, instead of result."""
    summary: Annotated[Text, Field(min_length=1, max_length=2000)]
    """One or two sentences for readers of the execution's report."""


class Decide(StepRef):
    decision: Decision
    """accept completes the step; reject fails it and ends the plan."""
    note: Annotated[Text, Field(max_length=2000)] | None = None


class CancelExecution(ExecutionRef):
    reason: Annotated[Text, Field(max_length=2000)] | None = None


class ExecutionMoved(Output):
    """The execution's state now."""

    execution_id: str
    plan_id: str
    status: str
    step_status: str | None = None
    next_actions: list[str]


class CallWorkerTool(Input):
    worker_id: Annotated[Text, Field(min_length=1, max_length=100)]
    tool_name: Annotated[Text, Field(min_length=1, max_length=200)]
    params: dict[str, Any]
    """Validated against the tool's input schema; see get_worker_manifest."""
    answers: Annotated[dict[str, dict[str, Any] | None], Field(max_length=20)] | None = None
    """To what the tool asked in an earlier call: the fields by the question's key, or null to decline. `{"*": {}}` takes
    the defaults of whatever it asks."""
    mode: CallMode = CallMode.AUTO
    """auto: direct if the worker declares the tool fast and there is no idempotency_key, else a task. direct: wait for
    the answer. async: a task."""
    execution_id: Annotated[str, Field(max_length=40)] | None = None
    """An execution of yours that a queued call belongs to: its receipts come in the same digest and chain."""
    caused_by_receipt_id: Annotated[Text, Field(max_length=100)] | None = None
    idempotency_key: Annotated[Text, Field(min_length=1, max_length=200)] | None = None
    """The same key with the same call returns the first task again. Not for direct calls, which are made each time."""


class Replan(OnePlan):
    failed_step: StepId
    """The step that failed, or that you know will fail."""
    error: Annotated[Text, Field(max_length=2000)] = ""
    """What went wrong; default: the error of the step's execution."""
    max_total_cost: Money | None = None
    """The cost limit of the remaining steps; default: what is left of the old plan's and its execution's budget."""


class Replanned(PlanAnswer):
    replaces: str
    kept_steps: list[str]
    """Those with `done`, which keep their results."""


class ExecutionList(Output):
    executions: list[ExecutionSummary]
    next: str | None
    """Pass it as cursor for older ones; null: these are all."""


def _under_way(started: ExecutionStarted | None) -> str | None:
    """The execution, unless it has ended."""
    return None if started is None or started.status in FINAL - {Status.PARTIAL} else started.execution_id


@operation(
    title="Carry out a plan",
    scope="plans",
    routes=[Route("POST", _BASE, status=201)],
    idempotent=True,
    own_transactions=True,
    listed_for=["agent"],
    example={"plan_id": "plan_7"},
    after_refusal="The plan is not ready: confirm_plan first, or answer_plan by call_tool; or ask anew. Over a budget, raise it or ask for less.",
    under_way=_under_way,
)
def execute_delegation_plan(caller: Caller, given: ExecutePlan) -> ExecutionStarted:
    """Carry out a plan. Fast steps are done at once and their results are in the answer; long ones become tasks.

    Go on with other work then: each task's end comes to your inbox, and when your part is needed (combining results,
    a decision) a receipt asks for it and says which call answers it. Calling this again for the same plan answers the
    same execution.
    """
    return _executed(caller, given)


def _executed(caller: Caller, given: ExecutePlan, *, answers_inbox: bool = False) -> ExecutionStarted:
    with caller.acting():
        execution = services.start(
            caller=caller,
            plan_id=given.plan_id,
            mode=given.mode,
            strategy=given.strategy,
            budget=given.budget or Budget(),
            answers_inbox=answers_inbox,
            now=timezone.now(),
        )
    until = monotonic() + _PATIENCE.total_seconds()
    services.advance(tenant_id=caller.tenant_id, execution_id=execution.pk, patience=_PATIENCE)
    while True:
        with caller.acting():
            report = selectors.report_on(selectors.execution_of(caller, execution.ref))
        # Another process may have claimed its steps first.
        if monotonic() > until or not any(step.status == StepStatus.CALLING for step in report.steps):
            break
        sleep(_LOOK_SECONDS)
    payloads = [
        (step, (step.envelope or {}).get("payload"))
        for step in report.steps
        if step.step_type == StepType.CALL_WORKER and step.status == StepStatus.COMPLETE and not step.task_id
    ]
    status = report.status
    if status not in FINAL and status != Status.NEEDS_ESCALATION:
        status = "partial" if payloads else "queued"
    return ExecutionStarted(
        execution_id=execution.ref,
        plan_id=report.plan_id,
        status=status,
        direct_results=[
            {
                **(payload if isinstance(payload, dict) else {}),
                "step_id": step.step_id,
                "result_pointer": (step.envelope or {}).get("result_pointer"),
            }
            for step, payload in payloads
        ],
        async_tasks=[{"step_id": step.step_id, "task_id": step.task_id} for step in report.steps if step.task_id],
        steps_complete=report.steps_complete,
        steps_total=report.steps_total,
        next_actions=report.next_actions,
    )


def _carried_out(caller: Caller, given: CarryOut, made: PlanAnswer) -> CarriedOut:
    if made.status == "needs_confirmation":
        with caller.acting():
            # What a model makes up might carry something out to an address.
            if made.plan["proposer"] == "local" and plans.only_reads(made.plan, tenant_id=caller.tenant_id):
                sure = planning.settle(caller=caller, plan_id=made.plan_id, answers=None, now=timezone.now())
                made = plans.answer_of(sure)
    members = {name: getattr(made, name) for name in PlanAnswer.model_fields}
    if made.status != "ready":
        return CarriedOut(**members, execution=None)
    execution = _executed(caller, ExecutePlan(plan_id=made.plan_id, mode=given.mode), answers_inbox=True)
    return CarriedOut(
        **members | {"next_step": execution.next_actions[0] if execution.next_actions else _DONE}, execution=execution
    )


def _go_on(caller: Caller, given: CarryOut, plan_id: str, answers: Mapping[str, Any] | None) -> CarriedOut:
    made = planning.go_on(caller=caller, plan_id=plan_id, answers=answers, now=timezone.now())
    return _carried_out(caller, given, made)


@operation(
    title="Have a request carried out",
    scope="plans",
    routes=[Route("POST", "/api/v1/requests", status=201)],
    own_transactions=True,
    listed_for=["agent"],
    example={"intent": "Send the weather of Vienna to ops@example.com"},
    after_refusal="That no plan is ready is no refusal: next_step of the answer says what to do.",
    asks=Asks(questionnaire=plans.questionnaire_of, go_on=_go_on),
    under_way=lambda carried_out: _under_way(carried_out.execution),
)
def carry_out_request(caller: Caller, given: CarryOut) -> CarriedOut:
    """Ask for something in plain words, and have it done at once if the plan is ready.

    A plan with a guessed value is carried out only if it changes nothing. Results of fast steps are in the answer, and
    the end comes to your inbox. If the plan is not ready, nothing runs: confirm it with confirm_plan, or
    answer its questions with answer_plan, by call_tool. Then pass the new plan_id to execute_delegation_plan.
    """
    return _carried_out(caller, given, planning.plan_request(caller=caller, given=given, now=timezone.now()))


@operation(
    title="Plan again",
    scope="plans",
    routes=[Route("POST", "/api/v1/plans/{plan_id}/replan", status=201)],
    example={"plan_id": "plan_7", "failed_step": "s2"},
    after_refusal="get_plan_status shows the steps and their states.",
)
def replan_plan(caller: Caller, given: Replan) -> Replanned:
    """Make the plan that takes the place of one of which a step failed. Carry it out with execute_delegation_plan.

    What has run to its end keeps its result and is not run again; what failed is not used again. The old plan is over:
    it can't be carried out any more.
    """
    made = services.replan(
        caller=caller,
        plan_id=given.plan_id,
        failed_step=given.failed_step,
        reason=given.error,
        max_total_cost=given.max_total_cost,
        now=timezone.now(),
    )
    return Replanned(
        **plans.answer_of(made).model_dump(),
        replaces=given.plan_id,
        kept_steps=[step["step_id"] for step in made.document["steps"] if step.get("done")],
    )


def _needs_no_waiting(report: ExecutionReport) -> bool:
    """It is over, has not begun, or waits for its reader's answer."""
    return report.status not in _UNDER_WAY or bool(report.wait_for_receipts)


def _progress(report: ExecutionReport) -> Progress | None:
    ended = sorted((step for step in report.steps if step.ended_at), key=attrgetter("ended_at"))
    if report.strategy != Strategy.PROGRESSIVE or not ended:
        return None
    last = ended[-1]
    summary = (last.envelope or {}).get("summary")
    message = f"{last.step_id}: {last.status}{f'. {summary}' if summary else ''}"
    return Progress(done=len(ended), total=report.steps_total, message=message[:_MESSAGE])


@operation(
    title="How far is a plan",
    scope="plans",
    routes=[Route("GET", _STATUS)],
    read_only=True,
    waits=Waits(
        topics=lambda caller, given: [execution_topic(caller.tenant_id, given.plan_id)],
        found=_needs_no_waiting,
        worth_waking=lambda _, report: _needs_no_waiting(report),
        patience=lambda given: given.wait,
        progress=_progress,
    ),
    listed_for=["agent"],
    example={"plan_id": "plan_7", "wait": 30},
    after_refusal="The plan is unknown, or not yours: list_plans, by call_tool, shows yours.",
)
def get_plan_status(caller: Caller, given: AskPlanStatus) -> ExecutionReport:
    """Read how far the execution of a plan is: status, steps with their results so far, and what you may do next.

    There is no need to poll: what concerns you comes to your inbox. With `wait` it stays until the execution is over or
    needs you.
    """
    return selectors.report_of_plan(caller, given.plan_id)


@operation(
    title="Read an execution",
    scope="plans",
    routes=[Route("GET", f"{_BASE}/{{execution_id}}")],
    read_only=True,
    tool=False,
)
def get_execution(caller: Caller, given: ExecutionRef) -> ExecutionReport:
    """Read the completion report of an execution, at any time."""
    return selectors.report_on(selectors.execution_of(caller, given.execution_id))


class ListExecutions(Paged):
    status: Literal[tuple(Status.values)] | None = None  # type: ignore[valid-type]  # mypy reads no enumeration here
    since: Moment | None = None
    """Created at this moment or later."""


@operation(
    title="List executions",
    scope="plans",
    routes=[Route("GET", _BASE)],
    read_only=True,
    example={"status": "failed", "limit": 20},
)
def list_executions(caller: Caller, given: ListExecutions) -> ExecutionList:
    """List the executions that you own or asked for, newest first."""
    fitting = {"status": given.status, "created_at__gte": given.since}
    found = selectors.executions(caller, before=given.position, limit=given.limit + 1, **fitting)
    page = found[: given.limit]
    return ExecutionList(
        executions=[ExecutionSummary.model_validate(one) for one in page],
        next=encode_cursor(page[-1].pk) if len(found) > len(page) else None,
    )


@operation(
    title="Submit a combined result",
    scope="plans",
    routes=[Route("POST", f"{_BASE}/{{execution_id}}/steps/{{step_id}}/result", max_body=_RESULT_BYTES)],
    idempotent=True,
    listed_for=["agent"],
    example={"execution_id": "exec_3", "step_id": "s4", "result": {"total": 9}, "summary": "Nine in total."},
    after_refusal="The step waits for no result of yours: get_plan_status says what it waits for.",
)
def submit_step_result(caller: Caller, given: SubmitResult) -> ExecutionMoved:
    """Submit the result that an `aggregate_requested` receipt asked you for.

    This closes your obligation for that step, and the plan continues. Submitting the same result twice changes nothing.
    """
    if (given.result is None) == (given.result_pointer is None):
        raise Invalid(
            "Give either result or result_pointer.", errors=[FieldError("/result", "exactly one of the two is needed")]
        )
    execution = services.submit_step_result(
        caller=caller,
        execution_ref=given.execution_id,
        step_id=given.step_id,
        result=given.result,
        result_pointer=given.result_pointer,
        summary=given.summary,
    )
    return _moved(selectors.report_on(execution), given.step_id)


@operation(
    title="Decide on an escalation",
    scope="plans",
    routes=[Route("POST", f"{_BASE}/{{execution_id}}/steps/{{step_id}}/decide")],
    idempotent=True,
    example={"execution_id": "exec_3", "step_id": "s2", "decision": "accept"},
)
def decide_step(caller: Caller, given: Decide) -> ExecutionMoved:
    """Answer an escalation that asked you for a decision, and let the plan go on or end."""
    execution = services.decide_step(
        caller=caller,
        execution_ref=given.execution_id,
        step_id=given.step_id,
        decision=given.decision,
        note=given.note,
    )
    return _moved(selectors.report_on(execution), given.step_id)


@operation(
    title="Cancel an execution",
    keywords="stop abort running plan",
    scope="plans",
    output=ExecutionMoved,
    routes=[Route("POST", f"{_BASE}/{{execution_id}}/cancel", also=(202,))],
    destructive=True,
    idempotent=True,
    example={"execution_id": "exec_3"},
    after_refusal="An execution that is over stays as it is.",
)
def cancel_execution(caller: Caller, given: CancelExecution) -> Reply:
    """Stop an execution: nothing more begins, its open tasks are canceled, and your obligations for it are closed.

    The status stays `executing` until its workers have stopped; then it becomes `canceled`.
    """
    execution = services.cancel(caller=caller, execution_ref=given.execution_id, reason=given.reason)
    moved = _moved(selectors.report_on(execution), None)
    return Reply(moved, 200 if execution.is_final else 202)


@operation(
    title="Call a tool of an MCP worker",
    scope="plans",
    routes=[Route("POST", "/api/v1/workers/{worker_id}/tools/{tool_name}/call")],
    own_transactions=True,
    example={"worker_id": "weather", "tool_name": "forecast", "params": {"city": "Vienna"}},
    after_refusal="get_worker_manifest shows the schema of the tool's params; list_workers shows who is available.",
    under_way=lambda outcome: outcome.task_id if outcome.status == "queued" else None,
)
def call_worker_tool(caller: Caller, given: CallWorkerTool) -> CallOutcome:
    """Call one tool of one worker without a plan.

    A direct call answers with the result. A queued one answers a task_id: its end comes to your inbox, and
    fetch_task_result brings the result. A tool that asks something is refused as `worker_asks`, with its questions;
    call it again with `answers`.
    """
    return calls.call_worker(
        caller=caller,
        worker_id=given.worker_id,
        tool_name=given.tool_name,
        params=given.params,
        mode=given.mode,
        answers=given.answers,
        idempotency_key=given.idempotency_key,
        caused_by=given.caused_by_receipt_id,
        execution_ref=given.execution_id,
    )


def _moved(report: ExecutionReport, step_id: str | None) -> ExecutionMoved:
    return ExecutionMoved(
        execution_id=report.execution_id or "",
        plan_id=report.plan_id,
        status=report.status,
        step_status=next((step.status for step in report.steps if step.step_id == step_id), None),
        next_actions=report.next_actions,
    )
