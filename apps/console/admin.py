from copy import copy
from typing import Any

from axes.models import AccessAttempt
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db.models import QuerySet
from django.http import HttpRequest

from apps.core.admin import OperatorAdmin


@admin.register(LogEntry)
class AuditAdmin(OperatorAdmin):
    """Who did what to which thing, and why. An operator who is no administrator sees its own actions."""

    list_display = ["action_time", "user", "content_type", "object_repr", "change_message"]
    list_select_related = ["user", "content_type"]
    list_filter = ["action_flag"]
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
        return entries if request.user.is_superuser else entries.filter(user_id=request.user.pk)


@admin.register(AccessAttempt)
class AccessAttemptAdmin(OperatorAdmin):
    """Wrong passwords, which close the door for a while."""

    list_display = ["username", "ip_address", "failures_since_start", "attempt_time"]
    search_fields = ["=username", "=ip_address"]
    ordering = ["-id"]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.is_superuser)
