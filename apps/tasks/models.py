"""Queues and types, the cold and the hot half of a task, its runs, and what remains of it."""

from typing import Final

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from apps.principals.models import Principal, TenantModel
from apps.tasks.states import TERMINAL, Outcome, Reason, Status

# A run's key is its task's id and its fence in one number, so that runs partition along with their tasks.
FENCE_BITS: Final = 16


def run_key(task_id: int, fence: int) -> int:
    """The key of a task's run."""
    return (task_id << FENCE_BITS) + fence


class Queue(TenantModel):
    """A line in which tasks wait. A paused queue gives out nothing; what is leased goes on."""

    name = models.CharField(max_length=50)
    paused_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="tasks_queue_name_once")]

    def __str__(self) -> str:
        return self.name


class TaskType(TenantModel):
    """A kind of work: the schema of its parameters and the policy of its runs.

    `in_code` types belong to a handler of this product, are created in a tenant at their first use and are
    executed by Celery workers. `requires` are capabilities that a worker must name to be given such a task.
    """

    name = models.CharField(max_length=100)
    queue = models.ForeignKey(Queue, on_delete=models.PROTECT, related_name="task_types", db_index=False)
    params_schema = models.JSONField(default=dict)
    title = models.CharField(max_length=200, blank=True)
    requires = ArrayField(models.CharField(max_length=50), default=list)
    priority = models.PositiveSmallIntegerField(default=5)
    max_attempts = models.PositiveSmallIntegerField(default=3)
    max_expiries = models.PositiveSmallIntegerField(default=3)
    lease_seconds = models.PositiveIntegerField(default=60)
    max_lease_seconds = models.PositiveIntegerField(default=3600)
    backoff_seconds = models.FloatField(default=2.0)
    backoff_cap_seconds = models.FloatField(default=300.0)
    strict = models.BooleanField(default=False, help_text="An expired lease may not be used any more, even unclaimed.")
    in_code = models.BooleanField(default=False)
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="tasks_tasktype_name_once"),
            models.CheckConstraint(condition=Q(priority__range=(1, 10)), name="tasks_tasktype_priority_1_to_10"),
            models.CheckConstraint(
                condition=Q(max_attempts__gte=1, max_expiries__gte=1), name="tasks_tasktype_tries_at_least_once"
            ),
            models.CheckConstraint(
                condition=Q(lease_seconds__gte=1, max_lease_seconds__gte=F("lease_seconds")),
                name="tasks_tasktype_lease_within_its_cap",
            ),
            models.CheckConstraint(
                condition=Q(backoff_seconds__gte=0, backoff_cap_seconds__gte=F("backoff_seconds")),
                name="tasks_tasktype_backoff_within_its_cap",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Task(TenantModel):
    """What was asked for: written once, never changed, read rarely (the cold half of a task).

    Nothing in the database points here, so that old tasks can be dropped by ranges of their id.
    """

    queue = models.ForeignKey(Queue, on_delete=models.PROTECT, related_name="tasks", db_index=False)
    task_type = models.ForeignKey(TaskType, on_delete=models.PROTECT, related_name="tasks", db_index=False)
    requester = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    recipient = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    priority = models.PositiveSmallIntegerField()
    params = models.JSONField()
    run_at = models.DateTimeField(null=True)
    group = models.JSONField(null=True)
    caused_by = models.CharField(max_length=100, null=True)
    receipt_id = models.CharField(max_length=100)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(priority__range=(1, 10)), name="tasks_task_priority_1_to_10")]

    def __str__(self) -> str:
        return f"task_{self.pk}"


class HotTask(TenantModel):
    """The hot half of a task, there only while the task is open: one narrow row that every verb fights for.

    Ready exactly if `ready_at` is set; waiting tasks have none, and a `due_at` if they wait for a moment.
    `fence` counts the leases granted and is the number of the current run.
    """

    task_id = models.BigIntegerField(primary_key=True)
    queue = models.ForeignKey(Queue, on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False)
    task_type = models.ForeignKey(
        TaskType, on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    holder = models.ForeignKey(
        Principal, on_delete=models.DO_NOTHING, related_name="+", null=True, db_index=False, db_constraint=False
    )
    ready_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(null=True)
    lease_expires_at = models.DateTimeField(null=True)
    fence = models.IntegerField(default=0)
    lease_seconds = models.IntegerField()
    priority_rank = models.SmallIntegerField()
    failures = models.SmallIntegerField(default=0)
    max_attempts = models.SmallIntegerField()
    expiries = models.SmallIntegerField(default=0)
    max_expiries = models.SmallIntegerField()
    flags = models.SmallIntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(holder=None, lease_expires_at=None)
                | Q(holder__isnull=False, lease_expires_at__isnull=False),
                name="tasks_hottask_leased_iff_holder_and_deadline",
            ),
            models.CheckConstraint(
                condition=Q(holder=None) | Q(ready_at__isnull=False, fence__gte=1),
                name="tasks_hottask_leased_was_ready_and_fenced",
            ),
            models.CheckConstraint(
                condition=Q(ready_at=None) | Q(due_at=None), name="tasks_hottask_ready_waits_for_nothing"
            ),
            models.CheckConstraint(condition=Q(priority_rank__range=(0, 9)), name="tasks_hottask_rank_0_to_9"),
            models.CheckConstraint(
                condition=Q(
                    fence__range=(0, 2**FENCE_BITS - 1),
                    failures__gte=0,
                    failures__lt=F("max_attempts"),
                    expiries__gte=0,
                    expiries__lt=F("max_expiries"),
                ),
                name="tasks_hottask_has_tries_left",
            ),
        ]
        indexes = [
            # Serves sql.CLAIM in its exact order; the type stands in it so that work that a worker can't do is
            # passed over without a look at the table.
            models.Index(
                name="tasks_hottask_claimable",
                fields=["queue", "priority_rank", "ready_at", "task_id", "task_type"],
                condition=Q(holder=None, ready_at__isnull=False),
            ),
            # Serves sql.RECLAIM, which walks the leases of its queues only, sql.DOOMED and sql.QUEUE_HEALTH. Never on
            # the deadline: heartbeats must stay HOT.
            models.Index(name="tasks_hottask_leased", fields=["queue", "task_id"], condition=Q(holder__isnull=False)),
            # Serves sql.RECLAIM, which readies what has become due, and sql.QUEUE_HEALTH, which counts what waits.
            models.Index(name="tasks_hottask_due", fields=["queue", "due_at"], condition=Q(ready_at=None)),
        ]

    def __str__(self) -> str:
        return f"task_{self.task_id}"


class Run(TenantModel):
    """One attempt: who held it, how far it came, how it ended.

    `answer` and `request_digest` are of the call that ended it: the same call again gets the same answer.
    """

    id = models.BigIntegerField(primary_key=True)
    holder = models.ForeignKey(
        Principal, on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    started_at = models.DateTimeField()
    percent = models.FloatField(null=True)
    message = models.CharField(max_length=500, blank=True, default="")
    progressed_at = models.DateTimeField(null=True)
    checkpoint = models.JSONField(null=True)
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=10, choices=Outcome, null=True)
    error = models.JSONField(null=True)
    request_digest = models.BinaryField(max_length=32, null=True)
    answer = models.JSONField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(ended_at=None, outcome=None) | Q(ended_at__isnull=False, outcome__isnull=False),
                name="tasks_run_ended_iff_outcome",
            ),
            models.CheckConstraint(
                condition=Q(outcome=None) | Q(outcome__in=Outcome.values), name="tasks_run_outcome_known"
            ),
        ]

    def __str__(self) -> str:
        return f"task_{self.task_id} run_{self.fence}"

    @property
    def task_id(self) -> int:
        return self.pk >> FENCE_BITS

    @property
    def fence(self) -> int:
        return self.pk & (2**FENCE_BITS - 1)


class Spend(TenantModel):
    """What a run says it has used up since it last said so. Appended, never summed in place."""

    task_id = models.BigIntegerField()
    fence = models.IntegerField()
    tokens = models.BigIntegerField(default=0)
    cost_usd = models.DecimalField(max_digits=14, decimal_places=6, default=0)
    spent_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(tokens__gte=0, cost_usd__gte=0), name="tasks_spend_not_negative")
        ]
        indexes = [
            # Serves selectors.status, which sums a task's spend.
            models.Index(name="tasks_spend_by_task", fields=["task_id"])
        ]

    def __str__(self) -> str:
        return f"task_{self.task_id} run_{self.fence}"


class TerminalRecord(TenantModel):
    """How a task ended; there is one exactly if the hot row is gone. A dead letter is one that failed.

    Written in the transaction that posts the terminal receipt. Only `fetched_at` changes, once.
    """

    task_id = models.BigIntegerField(primary_key=True)
    status = models.CharField(max_length=10, choices=Status)
    reason = models.CharField(max_length=20, choices=Reason, null=True)
    fence = models.IntegerField()
    error = models.JSONField(null=True)
    result_channel = models.CharField(max_length=50, null=True)
    result_pointer = models.CharField(max_length=2000, null=True)
    content = models.JSONField(null=True)
    checksum = models.CharField(max_length=100, null=True)
    size = models.BigIntegerField(null=True)
    media_type = models.CharField(max_length=100, null=True)
    summary = models.TextField()
    receipt_id = models.CharField(max_length=100)
    finished_at = models.DateTimeField()
    fetched_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=[str(status) for status in sorted(TERMINAL)]),
                name="tasks_terminalrecord_status_terminal",
            ),
            models.CheckConstraint(
                condition=(Q(status=Status.SUCCEEDED) & Q(reason=None))
                | (~Q(status=Status.SUCCEEDED) & Q(reason__isnull=False, reason__in=Reason.values)),
                name="tasks_terminalrecord_reason_iff_not_succeeded",
            ),
        ]
        indexes = [
            # Serves the count of dead letters, and their list in the admin, newest first.
            models.Index(
                name="tasks_terminalrecord_dead", fields=["tenant", "task_id"], condition=Q(status=Status.FAILED)
            )
        ]

    def __str__(self) -> str:
        return f"task_{self.task_id} {self.status}"


class IdempotencyKey(TenantModel):
    """That a principal used a key, for which request, and what it was answered. Outlives the task."""

    principal = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    key = models.CharField(max_length=200)
    task_id = models.BigIntegerField()
    request_digest = models.BinaryField(max_length=32)
    answer = models.JSONField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "principal", "key"], name="tasks_idempotencykey_once")]

    def __str__(self) -> str:
        return self.key


class Artifact(TenantModel):
    """That this tenant has stored these bytes. The bytes are in the artifact storage under their SHA-256."""

    digest = models.CharField(max_length=64)
    media_type = models.CharField(max_length=100)
    size = models.BigIntegerField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "digest"], name="tasks_artifact_digest_once"),
            models.CheckConstraint(
                condition=Q(digest__regex=r"^[0-9a-f]{64}$"), name="tasks_artifact_digest_is_sha256"
            ),
        ]

    def __str__(self) -> str:
        return f"artifact:sha256-{self.digest}"
