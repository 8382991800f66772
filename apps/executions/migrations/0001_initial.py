from decimal import Decimal

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import protect
from apps.core.tables import reference, tenant_field


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("principals", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Execution",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("plan_id", models.CharField(max_length=100)),
                ("delegate_id", models.CharField(blank=True, max_length=100)),
                ("plan_receipt_id", models.CharField(max_length=100)),
                ("intent", models.TextField()),
                (
                    "mode",
                    models.CharField(
                        choices=[("auto", "Auto"), ("direct_only", "Direct Only"), ("async_only", "Async Only")],
                        default="auto",
                        max_length=11,
                    ),
                ),
                (
                    "strategy",
                    models.CharField(
                        choices=[
                            ("sequential", "Sequential"),
                            ("progressive", "Progressive"),
                            ("partial", "Partial"),
                            ("escalate", "Escalate"),
                        ],
                        default="sequential",
                        max_length=11,
                    ),
                ),
                ("max_total_cost", models.DecimalField(decimal_places=6, max_digits=14, null=True)),
                ("max_cost_per_step", models.DecimalField(decimal_places=6, max_digits=14, null=True)),
                ("currency", models.CharField(default="USD", max_length=3)),
                (
                    "answers_inbox",
                    models.BooleanField(
                        default=False,
                        help_text="Its end comes to the inbox of who asked for it, even if it is complete.",
                    ),
                ),
                ("total_cost", models.DecimalField(decimal_places=6, default=Decimal(0), max_digits=14)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("executing", "Executing"),
                            ("needs_escalation", "Needs Escalation"),
                            ("complete", "Complete"),
                            ("partial", "Partial"),
                            ("failed", "Failed"),
                            ("budget_exceeded", "Budget Exceeded"),
                            ("canceled", "Canceled"),
                        ],
                        default="queued",
                        max_length=16,
                    ),
                ),
                (
                    "halted_as",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("executing", "Executing"),
                            ("needs_escalation", "Needs Escalation"),
                            ("complete", "Complete"),
                            ("partial", "Partial"),
                            ("failed", "Failed"),
                            ("budget_exceeded", "Budget Exceeded"),
                            ("canceled", "Canceled"),
                        ],
                        max_length=16,
                        null=True,
                    ),
                ),
                ("halted_why", models.TextField(blank=True)),
                ("created_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("wake_at", models.DateTimeField(null=True)),
                ("terminal_receipt_id", models.CharField(max_length=100, null=True)),
                ("trace_ref", models.CharField(max_length=100, null=True)),
                reference("halted_by", "principals.principal", "+", null=True),
                reference("owner", "principals.principal", "executions"),
                reference("requested_by", "principals.principal", "+"),
                tenant_field(),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "plan_id"), name="executions_execution_once_per_plan"),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                [
                                    "queued",
                                    "executing",
                                    "needs_escalation",
                                    "complete",
                                    "partial",
                                    "failed",
                                    "budget_exceeded",
                                    "canceled",
                                ],
                            )
                        ),
                        name="executions_execution_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("mode__in", ["auto", "direct_only", "async_only"])),
                        name="executions_execution_mode_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("strategy__in", ["sequential", "progressive", "partial", "escalate"])),
                        name="executions_execution_strategy_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("ended_at__isnull", False),
                                ("status__in", ["budget_exceeded", "canceled", "complete", "failed", "partial"]),
                                ("wake_at", None),
                            ),
                            models.Q(
                                models.Q(
                                    ("status__in", ["budget_exceeded", "canceled", "complete", "failed", "partial"]),
                                    _negated=True,
                                ),
                                ("ended_at", None),
                                ("terminal_receipt_id", None),
                            ),
                            _connector="OR",
                        ),
                        name="executions_execution_ended_iff_final",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("halted_as", None),
                            ("halted_as__in", ["budget_exceeded", "canceled", "complete", "failed", "partial"]),
                            _connector="OR",
                        ),
                        name="executions_execution_halts_as_final",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("total_cost__gte", 0),
                            models.Q(("max_total_cost", None), ("max_total_cost__gte", 0), _connector="OR"),
                            models.Q(("max_cost_per_step", None), ("max_cost_per_step__gte", 0), _connector="OR"),
                        ),
                        name="executions_execution_money_not_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_total_cost", None), ("total_cost__lte", models.F("max_total_cost")), _connector="OR"
                        ),
                        name="executions_execution_within_its_budget",
                    ),
                ],
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at", None)), fields=["wake_at"], name="executions_execution_due"
                    ),
                    models.Index(fields=["owner", "-id"], name="executions_execution_by_owner"),
                    models.Index(fields=["requested_by", "-id"], name="executions_execution_by_asker"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ExecutionStep",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("position", models.PositiveSmallIntegerField()),
                ("step_id", models.CharField(max_length=100)),
                (
                    "step_type",
                    models.CharField(
                        choices=[
                            ("call_worker", "Call Worker"),
                            ("queue_execution", "Queue Execution"),
                            ("wait_for", "Wait For"),
                            ("aggregate", "Aggregate"),
                            ("escalate", "Escalate"),
                        ],
                        max_length=15,
                    ),
                ),
                ("definition", models.JSONField()),
                (
                    "depends_on",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=100), default=list, size=None
                    ),
                ),
                ("critical", models.BooleanField(default=False)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("calling", "Calling"),
                            ("queued", "Queued"),
                            ("awaiting", "Awaiting"),
                            ("complete", "Complete"),
                            ("failed", "Failed"),
                            ("skipped", "Skipped"),
                            ("canceled", "Canceled"),
                        ],
                        default="pending",
                        max_length=8,
                    ),
                ),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("call_expires_at", models.DateTimeField(null=True)),
                ("repeatable", models.BooleanField(default=False)),
                ("reserved_cost", models.DecimalField(decimal_places=6, max_digits=14, null=True)),
                ("away_looks", models.PositiveSmallIntegerField(default=0)),
                ("retry_at", models.DateTimeField(null=True)),
                ("task_id", models.BigIntegerField(null=True)),
                ("receipt_id", models.CharField(max_length=100, null=True)),
                ("envelope", models.JSONField(null=True)),
                ("cost", models.DecimalField(decimal_places=6, default=Decimal(0), max_digits=14)),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("end_number", models.PositiveSmallIntegerField(null=True)),
                reference("execution", "executions.execution", "steps", on_delete=models.CASCADE),
                tenant_field(),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "execution", "step_id"), name="executions_step_id_once"),
                    models.UniqueConstraint(
                        fields=("tenant", "execution", "position"), name="executions_step_position_once"
                    ),
                    models.UniqueConstraint(
                        fields=("tenant", "execution", "end_number"), name="executions_step_end_number_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("end_number", None), ("ended_at__isnull", False), _connector="OR"),
                        name="executions_step_numbered_when_ended",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                [
                                    "pending",
                                    "calling",
                                    "queued",
                                    "awaiting",
                                    "complete",
                                    "failed",
                                    "skipped",
                                    "canceled",
                                ],
                            )
                        ),
                        name="executions_step_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("step_type__in", ["call_worker", "queue_execution", "wait_for", "aggregate", "escalate"])
                        ),
                        name="executions_step_type_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("call_expires_at__isnull", False), ("status", "calling")),
                            models.Q(models.Q(("status", "calling"), _negated=True), ("call_expires_at", None)),
                            _connector="OR",
                        ),
                        name="executions_step_claimed_iff_calling",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("reserved_cost", None), ("status", "calling"), _connector="OR"),
                        name="executions_step_cost_reserved_by_claim",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status__in", ["calling", "queued"]), _negated=True),
                            ("step_type__in", ["call_worker", "queue_execution"]),
                            _connector="OR",
                        ),
                        name="executions_step_workers_do_worker_steps",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("status", "awaiting"), ("step_type__in", ["aggregate", "escalate"]), _negated=True
                            ),
                            ("receipt_id__isnull", False),
                            _connector="OR",
                        ),
                        name="executions_step_asked_by_receipt",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("cost__gte", 0),
                            models.Q(("reserved_cost", None), ("reserved_cost__gte", 0), _connector="OR"),
                        ),
                        name="executions_step_money_not_negative",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("status", "queued")),
                        fields=("tenant", "task_id"),
                        name="executions_step_by_open_task",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status", "queued"), _negated=True), ("task_id__isnull", False), _connector="OR"
                        ),
                        name="executions_step_queued_has_task",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("ended_at__isnull", False),
                                ("status__in", ["canceled", "complete", "failed", "skipped"]),
                            ),
                            models.Q(
                                models.Q(("status__in", ["canceled", "complete", "failed", "skipped"]), _negated=True),
                                ("ended_at", None),
                            ),
                            _connector="OR",
                        ),
                        name="executions_step_ended_iff_settled",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status__in", ["complete", "failed"]), _negated=True),
                            ("envelope__isnull", False),
                            _connector="OR",
                        ),
                        name="executions_step_outcome_has_envelope",
                    ),
                ]
            },
        ),
        migrations.CreateModel(
            name="WorkerJob",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("task_id", models.BigIntegerField(null=True)),
                ("worker_id", models.CharField(max_length=100)),
                ("cancel_tool", models.CharField(max_length=200)),
                ("job_id", models.CharField(max_length=1000)),
                ("began_at", models.DateTimeField()),
                ("next_at", models.DateTimeField()),
                ("tries", models.PositiveSmallIntegerField(db_default=0, default=0)),
                tenant_field(),
            ],
            options={
                "indexes": [
                    django.contrib.postgres.indexes.HashIndex(fields=["job_id"], name="executions_workerjob_by_job"),
                ]
            },
        ),
        *(protect(f"executions_{name}") for name in ("execution", "executionstep", "workerjob")),
    ]
