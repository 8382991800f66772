"""Executions and their steps: all facts that another process needs to continue."""

from decimal import Decimal
from typing import Any, Final, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from apps.core.errors import Conflict
from apps.core.ids import format_ref
from apps.executions.states import FINAL, SETTLED, STEP_TRANSITIONS, TRANSITIONS, Mode, Status, StepStatus, Strategy
from apps.plans.shapes import WORKER_STEPS, StepType
from apps.principals.models import Principal, TenantModel

_ENDED_BY: Final = {StepType.AGGREGATE: "submit_step_result", StepType.ESCALATE: "decide_step"}


class ExecutionQuerySet(models.QuerySet["Execution"]):
    def of(self, owner_id: int) -> Self:
        """The executions that this principal owns or asked for."""
        return self.filter(Q(owner_id=owner_id) | Q(requested_by_id=owner_id))

    def open(self) -> Self:
        return self.filter(ended_at=None)


class Execution(TenantModel):
    """The execution of one plan on its owner's behalf. A plan is executed once.

    `wake_at`: when a tick must look without a message; set while anything can continue by itself, so a lost message
    costs latency only. `halted_as`: the certain end while steps are still active; `halted_by`: the principal whose call
    caused it.
    """

    plan_id = models.CharField(max_length=100)
    plan_receipt_id = models.CharField(max_length=100)
    intent = models.TextField()
    owner = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="executions", db_index=False)
    requested_by = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    mode = models.CharField(max_length=11, choices=Mode, default=Mode.AUTO)
    strategy = models.CharField(max_length=11, choices=Strategy, default=Strategy.SEQUENTIAL)
    max_total_cost = models.DecimalField(max_digits=14, decimal_places=6, null=True)
    max_cost_per_step = models.DecimalField(max_digits=14, decimal_places=6, null=True)
    answers_inbox = models.BooleanField(
        default=False, help_text="Its end comes to the inbox of who asked for it, even if it is complete."
    )
    total_cost = models.DecimalField(max_digits=14, decimal_places=6, default=Decimal(0))
    status = models.CharField(max_length=16, choices=Status, default=Status.QUEUED)
    halted_as = models.CharField(max_length=16, choices=Status, null=True)
    halted_why = models.TextField(blank=True)
    halted_by = models.ForeignKey(Principal, on_delete=models.PROTECT, null=True, related_name="+", db_index=False)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    wake_at = models.DateTimeField(null=True)
    terminal_receipt_id = models.CharField(max_length=100, null=True)

    objects = ExecutionQuerySet.as_manager()

    class Meta:
        permissions = [("operate_execution", "Can answer steps of executions and cancel executions")]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "plan_id"], name="executions_execution_once_per_plan"),
            models.CheckConstraint(
                condition=Q(status__in=sorted(FINAL), ended_at__isnull=False, wake_at=None)
                | Q(~Q(status__in=sorted(FINAL)), ended_at=None, terminal_receipt_id=None),
                name="executions_execution_ended_iff_final",
            ),
            models.CheckConstraint(
                condition=Q(halted_as=None) | Q(halted_as__in=sorted(FINAL)),
                name="executions_execution_halts_as_final",
            ),
            models.CheckConstraint(
                condition=Q(max_total_cost=None) | Q(total_cost__lte=F("max_total_cost")),
                name="executions_execution_within_its_budget",
            ),
        ]
        indexes = [
            # Serves selectors.due(): open executions that are due.
            models.Index(fields=["wake_at"], condition=Q(ended_at=None), name="executions_execution_due"),
            # Serve selectors.executions(), and together ExecutionQuerySet.of().
            models.Index(fields=["owner", "-id"], name="executions_execution_by_owner"),
            models.Index(fields=["requested_by", "-id"], name="executions_execution_by_asker"),
        ]

    def __str__(self) -> str:
        return self.ref

    @property
    def ref(self) -> str:
        return format_ref("exec", self.pk)

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    # Mutators change memory only. Services lock, save and commit.

    def move_to(self, status: Status) -> None:
        if status != self.status and status not in TRANSITIONS.get(Status(self.status), ()):
            raise Conflict(f"{self} can't go from {self.status} to {status}.", code="illegal_transition")
        self.status = status

    def over_budget(self, cost: Decimal) -> str | None:
        """Why the budget does not allow a step of this cost; None if it does."""
        if self.max_cost_per_step is not None and cost > self.max_cost_per_step:
            return f"A step would cost {cost} USD; the limit per step is {self.max_cost_per_step}."
        if self.max_total_cost is not None and self.total_cost + cost > self.max_total_cost:
            return f"{self.total_cost + cost} USD would be over the budget of {self.max_total_cost}."
        return None


class ExecutionStep(TenantModel):
    """One step of a plan, and its outcome.

    `attempts` counts the claims and is the fencing token of a direct call: whoever finishes a call must still hold the
    claim of its start. After `call_expires_at` another process may take the call over; `repeatable` says whether it may
    then call the tool again, or the claim is to become a task. `away_looks`: how often the step has looked for its
    worker in vain.
    """

    execution = models.ForeignKey(Execution, on_delete=models.CASCADE, related_name="steps", db_index=False)
    position = models.PositiveSmallIntegerField()
    step_id = models.CharField(max_length=100)
    step_type = models.CharField(max_length=15, choices=StepType)
    definition = models.JSONField()
    depends_on = ArrayField(models.CharField(max_length=100), default=list)
    critical = models.BooleanField(default=False)
    status = models.CharField(max_length=8, choices=StepStatus, default=StepStatus.PENDING)
    attempts = models.PositiveIntegerField(default=0)
    call_expires_at = models.DateTimeField(null=True)
    repeatable = models.BooleanField(default=False)
    away_looks = models.PositiveSmallIntegerField(default=0)
    retry_at = models.DateTimeField(null=True)
    task_id = models.BigIntegerField(null=True)
    receipt_id = models.CharField(max_length=100, null=True)
    envelope = models.JSONField(null=True)
    cost = models.DecimalField(max_digits=14, decimal_places=6, default=Decimal(0))
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "execution", "step_id"], name="executions_step_id_once"),
            models.UniqueConstraint(fields=["tenant", "execution", "position"], name="executions_step_position_once"),
            models.CheckConstraint(
                condition=Q(status=StepStatus.CALLING, call_expires_at__isnull=False)
                | Q(~Q(status=StepStatus.CALLING), call_expires_at=None),
                name="executions_step_claimed_iff_calling",
            ),
            models.CheckConstraint(
                condition=~Q(status__in=[StepStatus.CALLING, StepStatus.QUEUED])
                | Q(step_type__in=sorted(WORKER_STEPS)),
                name="executions_step_workers_do_worker_steps",
            ),
            models.CheckConstraint(
                condition=~Q(status=StepStatus.AWAITING, step_type__in=[StepType.AGGREGATE, StepType.ESCALATE])
                | Q(receipt_id__isnull=False),
                name="executions_step_asked_by_receipt",
            ),
            # Serves selectors.due() and the runs of tasks.
            models.UniqueConstraint(
                fields=["tenant", "task_id"], condition=Q(status=StepStatus.QUEUED), name="executions_step_by_open_task"
            ),
            models.CheckConstraint(
                condition=~Q(status=StepStatus.QUEUED) | Q(task_id__isnull=False),
                name="executions_step_queued_has_task",
            ),
            models.CheckConstraint(
                condition=Q(status__in=sorted(SETTLED), ended_at__isnull=False)
                | Q(~Q(status__in=sorted(SETTLED)), ended_at=None),
                name="executions_step_ended_iff_settled",
            ),
            models.CheckConstraint(
                condition=~Q(status__in=[StepStatus.COMPLETE, StepStatus.FAILED]) | Q(envelope__isnull=False),
                name="executions_step_outcome_has_envelope",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.step_id} ({self.step_type})"

    @property
    def state_text(self) -> str:
        """The step's state, and the call by which its principal ends it, if it waits for that."""
        call = _ENDED_BY.get(StepType(self.step_type)) if self.status == StepStatus.AWAITING else None
        state = f"{self.step_id} of {self.execution} is {self.step_type}, {self.status}"
        return f"{state}." if call is None else f"{state}: end it with {call}."

    @property
    def is_asked(self) -> bool:
        """Whether it waits for its owner's answer."""
        return self.status == StepStatus.AWAITING and self.step_type in _ENDED_BY

    @property
    def worker_id(self) -> str | None:
        found: str | None = self.definition.get("worker_id")
        return found

    @property
    def tool_name(self) -> str | None:
        found: str | None = self.definition.get("tool_name")
        return found

    @property
    def tool_uid(self) -> str | None:
        """The version of the tool that the step was planned for."""
        found: str | None = self.definition.get("tool_uid")
        return found

    @property
    def task_ref(self) -> str | None:
        return None if self.task_id is None else format_ref("task", self.task_id)

    # The step's outcome, as its envelope holds it.

    @property
    def outcome(self) -> dict[str, Any]:
        return self.envelope or {}

    @property
    def error(self) -> dict[str, Any] | None:
        return self.outcome.get("error")

    @property
    def key_findings(self) -> dict[str, Any]:
        return dict(self.outcome.get("key_findings") or {})

    @property
    def result_pointer(self) -> str | None:
        return self.outcome.get("result_pointer")

    @property
    def promotion_recommendation(self) -> dict[str, Any] | None:
        return self.outcome.get("promotion_recommendation")

    @property
    def escalation(self) -> dict[str, Any] | None:
        """The work that its worker asks somebody else to do."""
        return self.outcome.get("escalation")

    def move_to(self, status: StepStatus) -> None:
        if status not in STEP_TRANSITIONS.get(StepStatus(self.status), ()):
            raise Conflict(f"{self} can't go from {self.status} to {status}.", code="illegal_transition")
        self.status = status
        if status != StepStatus.CALLING:
            self.call_expires_at = None
