from decimal import Decimal

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import F, Q

from apps.core.tables import reference, table

FINAL = ["budget_exceeded", "canceled", "complete", "failed", "partial"]
SETTLED = ["canceled", "complete", "failed", "skipped"]


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("principals", "0001_initial"),
    ]

    operations = [
        table(
            "Execution",
            ("plan_id", models.CharField(max_length=100)),
            ("plan_receipt_id", models.CharField(max_length=100)),
            ("intent", models.TextField()),
            ("mode", models.CharField(max_length=11, default="auto")),
            ("strategy", models.CharField(max_length=11, default="sequential")),
            ("max_total_cost", models.DecimalField(null=True, max_digits=14, decimal_places=6)),
            ("max_cost_per_step", models.DecimalField(null=True, max_digits=14, decimal_places=6)),
            ("answers_inbox", models.BooleanField(default=False)),
            ("total_cost", models.DecimalField(default=Decimal(0), max_digits=14, decimal_places=6)),
            ("status", models.CharField(max_length=16, default="queued")),
            ("halted_as", models.CharField(max_length=16, null=True)),
            ("halted_why", models.TextField(blank=True)),
            ("created_at", models.DateTimeField()),
            ("ended_at", models.DateTimeField(null=True)),
            ("wake_at", models.DateTimeField(null=True)),
            ("terminal_receipt_id", models.CharField(max_length=100, null=True)),
            reference("halted_by", "principals.principal", null=True),
            reference("owner", "principals.principal", "executions"),
            reference("requested_by", "principals.principal"),
            permissions=[("operate_execution", "Can answer steps of executions and cancel executions")],
            constraints=[
                models.UniqueConstraint(name="executions_execution_once_per_plan", fields=["tenant", "plan_id"]),
                models.CheckConstraint(
                    name="executions_execution_ended_iff_final",
                    condition=Q(ended_at__isnull=False, status__in=FINAL, wake_at=None)
                    | ~Q(status__in=FINAL) & Q(ended_at=None, terminal_receipt_id=None),
                ),
                models.CheckConstraint(
                    name="executions_execution_halts_as_final",
                    condition=Q(halted_as=None) | Q(halted_as__in=FINAL),
                ),
                models.CheckConstraint(
                    name="executions_execution_within_its_budget",
                    condition=Q(max_total_cost=None) | Q(total_cost__lte=F("max_total_cost")),
                ),
            ],
            indexes=[
                models.Index(name="executions_execution_due", fields=["wake_at"], condition=Q(ended_at=None)),
                models.Index(name="executions_execution_by_owner", fields=["owner", "-id"]),
                models.Index(name="executions_execution_by_asker", fields=["requested_by", "-id"]),
            ],
        ),
        table(
            "ExecutionStep",
            ("position", models.PositiveSmallIntegerField()),
            ("step_id", models.CharField(max_length=100)),
            ("step_type", models.CharField(max_length=15)),
            ("definition", models.JSONField()),
            ("depends_on", ArrayField(models.CharField(max_length=100), default=list)),
            ("critical", models.BooleanField(default=False)),
            ("status", models.CharField(max_length=8, default="pending")),
            ("attempts", models.PositiveIntegerField(default=0)),
            ("call_expires_at", models.DateTimeField(null=True)),
            ("repeatable", models.BooleanField(default=False)),
            ("away_looks", models.PositiveSmallIntegerField(default=0)),
            ("retry_at", models.DateTimeField(null=True)),
            ("task_id", models.BigIntegerField(null=True)),
            ("receipt_id", models.CharField(max_length=100, null=True)),
            ("envelope", models.JSONField(null=True)),
            ("cost", models.DecimalField(default=Decimal(0), max_digits=14, decimal_places=6)),
            ("started_at", models.DateTimeField(null=True)),
            ("ended_at", models.DateTimeField(null=True)),
            reference("execution", "executions.execution", "steps", on_delete=models.CASCADE),
            constraints=[
                models.UniqueConstraint(name="executions_step_id_once", fields=["tenant", "execution", "step_id"]),
                models.UniqueConstraint(
                    name="executions_step_position_once", fields=["tenant", "execution", "position"]
                ),
                models.CheckConstraint(
                    name="executions_step_claimed_iff_calling",
                    condition=Q(call_expires_at__isnull=False, status="calling")
                    | ~Q(status="calling") & Q(call_expires_at=None),
                ),
                models.CheckConstraint(
                    name="executions_step_workers_do_worker_steps",
                    condition=~Q(status__in=["calling", "queued"])
                    | Q(step_type__in=["call_worker", "queue_execution"]),
                ),
                models.CheckConstraint(
                    name="executions_step_asked_by_receipt",
                    condition=~Q(status="awaiting", step_type__in=["aggregate", "escalate"])
                    | Q(receipt_id__isnull=False),
                ),
                models.UniqueConstraint(
                    name="executions_step_by_open_task",
                    fields=["tenant", "task_id"],
                    condition=Q(status="queued"),
                ),
                models.CheckConstraint(
                    name="executions_step_queued_has_task",
                    condition=~Q(status="queued") | Q(task_id__isnull=False),
                ),
                models.CheckConstraint(
                    name="executions_step_ended_iff_settled",
                    condition=Q(ended_at__isnull=False, status__in=SETTLED) | ~Q(status__in=SETTLED) & Q(ended_at=None),
                ),
                models.CheckConstraint(
                    name="executions_step_outcome_has_envelope",
                    condition=~Q(status__in=["complete", "failed"]) | Q(envelope__isnull=False),
                ),
            ],
        ),
    ]
