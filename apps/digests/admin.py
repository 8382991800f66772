from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, cast

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html_join
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from apps.core import charts
from apps.core.admin import ExactTextFilter, OperatorAdmin, link_to, linked, operates
from apps.digests import selectors, services
from apps.digests.models import Entry, Inbox, Source, Thread
from apps.principals import selectors as principals
from apps.principals.models import Operator, Tenant
from apps.principals.tenancy import acting_in
from apps.receipts.models import Receipt

_SHOWN = 50
_WINDOWS: Final = {
    "10 s": timedelta(seconds=10), "1 min": timedelta(minutes=1), "5 min": timedelta(minutes=5),
    "15 min": timedelta(minutes=15), "1 h": timedelta(hours=1),
}  # fmt: skip


def _links(things: Iterable[Any]) -> str:
    return format_html_join(", ", "{}", ((link_to(one),) for one in things)) or "-"


class SourceForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable at run time
    """What is set for a source, and why."""

    # Stands in for the model's own field, which never changes; filled in for each request.
    in_tenant = forms.ModelChoiceField(queryset=Tenant.objects.none())
    reason = forms.CharField(
        max_length=200, widget=UnfoldAdminTextInputWidget, help_text="Why; kept with the change in its history."
    )

    class Meta:
        model = Source
        fields = ["name", "rate_per_hour", "groups_by_dedupe_key"]


@admin.register(Source)
class SourceAdmin(OperatorAdmin):
    """Set by operators who have the permission, in tenants that they do more than view."""

    form = SourceForm
    list_display = ["name", "tenant", "rate_per_hour", "groups_by_dedupe_key"]
    list_filter = ["tenant"]
    list_select_related = ["tenant"]
    search_fields = ["name"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return bool(ModelAdmin.has_add_permission(self, request))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        permitted = bool(ModelAdmin.has_change_permission(self, request, obj))
        return permitted and (obj is None or operates(request, obj))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        fields = ["in_tenant" if obj is None else "tenant", "name", "rate_per_hour", "groups_by_dedupe_key"]
        return [*fields, "reason"] if obj is None or self.has_change_permission(request, obj) else fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["tenant", "name"] if obj is not None else []

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002  # Django's signature
        form = super().get_form(request, obj, change, **kwargs)
        del form.base_fields["in_tenant"]
        if obj is None:
            form.base_fields["in_tenant"] = forms.ModelChoiceField(
                label="Tenant",
                queryset=Tenant.objects.filter(pk__in=principals.operated_tenants(cast("Operator", request.user))),
                widget=UnfoldAdminSelectWidget,
            )
        return form

    def save_model(self, request: HttpRequest, obj: Source, form: Any, change: bool) -> None:  # noqa: FBT001  # Django's signature
        tenant_id = obj.tenant_id if change else form.cleaned_data["in_tenant"].pk
        with acting_in(tenant_id, f"console: {request.user.get_username()}: {form.cleaned_data['reason']}"):
            stored = services.set_source(
                tenant_id=tenant_id,
                name=obj.name,
                rate_per_hour=obj.rate_per_hour,
                groups_by_dedupe_key=obj.groups_by_dedupe_key,
            )
        obj.pk, obj.tenant_id = stored.pk, tenant_id

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> str:  # noqa: FBT001, FBT002  # Django's signature
        kept = ", ".join(f"{name} = {form.cleaned_data[name]}" for name in ("rate_per_hour", "groups_by_dedupe_key"))
        return f"{kept}. Reason: {form.cleaned_data['reason']}"


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
        return _links(inbox.threads.filter(closed_at=None).order_by("id")[:_SHOWN])


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
            (entry.revision, link_to(entry), entry.flush_reason, entry.count, _fate(entry), entry.title)
            for entry in snapshots
        )
        return format_html_join("", "<div>{}. {} by {}, {} receipts, {}: {}</div>", rows) or "-"


def _fate(entry: Entry) -> str:
    if entry.acked_at is not None:
        return "acked"
    return "visible" if entry.superseded_by_seq is None else f"superseded by {entry.superseded_by_seq}"


@admin.register(Entry)
class EntryAdmin(OperatorAdmin):
    list_display = [
        *("__str__", linked("inbox"), "sequence", "kind", linked("thread"), "count", "flush_reason", "visible_at"),
        *("superseded_by_seq", "acked_at"),
    ]
    list_filter = [
        *(
            "kind",
            "flush_reason",
            ("source_system", ExactTextFilter),
            ("acked_at", admin.EmptyFieldListFilter),
            "tenant",
        )
    ]
    list_select_related = ["inbox__principal", "thread"]
    ordering = ["-id"]
    readonly_fields = ["receipt_links"]

    @admin.display(description="Receipts")
    def receipt_links(self, entry: Entry) -> str:
        return _links(Receipt.objects.filter(pk__in=entry.receipt_ids).order_by("id"))
