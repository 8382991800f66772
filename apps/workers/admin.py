from django.contrib import admin
from unfold.admin import TabularInline

from apps.core.admin import OperatorAdmin, link_to
from apps.workers.models import (
    Call,
    Offer,
    Place,
    Registry,
    SigningKey,
    ToolVersion,
    Worker,
    WorkerEvent,
    WorkerSource,
)


class OfferInline(TabularInline):
    model = Offer
    fields = ["name", "tool", "offered_at", "withdrawn_at", "runs", "successes", "total_cost"]
    readonly_fields = fields
    extra = 0
    can_delete = False


class EventInline(TabularInline):
    model = WorkerEvent
    fields = ["at", "kind", "state", "detail"]
    readonly_fields = fields
    ordering = ["-id"]
    extra = 0
    can_delete = False


@admin.register(Worker)
class WorkerAdmin(OperatorAdmin):
    list_display = [
        "worker_id",
        "state",
        "effective_tier",
        "tier_reason",
        "current_load",
        "available",
        "last_heartbeat_at",
        "unregistered_at",
    ]
    list_filter = ["state", "effective_tier", "tenant"]
    search_fields = ["worker_id"]
    inlines = [OfferInline, EventInline]


@admin.register(ToolVersion)
class ToolVersionAdmin(OperatorAdmin):
    list_display = ["name", "uid", "effects", "first_seen_at"]
    list_filter = ["tenant"]
    search_fields = ["name", "uid"]


@admin.register(Offer)
class OfferAdmin(OperatorAdmin):
    list_display = ["name", "worker_link", "tool_link", "runs", "successes", "offered_at", "withdrawn_at"]
    list_select_related = ["worker", "tool"]
    search_fields = ["name"]

    @admin.display(description="Worker")
    def worker_link(self, offer: Offer) -> str:
        return link_to(offer.worker)

    @admin.display(description="Version")
    def tool_link(self, offer: Offer) -> str:
        return link_to(offer.tool)


@admin.register(WorkerEvent)
class WorkerEventAdmin(OperatorAdmin):
    list_display = ["at", "worker_link", "kind", "state", "detail"]
    list_filter = ["kind", "state"]
    list_select_related = ["worker"]
    ordering = ["-id"]

    @admin.display(description="Worker")
    def worker_link(self, event: WorkerEvent) -> str:
        return link_to(event.worker)


@admin.register(SigningKey)
class SigningKeyAdmin(OperatorAdmin):
    list_display = ["key_id", "ceiling", "enrolled_at", "revoked_at"]
    list_filter = ["ceiling", "tenant"]


@admin.register(Registry)
class RegistryAdmin(OperatorAdmin):
    list_display = ["tenant", "epoch", "history_epoch"]
    list_select_related = ["tenant"]


@admin.register(Call)
class CallAdmin(OperatorAdmin):
    list_display = ["id", "offer_link", "ok", "seconds", "cost"]
    list_select_related = ["offer"]

    @admin.display(description="Offer")
    def offer_link(self, call: Call) -> str:
        return link_to(call.offer)


class PlaceInline(TabularInline):
    model = Place
    fields = ["key", "worker", "named_at", "gone_at", "asked_at", "faults", "fault"]
    readonly_fields = fields
    extra = 0
    can_delete = False


@admin.register(WorkerSource)
class WorkerSourceAdmin(OperatorAdmin):
    list_display = ["name", "kind", "address", "principal", "enabled", "looked_at", "faults", "fault"]
    list_filter = ["kind", "enabled", "tenant"]
    list_select_related = ["principal"]
    search_fields = ["name", "address"]
    inlines = [PlaceInline]


@admin.register(Place)
class PlaceAdmin(OperatorAdmin):
    list_display = ["key", "source", "worker", "asked_at", "faults", "fault", "gone_at"]
    list_filter = ["source__kind", "tenant"]
    list_select_related = ["source", "worker"]
    search_fields = ["key"]
