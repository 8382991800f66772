from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.forms.models import model_to_dict
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html_join
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from apps.core import charts
from apps.core.admin import ExactTextFilter, OperatorAdmin, ReasonForm, link_to, linked, list_verb, verb
from apps.core.errors import Conflict
from apps.digests import selectors, services
from apps.digests.models import Entry, Inbox, Source, Thread
from apps.principals.models import Tenant

_SHOWN = 50
_WINDOWS: Final = {
    "10 s": timedelta(seconds=10), "1 min": timedelta(minutes=1), "5 min": timedelta(minutes=5),
    "15 min": timedelta(minutes=15), "1 h": timedelta(hours=1),
}  # fmt: skip


class SourceForm(ReasonForm):
    rate_per_hour = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=2**31 - 1,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="How many receipts an hour it may post; empty: the deployment's limit.",
    )
    groups_by_dedupe_key = forms.BooleanField(
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="Group its receipts by the event type and entity in their dedupe keys.",
    )


class AddSourceForm(SourceForm):
    tenant = forms.ModelChoiceField(Tenant.objects.all(), widget=UnfoldAdminSelectWidget)
    name = forms.CharField(max_length=50, widget=UnfoldAdminTextInputWidget)


@admin.register(Source)
class SourceAdmin(OperatorAdmin):
    actions_list = ["add_source"]
    actions_detail = ["change_source"]
    list_display = ["name", "tenant", "rate_per_hour", "groups_by_dedupe_key"]
    list_filter = ["tenant"]
    list_select_related = ["tenant"]
    search_fields = ["name"]

    @list_verb(
        "Add a source",
        explanation="Set how much a source may post and whether its keys group it. All others have the defaults.",
        permission="digests.add_source",
        form=AddSourceForm,
        submit="Add",
    )
    def add_source(self, request: HttpRequest, given: Mapping[str, Any]) -> tuple[str, str]:
        if Source.objects.filter(tenant=given["tenant"], name=given["name"]).exists():
            raise Conflict(f"{given['name']} is set already; change it on its page.", code="source_exists")
        added = self._set(given["tenant"].pk, given["name"], given)
        self.log_addition(request, added, f"Add a source: {given['reason']}")
        return reverse("admin:digests_source_changelist"), f"{added} is set."

    @verb(
        "Change",
        explanation="Pending receipts keep their due time.",
        permission="digests.change_source",
        form=SourceForm,
        initial=model_to_dict,
    )
    def change_source(self, source: Source, given: Mapping[str, Any]) -> str:
        self._set(source.tenant_id, source.name, given)
        return f"{source} is changed."

    def _set(self, tenant_id: int, name: str, given: Mapping[str, Any]) -> Source:
        values = {part: given[part] for part in ("rate_per_hour", "groups_by_dedupe_key")}
        return services.set_source(tenant_id=tenant_id, name=name, **values)


@admin.register(Inbox)
class InboxAdmin(OperatorAdmin):
    list_display = ["__str__", linked("principal"), "last_seq", "visible_unread", "pending_unread", "enabled", "window"]
    list_filter = ["enabled", "tenant"]
    list_select_related = ["principal"]
    search_fields = ["principal__name"]
    readonly_fields = ["thread_links"]
    change_form_outer_after_template = "digests/inbox.html"

    def charts(self, inbox: Inbox) -> list[charts.Chart]:
        since = timezone.now() - timedelta(days=7)
        today, others = selectors.entries_by_window(inbox.principal_id, _WINDOWS.values(), since=since)
        title = "Entries that the last week's receipts would have made, by window"
        return [charts.compared(title, {"as it is": today, **dict(zip(_WINDOWS, others, strict=True))})]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """With the inbox by the selector that its principal reads through."""
        context["page"] = selectors.read_inbox(context["original"].principal_id, limit=_SHOWN)
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="Open threads")
    def thread_links(self, inbox: Inbox) -> str:
        threads = inbox.threads.filter(closed_at=None).order_by("id")[:_SHOWN]
        return format_html_join(", ", "{}", ((link_to(one),) for one in threads)) or "-"


@admin.register(Thread)
class ThreadAdmin(OperatorAdmin):
    list_display = [
        "__str__", linked("inbox"), "revision", "receipt_count", "pending_count", "flush_due_at", "closed_at",
    ]  # fmt: skip
    list_filter = [("closed_at", admin.EmptyFieldListFilter), ("source_system", ExactTextFilter), "tenant"]
    list_select_related = ["inbox__principal"]
    search_fields = ["resource_ref"]
    ordering = ["-id"]
    readonly_fields = ["snapshot_links"]

    @admin.display(description="Snapshots")
    def snapshot_links(self, thread: Thread) -> str:
        snapshots = thread.snapshots.order_by("-revision")[:_SHOWN]
        rows = (
            (entry.revision, entry, entry.flush_reason, entry.count, _fate(entry), entry.title) for entry in snapshots
        )
        return format_html_join("", "<div>{}. {} by {}, {} receipts, {}: {}</div>", rows) or "-"


def _fate(entry: Entry) -> str:
    if entry.acked_at is not None:
        return "acked"
    return "visible" if entry.superseded_by_seq is None else f"superseded by {entry.superseded_by_seq}"
