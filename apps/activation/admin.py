"""Targets as operators see them: who is woken where, how that goes, and what came of the calls."""

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.utils import timezone

from apps.activation import services
from apps.activation.errors import AlreadyStopped
from apps.activation.models import Dispatch, Target
from apps.core.admin import OperatorAdmin, link_to, verb


@admin.register(Target)
class TargetAdmin(OperatorAdmin):
    actions_detail = ["stop", "resume"]
    list_display = [
        "__str__",
        "principal_link",
        "kind",
        "url",
        "state",
        "stopped_reason",
        "result",
        "sent",
        "failed",
        "wasted",
        "woken_at",
        "next_at",
    ]
    list_select_related = ["principal", "dispatch"]
    list_filter = ["tenant", "state", "kind"]
    search_fields = ["principal__name__exact", "url"]
    exclude = ["secret", "former_secret"]
    readonly_fields = ["principal_link", "dispatch_link"]

    @admin.display(description="Principal")
    def principal_link(self, target: Target) -> str:
        return link_to(target.principal)

    @admin.display(description="Dispatch")
    def dispatch_link(self, target: Target) -> str:
        return link_to(target.dispatch)

    @admin.display(description="Last result")
    def result(self, target: Target) -> str | None:
        return target.dispatch.result

    @admin.display(description="Wakes")
    def sent(self, target: Target) -> int:
        return target.dispatch.sent

    @admin.display(description="Failed")
    def failed(self, target: Target) -> int:
        return target.dispatch.failed

    @admin.display(description="Wasted")
    def wasted(self, target: Target) -> int:
        return target.dispatch.wasted

    @admin.display(description="Woken")
    def woken_at(self, target: Target) -> object:
        return target.dispatch.woken_at

    @admin.display(description="Not before")
    def next_at(self, target: Target) -> object:
        return target.dispatch.next_at

    @verb(
        "Stop",
        explanation="It is called no more until somebody resumes it; its owner sees why.",
        permission="activation.operate_target",
    )
    def stop(self, target: Target, given: Mapping[str, Any]) -> str:
        reason = f"Stopped by an operator: {given['reason']}"
        if not services.stop(target_id=target.pk, reason=reason[:200], now=timezone.now()):
            raise AlreadyStopped(f"{target} is stopped already.")
        return f"{target} is stopped."

    @verb(
        "Resume",
        explanation="It is called again, at once if something is waiting.",
        permission="activation.operate_target",
    )
    def resume(self, target: Target, given: Mapping[str, Any]) -> str:
        services.resume(target_id=target.pk, now=timezone.now())
        return f"{target} is called again."


@admin.register(Dispatch)
class DispatchAdmin(OperatorAdmin):
    list_display = [
        "__str__",
        "target_link",
        "covered_seq",
        "attempts",
        "next_at",
        "woken_at",
        "tried_at",
        "result",
        "sent",
        "failed",
        "wasted",
    ]
    list_select_related = ["target"]
    list_filter = ["tenant"]
    search_fields = ["=target__id"]
    readonly_fields = ["target_link"]

    @admin.display(description="Target")
    def target_link(self, dispatch: Dispatch) -> str:
        return link_to(dispatch.target)
