"""Tasks as operators see them: what waits, what runs, what became of it."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join

from apps.core.admin import ExactTextFilter, OperatorAdmin, link_to
from apps.receipts.models import Receipt
from apps.tasks import selectors
from apps.tasks.models import (
    Artifact,
    HotTask,
    IdempotencyKey,
    Queue,
    Run,
    Spend,
    Task,
    TaskType,
    TerminalRecord,
    run_key,
)
from apps.tasks.pointers import ARTIFACT, artifact_digest


def task_link(task_id: int) -> str:
    """A link to a task by its number; nothing in the database points at tasks."""
    return format_html(
        '<a href="{}" class="text-primary-600">task_{}</a>', reverse("admin:tasks_task_change", args=[task_id]), task_id
    )


def _list_link(model: str, text: str, **filters: Any) -> str:
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    address = reverse(f"admin:tasks_{model}_changelist")
    return format_html('<a href="{}?{}" class="text-primary-600">{}</a>', address, query, text)


class _OfTask(OperatorAdmin):
    """Of a row that belongs to a task by its number."""

    @admin.display(description="Task")
    def task(self, row: Any) -> str:
        return task_link(row.task_id)


@admin.register(Queue)
class QueueAdmin(OperatorAdmin):
    list_display = ["name", "tenant", "paused_at", "types", "open_tasks"]
    list_select_related = ["tenant"]
    list_filter = ["tenant"]
    search_fields = ["name"]

    @admin.display(description="Types")
    def types(self, queue: Queue) -> str:
        return _list_link("tasktype", "types", queue__id__exact=queue.pk)

    @admin.display(description="Open")
    def open_tasks(self, queue: Queue) -> str:
        return _list_link("hottask", "open tasks", queue__id__exact=queue.pk)


@admin.register(TaskType)
class TaskTypeAdmin(OperatorAdmin):
    list_display = [
        "name",
        "queue_link",
        "priority",
        "max_attempts",
        "max_expiries",
        "lease_seconds",
        "in_code",
        "enabled",
        "tasks_of_it",
    ]
    list_select_related = ["queue"]
    list_filter = ["tenant", ("queue__name", ExactTextFilter), "in_code", "enabled"]
    search_fields = ["name", "title"]

    @admin.display(description="Queue")
    def queue_link(self, task_type: TaskType) -> str:
        return link_to(task_type.queue)

    @admin.display(description="Tasks")
    def tasks_of_it(self, task_type: TaskType) -> str:
        return _list_link("task", "tasks", task_type__id__exact=task_type.pk)


@admin.register(Task)
class TaskAdmin(OperatorAdmin):
    list_display = ["__str__", "type_link", "queue_link", "requester_link", "recipient_link", "priority", "created_at"]
    list_select_related = ["task_type", "queue", "requester", "recipient"]
    list_filter = ["tenant", ("queue__name", ExactTextFilter), ("task_type__name", ExactTextFilter)]
    search_fields = ["=id", "receipt_id__exact"]
    ordering = ["-id"]
    fields = [
        "state",
        "timeline",
        "type_link",
        "queue_link",
        "requester_link",
        "recipient_link",
        "priority",
        "params",
        "run_at",
        "group",
        "queued_receipt",
        "caused_by",
        "rows",
        "created_at",
    ]
    readonly_fields = [
        "state",
        "timeline",
        "type_link",
        "queue_link",
        "requester_link",
        "recipient_link",
        "queued_receipt",
        "rows",
    ]

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).select_related("task_type", "queue", "requester", "recipient")

    @admin.display(description="Type")
    def type_link(self, task: Task) -> str:
        return link_to(task.task_type)

    @admin.display(description="Queue")
    def queue_link(self, task: Task) -> str:
        return link_to(task.queue)

    @admin.display(description="Asked for by")
    def requester_link(self, task: Task) -> str:
        return link_to(task.requester)

    @admin.display(description="Reported to")
    def recipient_link(self, task: Task) -> str:
        return link_to(task.recipient)

    @admin.display(description="Status")
    def state(self, task: Task) -> str:
        found = selectors.status(str(task))
        return f"{found.status}{f' ({found.reason})' if found.reason else ''}"

    @admin.display(description="Receipt of queueing")
    def queued_receipt(self, task: Task) -> str:
        return link_to(Receipt.objects.filter(tenant_id=task.tenant_id, receipt_id=task.receipt_id).first())

    @admin.display(description="Timeline")
    def timeline(self, task: Task) -> str:
        return format_html_join(
            "",
            "<div><code>{}</code> <strong>{}</strong> {} {}</div>",
            (
                (
                    f"{event.at:%Y-%m-%d %H:%M:%S.%f}"[:-3],
                    event.event,
                    "" if event.run_id is None else f"run {event.run_id} {event.holder or ''}",
                    "" if event.detail is None else str(event.detail),
                )
                for event in selectors.timeline(str(task))
            ),
        )

    @admin.display(description="Rows")
    def rows(self, task: Task) -> str:
        hot = HotTask.objects.filter(task_id=task.pk).first()
        record = TerminalRecord.objects.filter(task_id=task.pk).first()
        runs = Run.objects.filter(pk__gte=run_key(task.pk, 0), pk__lt=run_key(task.pk + 1, 0)).order_by("pk")[:50]
        spend = _list_link("spend", "spend", task_id=task.pk)
        return format_html_join(
            " · ", "{}", ((link,) for link in [*map(link_to, filter(None, [hot, record, *runs])), spend])
        )


@admin.register(HotTask)
class HotTaskAdmin(_OfTask):
    list_display = [
        "task",
        "type_link",
        "queue_link",
        "priority_rank",
        "ready_at",
        "due_at",
        "holder_link",
        "lease_expires_at",
        "fence",
        "failures",
        "expiries",
    ]
    list_select_related = ["task_type", "queue", "holder"]
    list_filter = ["tenant", ("queue__name", ExactTextFilter), ("task_type__name", ExactTextFilter)]
    search_fields = ["=task_id"]
    ordering = ["task_id"]
    readonly_fields = ["task"]

    @admin.display(description="Type")
    def type_link(self, hot: HotTask) -> str:
        return link_to(hot.task_type)

    @admin.display(description="Queue")
    def queue_link(self, hot: HotTask) -> str:
        return link_to(hot.queue)

    @admin.display(description="Holder")
    def holder_link(self, hot: HotTask) -> str:
        return link_to(hot.holder)


@admin.register(Run)
class RunAdmin(_OfTask):
    list_display = ["__str__", "task", "holder_link", "started_at", "percent", "message", "ended_at", "outcome"]
    list_select_related = ["holder"]
    list_filter = ["tenant", "outcome"]
    ordering = ["-id"]
    exclude = ["request_digest"]
    readonly_fields = ["task"]

    @admin.display(description="Holder")
    def holder_link(self, run: Run) -> str:
        return link_to(run.holder)


@admin.register(Spend)
class SpendAdmin(_OfTask):
    list_display = ["task", "fence", "tokens", "cost_usd", "spent_at"]
    list_filter = ["tenant"]
    search_fields = ["=task_id"]
    ordering = ["-id"]
    readonly_fields = ["task"]


@admin.register(TerminalRecord)
class TerminalRecordAdmin(_OfTask):
    list_display = ["task", "status", "reason", "fence", "summary", "result_pointer", "finished_at", "fetched_at"]
    list_filter = ["tenant", "status", "reason"]
    search_fields = ["=task_id", "receipt_id__exact"]
    ordering = ["-task_id"]
    readonly_fields = ["task", "receipt", "artifact"]

    @admin.display(description="Receipt")
    def receipt(self, record: TerminalRecord) -> str:
        return link_to(Receipt.objects.filter(tenant_id=record.tenant_id, receipt_id=record.receipt_id).first())

    @admin.display(description="Artifact")
    def artifact(self, record: TerminalRecord) -> str:
        if record.result_pointer is None or not record.result_pointer.startswith(f"{ARTIFACT}:"):
            return link_to(None)
        digest = artifact_digest(record.result_pointer)
        return link_to(Artifact.objects.filter(tenant_id=record.tenant_id, digest=digest).first())


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(_OfTask):
    list_display = ["key", "principal_link", "task", "created_at"]
    list_select_related = ["principal"]
    list_filter = ["tenant"]
    search_fields = ["key__exact"]
    exclude = ["request_digest"]
    ordering = ["-id"]
    readonly_fields = ["task"]

    @admin.display(description="Principal")
    def principal_link(self, key: IdempotencyKey) -> str:
        return link_to(key.principal)


@admin.register(Artifact)
class ArtifactAdmin(OperatorAdmin):
    list_display = ["digest", "media_type", "size", "tenant", "created_at", "results"]
    list_select_related = ["tenant"]
    list_filter = ["tenant"]
    search_fields = ["digest__exact"]
    ordering = ["-id"]

    @admin.display(description="Results")
    def results(self, artifact: Artifact) -> str:
        return _list_link("terminalrecord", "results", result_pointer=str(artifact))
