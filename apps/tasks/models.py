"""Queues, task types, tasks, their runs and their ends."""

from typing import Final

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from apps.core.tables import both_or_neither
from apps.principals.models import Principal, TenantModel
from apps.tasks.states import (
    BUDGET_SPENT,
    CANCEL_REQUESTED,
    FENCING_TOKEN_BITS,
    BulkVerb,
    IfDependencyFails,
    Outcome,
    Reason,
    Status,
)

# What begins so is no requester's own key.
RETRY_PREFIX: Final = "retry:"


def run_key(task_id: int, fencing_token: int) -> int:
    """The key of a task's run."""
    return (task_id << FENCING_TOKEN_BITS) + fencing_token


def retry_key(task_id: int) -> str:
    """The idempotency key of a dead letter's one retry."""
    return f"{RETRY_PREFIX}task_{task_id}"


class Queue(TenantModel):
    """A queue of tasks. A paused queue grants no leases; leases that are held go on.

    At most `concurrency` of its tasks are leased at a time, and `rate` leases are granted in any
    `rate_seconds`. A `fair` queue alternates between its requesters, whatever their priorities.
    """

    name = models.CharField(max_length=50)
    paused_at = models.DateTimeField(null=True)
    concurrency = models.PositiveIntegerField(null=True)
    rate = models.PositiveIntegerField(null=True)
    rate_seconds = models.FloatField(null=True)
    fair = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField()

    class Meta:
        permissions = [("operate_queue", "Can pause and resume queues")]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="tasks_queue_name_once"),
            models.CheckConstraint(
                condition=both_or_neither("rate", "rate_seconds"), name="tasks_queue_rate_has_a_period"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class TaskType(TenantModel):
    """A kind of work: the schema of its params and the policy of its runs.

    An `in_code` type belongs to a handler of this product and is executed by Celery. It is made in a tenant at
    its first use. `requires` are the capabilities that a task worker must name. `heartbeat_seconds` is the
    longest silence of a holder, whatever the length of its lease. `deadline_seconds` limits a task's whole
    life. A run is stuck after `stuck_after` heartbeats without progress. The limits are as a queue's, over all
    queues.
    """

    version: str = ""
    """Of the row and that of its queue, as they were read; empty if they were not read together."""
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
    heartbeat_seconds = models.PositiveIntegerField(null=True)
    deadline_seconds = models.PositiveIntegerField(null=True)
    retention_seconds = models.PositiveIntegerField(null=True)
    backoff_seconds = models.FloatField(default=2.0)
    backoff_cap_seconds = models.FloatField(default=300.0)
    concurrency = models.PositiveIntegerField(null=True)
    rate = models.PositiveIntegerField(null=True)
    rate_seconds = models.FloatField(null=True)
    stuck_after = models.PositiveSmallIntegerField(null=True)
    revokes_stuck = models.BooleanField(default=False, db_default=False)
    strict = models.BooleanField(default=False, help_text="An expired lease may not be used any more, even unclaimed.")
    in_code = models.BooleanField(default=False)
    enabled = models.BooleanField(default=True)
    paused_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="tasks_tasktype_name_once"),
            models.CheckConstraint(
                condition=Q(lease_seconds__gte=1, max_lease_seconds__gte=F("lease_seconds")),
                name="tasks_tasktype_lease_within_its_cap",
            ),
            models.CheckConstraint(
                condition=Q(backoff_seconds__gte=0, backoff_cap_seconds__gte=F("backoff_seconds")),
                name="tasks_tasktype_backoff_within_its_cap",
            ),
            models.CheckConstraint(
                condition=both_or_neither("rate", "rate_seconds"), name="tasks_tasktype_rate_has_a_period"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Task(TenantModel):
    """What was asked for: written once, read rarely. Nothing in the database points here."""

    queue = models.ForeignKey(
        Queue, on_delete=models.PROTECT, related_name="tasks", db_index=False, db_constraint=False
    )
    task_type = models.ForeignKey(
        TaskType, on_delete=models.PROTECT, related_name="tasks", db_index=False, db_constraint=False
    )
    requester = models.ForeignKey(
        Principal, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    recipient = models.ForeignKey(
        Principal, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    priority = models.SmallIntegerField()
    params = models.JSONField()
    run_at = models.DateTimeField(null=True)
    concurrency_key = models.CharField(max_length=200, null=True)
    retry_of = models.BigIntegerField(null=True)
    group = models.JSONField(null=True)
    caused_by = models.CharField(max_length=100, null=True)
    receipt_id = models.CharField(max_length=100)
    created_at = models.DateTimeField()

    class Meta:
        permissions = [("operate_task", "Can cancel tasks, retry dead letters and revoke leases")]
        # Serves sql.LISTED, newest first.
        indexes = [models.Index(name="tasks_task_newest", fields=["tenant", "id"])]

    def __str__(self) -> str:
        return f"task_{self.pk}"


class LiveTask(TenantModel):
    """A task that has not ended: one narrow row that every verb locks, deleted when the task ends.

    The task is ready exactly if `ready_at` is set. A waiting task has no `ready_at`, and a `due_at` if it waits
    for a time. `fencing_token` counts the leases granted and is the number of the current run. Of the tasks
    with one `concurrency_key`, one at a time is ready or leased. `requester` is set in fair queues only.
    `silent_beats` counts the heartbeats since the last progress.
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
    fencing_token = models.IntegerField(default=0)
    lease_seconds = models.IntegerField()
    priority_rank = models.SmallIntegerField()
    failures = models.SmallIntegerField(default=0)
    max_attempts = models.SmallIntegerField()
    expiries = models.SmallIntegerField(default=0)
    max_expiries = models.SmallIntegerField()
    flags = models.SmallIntegerField(default=0)
    open_dependencies = models.PositiveSmallIntegerField(default=0, db_default=0)
    silent_beats = models.SmallIntegerField(default=0, db_default=0)
    stuck_after = models.SmallIntegerField(null=True)
    requester = models.ForeignKey(
        Principal, on_delete=models.DO_NOTHING, related_name="+", null=True, db_index=False, db_constraint=False
    )
    has_budget = models.BooleanField(default=False, db_default=False)
    deadline_at = models.DateTimeField(null=True)
    concurrency_key = models.CharField(max_length=200, null=True)

    class Meta:
        db_table = "task_live"
        verbose_name = "open task"
        constraints = [
            models.CheckConstraint(
                condition=both_or_neither("holder", "lease_expires_at"),
                name="task_live_leased_iff_holder_and_deadline",
            ),
            models.CheckConstraint(
                condition=Q(holder=None) | Q(ready_at__isnull=False, fencing_token__gte=1),
                name="task_live_leased_was_ready_and_fenced",
            ),
            models.CheckConstraint(
                condition=Q(ready_at=None) | Q(due_at=None, open_dependencies=0),
                name="task_live_ready_waits_for_nothing",
            ),
            models.UniqueConstraint(
                fields=["tenant", "concurrency_key"],
                condition=Q(ready_at__isnull=False, concurrency_key__isnull=False),
                name="task_live_key_admitted_once",
            ),
            models.CheckConstraint(
                condition=Q(
                    fencing_token__lt=2**FENCING_TOKEN_BITS,
                    failures__lt=F("max_attempts"),
                    expiries__lt=F("max_expiries"),
                ),
                name="task_live_has_tries_left",
            ),
        ]
        indexes = [
            # Serves sql.CLAIM in its exact order; the type stands in it so that work that a task worker can't do is
            # passed over without a look at the table.
            models.Index(
                name="task_live_claimable",
                fields=["queue", "priority_rank", "ready_at", "task_id", "task_type"],
                condition=Q(holder=None, ready_at__isnull=False),
            ),
            # Serves sql.RECLAIM, which walks the leases of its queues only, sql.DOOMED and sql.QUEUE_HEALTH. Never on
            # the deadline: heartbeats must stay HOT.
            models.Index(name="task_live_leased", fields=["queue", "task_id"], condition=Q(holder__isnull=False)),
            # Serves sql.RECLAIM, which readies what has become due, and sql.QUEUE_HEALTH, which counts what waits.
            models.Index(name="task_live_due", fields=["queue", "due_at"], condition=Q(ready_at=None)),
            # Serves the admission of the next task with a concurrency key, and the search for keys that are free.
            models.Index(
                name="task_live_waiting_for_key",
                fields=["tenant", "concurrency_key", "priority_rank", "task_id"],
                condition=Q(ready_at=None, due_at=None, open_dependencies=0, concurrency_key__isnull=False),
            ),
            # Serves claims in fair queues, requester by requester, in the order of task_live_claimable.
            models.Index(
                name="task_live_claimable_fairly",
                fields=["queue", "requester", "priority_rank", "ready_at", "task_id", "task_type"],
                condition=Q(holder=None, ready_at__isnull=False, requester__isnull=False),
            ),
            # Serves the search for tasks past their deadline. It is written once, so heartbeats stay HOT.
            models.Index(name="task_live_by_deadline", fields=["deadline_at"], condition=Q(deadline_at__isnull=False)),
        ]

    @property
    def status(self) -> Status:
        if self.holder_id is not None:
            return Status.CANCELING if self.flags & (CANCEL_REQUESTED | BUDGET_SPENT) else Status.LEASED
        if self.ready_at is not None:
            return Status.QUEUED
        return Status.SCHEDULED if self.due_at is not None else Status.WAITING


class Dependency(TenantModel):
    """An open task waits for another one to succeed. The row is deleted once it has, or once the waiting task
    ends.

    A task depends only on older tasks, so there are no cycles.
    """

    task_id = models.BigIntegerField()
    on_task_id = models.BigIntegerField()
    if_it_fails = models.CharField(max_length=10, choices=IfDependencyFails)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "task_id", "on_task_id"], name="tasks_dependency_once"),
            models.CheckConstraint(
                condition=Q(on_task_id__lt=F("task_id")), name="tasks_dependency_on_what_was_before"
            ),
        ]
        indexes = [
            # Serves sql.WAITED_ENOUGH and sql.RELEASE, and sql.END, which tells whether anything waits.
            models.Index(name="tasks_dependency_on", fields=["on_task_id"])
        ]


class Run(TenantModel):
    """One attempt: its holder, its progress, its end.

    `answer` and `request_digest` belong to the call that ended it: the same call gets the same answer. The
    sequences are those of the heartbeats that brought the progress and the checkpoint. A heartbeat with a lower
    sequence changes neither. `progressed_at` is when a heartbeat last told of progress or spend.
    """

    id = models.BigIntegerField(primary_key=True)
    holder = models.ForeignKey(
        Principal, on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    started_at = models.DateTimeField()
    percent = models.FloatField(null=True)
    message = models.CharField(max_length=500, blank=True, default="")
    host = models.CharField(max_length=100, blank=True, default="")
    progressed_at = models.DateTimeField(null=True)
    checkpoint = models.JSONField(null=True)
    progress_sequence = models.BigIntegerField(null=True)
    checkpoint_sequence = models.BigIntegerField(null=True)
    spent_tokens = models.BigIntegerField(default=0, db_default=0)
    spent_cost_usd = models.DecimalField(max_digits=14, decimal_places=6, default=0, db_default=0)
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=10, choices=Outcome, null=True)
    error = models.JSONField(null=True)
    request_digest = models.BinaryField(max_length=32, null=True)
    answer = models.JSONField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=both_or_neither("ended_at", "outcome"), name="tasks_run_ended_iff_outcome"
            ),
        ]

    @property
    def task_id(self) -> int:
        return self.pk >> FENCING_TOKEN_BITS

    @property
    def fencing_token(self) -> int:
        return self.pk & (2**FENCING_TOKEN_BITS - 1)


class Budget(TenantModel):
    """What a task may use up, and what its runs have used so far.

    Whoever adds to the sums has locked the live task. `spent_at` is when nothing was left.
    """

    task_id = models.BigIntegerField(primary_key=True)
    max_tokens = models.BigIntegerField(null=True)
    max_cost_usd = models.DecimalField(max_digits=20, decimal_places=6, null=True)
    spent_tokens = models.BigIntegerField(default=0)
    spent_cost_usd = models.DecimalField(max_digits=20, decimal_places=6, default=0)
    spent_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(max_tokens__isnull=False) | Q(max_cost_usd__isnull=False),
                name="tasks_budget_limits_something",
            ),
            models.CheckConstraint(
                condition=(
                    Q(spent_at=None)
                    & (Q(max_tokens=None) | Q(spent_tokens__lt=F("max_tokens")))
                    & (Q(max_cost_usd=None) | Q(spent_cost_usd__lt=F("max_cost_usd")))
                )
                | (
                    Q(spent_at__isnull=False)
                    & (
                        Q(max_tokens__isnull=False, spent_tokens__gte=F("max_tokens"))
                        | Q(max_cost_usd__isnull=False, spent_cost_usd__gte=F("max_cost_usd"))
                    )
                ),
                name="tasks_budget_spent_at_iff_spent",
            ),
        ]


class FinishedTask(TenantModel):
    """How a task ended. It exists exactly if the :class:`LiveTask` is deleted. A dead letter is a failed task.

    Written in the transaction that posts the terminal receipt. Only `fetched_at` changes, once.
    """

    task_id = models.BigIntegerField(primary_key=True)
    status = models.CharField(max_length=10, choices=Status)
    reason = models.CharField(max_length=20, choices=Reason, null=True)
    fencing_token = models.IntegerField()
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
        db_table = "task_history"
        verbose_name = "finished task"
        constraints = [
            models.CheckConstraint(
                condition=Q(status=Status.SUCCEEDED, reason=None)
                | (~Q(status=Status.SUCCEEDED) & Q(reason__isnull=False)),
                name="task_history_reason_iff_not_succeeded",
            ),
        ]
        indexes = [
            # Serves the count of dead letters, and their list in the admin, newest first.
            models.Index(name="task_history_dead", fields=["tenant", "task_id"], condition=Q(status=Status.FAILED)),
            # Serves sql.PACE, sql.KEEP_HISTORY and sql.FORGET.
            models.Index(name="task_history_by_end", fields=["finished_at", "tenant"]),
            # Serves selectors.found, which looks at those that ended last.
            models.Index(
                name="task_history_not_succeeded",
                fields=["status", "finished_at"],
                include=["tenant", "task_id"],
                condition=~Q(status=Status.SUCCEEDED),
            ),
        ]


class IdempotencyKey(TenantModel):
    """A key that a principal used, the digest of the request, and the answer. It outlives the task."""

    principal = models.ForeignKey(
        Principal, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    key = models.CharField(max_length=200)
    task_id = models.BigIntegerField()
    request_digest = models.BinaryField(max_length=32)
    answer = models.JSONField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "principal", "key"], name="tasks_idempotencykey_once")]


class Artifact(TenantModel):
    """Bytes that this tenant has stored. They lie in the artifact storage under their SHA-256."""

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


class QueueHistory(TenantModel):
    """One minute of a queue: what ended in it, and what waited when it was over."""

    queue = models.ForeignKey(Queue, on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False)
    minute_at = models.DateTimeField()
    ended = models.BigIntegerField()
    failed = models.BigIntegerField()
    queued = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "queue", "minute_at"], name="tasks_queuehistory_once"),
            models.CheckConstraint(condition=Q(ended__gte=F("failed")), name="tasks_queuehistory_counts"),
        ]
        # Serves selectors.history, and sql.KEEP_HISTORY, which goes on after the last minute.
        indexes = [models.Index(name="tasks_queuehistory_by_time", fields=["minute_at"])]


class BulkAction(TenantModel):
    """What an operator does to many tasks of a tenant: `task_ids` in order, those before `position` are over.

    Of these, `done` were done, and the others refused; `refusals` holds the first of their reasons.
    """

    verb = models.CharField(max_length=10, choices=BulkVerb)
    operator = models.CharField(max_length=150)
    reason = models.CharField(max_length=200)
    task_ids = ArrayField(models.BigIntegerField())
    position = models.PositiveIntegerField(default=0)
    done = models.PositiveIntegerField(default=0)
    refusals = models.JSONField(default=list)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(done__lte=F("position")), name="tasks_bulkaction_done_of_those_over")
        ]
        # Serves services.operating.go_on.
        indexes = [models.Index(name="tasks_bulkaction_open", fields=["id"], condition=Q(ended_at=None))]

    def __str__(self) -> str:
        return f"{self.get_verb_display()} {len(self.task_ids):,} tasks"


class Schedule(TenantModel):
    """A task to be queued at every time of a timetable, as its owner would queue it.

    `next_at` is the next time, or null if the schedule is off. Whoever finds it due and locks the row queues
    the task and moves `next_at` on in one transaction, so rival clocks queue one task. All missed times
    together become one task.
    """

    owner = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=100)
    task_type = models.ForeignKey(TaskType, on_delete=models.PROTECT, related_name="schedules", db_index=False)
    recipient = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    queue = models.ForeignKey(Queue, on_delete=models.PROTECT, related_name="+", null=True, db_index=False)
    priority = models.PositiveSmallIntegerField(null=True)
    params = models.JSONField(default=dict)
    cron = models.CharField(max_length=200, null=True)
    every_seconds = models.PositiveIntegerField(null=True)
    timezone = models.CharField(max_length=50)
    anchor_at = models.DateTimeField()
    next_at = models.DateTimeField(null=True)
    last_at = models.DateTimeField(null=True)
    last_task_id = models.BigIntegerField(null=True)
    last_refusal = models.CharField(max_length=500, blank=True, default="")
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "owner", "name"], name="tasks_schedule_name_once"),
            models.CheckConstraint(
                condition=Q(cron__isnull=False, every_seconds=None) | Q(cron=None, every_seconds__gte=1),
                name="tasks_schedule_has_one_timetable",
            ),
        ]
        permissions = [("operate_schedule", "Can stop and resume schedules")]
        indexes = [
            # Serves services.fire_schedules, which looks for what is due in all tenants.
            models.Index(name="tasks_schedule_due", fields=["next_at"], condition=Q(next_at__isnull=False))
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def enabled(self) -> bool:
        return self.next_at is not None


class FairShare(TenantModel):
    """The order in which the requesters of a fair queue were last served."""

    queue = models.ForeignKey(Queue, on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False)
    requester = models.ForeignKey(
        Principal, on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    served = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "queue", "requester"], name="tasks_fairshare_once")]


class RateWindow(TenantModel):
    """How many leases a queue or type with a rate granted at one time. Kept as long as the rate looks back."""

    queue = models.ForeignKey(
        Queue, on_delete=models.DO_NOTHING, related_name="+", null=True, db_index=False, db_constraint=False
    )
    task_type = models.ForeignKey(
        TaskType, on_delete=models.DO_NOTHING, related_name="+", null=True, db_index=False, db_constraint=False
    )
    granted_at = models.DateTimeField()
    leases = models.IntegerField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(queue=None, task_type__isnull=False) | Q(queue__isnull=False, task_type=None),
                name="tasks_ratewindow_of_a_queue_or_a_type",
            ),
        ]
        indexes = [
            # Serve sql.CLAIM_WITHIN_LIMITS, which sums what was granted lately.
            models.Index(name="tasks_ratewindow_of_queue", fields=["queue", "granted_at"], condition=Q(task_type=None)),
            models.Index(name="tasks_ratewindow_of_type", fields=["task_type", "granted_at"], condition=Q(queue=None)),
        ]
