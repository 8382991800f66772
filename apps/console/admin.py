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

    def get_queryset(self, request: HttpRequest) -> QuerySet[LogEntry]:
        entries: QuerySet[LogEntry] = super().get_queryset(request)
        return entries if request.user.is_superuser else entries.filter(user_id=request.user.pk)
