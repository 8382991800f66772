import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import immutable, protect
from apps.core.tables import CreateModels

# Short-lived rows that are updated at every heartbeat: room in each page for new versions, and dead ones removed
# by number, early and at full speed.
STORAGE = """
alter table tasks_hottask set (fillfactor = 60, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
alter table tasks_run set (fillfactor = 70);
"""
STORAGE_BACK = """
alter table tasks_hottask reset (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,
    autovacuum_vacuum_cost_delay, vacuum_truncate);
alter table tasks_run reset (fillfactor);
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial")]

    operations = [
        CreateModels(
            migrations.CreateModel(
                name="Queue",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("name", models.CharField(max_length=50)),
                    ("paused_at", models.DateTimeField(null=True)),
                    ("created_at", models.DateTimeField()),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    ("concurrency", models.PositiveIntegerField(null=True)),
                    ("fair", models.BooleanField(db_default=False, default=False)),
                    ("rate", models.PositiveIntegerField(null=True)),
                    ("rate_seconds", models.FloatField(null=True)),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "name"), name="tasks_queue_name_once"),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("concurrency", None), ("concurrency__gte", 1), _connector="OR"),
                                models.Q(("rate", None), ("rate__gte", 1), _connector="OR"),
                                models.Q(
                                    models.Q(("rate", None), ("rate_seconds", None)),
                                    models.Q(
                                        ("rate__isnull", False),
                                        ("rate_seconds__gt", 0),
                                        ("rate_seconds__isnull", False),
                                    ),
                                    _connector="OR",
                                ),
                            ),
                            name="tasks_queue_limits_bite",
                        ),
                    ],
                    "permissions": [("operate_queue", "Can pause and resume queues")],
                },
            ),
            migrations.CreateModel(
                name="TaskType",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("name", models.CharField(max_length=100)),
                    ("params_schema", models.JSONField(default=dict)),
                    ("title", models.CharField(blank=True, max_length=200)),
                    (
                        "requires",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(max_length=50), default=list, size=None
                        ),
                    ),
                    ("priority", models.PositiveSmallIntegerField(default=5)),
                    ("max_attempts", models.PositiveSmallIntegerField(default=3)),
                    ("max_expiries", models.PositiveSmallIntegerField(default=3)),
                    ("lease_seconds", models.PositiveIntegerField(default=60)),
                    ("max_lease_seconds", models.PositiveIntegerField(default=3600)),
                    ("backoff_seconds", models.FloatField(default=2.0)),
                    ("backoff_cap_seconds", models.FloatField(default=300.0)),
                    (
                        "strict",
                        models.BooleanField(
                            default=False, help_text="An expired lease may not be used any more, even unclaimed."
                        ),
                    ),
                    ("in_code", models.BooleanField(default=False)),
                    ("enabled", models.BooleanField(default=True)),
                    ("created_at", models.DateTimeField()),
                    ("changed_at", models.DateTimeField()),
                    (
                        "queue",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="task_types",
                            to="tasks.queue",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    ("concurrency", models.PositiveIntegerField(null=True)),
                    ("deadline_seconds", models.PositiveIntegerField(null=True)),
                    ("heartbeat_seconds", models.PositiveIntegerField(null=True)),
                    (
                        "misfire",
                        models.CharField(
                            choices=[("once", "Once"), ("all", "All"), ("skip", "Skip")],
                            db_default="once",
                            default="once",
                            max_length=10,
                        ),
                    ),
                    ("paused_at", models.DateTimeField(null=True)),
                    ("rate", models.PositiveIntegerField(null=True)),
                    ("rate_seconds", models.FloatField(null=True)),
                    ("retention_seconds", models.PositiveIntegerField(null=True)),
                    ("revokes_stuck", models.BooleanField(db_default=False, default=False)),
                    ("stuck_after", models.PositiveSmallIntegerField(null=True)),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "name"), name="tasks_tasktype_name_once"),
                        models.CheckConstraint(
                            condition=models.Q(("priority__range", (1, 10))), name="tasks_tasktype_priority_1_to_10"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("max_attempts__gte", 1), ("max_expiries__gte", 1)),
                            name="tasks_tasktype_tries_at_least_once",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("lease_seconds__gte", 1), ("max_lease_seconds__gte", models.F("lease_seconds"))
                            ),
                            name="tasks_tasktype_lease_within_its_cap",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("backoff_cap_seconds__gte", models.F("backoff_seconds")), ("backoff_seconds__gte", 0)
                            ),
                            name="tasks_tasktype_backoff_within_its_cap",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("concurrency", None), ("concurrency__gte", 1), _connector="OR"),
                                models.Q(("rate", None), ("rate__gte", 1), _connector="OR"),
                                models.Q(
                                    models.Q(("rate", None), ("rate_seconds", None)),
                                    models.Q(
                                        ("rate__isnull", False),
                                        ("rate_seconds__gt", 0),
                                        ("rate_seconds__isnull", False),
                                    ),
                                    _connector="OR",
                                ),
                            ),
                            name="tasks_tasktype_limits_bite",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("heartbeat_seconds", None), ("heartbeat_seconds__gte", 1), _connector="OR"),
                                models.Q(("deadline_seconds", None), ("deadline_seconds__gte", 1), _connector="OR"),
                                models.Q(("retention_seconds", None), ("retention_seconds__gte", 1), _connector="OR"),
                                models.Q(("stuck_after", None), ("stuck_after__gte", 1), _connector="OR"),
                            ),
                            name="tasks_tasktype_spans_at_least_one",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("misfire__in", ["once", "all", "skip"])),
                            name="tasks_tasktype_misfire_known",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Task",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("priority", models.PositiveSmallIntegerField()),
                    ("params", models.JSONField()),
                    ("run_at", models.DateTimeField(null=True)),
                    ("group", models.JSONField(null=True)),
                    ("caused_by", models.CharField(max_length=100, null=True)),
                    ("receipt_id", models.CharField(max_length=100)),
                    ("created_at", models.DateTimeField()),
                    (
                        "queue",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="tasks",
                            to="tasks.queue",
                        ),
                    ),
                    (
                        "recipient",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "requester",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "task_type",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="tasks",
                            to="tasks.tasktype",
                        ),
                    ),
                    ("concurrency_key", models.CharField(max_length=200, null=True)),
                    ("replay_of", models.BigIntegerField(null=True)),
                    ("budget_id", models.BigIntegerField(null=True)),
                ],
                options={
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("priority__range", (1, 10))), name="tasks_task_priority_1_to_10"
                        )
                    ],
                    "permissions": [("operate_task", "Can cancel tasks, replay dead letters and revoke leases")],
                },
            ),
            migrations.CreateModel(
                name="HotTask",
                fields=[
                    ("task_id", models.BigIntegerField(primary_key=True, serialize=False)),
                    ("ready_at", models.DateTimeField(null=True)),
                    ("due_at", models.DateTimeField(null=True)),
                    ("lease_expires_at", models.DateTimeField(null=True)),
                    ("fence", models.IntegerField(default=0)),
                    ("lease_seconds", models.IntegerField()),
                    ("priority_rank", models.SmallIntegerField()),
                    ("failures", models.SmallIntegerField(default=0)),
                    ("max_attempts", models.SmallIntegerField()),
                    ("expiries", models.SmallIntegerField(default=0)),
                    ("max_expiries", models.SmallIntegerField()),
                    ("flags", models.SmallIntegerField(default=0)),
                    (
                        "holder",
                        models.ForeignKey(
                            db_constraint=False,
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.DO_NOTHING,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "queue",
                        models.ForeignKey(
                            db_constraint=False,
                            db_index=False,
                            on_delete=django.db.models.deletion.DO_NOTHING,
                            related_name="+",
                            to="tasks.queue",
                        ),
                    ),
                    (
                        "task_type",
                        models.ForeignKey(
                            db_constraint=False,
                            db_index=False,
                            on_delete=django.db.models.deletion.DO_NOTHING,
                            related_name="+",
                            to="tasks.tasktype",
                        ),
                    ),
                    ("budget_id", models.BigIntegerField(null=True)),
                    ("concurrency_key", models.CharField(max_length=200, null=True)),
                    ("deadline_at", models.DateTimeField(null=True)),
                    ("open_dependencies", models.SmallIntegerField(db_default=0, default=0)),
                    (
                        "requester",
                        models.ForeignKey(
                            db_constraint=False,
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.DO_NOTHING,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    ("silent_beats", models.SmallIntegerField(db_default=0, default=0)),
                    ("stuck_after", models.SmallIntegerField(null=True)),
                ],
                options={
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("holder", None), ("lease_expires_at", None)),
                                models.Q(("holder__isnull", False), ("lease_expires_at__isnull", False)),
                                _connector="OR",
                            ),
                            name="tasks_hottask_leased_iff_holder_and_deadline",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("holder", None),
                                models.Q(("fence__gte", 1), ("ready_at__isnull", False)),
                                _connector="OR",
                            ),
                            name="tasks_hottask_leased_was_ready_and_fenced",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("priority_rank__range", (0, 9))), name="tasks_hottask_rank_0_to_9"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("expiries__gte", 0),
                                ("expiries__lt", models.F("max_expiries")),
                                ("failures__gte", 0),
                                ("failures__lt", models.F("max_attempts")),
                                ("fence__range", (0, 65535)),
                            ),
                            name="tasks_hottask_has_tries_left",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("ready_at", None),
                                models.Q(("due_at", None), ("open_dependencies", 0)),
                                _connector="OR",
                            ),
                            name="tasks_hottask_ready_waits_for_nothing",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("open_dependencies__gte", 0), ("silent_beats__gte", 0)),
                            name="tasks_hottask_counts_not_negative",
                        ),
                        models.UniqueConstraint(
                            condition=models.Q(("concurrency_key__isnull", False), ("ready_at__isnull", False)),
                            fields=("tenant", "concurrency_key"),
                            name="tasks_hottask_key_admitted_once",
                        ),
                    ],
                    "indexes": [
                        models.Index(
                            condition=models.Q(("holder", None), ("ready_at__isnull", False)),
                            fields=["queue", "priority_rank", "ready_at", "task_id", "task_type"],
                            name="tasks_hottask_claimable",
                        ),
                        models.Index(
                            condition=models.Q(("holder__isnull", False)),
                            fields=["queue", "task_id"],
                            name="tasks_hottask_leased",
                        ),
                        models.Index(
                            condition=models.Q(("ready_at", None)), fields=["queue", "due_at"], name="tasks_hottask_due"
                        ),
                        models.Index(
                            condition=models.Q(
                                ("concurrency_key__isnull", False),
                                ("due_at", None),
                                ("open_dependencies", 0),
                                ("ready_at", None),
                            ),
                            fields=["tenant", "concurrency_key", "priority_rank", "task_id"],
                            name="tasks_hottask_waiting_for_key",
                        ),
                        models.Index(
                            condition=models.Q(
                                ("holder", None), ("ready_at__isnull", False), ("requester__isnull", False)
                            ),
                            fields=["queue", "requester", "priority_rank", "ready_at", "task_id", "task_type"],
                            name="tasks_hottask_claimable_fairly",
                        ),
                        models.Index(
                            condition=models.Q(("deadline_at__isnull", False)),
                            fields=["deadline_at"],
                            name="tasks_hottask_by_deadline",
                        ),
                        models.Index(
                            condition=models.Q(("budget_id__isnull", False)),
                            fields=["budget_id"],
                            name="tasks_hottask_by_budget",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Run",
                fields=[
                    ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                    ("started_at", models.DateTimeField()),
                    ("percent", models.FloatField(null=True)),
                    ("message", models.CharField(blank=True, default="", max_length=500)),
                    ("progressed_at", models.DateTimeField(null=True)),
                    ("checkpoint", models.JSONField(null=True)),
                    ("ended_at", models.DateTimeField(null=True)),
                    (
                        "outcome",
                        models.CharField(
                            choices=[
                                ("succeeded", "Succeeded"),
                                ("failed", "Failed"),
                                ("released", "Released"),
                                ("expired", "Expired"),
                                ("canceled", "Canceled"),
                                ("revoked", "Revoked"),
                            ],
                            max_length=10,
                            null=True,
                        ),
                    ),
                    ("error", models.JSONField(null=True)),
                    ("request_digest", models.BinaryField(max_length=32, null=True)),
                    ("answer", models.JSONField(null=True)),
                    (
                        "holder",
                        models.ForeignKey(
                            db_constraint=False,
                            db_index=False,
                            on_delete=django.db.models.deletion.DO_NOTHING,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    ("progress_sequence", models.BigIntegerField(null=True)),
                    ("checkpoint_sequence", models.BigIntegerField(null=True)),
                ],
                options={
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("ended_at", None), ("outcome", None)),
                                models.Q(("ended_at__isnull", False), ("outcome__isnull", False)),
                                _connector="OR",
                            ),
                            name="tasks_run_ended_iff_outcome",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("outcome", None),
                                ("outcome__in", ["succeeded", "failed", "released", "expired", "canceled", "revoked"]),
                                _connector="OR",
                            ),
                            name="tasks_run_outcome_known",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("checkpoint_sequence__gte", 0), ("progress_sequence__gte", 0)),
                            name="tasks_run_sequences_not_negative",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="TerminalRecord",
                fields=[
                    ("task_id", models.BigIntegerField(primary_key=True, serialize=False)),
                    (
                        "status",
                        models.CharField(
                            choices=[
                                ("waiting", "Waiting"),
                                ("scheduled", "Scheduled"),
                                ("queued", "Queued"),
                                ("leased", "Leased"),
                                ("canceling", "Canceling"),
                                ("succeeded", "Succeeded"),
                                ("failed", "Failed"),
                                ("canceled", "Canceled"),
                            ],
                            max_length=10,
                        ),
                    ),
                    (
                        "reason",
                        models.CharField(
                            choices=[
                                ("not_retryable", "Not Retryable"),
                                ("attempts_exhausted", "Attempts Exhausted"),
                                ("expiries_exhausted", "Expiries Exhausted"),
                                ("canceled", "Canceled"),
                                ("deadline_passed", "Deadline Passed"),
                                ("budget_exhausted", "Budget Exhausted"),
                                ("dependency_failed", "Dependency Failed"),
                            ],
                            max_length=20,
                            null=True,
                        ),
                    ),
                    ("fence", models.IntegerField()),
                    ("error", models.JSONField(null=True)),
                    ("result_channel", models.CharField(max_length=50, null=True)),
                    ("result_pointer", models.CharField(max_length=2000, null=True)),
                    ("content", models.JSONField(null=True)),
                    ("checksum", models.CharField(max_length=100, null=True)),
                    ("size", models.BigIntegerField(null=True)),
                    ("media_type", models.CharField(max_length=100, null=True)),
                    ("summary", models.TextField()),
                    ("receipt_id", models.CharField(max_length=100)),
                    ("finished_at", models.DateTimeField()),
                    ("fetched_at", models.DateTimeField(null=True)),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("status__in", ["canceled", "failed", "succeeded"])),
                            name="tasks_terminalrecord_status_terminal",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("status", "succeeded"), ("reason", None)),
                                models.Q(
                                    models.Q(("status", "succeeded"), _negated=True),
                                    (
                                        "reason__in",
                                        [
                                            "not_retryable",
                                            "attempts_exhausted",
                                            "expiries_exhausted",
                                            "canceled",
                                            "deadline_passed",
                                            "budget_exhausted",
                                            "dependency_failed",
                                        ],
                                    ),
                                    ("reason__isnull", False),
                                ),
                                _connector="OR",
                            ),
                            name="tasks_terminalrecord_reason_iff_not_succeeded",
                        ),
                    ],
                    "indexes": [
                        models.Index(
                            condition=models.Q(("status", "failed")),
                            fields=["tenant", "task_id"],
                            name="tasks_terminalrecord_dead",
                        ),
                        models.Index(fields=["finished_at"], name="tasks_terminalrecord_by_end"),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Spend",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("task_id", models.BigIntegerField()),
                    ("fence", models.IntegerField()),
                    ("tokens", models.BigIntegerField(default=0)),
                    ("cost_usd", models.DecimalField(decimal_places=6, default=0, max_digits=14)),
                    ("spent_at", models.DateTimeField()),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("cost_usd__gte", 0), ("tokens__gte", 0)),
                            name="tasks_spend_not_negative",
                        )
                    ],
                },
            ),
            migrations.CreateModel(
                name="Artifact",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("digest", models.CharField(max_length=64)),
                    ("media_type", models.CharField(max_length=100)),
                    ("size", models.BigIntegerField()),
                    ("created_at", models.DateTimeField()),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "digest"), name="tasks_artifact_digest_once"),
                        models.CheckConstraint(
                            condition=models.Q(("digest__regex", "^[0-9a-f]{64}$")),
                            name="tasks_artifact_digest_is_sha256",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="IdempotencyKey",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("key", models.CharField(max_length=200)),
                    ("task_id", models.BigIntegerField()),
                    ("request_digest", models.BinaryField(max_length=32)),
                    ("answer", models.JSONField()),
                    ("created_at", models.DateTimeField()),
                    (
                        "principal",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "principal", "key"), name="tasks_idempotencykey_once")
                    ],
                },
            ),
            migrations.CreateModel(
                name="QueueMinute",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("minute_at", models.DateTimeField()),
                    (
                        "status",
                        models.CharField(
                            choices=[
                                ("waiting", "Waiting"),
                                ("scheduled", "Scheduled"),
                                ("queued", "Queued"),
                                ("leased", "Leased"),
                                ("canceling", "Canceling"),
                                ("succeeded", "Succeeded"),
                                ("failed", "Failed"),
                                ("canceled", "Canceled"),
                            ],
                            max_length=10,
                        ),
                    ),
                    ("latency", models.SmallIntegerField()),
                    ("tasks", models.BigIntegerField()),
                    ("expiries", models.BigIntegerField()),
                    ("counted_to", models.DateTimeField()),
                    (
                        "queue",
                        models.ForeignKey(
                            db_constraint=False,
                            db_index=False,
                            on_delete=django.db.models.deletion.DO_NOTHING,
                            related_name="+",
                            to="tasks.queue",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "indexes": [models.Index(fields=["minute_at"], name="tasks_queueminute_by_time")],
                    "constraints": [
                        models.UniqueConstraint(
                            fields=("tenant", "queue", "minute_at", "status", "latency"), name="tasks_queueminute_once"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("expiries__gte", 0), ("tasks__gte", 1)),
                            name="tasks_queueminute_counts_something",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Schedule",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("name", models.CharField(max_length=100)),
                    ("priority", models.PositiveSmallIntegerField(null=True)),
                    ("params", models.JSONField(default=dict)),
                    ("cron", models.CharField(max_length=200, null=True)),
                    ("every_seconds", models.PositiveIntegerField(null=True)),
                    ("timezone", models.CharField(max_length=50)),
                    (
                        "misfire",
                        models.CharField(
                            choices=[("once", "Once"), ("all", "All"), ("skip", "Skip")], max_length=10, null=True
                        ),
                    ),
                    ("anchor_at", models.DateTimeField()),
                    ("next_at", models.DateTimeField(null=True)),
                    ("last_at", models.DateTimeField(null=True)),
                    ("last_task_id", models.BigIntegerField(null=True)),
                    ("last_refusal", models.CharField(blank=True, default="", max_length=500)),
                    ("created_at", models.DateTimeField()),
                    ("changed_at", models.DateTimeField()),
                    (
                        "owner",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "queue",
                        models.ForeignKey(
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="tasks.queue",
                        ),
                    ),
                    (
                        "recipient",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "task_type",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="schedules",
                            to="tasks.tasktype",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "permissions": [("operate_schedule", "Can stop and resume schedules")],
                    "indexes": [
                        models.Index(
                            condition=models.Q(("next_at__isnull", False)),
                            fields=["next_at"],
                            name="tasks_schedule_due",
                        )
                    ],
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "owner", "name"), name="tasks_schedule_name_once"),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("cron__isnull", False), ("every_seconds", None)),
                                models.Q(("cron", None), ("every_seconds__gte", 1)),
                                _connector="OR",
                            ),
                            name="tasks_schedule_has_one_timetable",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("misfire", None), ("misfire__in", ["once", "all", "skip"]), _connector="OR"
                            ),
                            name="tasks_schedule_misfire_known",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("priority", None), ("priority__range", (1, 10)), _connector="OR"),
                            name="tasks_schedule_priority_1_to_10",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Dependency",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("task_id", models.BigIntegerField()),
                    ("on_task_id", models.BigIntegerField()),
                    ("if_it_fails", models.CharField(choices=[("cancel", "Cancel"), ("fail", "Fail")], max_length=10)),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "indexes": [models.Index(fields=["on_task_id"], name="tasks_dependency_on")],
                    "constraints": [
                        models.UniqueConstraint(
                            fields=("tenant", "task_id", "on_task_id"), name="tasks_dependency_once"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("on_task_id__lt", models.F("task_id"))),
                            name="tasks_dependency_on_what_was_before",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("if_it_fails__in", ["cancel", "fail"])),
                            name="tasks_dependency_failure_policy_known",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="LeaseCount",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("granted_at", models.DateTimeField()),
                    ("leases", models.IntegerField()),
                    (
                        "queue",
                        models.ForeignKey(
                            db_constraint=False,
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.DO_NOTHING,
                            related_name="+",
                            to="tasks.queue",
                        ),
                    ),
                    (
                        "task_type",
                        models.ForeignKey(
                            db_constraint=False,
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.DO_NOTHING,
                            related_name="+",
                            to="tasks.tasktype",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "indexes": [
                        models.Index(
                            condition=models.Q(("task_type", None)),
                            fields=["queue", "granted_at"],
                            name="tasks_leasecount_of_queue",
                        ),
                        models.Index(
                            condition=models.Q(("queue", None)),
                            fields=["task_type", "granted_at"],
                            name="tasks_leasecount_of_type",
                        ),
                    ],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("queue", None), ("task_type__isnull", False)),
                                models.Q(("queue__isnull", False), ("task_type", None)),
                                _connector="OR",
                            ),
                            name="tasks_leasecount_of_a_queue_or_a_type",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("leases__gte", 1)), name="tasks_leasecount_counts_something"
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Turn",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("served", models.BigIntegerField()),
                    (
                        "queue",
                        models.ForeignKey(
                            db_constraint=False,
                            db_index=False,
                            on_delete=django.db.models.deletion.DO_NOTHING,
                            related_name="+",
                            to="tasks.queue",
                        ),
                    ),
                    (
                        "requester",
                        models.ForeignKey(
                            db_constraint=False,
                            db_index=False,
                            on_delete=django.db.models.deletion.DO_NOTHING,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "queue", "requester"), name="tasks_turn_once")
                    ],
                },
            ),
            migrations.CreateModel(
                name="Budget",
                fields=[
                    ("task_id", models.BigIntegerField(primary_key=True, serialize=False)),
                    ("parent_id", models.BigIntegerField(null=True)),
                    ("max_tokens", models.BigIntegerField(null=True)),
                    ("max_cost_usd", models.DecimalField(decimal_places=6, max_digits=20, null=True)),
                    ("spent_tokens", models.BigIntegerField(default=0)),
                    ("spent_cost_usd", models.DecimalField(decimal_places=6, default=0, max_digits=20)),
                    ("when_spent", models.CharField(choices=[("fail", "Fail"), ("cancel", "Cancel")], max_length=10)),
                    ("spent_at", models.DateTimeField(null=True)),
                    ("settled_at", models.DateTimeField(null=True)),
                    ("created_at", models.DateTimeField()),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "indexes": [
                        models.Index(
                            condition=models.Q(("parent_id__isnull", False)),
                            fields=["parent_id"],
                            name="tasks_budget_by_parent",
                        ),
                        models.Index(
                            condition=models.Q(("settled_at", None), ("spent_at__isnull", False)),
                            fields=["spent_at"],
                            name="tasks_budget_unsettled",
                        ),
                    ],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(
                                    ("max_tokens__isnull", False), ("max_cost_usd__isnull", False), _connector="OR"
                                ),
                                models.Q(("max_tokens", None), ("max_tokens__gte", 1), _connector="OR"),
                                models.Q(("max_cost_usd", None), ("max_cost_usd__gt", 0), _connector="OR"),
                            ),
                            name="tasks_budget_limits_something",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("spent_cost_usd__gte", 0), ("spent_tokens__gte", 0)),
                            name="tasks_budget_spent_not_negative",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(
                                    ("spent_at", None),
                                    models.Q(
                                        ("max_tokens", None),
                                        ("spent_tokens__lt", models.F("max_tokens")),
                                        _connector="OR",
                                    ),
                                    models.Q(
                                        ("max_cost_usd", None),
                                        ("spent_cost_usd__lt", models.F("max_cost_usd")),
                                        _connector="OR",
                                    ),
                                ),
                                models.Q(
                                    ("spent_at__isnull", False),
                                    models.Q(
                                        models.Q(
                                            ("max_tokens__isnull", False), ("spent_tokens__gte", models.F("max_tokens"))
                                        ),
                                        models.Q(
                                            ("max_cost_usd__isnull", False),
                                            ("spent_cost_usd__gte", models.F("max_cost_usd")),
                                        ),
                                        _connector="OR",
                                    ),
                                ),
                                _connector="OR",
                            ),
                            name="tasks_budget_spent_at_iff_spent",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("settled_at", None), ("spent_at__isnull", False), _connector="OR"),
                            name="tasks_budget_settled_once_spent",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("parent_id", None), ("parent_id__lt", models.F("task_id")), _connector="OR"
                            ),
                            name="tasks_budget_draws_from_what_was_before",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("when_spent__in", ["fail", "cancel"])), name="tasks_budget_policy_known"
                        ),
                    ],
                },
            ),
        ),
        *(
            protect(f"tasks_{name}")
            for name in (
                "queue",
                "tasktype",
                "task",
                "hottask",
                "run",
                "terminalrecord",
                "spend",
                "artifact",
                "idempotencykey",
                "queueminute",
                "schedule",
                "dependency",
                "leasecount",
                "turn",
                "budget",
            )
        ),
        immutable("tasks_task", redactable=("params", "group", "caused_by")),
        immutable(
            "tasks_terminalrecord",
            except_columns=("fetched_at",),
            redactable=("content", "summary", "error", "result_pointer"),
        ),
        immutable("tasks_spend"),
        immutable("tasks_artifact"),
        immutable("tasks_idempotencykey"),
        immutable("tasks_leasecount"),
        immutable("tasks_budget", except_columns=("spent_tokens", "spent_cost_usd", "spent_at", "settled_at")),
        migrations.RunSQL(STORAGE, STORAGE_BACK),
    ]
