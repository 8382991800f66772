from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import F, Q

from apps.core.rls import immutable, kept
from apps.core.tables import CreateModels, Named, both_or_neither, reference, table

# Short-lived rows that are updated at every heartbeat: room in each page for new versions, and dead ones removed
# by number, early and at full speed. What retention deletes of the long tables is vacuumed in small portions.
STORAGE = """
alter table task_live set (fillfactor = 60, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
alter table tasks_run set (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
alter table tasks_task set (autovacuum_vacuum_scale_factor = 0.02);
alter table task_history set (autovacuum_vacuum_scale_factor = 0.02);
"""


def _loose(name: str, to: str, *, null: bool = False) -> Named:
    """A reference without a constraint, in rows that are written often."""
    return reference(name, to, on_delete=models.DO_NOTHING, null=null, lasting=True)


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial")]

    operations = [
        CreateModels(
            table(
                "Queue",
                ("name", models.CharField(max_length=50)),
                ("paused_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField()),
                ("concurrency", models.PositiveIntegerField(null=True)),
                ("fair", models.BooleanField(default=False, db_default=False)),
                ("rate", models.PositiveIntegerField(null=True)),
                ("rate_seconds", models.FloatField(null=True)),
                constraints=[
                    models.UniqueConstraint(name="tasks_queue_name_once", fields=["tenant", "name"]),
                    models.CheckConstraint(
                        name="tasks_queue_rate_has_a_period", condition=both_or_neither("rate", "rate_seconds")
                    ),
                ],
                permissions=[("operate_queue", "Can pause and resume queues")],
            ),
            table(
                "TaskType",
                ("name", models.CharField(max_length=100)),
                ("params_schema", models.JSONField(default=dict)),
                ("title", models.CharField(max_length=200, blank=True)),
                ("requires", ArrayField(models.CharField(max_length=50), default=list)),
                ("priority", models.PositiveSmallIntegerField(default=5)),
                ("max_attempts", models.PositiveSmallIntegerField(default=3)),
                ("max_expiries", models.PositiveSmallIntegerField(default=3)),
                ("lease_seconds", models.PositiveIntegerField(default=60)),
                ("max_lease_seconds", models.PositiveIntegerField(default=3600)),
                ("backoff_seconds", models.FloatField(default=2.0)),
                ("backoff_cap_seconds", models.FloatField(default=300.0)),
                ("strict", models.BooleanField(default=False)),
                ("in_code", models.BooleanField(default=False)),
                ("enabled", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField()),
                ("changed_at", models.DateTimeField()),
                reference("queue", "tasks.queue", "task_types"),
                ("concurrency", models.PositiveIntegerField(null=True)),
                ("deadline_seconds", models.PositiveIntegerField(null=True)),
                ("heartbeat_seconds", models.PositiveIntegerField(null=True)),
                ("paused_at", models.DateTimeField(null=True)),
                ("rate", models.PositiveIntegerField(null=True)),
                ("rate_seconds", models.FloatField(null=True)),
                ("retention_seconds", models.PositiveIntegerField(null=True)),
                ("revokes_stuck", models.BooleanField(default=False, db_default=False)),
                ("stuck_after", models.PositiveSmallIntegerField(null=True)),
                constraints=[
                    models.UniqueConstraint(name="tasks_tasktype_name_once", fields=["tenant", "name"]),
                    models.CheckConstraint(
                        name="tasks_tasktype_lease_within_its_cap",
                        condition=Q(lease_seconds__gte=1, max_lease_seconds__gte=F("lease_seconds")),
                    ),
                    models.CheckConstraint(
                        name="tasks_tasktype_backoff_within_its_cap",
                        condition=Q(backoff_cap_seconds__gte=F("backoff_seconds"), backoff_seconds__gte=0),
                    ),
                    models.CheckConstraint(
                        name="tasks_tasktype_rate_has_a_period", condition=both_or_neither("rate", "rate_seconds")
                    ),
                ],
            ),
            table(
                "Task",
                ("priority", models.SmallIntegerField()),
                ("params", models.JSONField()),
                ("run_at", models.DateTimeField(null=True)),
                ("group", models.JSONField(null=True)),
                ("caused_by", models.CharField(max_length=100, null=True)),
                ("receipt_id", models.CharField(max_length=100)),
                ("created_at", models.DateTimeField()),
                reference("queue", "tasks.queue", "tasks", lasting=True),
                reference("recipient", "principals.principal", lasting=True),
                reference("requester", "principals.principal", lasting=True),
                reference("task_type", "tasks.tasktype", "tasks", lasting=True),
                ("concurrency_key", models.CharField(max_length=200, null=True)),
                ("retry_of", models.BigIntegerField(null=True)),
                indexes=[
                    models.Index(name="tasks_task_newest", fields=["tenant", "id"]),
                ],
                permissions=[("operate_task", "Can cancel tasks, retry dead letters and revoke leases")],
            ),
            table(
                "LiveTask",
                ("task_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("ready_at", models.DateTimeField(null=True)),
                ("due_at", models.DateTimeField(null=True)),
                ("lease_expires_at", models.DateTimeField(null=True)),
                ("fencing_token", models.IntegerField(default=0)),
                ("lease_seconds", models.IntegerField()),
                ("priority_rank", models.SmallIntegerField()),
                ("failures", models.SmallIntegerField(default=0)),
                ("max_attempts", models.SmallIntegerField()),
                ("expiries", models.SmallIntegerField(default=0)),
                ("max_expiries", models.SmallIntegerField()),
                ("flags", models.SmallIntegerField(default=0)),
                _loose("holder", "principals.principal", null=True),
                _loose("queue", "tasks.queue"),
                _loose("task_type", "tasks.tasktype"),
                ("has_budget", models.BooleanField(default=False, db_default=False)),
                ("concurrency_key", models.CharField(max_length=200, null=True)),
                ("deadline_at", models.DateTimeField(null=True)),
                ("open_dependencies", models.PositiveSmallIntegerField(default=0, db_default=0)),
                _loose("requester", "principals.principal", null=True),
                ("silent_beats", models.SmallIntegerField(default=0, db_default=0)),
                ("stuck_after", models.SmallIntegerField(null=True)),
                key=False,
                db_table="task_live",
                verbose_name="open task",
                constraints=[
                    models.CheckConstraint(
                        name="task_live_leased_iff_holder_and_deadline",
                        condition=both_or_neither("holder", "lease_expires_at"),
                    ),
                    models.CheckConstraint(
                        name="task_live_leased_was_ready_and_fenced",
                        condition=Q(holder=None) | Q(fencing_token__gte=1, ready_at__isnull=False),
                    ),
                    models.CheckConstraint(
                        name="task_live_has_tries_left",
                        condition=Q(
                            expiries__lt=F("max_expiries"),
                            failures__lt=F("max_attempts"),
                            fencing_token__lt=65536,
                        ),
                    ),
                    models.CheckConstraint(
                        name="task_live_ready_waits_for_nothing",
                        condition=Q(ready_at=None) | Q(due_at=None, open_dependencies=0),
                    ),
                    models.UniqueConstraint(
                        name="task_live_key_admitted_once",
                        fields=["tenant", "concurrency_key"],
                        condition=Q(concurrency_key__isnull=False, ready_at__isnull=False),
                    ),
                ],
                indexes=[
                    models.Index(
                        name="task_live_claimable",
                        fields=["queue", "priority_rank", "ready_at", "task_id", "task_type"],
                        condition=Q(holder=None, ready_at__isnull=False),
                    ),
                    models.Index(
                        name="task_live_leased", fields=["queue", "task_id"], condition=Q(holder__isnull=False)
                    ),
                    models.Index(name="task_live_due", fields=["queue", "due_at"], condition=Q(ready_at=None)),
                    models.Index(
                        name="task_live_waiting_for_key",
                        fields=["tenant", "concurrency_key", "priority_rank", "task_id"],
                        condition=Q(concurrency_key__isnull=False, due_at=None, open_dependencies=0, ready_at=None),
                    ),
                    models.Index(
                        name="task_live_claimable_fairly",
                        fields=["queue", "requester", "priority_rank", "ready_at", "task_id", "task_type"],
                        condition=Q(holder=None, ready_at__isnull=False, requester__isnull=False),
                    ),
                    models.Index(
                        name="task_live_by_deadline", fields=["deadline_at"], condition=Q(deadline_at__isnull=False)
                    ),
                ],
            ),
            table(
                "Run",
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("started_at", models.DateTimeField()),
                ("percent", models.FloatField(null=True)),
                ("message", models.CharField(max_length=500, blank=True, default="")),
                ("host", models.CharField(max_length=100, blank=True, default="")),
                ("progressed_at", models.DateTimeField(null=True)),
                ("checkpoint", models.JSONField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("outcome", models.CharField(max_length=10, null=True)),
                ("error", models.JSONField(null=True)),
                ("request_digest", models.BinaryField(max_length=32, null=True)),
                ("answer", models.JSONField(null=True)),
                _loose("holder", "principals.principal"),
                ("progress_sequence", models.BigIntegerField(null=True)),
                ("checkpoint_sequence", models.BigIntegerField(null=True)),
                ("spent_tokens", models.BigIntegerField(default=0, db_default=0)),
                ("spent_cost_usd", models.DecimalField(default=0, db_default=0, max_digits=14, decimal_places=6)),
                key=False,
                constraints=[
                    models.CheckConstraint(
                        name="tasks_run_ended_iff_outcome",
                        condition=both_or_neither("ended_at", "outcome"),
                    ),
                ],
            ),
            table(
                "FinishedTask",
                ("task_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("status", models.CharField(max_length=10)),
                ("reason", models.CharField(max_length=20, null=True)),
                ("fencing_token", models.IntegerField()),
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
                key=False,
                db_table="task_history",
                verbose_name="finished task",
                constraints=[
                    models.CheckConstraint(
                        name="task_history_reason_iff_not_succeeded",
                        condition=Q(status="succeeded", reason=None)
                        | (~Q(status="succeeded") & Q(reason__isnull=False)),
                    ),
                ],
                indexes=[
                    models.Index(name="task_history_dead", fields=["tenant", "task_id"], condition=Q(status="failed")),
                    models.Index(name="task_history_by_end", fields=["finished_at", "tenant"]),
                    models.Index(
                        name="task_history_not_succeeded",
                        fields=["status", "finished_at"],
                        include=["tenant", "task_id"],
                        condition=~Q(status="succeeded"),
                    ),
                ],
            ),
            table(
                "Artifact",
                ("digest", models.CharField(max_length=64)),
                ("media_type", models.CharField(max_length=100)),
                ("size", models.BigIntegerField()),
                ("created_at", models.DateTimeField()),
                constraints=[
                    models.UniqueConstraint(name="tasks_artifact_digest_once", fields=["tenant", "digest"]),
                    models.CheckConstraint(
                        name="tasks_artifact_digest_is_sha256", condition=Q(digest__regex="^[0-9a-f]{64}$")
                    ),
                ],
            ),
            table(
                "IdempotencyKey",
                ("key", models.CharField(max_length=200)),
                ("task_id", models.BigIntegerField()),
                ("request_digest", models.BinaryField(max_length=32)),
                ("answer", models.JSONField()),
                ("created_at", models.DateTimeField()),
                reference("principal", "principals.principal", lasting=True),
                constraints=[
                    models.UniqueConstraint(name="tasks_idempotencykey_once", fields=["tenant", "principal", "key"]),
                ],
            ),
            table(
                "QueueHistory",
                ("minute_at", models.DateTimeField()),
                ("ended", models.BigIntegerField()),
                ("failed", models.BigIntegerField()),
                ("queued", models.BigIntegerField()),
                _loose("queue", "tasks.queue"),
                indexes=[
                    models.Index(name="tasks_queuehistory_by_time", fields=["minute_at"]),
                ],
                constraints=[
                    models.UniqueConstraint(name="tasks_queuehistory_once", fields=["tenant", "queue", "minute_at"]),
                    models.CheckConstraint(
                        name="tasks_queuehistory_counts",
                        condition=Q(ended__gte=F("failed")),
                    ),
                ],
            ),
            table(
                "BulkAction",
                ("verb", models.CharField(max_length=10)),
                ("operator", models.CharField(max_length=150)),
                ("reason", models.CharField(max_length=200)),
                ("task_ids", ArrayField(models.BigIntegerField())),
                ("position", models.PositiveIntegerField(default=0)),
                ("done", models.PositiveIntegerField(default=0)),
                ("refusals", models.JSONField(default=list)),
                ("created_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                indexes=[models.Index(fields=["id"], condition=models.Q(ended_at=None), name="tasks_bulkaction_open")],
                constraints=[
                    models.CheckConstraint(
                        condition=models.Q(done__lte=models.F("position")),
                        name="tasks_bulkaction_done_of_those_over",
                    ),
                ],
            ),
            table(
                "Schedule",
                ("name", models.CharField(max_length=100)),
                ("priority", models.PositiveSmallIntegerField(null=True)),
                ("params", models.JSONField(default=dict)),
                ("cron", models.CharField(max_length=200, null=True)),
                ("every_seconds", models.PositiveIntegerField(null=True)),
                ("timezone", models.CharField(max_length=50)),
                ("anchor_at", models.DateTimeField()),
                ("next_at", models.DateTimeField(null=True)),
                ("last_at", models.DateTimeField(null=True)),
                ("last_task_id", models.BigIntegerField(null=True)),
                ("last_refusal", models.CharField(max_length=500, blank=True, default="")),
                ("created_at", models.DateTimeField()),
                ("changed_at", models.DateTimeField()),
                reference("owner", "principals.principal"),
                reference("queue", "tasks.queue", null=True),
                reference("recipient", "principals.principal"),
                reference("task_type", "tasks.tasktype", "schedules"),
                permissions=[("operate_schedule", "Can stop and resume schedules")],
                indexes=[
                    models.Index(name="tasks_schedule_due", fields=["next_at"], condition=Q(next_at__isnull=False)),
                ],
                constraints=[
                    models.UniqueConstraint(name="tasks_schedule_name_once", fields=["tenant", "owner", "name"]),
                    models.CheckConstraint(
                        name="tasks_schedule_has_one_timetable",
                        condition=Q(cron__isnull=False, every_seconds=None) | Q(cron=None, every_seconds__gte=1),
                    ),
                ],
            ),
            table(
                "Dependency",
                ("task_id", models.BigIntegerField()),
                ("on_task_id", models.BigIntegerField()),
                ("if_it_fails", models.CharField(max_length=10)),
                indexes=[
                    models.Index(name="tasks_dependency_on", fields=["on_task_id"]),
                ],
                constraints=[
                    models.UniqueConstraint(name="tasks_dependency_once", fields=["tenant", "task_id", "on_task_id"]),
                    models.CheckConstraint(
                        name="tasks_dependency_on_what_was_before", condition=Q(on_task_id__lt=F("task_id"))
                    ),
                ],
            ),
            table(
                "RateWindow",
                ("granted_at", models.DateTimeField()),
                ("leases", models.IntegerField()),
                _loose("queue", "tasks.queue", null=True),
                _loose("task_type", "tasks.tasktype", null=True),
                indexes=[
                    models.Index(
                        name="tasks_ratewindow_of_queue",
                        fields=["queue", "granted_at"],
                        condition=Q(task_type=None),
                    ),
                    models.Index(
                        name="tasks_ratewindow_of_type", fields=["task_type", "granted_at"], condition=Q(queue=None)
                    ),
                ],
                constraints=[
                    models.CheckConstraint(
                        name="tasks_ratewindow_of_a_queue_or_a_type",
                        condition=Q(queue=None, task_type__isnull=False) | Q(queue__isnull=False, task_type=None),
                    ),
                ],
            ),
            table(
                "FairShare",
                ("served", models.BigIntegerField()),
                _loose("queue", "tasks.queue"),
                _loose("requester", "principals.principal"),
                constraints=[
                    models.UniqueConstraint(name="tasks_fairshare_once", fields=["tenant", "queue", "requester"]),
                ],
            ),
            table(
                "Budget",
                ("task_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("max_tokens", models.BigIntegerField(null=True)),
                ("max_cost_usd", models.DecimalField(null=True, max_digits=20, decimal_places=6)),
                ("spent_tokens", models.BigIntegerField(default=0)),
                ("spent_cost_usd", models.DecimalField(default=0, max_digits=20, decimal_places=6)),
                ("spent_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField()),
                key=False,
                constraints=[
                    models.CheckConstraint(
                        name="tasks_budget_limits_something",
                        condition=Q(max_tokens__isnull=False) | Q(max_cost_usd__isnull=False),
                    ),
                    models.CheckConstraint(
                        name="tasks_budget_spent_at_iff_spent",
                        condition=Q(spent_at=None)
                        & (Q(max_tokens=None) | Q(spent_tokens__lt=F("max_tokens")))
                        & (Q(max_cost_usd=None) | Q(spent_cost_usd__lt=F("max_cost_usd")))
                        | Q(spent_at__isnull=False)
                        & (
                            Q(max_tokens__isnull=False, spent_tokens__gte=F("max_tokens"))
                            | Q(max_cost_usd__isnull=False, spent_cost_usd__gte=F("max_cost_usd"))
                        ),
                    ),
                ],
            ),
        ),
        immutable("tasks_task", redactable=("params", "group", "caused_by")),
        immutable(
            "task_history",
            except_columns=("fetched_at",),
            redactable=("content", "summary", "error", "result_pointer"),
        ),
        immutable("tasks_artifact"),
        kept("tasks_queue"),
        kept("tasks_tasktype"),
        immutable("tasks_idempotencykey"),
        immutable("tasks_ratewindow"),
        immutable("tasks_budget", except_columns=("spent_tokens", "spent_cost_usd", "spent_at")),
        migrations.RunSQL(STORAGE),
    ]
