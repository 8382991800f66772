"""What readers of an execution receive: the same shape from selectors, REST, MCP and the console."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from apps.core.schemas import Output


class StepResult(Output):
    """The outcome of one step, in short."""

    step_id: str
    worker_id: str | None
    tool_name: str | None
    status: str
    key_findings: dict[str, Any]
    result_pointer: str | None
    task_id: str | None = Field(validation_alias="task_ref")
    error: dict[str, Any] | None
    promotion_recommendation: dict[str, Any] | None


class StepOutput(Output):
    """One step as its owner sees it."""

    step_id: str
    step_type: str
    status: str
    worker_id: str | None
    tool_name: str | None
    depends_on: list[str]
    task_id: str | None = Field(validation_alias="task_ref")
    receipt_id: str | None
    """The receipt that asked you for this step's result or decision."""
    attempts: int
    cost: float
    envelope: dict[str, Any] | None
    """The step's ResultEnvelope: status, payload or result_pointer, provenance, error."""
    started_at: datetime | None
    ended_at: datetime | None


class ExecutionReport(Output):
    """The completion report; readable at any time, complete at the end."""

    execution_id: str | None = None
    """null: the plan has not been executed."""
    plan_id: str
    status: str
    """The execution's status; or not_started; or abandoned: the plan was replaced, forgotten, or waited too long."""
    strategy: str | None = None
    summary: str
    results: list[StepResult] = []
    report: dict[str, Any] | None = None
    """What the plan's last step reports: report_summary and recommendation."""
    next_actions: list[str]
    steps: list[StepOutput] = []
    steps_complete: int = 0
    steps_total: int
    completed_steps: list[str] = []
    wait_for_receipts: list[str] = []
    async_task_ids: list[str] = []
    total_cost: float = 0.0
    currency: str = "USD"
    escalation: dict[str, Any] | None = None
    receipt_id: str | None
    """The plan's receipt, which causes everything that the execution does."""
    terminal_receipt_id: str | None = None
    created_at: datetime | None = None
    ended_at: datetime | None = None


class ExecutionSummary(Output):
    execution_id: str = Field(validation_alias="ref")
    plan_id: str
    status: str
    intent: str
    created_at: datetime
    ended_at: datetime | None


class CallOutcome(Output):
    """The outcome of a call without a plan."""

    status: Literal["complete", "queued"]
    result: dict[str, Any] | None = None
    """The tool's answer; null if the call was queued."""
    result_pointer: str | None = None
    task_id: str | None = None
    poll_suggestion_seconds: int | None = None
    is_duplicate: bool = False
    receipt_id: str | None = None
