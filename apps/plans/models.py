"""DeleGates and the plans that they made."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.plans.documents import PlanStatus, StepType
from apps.principals.models import Principal, TenantModel

_STATUSES = [(status.value, status.value) for status in PlanStatus]
_STEP_TYPES = [(kind.value, kind.value) for kind in StepType]


class Delegate(TenantModel):
    """A planner of its own domain. The one without a parent is the tenant's root and plans where no other is named."""

    delegate_id = models.CharField(max_length=100)
    principal = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    parent = models.ForeignKey("self", on_delete=models.PROTECT, null=True, related_name="children", db_index=False)
    scope = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "delegate_id"], name="plans_delegate_id_once"),
            models.UniqueConstraint(fields=["tenant"], condition=Q(parent=None), name="plans_delegate_one_root"),
            models.CheckConstraint(condition=~Q(parent=models.F("id")), name="plans_delegate_not_its_own_parent"),
        ]

    def __str__(self) -> str:
        return self.delegate_id


class Plan(TenantModel):
    """One plan as it was made, a refusal included. It never changes: a better one is another plan."""

    plan_id = models.CharField(max_length=100)
    delegate = models.ForeignKey(Delegate, on_delete=models.PROTECT, related_name="plans", db_index=False)
    principal = models.ForeignKey(
        Principal, on_delete=models.PROTECT, related_name="+", db_index=False, help_text="Who asked for it."
    )
    intent = models.TextField()
    status = models.CharField(max_length=20, choices=_STATUSES)
    scope = models.CharField(max_length=200)
    confidence = models.FloatField()
    document = models.JSONField()
    plan_hash = models.CharField(max_length=64)
    planner_version = models.CharField(max_length=50)
    registry_epoch = models.BigIntegerField()
    history_epoch = models.BigIntegerField()
    receipt_id = models.CharField(max_length=100)
    receipt_uuid = models.UUIDField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "plan_id"], name="plans_plan_id_once"),
            models.CheckConstraint(
                condition=Q(status__in=["ready", "needs_escalation"]), name="plans_plan_status_known"
            ),
            models.CheckConstraint(
                condition=Q(confidence__gte=0, confidence__lte=1), name="plans_plan_confidence_between_0_and_1"
            ),
        ]
        indexes = [
            # Serves the admin's list of one principal's plans, newest first.
            models.Index(name="plans_plan_of_principal", fields=["tenant", "principal", "-id"]),
        ]

    def __str__(self) -> str:
        return self.plan_id


class PlanStep(TenantModel):
    """One instruction of a plan, as a row that can be looked for by worker and tool."""

    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="step_rows", db_index=False)
    position = models.PositiveSmallIntegerField()
    step_id = models.CharField(max_length=64)
    step_type = models.CharField(max_length=20, choices=_STEP_TYPES)
    depends_on = ArrayField(models.CharField(max_length=64))
    worker_id = models.CharField(max_length=100, blank=True)
    tool_name = models.CharField(max_length=200, blank=True)
    tool_uid = models.CharField(max_length=32, blank=True)
    params = models.JSONField(null=True)
    provenance = models.JSONField(null=True)
    confidence = models.FloatField(null=True)
    estimated_runtime_seconds = models.FloatField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "plan", "step_id"], name="plans_planstep_id_once_a_plan"),
            models.UniqueConstraint(fields=["tenant", "plan", "position"], name="plans_planstep_position_once_a_plan"),
            models.CheckConstraint(
                condition=Q(step_type__in=["call_worker", "queue_execution", "wait_for", "aggregate", "escalate"]),
                name="plans_planstep_type_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.step_id} {self.step_type}"
