"""Operations of executions: what agents, and parents of DeleGates, carry plans out with."""

from datetime import datetime, timedelta
from decimal import Decimal
from time import monotonic, sleep
from typing import Annotated, Any, Final, Literal

from django.utils import timezone
from pydantic import Field

from apps.core.errors import FieldError, Invalid
from apps.core.ids import decode_position, encode_cursor
from apps.core.operations import Progress, Reply, Route, Streams, Waits, operation
from apps.core.schemas import Cursor, Input, Output, Text
from apps.executions import calls, selectors, services
from apps.executions.selectors import Report
from apps.executions.services import Answered, Budget, CallMode, Handed, TaskWishes
from apps.executions.services.answering import Decision
from apps.executions.signals import execution_topic
from apps.executions.states import FINAL, SETTLED, Mode, Status, StepStatus, Strategy
from apps.plans import selectors as plans
from apps.plans.selectors import StoredPlan
from apps.plans.services import Replacement
from apps.plans.shapes import Money
from apps.principals.tenancy import Caller

_PATIENCE: Final = timedelta(seconds=5)
_LOOK_SECONDS: Final = 0.05
_RESULT_BYTES: Final = 4 * 1024 * 1024
_BASE: Final = "/api/v1/executions"
_STATUS: Final = "/api/v1/plans/{plan_id}/execution"
_UNDER_WAY: Final = frozenset({Status.QUEUED, Status.EXECUTING, Status.NEEDS_ESCALATION})
_MESSAGE: Final = 500

ExecutionRef = Annotated[str, Field(max_length=40)]
StepId = Annotated[Text, Field(min_length=1, max_length=100)]
PlanId = Annotated[Text, Field(min_length=1, max_length=100)]


class ExecutionBudget(Input):
    """What the execution may cost, by the estimates of its steps, or by what their workers ask by then where that is more."""

    max_total_cost: Money | None = None
    max_cost_per_step: Money | None = None
    currency: Literal["USD"] = "USD"


class ExecutePlan(Input):
    plan_id: PlanId
    """The plan to carry out, from create_delegation_plan."""
    mode: Mode = Mode.AUTO
    """auto: fast steps directly, long ones as tasks. direct_only: direct steps are never queued. async_only: all are."""
    budget: ExecutionBudget | None = None
    strategy: Strategy = Strategy.SEQUENTIAL
    """What a failed step means: sequential and progressive end the plan, partial goes on with what there is,
    escalate also tells you at once. progressive tells whoever follows it of each step as it ends: get_plan_status with
    wait and a progress token, or the stream of the execution."""


class ExecutionStarted(Output):
    execution_id: str
    plan_id: str
    status: str
    """complete, partial (some results are there, others are under way), queued, or how the execution ended."""
    direct_results: list[dict[str, Any]]
    """What the steps that were called directly have found, one object per step with its step_id and result_pointer.
    What is large, or no object, is only behind the pointer."""
    async_tasks: list[dict[str, Any]]
    """The tasks that are under way or done, as step_id and task_id."""
    steps_complete: int
    steps_total: int
    next_actions: list[str]


class PlanRef(Input):
    plan_id: PlanId


class AskPlanStatus(PlanRef):
    wait: Annotated[float, Field(ge=0, le=60)] = 0
    """Wait up to so many seconds until the execution is over or needs you; then the report comes, as it is."""


class FollowPlan(PlanRef):
    after: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Begin after so many ends of steps. A `Last-Event-ID` header, which clients send when they come again, stands over it."""


class EndedStep(Output):
    number: int
    """The how manieth end of a step this is."""
    step_id: str
    status: str
    worker_id: str | None
    tool_name: str | None
    task_id: str | None
    key_findings: dict[str, Any]
    result_pointer: str | None
    error: dict[str, Any] | None
    promotion_recommendation: dict[str, Any] | None


class ExecutionTold(Output):
    """Steps that have ended, and where the execution stands."""

    execution_id: str | None
    plan_id: str
    status: str
    """Once it is complete, partial, failed, budget_exceeded or canceled, nothing more comes."""
    steps: list[EndedStep]
    steps_complete: int
    steps_total: int


class ExecutionName(Input):
    execution_id: ExecutionRef


class StepOutput(Output):
    step_id: str
    step_type: str
    status: str
    worker_id: str | None
    tool_name: str | None
    depends_on: list[str]
    task_id: str | None
    receipt_id: str | None
    """The receipt that asked you for this step's result or decision."""
    attempts: int
    cost: float
    envelope: dict[str, Any] | None
    """The step's ResultEnvelope: status, payload or result_pointer, provenance, error."""
    started_at: datetime | None
    ended_at: datetime | None
    ended_nth: int | None
    """The how manieth end of a step of this execution this was."""


class ExecutionReport(Output):
    """The completion report; readable at any time, complete at the end."""

    execution_id: str | None
    """null: the plan has not been executed."""
    plan_id: str
    status: str
    """How the execution stands; not_started, or abandoned: the plan was replaced, forgotten, or waited too long."""
    strategy: str | None
    summary: str
    results: list[dict[str, Any]]
    report: dict[str, Any] | None
    """What the plan's last step reports: report_summary and recommendation."""
    next_actions: list[str]
    steps: list[StepOutput]
    steps_complete: int
    steps_total: int
    completed_steps: list[str]
    wait_for_receipts: list[str]
    async_task_ids: list[str]
    total_cost: float
    currency: str
    escalation: dict[str, Any] | None
    receipt_id: str | None
    """The plan's receipt, which causes everything that the execution does."""
    terminal_receipt_id: str | None
    created_at: datetime | None
    ended_at: datetime | None


class SubmitResult(Input):
    execution_id: ExecutionRef
    step_id: StepId
    result: Any = None
    """The combined result, any JSON. Give this or result_pointer."""
    result_pointer: Annotated[Text, Field(min_length=1, max_length=2000)] | None = None
    """Where the combined result is, instead of result."""
    summary: Annotated[Text, Field(min_length=1, max_length=2000)]
    """One or two sentences for whoever reads the execution's report."""


class Decide(Input):
    execution_id: ExecutionRef
    step_id: StepId
    decision: Decision
    """accept completes the step; reject fails it and ends the plan."""
    note: Annotated[Text, Field(max_length=2000)] | None = None


class CancelExecution(Input):
    execution_id: ExecutionRef
    reason: Annotated[Text, Field(max_length=2000)] | None = None


class ExecutionMoved(Output):
    """Where the execution stands now."""

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
    mode: CallMode = CallMode.AUTO
    """auto: direct if the worker says it is fast and there is no idempotency_key, else a task. direct: wait for the answer. async: a task."""
    execution_id: ExecutionRef | None = None
    """An execution of yours that a queued call belongs to: its receipts come in the same digest and chain."""
    caused_by_receipt_id: Annotated[Text, Field(max_length=100)] | None = None
    idempotency_key: Annotated[Text, Field(min_length=1, max_length=200)] | None = None
    """The same key with the same call answers the first task again. Not for direct calls, which are made each time."""


class CallOutcome(Output):
    status: Literal["complete", "queued"]
    result: dict[str, Any] | None = None
    """What the tool answered; null if the call was queued."""
    result_pointer: str | None = None
    task_id: str | None = None
    poll_suggestion_seconds: int | None = None
    is_duplicate: bool = False
    receipt_id: str | None = None


class Replan(Input):
    plan_id: PlanId
    failed_step: StepId
    """The step that failed, or that you know will fail."""
    error: Annotated[Text, Field(max_length=2000)] = ""
    """What went wrong; left out, what the step's execution says."""
    context: Annotated[dict[str, Any], Field(max_length=200)] | None = None
    """Values for params by name, beside those that the plan had taken from its context."""
    max_total_cost: Money | None = None
    """What the steps that are left may cost; left out, what is left of the old plan's bounds and its execution's budget."""


class Replanned(Output):
    plan: dict[str, Any]
    """The new plan. Steps with `done` keep the results that they have."""
    plan_id: str
    replaces: str
    status: Literal["ready", "needs_escalation"]
    kept_steps: list[str]
    can_execute_now: bool
    receipt_id: str
    receipt_uuid: str


class ListExecutions(Input):
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    cursor: Cursor | None = None


class ExecutionSummary(Output):
    execution_id: str
    plan_id: str
    status: str
    intent: str
    created_at: datetime
    ended_at: datetime | None


class ExecutionList(Output):
    executions: list[ExecutionSummary]
    next: str | None
    """Pass it as cursor for older ones; null: these are all."""


@operation(
    title="Carry out a plan",
    scope="plans",
    routes=[Route("POST", _BASE, status=201)],
    idempotent=True,
    own_transactions=True,
)
def execute_delegation_plan(caller: Caller, given: ExecutePlan) -> ExecutionStarted:
    """Carry out a plan. Fast steps are done at once and their results are in the answer; long ones become tasks.

    Go on with other work then: each task's end comes to your inbox, and when your part is needed (combining results,
    a decision) a receipt asks for it and says which call answers it. Calling this again for the same plan answers the
    same execution. A plan with status needs_escalation has nothing to carry out and is refused.
    """
    budget = given.budget or ExecutionBudget()
    with caller.acting():
        execution = services.start(
            caller=caller,
            plan_id=given.plan_id,
            mode=given.mode,
            strategy=given.strategy,
            budget=Budget(
                max_total_cost=_money(budget.max_total_cost),
                max_cost_per_step=_money(budget.max_cost_per_step),
                currency=budget.currency,
            ),
            now=timezone.now(),
        )
    until = monotonic() + _PATIENCE.total_seconds()
    services.advance(tenant_id=caller.tenant_id, execution_id=execution.pk, patience=_PATIENCE)
    report = _settled(caller, execution.ref, until=until)
    return ExecutionStarted(
        execution_id=report.execution_id,
        plan_id=report.plan_id,
        status=_answered_status(report),
        direct_results=report.direct_results,
        async_tasks=report.async_tasks,
        steps_complete=report.steps_complete,
        steps_total=report.steps_total,
        next_actions=report.next_actions,
    )


@operation(title="Plan again", scope="plans", routes=[Route("POST", "/api/v1/plans/{plan_id}/replan", status=201)])
def replan_plan(caller: Caller, given: Replan) -> Replanned:
    """Make the plan that takes the place of one of which a step failed. Carry it out with execute_delegation_plan.

    What has run to its end keeps its result and is not run again; what failed is not used again. The old plan is over:
    it can't be carried out any more.
    """
    made = services.replan(
        caller=caller,
        replacement=Replacement(
            plan_id=given.plan_id,
            failed_step=given.failed_step,
            reason=given.error,
            context=given.context or {},
            max_total_cost=given.max_total_cost,
        ),
        now=timezone.now(),
    )
    return Replanned(
        plan=dict(made.document),
        plan_id=made.plan_id,
        replaces=given.plan_id,
        status=made.document["status"],
        kept_steps=[step["step_id"] for step in made.document["steps"] if step.get("done")],
        can_execute_now=made.readiness.can_execute_now,
        receipt_id=made.receipt_id,
        receipt_uuid=str(made.receipt_uuid),
    )


def _needs_no_waiting(report: ExecutionReport) -> bool:
    """It is over, has not begun, or goes on only when its reader has answered."""
    return report.status not in _UNDER_WAY or bool(report.wait_for_receipts)


def _progress(report: ExecutionReport) -> Progress | None:
    ended = [step for step in report.steps if step.status in SETTLED]
    if report.strategy != Strategy.PROGRESSIVE or not ended:
        return None
    last = max(ended, key=lambda step: step.ended_nth or 0)
    told = (last.envelope or {}).get("summary")
    message = f"{last.step_id}: {last.status}{f'. {told}' if told else ''}"
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
)
def get_plan_status(caller: Caller, given: AskPlanStatus) -> ExecutionReport:
    """Read how far the execution of a plan is: status, steps with their results so far, and what you may do next.

    There is no need to poll: what concerns you comes to your inbox. With `wait` it stays until the execution is over or
    needs you; of a progressive one it tells meanwhile of each step that ends, if you give a progress token.
    """
    report = selectors.report_of_plan(caller, given.plan_id)
    return _not_begun(caller, given.plan_id) if report is None else _rendered(report)


def _told(caller: Caller, given: FollowPlan) -> ExecutionTold:
    told = selectors.told_of_plan(caller, given.plan_id, after=given.after)
    return ExecutionTold(
        execution_id=told.execution_id,
        plan_id=given.plan_id,
        status=told.status,
        steps=[EndedStep(number=number, **result) for number, result in told.steps],
        steps_complete=told.steps_complete,
        steps_total=told.steps_total,
    )


def _begin(caller: Caller, given: FollowPlan) -> None:
    _told(caller, given)


@operation(
    title="Follow an execution",
    scope="plans",
    routes=[Route("GET", f"{_STATUS}/stream")],
    read_only=True,
    tool=False,
    waits=Waits(
        topics=lambda caller, given: [execution_topic(caller.tenant_id, given.plan_id)],
        found=lambda told: bool(told.steps),
        worth_waking=lambda _, told: bool(told.steps),
    ),
    streams=Streams(
        event="steps",
        mark=lambda told: told.steps[-1].number,
        resumes="after",
        begin=_begin,
        further=lambda given, told: FollowPlan(plan_id=given.plan_id, after=told.steps[-1].number),
    ),
)
def follow_execution(caller: Caller, given: FollowPlan) -> ExecutionTold:
    """Server-sent events: the steps of a plan's execution as they end, with what each came to.

    Of a progressive execution an event named `steps` comes whenever some have ended; of another, one when all is over.
    Its id is the number of the last one, so that a client that comes again with `Last-Event-ID` goes on without a gap or
    a repetition. The last event has the execution's final status. It may begin before the execution does.
    """
    return _told(caller, given)


@operation(
    title="Read an execution",
    scope="plans",
    routes=[Route("GET", f"{_BASE}/{{execution_id}}")],
    read_only=True,
    tool=False,
)
def get_execution(caller: Caller, given: ExecutionName) -> ExecutionReport:
    """Read the completion report of an execution, at any time."""
    return _rendered(selectors.report(caller, given.execution_id))


@operation(title="List executions", scope="plans", routes=[Route("GET", _BASE)], read_only=True, tool=False)
def list_executions(caller: Caller, given: ListExecutions) -> ExecutionList:
    """List the executions that you own or asked for, newest first."""
    before = None if given.cursor is None else decode_position(given.cursor)
    found = selectors.executions(caller, before=before, limit=given.limit + 1)
    page = found[: given.limit]
    return ExecutionList(
        executions=[
            ExecutionSummary(
                execution_id=one.ref,
                plan_id=one.plan_id,
                status=one.status,
                intent=one.intent,
                created_at=one.created_at,
                ended_at=one.ended_at,
            )
            for one in page
        ],
        next=encode_cursor(page[-1].pk) if len(found) > len(page) else None,
    )


@operation(
    title="Hand in a combined result",
    scope="plans",
    routes=[Route("POST", f"{_BASE}/{{execution_id}}/steps/{{step_id}}/result", max_body=_RESULT_BYTES)],
    idempotent=True,
    own_transactions=True,
)
def submit_step_result(caller: Caller, given: SubmitResult) -> ExecutionMoved:
    """Hand in what you made of the results that an `aggregate_requested` receipt handed to you.

    This closes what you owe for that step and lets the plan go on. Handing in the same result twice changes nothing.
    """
    if (given.result is None) == (given.result_pointer is None):
        raise Invalid(
            "Give either result or result_pointer.", errors=[FieldError("/result", "exactly one of the two is needed")]
        )
    with caller.acting():
        selectors.refuse_unless_open(caller, given.execution_id, given.step_id)
    pointer = given.result_pointer or calls.keep(caller=caller, value=given.result)
    handed = Handed(result=given.result, result_pointer=pointer, summary=given.summary)
    with caller.acting():
        execution = services.submit_step_result(
            caller=caller, execution_ref=given.execution_id, step_id=given.step_id, handed=handed
        )
        return _moved(selectors.report_on(execution), given.step_id)


@operation(
    title="Decide on an escalation",
    scope="plans",
    routes=[Route("POST", f"{_BASE}/{{execution_id}}/steps/{{step_id}}/decide")],
    idempotent=True,
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
    scope="plans",
    output=ExecutionMoved,
    routes=[Route("POST", f"{_BASE}/{{execution_id}}/cancel", also=(202,))],
    destructive=True,
    idempotent=True,
)
def cancel_execution(caller: Caller, given: CancelExecution) -> Reply:
    """Stop an execution: what has not begun never will, its open tasks are canceled, and you owe nothing for it any more.

    The status stays `executing` while a worker has yet to obey; then it becomes `canceled`.
    """
    execution = services.cancel(caller=caller, execution_ref=given.execution_id, reason=given.reason)
    moved = _moved(selectors.report_on(execution), None)
    return Reply(moved, 200 if execution.is_final else 202)


@operation(
    title="Call a worker's tool",
    scope="plans",
    routes=[Route("POST", "/api/v1/workers/{worker_id}/tools/{tool_name}/call")],
    own_transactions=True,
)
def call_worker_tool(caller: Caller, given: CallWorkerTool) -> CallOutcome:
    """Call one tool of one worker without a plan.

    A direct call answers with the result. A queued one answers a task_id: its end comes to your inbox, and
    fetch_task_result brings the result.
    """
    answer = services.call_worker(
        caller=caller,
        worker_id=given.worker_id,
        tool_name=given.tool_name,
        params=given.params,
        mode=given.mode,
        task=TaskWishes(
            idempotency_key=given.idempotency_key,
            caused_by=given.caused_by_receipt_id,
            execution_ref=given.execution_id,
        ),
    )
    if isinstance(answer, Answered):
        return CallOutcome(status="complete", result=answer.payload, result_pointer=answer.result_pointer)
    return CallOutcome(
        status="queued",
        task_id=answer.task_id,
        poll_suggestion_seconds=answer.poll_suggestion_seconds,
        is_duplicate=answer.is_duplicate,
        receipt_id=answer.receipt_id,
    )


def _settled(caller: Caller, execution_ref: str, *, until: float) -> Report:
    """The execution once nobody is in the middle of a call for it: another process may have claimed its steps first."""
    while True:
        with caller.acting():
            report = selectors.report(caller, execution_ref)
        if monotonic() > until or not any(line.status == StepStatus.CALLING for line in report.lines):
            return report
        sleep(_LOOK_SECONDS)


def _money(amount: float | None) -> Decimal | None:
    return None if amount is None else Decimal(str(amount)).quantize(Decimal("0.000001"))


def _answered_status(report: Report) -> str:
    """What is said of an execution that goes on after the answer: partial if there is something to read already."""
    if report.status in FINAL or report.status == Status.NEEDS_ESCALATION:
        return report.status
    return "partial" if report.direct_results else "queued"


def _moved(report: Report, step_id: str | None) -> ExecutionMoved:
    return ExecutionMoved(
        execution_id=report.execution_id,
        plan_id=report.plan_id,
        status=report.status,
        step_status=next((step.status for step in report.steps if step.step_id == step_id), None),
        next_actions=report.next_actions,
    )


def _not_begun(caller: Caller, plan_id: str) -> ExecutionReport:
    plan = plans.plan_for(plan_id, caller=caller)
    if not plan.is_ready and not plan.is_forgotten:
        return _refused(plan)
    if not plans.can_be_begun(plan):
        begun = selectors.report_of_plan(caller, plan_id)
        return _abandoned(plan) if begun is None else _rendered(begun)
    return _nothing_of(
        plan,
        status="not_started",
        summary=f"{plan.document['intent']}: not begun.",
        next_action=f'execute_delegation_plan(plan_id="{plan.plan_id}")',
    )


def _refused(plan: StoredPlan) -> ExecutionReport:
    (step,) = plan.document["steps"]
    return _nothing_of(
        plan,
        status=plan.status,
        summary=f"{plan.document['intent']}: nothing was done.",
        next_action=f"{step['recommendation']} Then create_delegation_plan.",
    )


def _abandoned(plan: StoredPlan) -> ExecutionReport:
    successor = plans.successor_of(plan.plan_id)
    return _nothing_of(
        plan,
        status="abandoned",
        summary=f"{plan.document['intent']}: " + (f"replaced by {successor}." if successor else "not begun in time."),
        next_action=f'get_plan_status(plan_id="{successor}")' if successor else "create_delegation_plan",
    )


def _nothing_of(plan: StoredPlan, *, status: str, summary: str, next_action: str) -> ExecutionReport:
    """What there is to say of a plan without an execution."""
    return ExecutionReport(
        execution_id=None,
        plan_id=plan.plan_id,
        status=status,
        strategy=None,
        summary=summary,
        results=[],
        report=None,
        next_actions=[next_action],
        steps=[],
        steps_complete=0,
        steps_total=len(plan.document["steps"]),
        completed_steps=[],
        wait_for_receipts=[],
        async_task_ids=[],
        total_cost=0.0,
        currency="USD",
        escalation=None,
        receipt_id=plan.receipt_id,
        terminal_receipt_id=None,
        created_at=None,
        ended_at=None,
    )


def _rendered(report: Report) -> ExecutionReport:
    return ExecutionReport(
        execution_id=report.execution_id,
        plan_id=report.plan_id,
        status=report.status,
        strategy=report.strategy,
        summary=report.summary,
        results=report.results,
        report=report.report,
        next_actions=report.next_actions,
        steps=[StepOutput.model_validate(step) for step in report.steps],
        steps_complete=report.steps_complete,
        steps_total=report.steps_total,
        completed_steps=[step.step_id for step in report.steps if step.status == "complete"],
        wait_for_receipts=[step.receipt_id for step in report.steps if step.receipt_id and step.status == "awaiting"],
        async_task_ids=[task["task_id"] for task in report.async_tasks],
        total_cost=float(report.total_cost),
        currency=report.currency,
        escalation=report.escalation,
        receipt_id=report.receipt_id,
        terminal_receipt_id=report.terminal_receipt_id,
        created_at=report.created_at,
        ended_at=report.ended_at,
    )
