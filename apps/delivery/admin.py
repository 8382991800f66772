"""Targets, deliveries and routes as operators see them."""

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from apps.core.admin import ExactTextFilter, OperatorAdmin, link_to_list, verb
from apps.delivery import selectors, services
from apps.delivery.models import Delivery, RemoteRoute, State, Target


@admin.register(Target)
class TargetAdmin(OperatorAdmin):
    actions_detail = ["stop", "resume", "replay"]
    list_display = [
        "__str__", "kind", "principal", "url", "state", "breaker", "retry_at", "pending", "dead_deliveries",
        "result", "sent", "failed", "wasted",
    ]  # fmt: skip
    list_select_related = ["principal", "tenant"]
    list_filter = ["tenant", "kind", ("stopped_at", admin.EmptyFieldListFilter)]
    search_fields = ["name", "principal__name__exact", "url"]
    readonly_fields = ["state", "breaker", "pending", "dead_deliveries"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Target]:
        return selectors.with_deliveries()

    @admin.display(description="Pending")
    def pending(self, target: Any) -> str:
        return link_to_list(
            "delivery_delivery", target.pending, target__id__exact=target.pk, state__exact=State.PENDING.value
        )

    @admin.display(description="Dead")
    def dead_deliveries(self, target: Any) -> str:
        return link_to_list(
            "delivery_delivery", target.dead_now, target__id__exact=target.pk, state__exact=State.DEAD.value
        )

    @verb(
        "Stop",
        explanation="It is not called until somebody resumes it; its owner sees why.",
        permission="delivery.operate_target",
        possible=lambda target: target.stopped_at is None,
    )
    def stop(self, target: Target, given: Mapping[str, Any]) -> str:
        reason = f"Stopped by an operator: {given['reason']}"
        services.change(target_id=target.pk, enabled=False, reason=reason[:200], now=timezone.now())
        return f"{target} is stopped."

    @verb(
        "Resume",
        explanation="It is called again, at once if something is waiting.",
        permission="delivery.operate_target",
        possible=lambda target: target.stopped_at or target.retry_at,
    )
    def resume(self, target: Target, given: Mapping[str, Any]) -> str:
        services.change(target_id=target.pk, enabled=True, now=timezone.now())
        return f"{target} is called again."

    @verb(
        "Replay dead deliveries",
        explanation="Send this target's dead deliveries again, a thousand at once. It recognizes what it has already.",
        permission="delivery.operate_target",
        possible=lambda target: target.dead_now,
    )
    def replay(self, target: Target, given: Mapping[str, Any]) -> str:
        return f"{services.replay(target=target)} deliveries to {target} are sent again."


@admin.register(Delivery)
class DeliveryAdmin(OperatorAdmin):
    list_display = [
        "__str__", "target", "reference", "recipient", "state", "attempts", "due_at", "failure", "created_at",
        "settled_at",
    ]  # fmt: skip
    list_filter = ["state", "target", ("failure", ExactTextFilter), "tenant"]
    list_select_related = ["target"]
    search_fields = ["reference__exact"]
    ordering = ["-id"]
    actions_detail = ["replay"]

    @verb(
        "Replay",
        explanation="Send it again. If the target has it already, it recognizes it.",
        permission="delivery.operate_target",
        possible=lambda delivery: delivery.state == State.DEAD,
    )
    def replay(self, delivery: Delivery, given: Mapping[str, Any]) -> str:
        services.replay(target=delivery.target, delivery_ids=[delivery.pk])
        return f"{delivery} is sent again."


@admin.register(RemoteRoute)
class RemoteRouteAdmin(OperatorAdmin):
    list_display = ["principal", "remote_name", "target", "tenant"]
    list_filter = ["target", "tenant"]
    list_select_related = ["principal", "target", "tenant"]
    search_fields = ["remote_name", "principal__name"]
