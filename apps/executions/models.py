"""Executions and their steps: every fact that a process needs to go on where another one stopped."""

from decimal import Decimal
from typing import Final, Self

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import HashIndex
from django.db import models
from django.db.models import Exists, F, OuterRef, Q

from apps.core.ids import format_ref
from apps.executions.envelopes import Origin
from apps.executions.errors import ExecutionEnded, IllegalTransition
from apps.executions.reports import Line
from apps.executions.routing import Standing
from apps.executions.states import FINAL, SETTLED, STEP_TRANSITIONS, TRANSITIONS, Mode, Status, StepStatus, Strategy
from apps.plans.shapes import WORKER_STEPS, StepType
from apps.principals.models import Principal, TenantModel
from apps.tasks.models import HotTask

_ENDED_BY: Final = {StepType.AGGREGATE: "submit_step_result", StepType.ESCALATE: "decide_step"}


class ExecutionQuerySet(models.QuerySet["Execution"]):
    def of(self, owner_id: int) -> Self:
        """What this principal may see: what it owns and what it asked for."""
        return self.filter(Q(owner_id=owner_id) | Q(requested_by_id=owner_id))

    def open(self) -> Self:
        return self.filter(ended_at=None)


class Execution(TenantModel):
    """One carrying-out of one plan, on its owner's behalf. A plan is carried out once.

    `wake_at` is when a tick must look even if nobody nudges: always set while something can go on by itself, so a
    lost nudge costs latency only. `halted_as` is the end that is certain while steps are still in the air; `halted_by` is
    who brought it about by a call of its own.
    """

    plan_id = models.CharField(max_length=100)
    delegate_id = models.CharField(max_length=100, blank=True)
    plan_receipt_id = models.CharField(max_length=100)
    intent = models.TextField()
    owner = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="executions", db_index=False)
    requested_by = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    mode = models.CharField(max_length=11, choices=Mode, default=Mode.AUTO)
    strategy = models.CharField(max_length=11, choices=Strategy, default=Strategy.SEQUENTIAL)
    max_total_cost = models.DecimalField(max_digits=14, decimal_places=6, null=True)
    max_cost_per_step = models.DecimalField(max_digits=14, decimal_places=6, null=True)
    currency = models.CharField(max_length=3, default="USD")
    total_cost = models.DecimalField(max_digits=14, decimal_places=6, default=Decimal(0))
    status = models.CharField(max_length=16, choices=Status, default=Status.QUEUED)
    halted_as = models.CharField(max_length=16, choices=Status, null=True)
    halted_why = models.TextField(blank=True)
    halted_by = models.ForeignKey(Principal, on_delete=models.PROTECT, null=True, related_name="+", db_index=False)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    wake_at = models.DateTimeField(null=True)
    terminal_receipt_id = models.CharField(max_length=100, null=True)
    trace_ref = models.CharField(max_length=100, null=True)

    objects = ExecutionQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "plan_id"], name="executions_execution_once_per_plan"),
            models.CheckConstraint(condition=Q(status__in=Status.values), name="executions_execution_status_known"),
            models.CheckConstraint(condition=Q(mode__in=Mode.values), name="executions_execution_mode_known"),
            models.CheckConstraint(
                condition=Q(strategy__in=Strategy.values), name="executions_execution_strategy_known"
            ),
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
                condition=Q(total_cost__gte=0)
                & (Q(max_total_cost=None) | Q(max_total_cost__gte=0))
                & (Q(max_cost_per_step=None) | Q(max_cost_per_step__gte=0)),
                name="executions_execution_money_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(max_total_cost=None) | Q(total_cost__lte=F("max_total_cost")),
                name="executions_execution_within_its_budget",
            ),
        ]
        indexes = [
            # Serves selectors.due(), the tick's question: open executions that want a look.
            models.Index(fields=["wake_at"], condition=Q(ended_at=None), name="executions_execution_due"),
            # Serve selectors.executions(), what a principal owns and what it asked for, newest first.
            models.Index(fields=["owner", "-id"], name="executions_execution_by_owner"),
            models.Index(fields=["requested_by", "-id"], name="executions_execution_by_asker"),
        ]

    def __str__(self) -> str:
        return self.ref

    @property
    def ref(self) -> str:
        return format_ref("exec", self.pk)

    @property
    def resource_ref(self) -> str:
        """What groups the receipts of one execution in an inbox."""
        return f"execution:{self.ref}"

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    # Mutators change memory only. Services lock, save and commit.

    def move_to(self, status: Status) -> None:
        if status != self.status and status not in TRANSITIONS[Status(self.status)]:
            raise IllegalTransition(f"{self} can't go from {self.status} to {status}.")
        self.status = status

    def refuse_if_ended(self) -> None:
        if self.is_final:
            raise ExecutionEnded(f"{self} is over: {self.status}.", execution_status=self.status)

    def over_budget(self, cost: Decimal, *, spent: Decimal) -> str | None:
        """Why a call of this cost may not be made for a step; None if it may.

        :param spent: what calls for the same step have cost before.
        """
        if self.max_cost_per_step is not None and spent + cost > self.max_cost_per_step:
            return f"A step would cost {spent + cost} {self.currency}; the limit per step is {self.max_cost_per_step}."
        if self.max_total_cost is not None and self.total_cost + cost > self.max_total_cost:
            return f"{self.total_cost + cost} {self.currency} would be over the budget of {self.max_total_cost}."
        return None


class ExecutionStep(TenantModel):
    """One instruction of a plan, and what came of it.

    `attempts` counts the claims granted and is the fence of a direct call: whoever finishes a call must still hold
    the claim it began with. `call_expires_at` is from when another process may take the call over; `repeatable` says
    whether it may then call the tool again. `set_aside` is what a claim has charged of which a task is to come: no tool
    is called by it. `missed_since` is from when the step waits for its worker. `ended_nth` numbers the steps of one
    execution as they end, so that who follows it misses none; what ended under the plan before has no number.
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
    set_aside = models.DecimalField(max_digits=14, decimal_places=6, null=True)
    missed_since = models.DateTimeField(null=True)
    retry_at = models.DateTimeField(null=True)
    task_id = models.BigIntegerField(null=True)
    receipt_id = models.CharField(max_length=100, null=True)
    envelope = models.JSONField(null=True)
    cost = models.DecimalField(max_digits=14, decimal_places=6, default=Decimal(0))
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    ended_nth = models.PositiveSmallIntegerField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "execution", "step_id"], name="executions_step_id_once"),
            models.UniqueConstraint(fields=["tenant", "execution", "position"], name="executions_step_position_once"),
            models.UniqueConstraint(fields=["tenant", "execution", "ended_nth"], name="executions_step_ends_in_turn"),
            models.CheckConstraint(
                condition=Q(ended_nth=None) | Q(ended_at__isnull=False), name="executions_step_numbered_when_ended"
            ),
            models.CheckConstraint(condition=Q(status__in=StepStatus.values), name="executions_step_status_known"),
            models.CheckConstraint(condition=Q(step_type__in=StepType.values), name="executions_step_type_known"),
            models.CheckConstraint(
                condition=Q(status=StepStatus.CALLING, call_expires_at__isnull=False)
                | Q(~Q(status=StepStatus.CALLING), call_expires_at=None),
                name="executions_step_claimed_iff_calling",
            ),
            models.CheckConstraint(
                condition=Q(set_aside=None) | Q(status=StepStatus.CALLING), name="executions_step_set_aside_by_claim"
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
            models.CheckConstraint(
                condition=Q(cost__gte=0) & (Q(set_aside=None) | Q(set_aside__gte=0)),
                name="executions_step_money_not_negative",
            ),
            # Serves selectors.due() and the statements of sql.py as well: steps whose task has ended, announced or not.
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
    def in_words(self) -> str:
        """Where it stands, and by which call its principal ends it, if it waits for that."""
        call = _ENDED_BY.get(StepType(self.step_type)) if self.status == StepStatus.AWAITING else None
        stands = f"{self.step_id} of {self.execution} is {self.step_type}, {self.status}"
        return f"{stands}." if call is None else f"{stands}: it is ended by {call}."

    @property
    def may_be_claimed_again(self) -> bool:
        """Whether a claim whose process is gone has done nothing that may not be done twice."""
        return self.repeatable or self.set_aside is not None

    @property
    def origin(self) -> Origin:
        return Origin(
            plan_id=self.execution.plan_id,
            step_id=self.step_id,
            worker_id=self.worker_id,
            tool_name=self.tool_name,
        )

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

    @property
    def line(self) -> Line:
        return Line(
            step_id=self.step_id,
            step_type=StepType(self.step_type),
            status=StepStatus(self.status),
            worker_id=self.worker_id,
            tool_name=self.tool_name,
            task_id=self.task_ref,
            definition=self.definition,
            envelope=self.envelope,
            retry_at=self.retry_at,
        )

    @property
    def standing(self) -> Standing:
        return Standing(
            step_id=self.step_id,
            step_type=StepType(self.step_type),
            status=StepStatus(self.status),
            depends_on=tuple(self.depends_on),
            critical=self.critical,
        )

    def move_to(self, status: StepStatus) -> None:
        if status not in STEP_TRANSITIONS[StepStatus(self.status)]:
            raise IllegalTransition(f"{self} can't go from {self.status} to {status}.")
        self.status = status
        if status != StepStatus.CALLING:
            self.call_expires_at = self.set_aside = None


class BegunJobQuerySet(models.QuerySet["BegunJob"]):
    def wanted(self) -> Self:
        return self.filter(Exists(HotTask.objects.filter(task_id=OuterRef("task_id"))))

    def unwanted(self) -> Self:
        """Those that no call wants, where a worker has begun one and the same job for several."""
        same = BegunJob.objects.filter(
            tenant_id=OuterRef("tenant_id"), worker_id=OuterRef("worker_id"), job_id=OuterRef("job_id")
        )
        return self.filter(~Exists(same.wanted()))


class BegunJob(TenantModel):
    """A job of a worker's own that a call has begun, and that its worker can cancel. Gone once it is over, or canceled.

    `task_id` is the task that follows it. Without one, and once that task is over, nobody wants the job, and its worker
    is told so from `next_at` on.
    """

    task_id = models.BigIntegerField(null=True)
    worker_id = models.CharField(max_length=100)
    cancel_tool = models.CharField(max_length=200)
    job_id = models.CharField(max_length=1_000)
    began_at = models.DateTimeField()
    next_at = models.DateTimeField()
    tries = models.PositiveSmallIntegerField(default=0, db_default=0)

    objects = BegunJobQuerySet.as_manager()

    class Meta:
        indexes = [
            # Serves sql.end_job and BegunJobQuerySet.unwanted(): the ids are longer than others take.
            HashIndex(fields=["job_id"], name="executions_begunjob_by_job")
        ]

    def __str__(self) -> str:
        return f"{self.job_id[:100]} at {self.worker_id}"
