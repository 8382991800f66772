"""Tasks as operators see them: what waits, what runs, what became of it."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from unfold.decorators import display
from unfold.forms import ActionForm
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldBooleanSwitchWidget

from apps.core import charts
from apps.core.admin import (
    COUNTED,
    ExactTextFilter,
    OperatorAdmin,
    ReasonForm,
    ago,
    as_json,
    counted,
    link_to,
    link_to_list,
    link_to_page,
    linked,
    operates,
    since,
    span,
    start_of,
    verb,
)
from apps.core.charts import Chart
from apps.principals.models import Principal
from apps.principals.tenancy import acting_in, on_behalf_of
from apps.receipts.models import Receipt
from apps.tasks import selectors
from apps.tasks.models import Artifact, Budget, BulkAction, Queue, Schedule, Task, TaskType
from apps.tasks.results import ARTIFACT, artifact_digest
from apps.tasks.services import operating, queueing, running
from apps.tasks.shapes import QueueFigures, Rate
from apps.tasks.states import TERMINAL, BulkVerb, Status

_SHOWN_RUNS: Final = 50
_WHY: Final = "console: operating tasks"
_PARTIES: Final = [
    linked("task_type", "Type"), linked("queue"), linked("requester", "Requester"),
    linked("recipient", "Recipient"),
]  # fmt: skip


_STATUSES: Final = {"open", "overdue", "dead", *Status.values}
_SEARCHED: Final[Mapping[str, tuple[str, type[Model]]]] = {
    "type": ("task_type", TaskType), "queue": ("queue", Queue), "requester": ("requester", Principal),
    "task_type__name": ("task_type", TaskType), "queue__name": ("queue", Queue),
}  # fmt: skip
_PERIODS: Final = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}
_DIGITS: Final = 19
_LIMITS: Final = ("concurrency", "rate", "rate_seconds", "fair")
_LIMIT: Final[dict[str, Any]] = {"required": False, "min_value": 1, "widget": UnfoldAdminIntegerFieldWidget}
_CHIPS: Final = {
    "succeeded": "success", "failed": "danger", "canceled": "warning", "leased": "info", "queued": "primary",
}  # fmt: skip


def _standing(task: Any) -> selectors.Standing:
    """What became of a task so far, looked up once for each page."""
    if not hasattr(task, "standing"):
        task.standing = selectors.standings([task.pk])[task.pk]
    standing: selectors.Standing = task.standing
    return standing


def _error(task: Task) -> str:
    """Why the task failed, or its last run."""
    standing = _standing(task)
    error = (standing.end and standing.end.error) or (standing.run and standing.run.error) or {}
    told = ": ".join(str(error[name]) for name in ("code", "message") if error.get(name))
    return told or (standing.end and standing.end.reason) or ""


def _details(given: Mapping[str, Any]) -> Iterator[str]:
    """What is known of an event, without names of what is not."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _details(value)
        elif value is not None:
            yield f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}"


def task_link(task_id: int) -> str:
    """A link to a task by its number; nothing in the database points at tasks."""
    return link_to_page("tasks_task", task_id, f"task_{task_id}")


class _Collected:
    """What it filters by is looked for with all else that is given: see TaskAdmin.get_search_results."""

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset


class _NameFilter(_Collected, ExactTextFilter):
    pass


class StatusFilter(_Collected, admin.SimpleListFilter):
    """Tasks by their status, live and finished ones alike."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        more = [("open", "Open"), ("overdue", "Lease overdue"), ("dead", "Dead letter")]
        return [*more, *((str(value), str(label)) for value, label in Status.choices)]


class EndedFilter(_Collected, admin.SimpleListFilter):
    """Tasks by how long ago they ended."""

    title = "ended"
    parameter_name = "ended"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, f"In the last {name}") for name in _PERIODS]


def _link_to_tasks(queue: Queue, status: str, text: str) -> str:
    return link_to_list("tasks_task", text, tenant__id__exact=queue.tenant_id, queue__name=queue.name, status=status)


def _figures(queue: Any) -> QueueFigures:
    """How much work a queue has, looked up once for each page."""
    if not hasattr(queue, "found"):
        queue.found = selectors.queue_figures(tenant_id=queue.tenant_id)[queue.pk]
    found: QueueFigures = queue.found
    return found


class LimitsForm(ReasonForm):
    concurrency = forms.IntegerField(
        **_LIMIT, max_value=100_000, help_text="How many of its tasks may be leased at a time."
    )
    rate = forms.IntegerField(**_LIMIT, max_value=100_000, help_text="How many leases it grants in a period.")
    rate_seconds = forms.FloatField(
        **{**_LIMIT, "min_value": 0.001}, max_value=86_400, label="Period", help_text="In seconds; needed with a rate."
    )
    fair = forms.BooleanField(
        required=False, widget=UnfoldBooleanSwitchWidget, help_text="Alternate between its requesters."
    )

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or {}
        if not self.errors and (given["rate"] is None) != (given["rate_seconds"] is None):
            self.add_error("rate_seconds", "Give rate and period, or neither.")
        return given


class _PausableAdmin(OperatorAdmin):
    """Of queues and types."""

    @verb(
        "Pause",
        explanation="Give out nothing of it; what is leased goes on.",
        permission="tasks.operate_queue",
        possible=lambda pausable: pausable.paused_at is None,
    )
    def pause(self, pausable: Queue | TaskType, given: Mapping[str, Any]) -> str:
        with acting_in(pausable.tenant_id, _WHY):
            queueing.pause(pausable)
        return f"{pausable} is paused."

    @verb(
        "Resume",
        explanation="Give it out again.",
        permission="tasks.operate_queue",
        possible=lambda pausable: pausable.paused_at is not None,
    )
    def resume(self, pausable: Queue | TaskType, given: Mapping[str, Any]) -> str:
        with acting_in(pausable.tenant_id, _WHY):
            queueing.resume(pausable)
        return f"{pausable} is given out again."


@admin.register(Queue)
class QueueAdmin(_PausableAdmin):
    list_display = ["name", "tenant", "paused_at", "queued", "oldest", "leased", "types", "open_tasks"]
    list_select_related = ["tenant"]
    list_filter = ["tenant"]
    search_fields = ["name"]
    fields = ["name", "figures", "paused_at", "concurrency", "rate", "rate_seconds", "fair", "created_at"]
    actions_detail = ["pause", "drain", "resume", "limit"]

    def charts(self, queue: Queue) -> list[Chart]:
        day = selectors.history(step=timedelta(minutes=15), steps=96, queue_id=queue.pk)
        month = selectors.history(step=timedelta(hours=6), steps=120, queue_id=queue.pk)
        return [
            charts.ended("Ended in 15 minutes, last day", day),
            charts.queued("Queued, last day", day),
            charts.queued("Queued, last 30 days", month, label="%d %b"),
        ]

    @verb("Drain", explanation="Pause, and order back what is leased.", permission="tasks.operate_queue")
    def drain(self, queue: Queue, given: Mapping[str, Any]) -> str:
        with acting_in(queue.tenant_id, _WHY):
            queueing.pause(queue, drain=True)
        return f"{queue} is paused, and its workers are told to hand back what they hold."

    @verb(
        "Set limits",
        explanation="What you leave empty is not limited.",
        permission="tasks.operate_queue",
        form=LimitsForm,
        initial=lambda queue: {name: getattr(queue, name) for name in _LIMITS},
    )
    def limit(self, queue: Queue, given: Mapping[str, Any]) -> str:
        rate = Rate(leases=given["rate"], per_seconds=given["rate_seconds"]) if given["rate"] else None
        limits = {"concurrency": given["concurrency"], "rate": rate, "fair": given["fair"]}
        with acting_in(queue.tenant_id, _WHY):
            queueing.set_queue(tenant_id=queue.tenant_id, name=queue.name, **limits)
        return f"The limits of {queue} are set."

    @admin.display(description="Figures")
    def figures(self, queue: Queue) -> str:
        found = _figures(queue)
        latencies = (found.latency_p50_seconds, found.latency_p95_seconds, found.latency_p99_seconds)
        return format_html_join(
            "",
            "<div>{}: <strong>{}</strong></div>",
            [
                ("Queued", self.queued(queue)),
                ("Oldest queued", self.oldest(queue)),
                ("Scheduled or waiting", found.scheduled),
                ("Leased", format_html("{}, {} overdue", self.leased(queue), found.expired)),
                ("Ended per minute", f"{found.finished_per_minute:.1f}"),
                ("Failed", f"{found.failure_rate:.1%}"),
                ("Latency p50 / p95 / p99", " / ".join(map(span, latencies))),
                ("Expired leases", found.expiries),
                ("Dead letters", found.dead_letters),
            ],
        )

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        page.result_list = list(page.result_list)
        figures = selectors.queue_figures(tenant_id=None, up_to=COUNTED)
        for queue in page.result_list:
            queue.found = figures[queue.pk]
        return page

    @admin.display(description="Queued")
    def queued(self, queue: Queue) -> str:
        return _link_to_tasks(queue, Status.QUEUED, counted(_figures(queue).queued))

    @admin.display(description="Oldest queued")
    def oldest(self, queue: Queue) -> str:
        found = _figures(queue)
        age = span(found.oldest_wait_seconds) if found.queued else "-"
        return f"{age}: nobody leases from it" if found.nobody_leases else age

    @admin.display(description="Leased")
    def leased(self, queue: Queue) -> str:
        return _link_to_tasks(queue, Status.LEASED, f"{_figures(queue).leased:,}")

    @admin.display(description="Types")
    def types(self, queue: Queue) -> str:
        return link_to_list("tasks_tasktype", "types", queue__id__exact=queue.pk)

    @admin.display(description="Open")
    def open_tasks(self, queue: Queue) -> str:
        return _link_to_tasks(queue, "open", "open tasks")


@admin.register(TaskType)
class TaskTypeAdmin(_PausableAdmin):
    list_display = [
        "name", linked("queue"), "priority", "max_attempts", "max_expiries", "lease_seconds", "in_code",
        "enabled", "tasks_of_it",
    ]  # fmt: skip
    list_select_related = ["queue"]
    list_filter = ["tenant", ("queue__name", ExactTextFilter), "in_code", "enabled"]
    search_fields = ["name", "title"]
    actions_detail = ["pause", "resume"]

    @admin.display(description="Tasks")
    def tasks_of_it(self, task_type: TaskType) -> str:
        return link_to_list(
            "tasks_task", "tasks", tenant__id__exact=task_type.tenant_id, task_type__name=task_type.name
        )


@admin.register(Schedule)
class ScheduleAdmin(OperatorAdmin):
    list_display = [
        "name", linked("owner"), linked("task_type", "Type"), "timetable", "next_at", "last_at", "last_refusal",
    ]  # fmt: skip
    list_select_related = ["owner", "task_type"]
    list_filter = ["tenant", ("task_type__name", ExactTextFilter)]
    search_fields = ["name"]
    ordering = ["-id"]
    readonly_fields = ["last_task"]
    actions_detail = ["stop", "resume"]

    @admin.display(description="Timetable")
    def timetable(self, schedule: Schedule) -> str:
        return f"every {schedule.every_seconds} s" if schedule.cron is None else f"{schedule.cron} {schedule.timezone}"

    @admin.display(description="Last task")
    def last_task(self, schedule: Schedule) -> str:
        return "-" if schedule.last_task_id is None else task_link(schedule.last_task_id)

    @verb(
        "Stop",
        explanation="Queue nothing of it until it is resumed.",
        permission="tasks.operate_schedule",
        possible=lambda schedule: schedule.next_at is not None,
    )
    def stop(self, schedule: Schedule, given: Mapping[str, Any]) -> str:
        queueing.switch(schedule_id=schedule.pk, on=False)
        return f"{schedule} is stopped."

    @verb(
        "Resume",
        explanation="Queue again from the next moment on.",
        permission="tasks.operate_schedule",
        possible=lambda schedule: schedule.next_at is None,
    )
    def resume(self, schedule: Schedule, given: Mapping[str, Any]) -> str:
        queueing.switch(schedule_id=schedule.pk, on=True)
        return f"{schedule} queues again."


class _BulkForm(ActionForm):
    # When those were counted that "all" stands for.
    as_of = forms.CharField(required=False, label="", widget=forms.HiddenInput)
    reason = forms.CharField(
        max_length=200, required=False, label="", widget=forms.TextInput({"placeholder": "Reason", "required": True})
    )


@admin.register(Task)
class TaskAdmin(OperatorAdmin):
    action_form = _BulkForm
    renews_list = True
    actions = ["cancel_selected", "retry_selected"]
    list_display = ["__str__", "status", *_PARTIES[:3], "worker", "age", "took", "attempts", "error"]
    list_select_related = ["task_type", "queue", "requester", "recipient"]
    list_filter = [
        "tenant", StatusFilter, EndedFilter, ("queue__name", _NameFilter), ("task_type__name", _NameFilter),
    ]  # fmt: skip
    search_fields = ["=id"]
    search_help_text = (
        "A task's number, words of its params or error, or status:failed type:report queue:default requester:Kee"
    )
    ordering = ["-id"]
    actions_detail = ["cancel", "retry", "revoke_lease"]
    fieldsets = [
        (None, {"fields": ["state", "failure", "given", "result", *_PARTIES, "priority", "created_at"]}),
        ("Receipts", {"fields": ["receipts", "execution", "group", "artifact"]}),
        ("Timeline", {"fields": ["timeline", "retries", "budget", since("run_at", "Due")]}),
    ]

    @verb(
        "Cancel the task",
        explanation="As its requester would: at once if nobody holds it, else by an order to its holder.",
        permission="tasks.operate_task",
        possible=lambda task: _standing(task).status not in {Status.CANCELING, *TERMINAL},
    )
    def cancel(self, task: Task, given: Mapping[str, Any]) -> str:
        with acting_in(task.tenant_id, _WHY):
            status = running.cancel(caller=on_behalf_of(task.requester), task_id=task.pk)
        return f"{task} is {status}."

    @verb(
        "Retry",
        explanation="Queue a dead letter again, as a new task; a second retry shows the task of the first.",
        permission="tasks.operate_task",
        possible=lambda task: _standing(task).status == Status.FAILED and selectors.retried_as(task.pk) is None,
    )
    def retry(self, task: Task, given: Mapping[str, Any]) -> str:
        with acting_in(task.tenant_id, _WHY):
            queued = operating.retry(caller=None, task_id=task.pk)
        return f"{task} was retried as {queued.task_id} before." if queued.is_duplicate else f"It is {queued.task_id}."

    @verb(
        "Take it from its worker",
        explanation="Take the task from its holder: it stands where it stood, and no attempt is counted.",
        permission="tasks.operate_task",
        possible=lambda task: _standing(task).status in {Status.LEASED, Status.CANCELING},
    )
    def revoke_lease(self, task: Task, given: Mapping[str, Any]) -> str:
        with acting_in(task.tenant_id, _WHY):
            status = operating.revoke_lease(task_id=task.pk)
        return f"{task} is {status}."

    @admin.action(description="Cancel the selected tasks", permissions=["operate_task"])
    def cancel_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self._begin(request, queryset, BulkVerb.CANCEL)

    @admin.action(description="Retry the selected tasks", permissions=["operate_task"])
    def retry_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self._begin(request, queryset, BulkVerb.RETRY)

    def goes_on(self, task: Task) -> bool:
        return _standing(task).end is None

    def has_operate_task_permission(self, request: HttpRequest) -> bool:
        return operates(request) and bool(request.user.has_perm("tasks.operate_task"))

    def _begin(self, request: HttpRequest, queryset: Any, verb: BulkVerb) -> HttpResponse | None:
        """A bulk action for each tenant; shows the last one's page."""
        reason = request.POST.get("reason", "").strip()[:200]
        if not reason:
            messages.error(request, "Say why, in the field beside the action.")
            return None
        address = reverse("admin:tasks_bulkaction_changelist")
        by_tenant: dict[int, list[int]] = {}
        if request.POST.get("select_across") == "1" and (as_of := parse_datetime(request.POST.get("as_of", ""))):
            queryset = queryset.filter(created_at__lte=as_of)
        for pk, tenant_id in queryset.order_by("pk").values_list("pk", "tenant_id")[: operating.MOST_AT_ONCE]:
            by_tenant.setdefault(tenant_id, []).append(pk)
        if (count := sum(map(len, by_tenant.values()))) >= selectors.TASKS_LOOKED_AT:
            messages.info(request, f"{count:,} tasks are taken. If more match, the list shows them afterwards.")
        said: dict[str, Any] = {"verb": verb, "operator": request.user.get_username(), "reason": reason}
        with transaction.atomic():
            for tenant_id, task_ids in by_tenant.items():
                with acting_in(tenant_id, _WHY):
                    begun = operating.act_on_many(tenant_id=tenant_id, task_ids=task_ids, **said)
                self.log_change(request, begun, f"{begun}: {reason}")
                address = reverse("admin:tasks_bulkaction_change", args=[begun.pk])
                if len(by_tenant) > 1:
                    messages.success(request, format_html("Begun for {}: {}", begun.tenant, link_to(begun)))
        return HttpResponseRedirect(address)

    @admin.display(description="Retries")
    def retries(self, task: Task) -> str:
        made = selectors.retried_as(task.pk)
        return format_html(
            "{}{}",
            "" if task.retry_of is None else format_html("retry of {} ", task_link(task.retry_of)),
            "" if made is None else format_html("retried as {}", task_link(made)),
        )

    @admin.display(description="Artifact")
    def artifact(self, task: Task) -> str:
        record = _standing(task).end
        if record is None or not (record.result_pointer or "").startswith(f"{ARTIFACT}:"):
            return link_to(None)
        digest = artifact_digest(record.result_pointer or "")
        return link_to(Artifact.objects.filter(tenant_id=task.tenant_id, digest=digest).first())

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).select_related("task_type", "queue", "requester", "recipient")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        page.result_list = list(page.result_list)
        found = selectors.standings([task.pk for task in page.result_list])
        for task in page.result_list:
            task.standing = found[task.pk]
        return page

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """By number, by `name:value`, and by words in the params and errors of the newest tasks; and by what the filters say."""

        def tell(level: int, said: str) -> None:
            if "X-Renewal" not in request.headers:  # a list that renews itself was told before
                messages.add_message(request, level, said)

        words, wanted = [], {name: request.GET.get(name, "") for name in ("status", "queue__name", "task_type__name")}
        for word in search_term.split():
            name, _, value = word.partition(":")
            if value and (name == "status" or name in _SEARCHED):
                wanted[name] = value.lower() if name == "status" else value
            elif (number := word.removeprefix("id:").removeprefix("task_")).isdecimal() and len(number) < _DIGITS:
                queryset = queryset.filter(pk=int(number))
            else:
                if value and name.isidentifier():
                    tell(messages.INFO, f"{word} is looked for in params and errors: {self.search_help_text}.")
                words.append(word)
        if (status := wanted.pop("status")) and status not in _STATUSES:
            tell(messages.WARNING, f"There is no status {status}; there are {', '.join(sorted(_STATUSES))}.")
            return queryset.none(), False
        # By key, because the planner knows how many tasks have it.
        parties: dict[str, Any] = {}
        for name, value in wanted.items():
            column, model = _SEARCHED[name]
            if value:
                parties[column] = list(model._default_manager.filter(name=value).values_list("pk", flat=True))  # noqa: SLF001  # Django documents it
        queryset = selectors.found(
            queryset, status=status, within=_PERIODS.get(request.GET.get("ended", "")), **parties
        )
        return (selectors.saying(queryset, words) if words else queryset), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        began = timezone.now()
        page: HttpResponse = super().changelist_view(request, extra_context)
        if isinstance(page, TemplateResponse) and (form := (page.context_data or {}).get("action_form")):
            form.initial["as_of"] = began
        return page

    @display(description="Status", label=_CHIPS)  # type: ignore[untyped-decorator]  # unfold has no types
    def status(self, task: Task) -> str:
        return str(_standing(task).status)

    @admin.display(description="Task worker")
    def worker(self, task: Task) -> str:
        run = _standing(task).run
        who = link_to(None if run is None else run.holder)
        return format_html("{} on {}", who, run.host) if run and run.host else who

    @admin.display(description="Queued")
    def age(self, task: Task) -> str:
        return ago(task.created_at, timezone.now())

    @admin.display(description="Took")
    def took(self, task: Task) -> str:
        """The last run."""
        run = _standing(task).run
        took = span(None if run is None else (run.ended_at or timezone.now()) - run.started_at)
        return format_html('<span class="whitespace-nowrap">{}</span>', took)

    @admin.display(description="Attempts")
    def attempts(self, task: Task) -> int:
        return _standing(task).fencing_token

    @admin.display(description="Error")
    def error(self, task: Task) -> str:
        return start_of(_error(task), 40) or "-"

    @admin.display(description="Status")
    def state(self, task: Task) -> str:
        """The status, and why it is so."""
        standing = _standing(task)
        if (live := standing.live) is None:
            reason = standing.end and standing.end.reason
            return f"{standing.status} ({reason})" if reason else str(standing.status)
        if live.open_dependencies:
            awaited = selectors.waits_for(task.pk)[:_SHOWN_RUNS]
            links = format_html_join(", ", "{}", ((task_link(one),) for one in awaited))
            return format_html("{} for {}", standing.status, links)
        if live.due_at is not None:
            return format_html("{}: {}", standing.status, ago(live.due_at, timezone.now()))
        if standing.status == Status.WAITING:
            return f"{standing.status} for the open task with its concurrency key, {live.concurrency_key}"
        is_held_back = standing.status == Status.QUEUED and task.queue.paused_at is not None
        return f"{standing.status}; its queue is paused" if is_held_back else str(standing.status)

    @admin.display(description="Error")
    def failure(self, task: Task) -> str:
        return _error(task) or "-"

    @admin.display(description="Result")
    def result(self, task: Task) -> str:
        end = _standing(task).end
        if end is None or end.status == Status.FAILED:  # whose summary is the error
            return "-"
        shown = end.result_pointer if end.content is None else as_json(end.content)
        return format_html("{} {}", end.summary, shown or "")

    @admin.display(description="Budget")
    def budget(self, task: Task) -> str:
        """What is used of what there is."""
        budget = Budget.objects.filter(task_id=task.pk).first()
        if budget is None:
            return "-"
        tokens = "" if budget.max_tokens is None else f"{budget.spent_tokens} of {budget.max_tokens} tokens"
        cost = "" if budget.max_cost_usd is None else f"{budget.spent_cost_usd:f} of {budget.max_cost_usd:f} USD"
        return ", ".join(filter(None, [tokens, cost, "" if budget.spent_at is None else "spent"]))

    @admin.display(description="Causes and consequences")
    def receipts(self, task: Task) -> str:
        """The receipt of its queueing, and what goes with it."""
        queued = Receipt.objects.filter(tenant_id=task.tenant_id, receipt_id=task.receipt_id).first()
        return "-" if queued is None else self.admin_site.get_model_admin(Receipt).consequences(queued)

    @admin.display(description="Step of")
    def execution(self, task: Task) -> str:
        # By address: executions stand above tasks.
        kind, _, number = str((task.group or {}).get("resource_ref", "")).partition(":exec_")
        is_step = kind == "execution" and number.isdecimal() and len(number) < _DIGITS
        return link_to_page("executions_execution", int(number), f"exec_{number}") if is_step else "-"

    @admin.display(description="Params")
    def given(self, task: Task) -> str:
        return as_json(task.params)

    @admin.display(description="Timeline")
    def timeline(self, task: Task) -> str:
        story = selectors.story(task, _standing(task), limit=_SHOWN_RUNS)
        shown = format_html_join(
            "",
            "<div><code>{}</code> <strong>{}</strong> {} {}</div>",
            (
                (
                    f"{event.at:%Y-%m-%d %H:%M:%S.%f}"[:-3],
                    event.event,
                    "" if event.run_id is None else f"run {event.run_id} {event.holder or ''}",
                    ", ".join(_details(event.detail or {})),
                )
                for event in story.events
            ),
        )
        return shown if story.following is None else format_html("{}<div>and further runs</div>", shown)


@admin.register(BulkAction)
class BulkActionAdmin(OperatorAdmin):
    """What was done to many tasks."""

    list_display = ["__str__", "operator", "reason", "position", "done", "created_at", "ended_at"]
    list_filter = ["verb", "tenant"]
    renews_list = True
    ordering = ["-id"]
    fields = ["verb", "operator", "reason", "progress", "refused", "created_at", "ended_at"]

    def goes_on(self, action: BulkAction) -> bool:
        return action.ended_at is None

    @admin.display(description="Progress")
    def progress(self, action: BulkAction) -> str:
        every, over = len(action.task_ids), action.position
        skipped = f", {over - action.done:,} skipped" if over > action.done else ""
        return f"{over:,} of {every:,}: {action.done:,} done{skipped}"

    @admin.display(description="Skipped, the first ones")
    def refused(self, action: BulkAction) -> str:
        return format_html_join("", "<div>{}</div>", ((one,) for one in action.refusals)) or "-"


@admin.register(Artifact)
class ArtifactAdmin(OperatorAdmin):
    list_display = ["digest", "media_type", "size", "tenant", "created_at"]
    list_select_related = ["tenant"]
    list_filter = ["tenant"]
    search_fields = ["digest__exact"]
    ordering = ["-id"]
