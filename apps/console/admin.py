from copy import copy
from typing import Any

from axes.models import AccessAttempt
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import BigIntegerField, Case, Exists, OuterRef, Q, QuerySet, When
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.utils.html import format_html

from apps.core.admin import ExactTextFilter, OperatorAdmin


@admin.register(LogEntry)
class AuditAdmin(OperatorAdmin):
    """Who did what to which thing, and why.

    An administrator sees all of it. Another operator sees its own actions, and those on things that it sees.
    """

    list_display = ["action_time", "user", "content_type", "thing", "change_message"]
    list_select_related = ["user", "content_type"]
    list_filter = [("user__username", ExactTextFilter), "action_time"]
    fields = ["action_time", "user", "content_type", "thing", "change_message"]
    search_fields = ["object_repr", "change_message", "user__username"]
    ordering = ["-id"]

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        # The model is Django's, and so is its name.
        page.opts = copy(page.opts)
        page.opts.verbose_name_plural, page.title = "audit entries", "Audit"
        return page

    def get_queryset(self, request: HttpRequest) -> QuerySet[LogEntry]:
        entries: QuerySet[LogEntry] = super().get_queryset(request)
        if request.user.is_superuser:
            return entries
        number = Case(When(object_id__regex=r"^\d{1,18}$", then=Cast("object_id", BigIntegerField())))
        shown = Q(user_id=request.user.pk)
        logged = LogEntry.objects.filter(content_type=OuterRef("pk"))
        for kind in ContentType.objects.filter(Exists(logged)):
            model: Any = kind.model_class()
            window = self.admin_site._registry.get(model)  # noqa: SLF001  # the admin's own list
            if window is not None and hasattr(model, "tenant") and window.has_view_permission(request):
                # The database shows a query the rows of the operator's tenants alone.
                there = Exists(model.objects.filter(pk=OuterRef("number")))
                shown |= Q(there, content_type=kind)
        return entries.annotate(number=number).filter(shown)

    @admin.display(description="Thing", ordering="object_repr")
    def thing(self, entry: LogEntry) -> str:
        address = entry.get_admin_url()
        return (
            format_html('<a href="{}" class="text-primary-600">{}</a>', address, entry.object_repr)
            if address
            else entry.object_repr
        )


@admin.register(AccessAttempt)
class AccessAttemptAdmin(OperatorAdmin):
    """Wrong passwords, which close the door for a while."""

    list_display = ["username", "ip_address", "failures_since_start", "attempt_time"]
    search_fields = ["=username", "=ip_address"]
    ordering = ["-id"]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.is_superuser)
