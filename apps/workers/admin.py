from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html_join
from unfold.admin import TabularInline
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget, UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from apps.core.admin import OperatorAdmin, ReasonForm, as_json, link_to, linked, list_verb, since, verb
from apps.principals.models import Tenant
from apps.principals.tenancy import acting_in
from apps.workers import selectors, services
from apps.workers.models import Offer, SigningKey, SourceEntry, State, Worker, WorkerEvent, WorkerSource
from apps.workers.trust import ALLOWED, Tier, in_words

_WHY: Final = "console: operating MCP workers"


class _Rows(TabularInline):
    extra = 0
    per_page = 100
    can_delete = False

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        return list(self.fields)


class OfferInline(_Rows):
    model = Offer
    fields = [
        *("name", "tool", "effects", since("approved_at"), "barred"),
        *(since("offered_at"), since("withdrawn_at"), "runs", "successes", "total_cost"),
    ]
    ordering = ["-withdrawn_at", "name"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Offer]:
        found: QuerySet[Offer] = super().get_queryset(request)
        return found.select_related("tool", "worker").defer("worker__manifest")

    @admin.display(description="Effects")
    def effects(self, offer: Offer) -> str:
        return ", ".join(offer.tool.effects) or "none"

    @admin.display(description="Barred because")
    def barred(self, offer: Offer) -> str:
        return selectors.bar(offer, offer.worker.tier_at(timezone.now())) or "-"


class EventInline(_Rows):
    model = WorkerEvent
    fields = [since("at"), "kind", "state", "detail"]
    ordering = ["-id"]


class AddServerForm(ReasonForm):
    tenant = forms.ModelChoiceField(Tenant.objects.all(), widget=UnfoldAdminSelectWidget)
    url = forms.CharField(
        max_length=2000, widget=UnfoldAdminTextInputWidget, help_text="Where it serves MCP over HTTP: https://…/mcp"
    )


def _unapproved(worker_id: int) -> QuerySet[Offer]:
    return Offer.objects.current().filter(worker_id=worker_id, approved_at=None)


class ApproveForm(ReasonForm):
    """Shows what is about to be trusted: each tool that the worker offers now, and what it claims to touch. All are
    ticked; the operator unticks those that it does not trust.
    """

    tools = forms.MultipleChoiceField(widget=UnfoldAdminCheckboxSelectMultipleWidget)

    def __init__(self, request: HttpRequest, object_id: int | str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, object_id, *args, **kwargs)
        choices = [
            (offer.tool.uid, f"{offer.name}: touches {in_words(offer.tool.effects)}")
            for offer in _unapproved(int(object_id or 0)).select_related("tool").order_by("name")
        ]
        cast("forms.MultipleChoiceField", self.fields["tools"]).choices = choices
        self.fields["tools"].initial = [uid for uid, _ in choices]


def _operate(service: Callable[..., Worker], worker: Worker, given: Mapping[str, Any]) -> None:
    with acting_in(worker.tenant_id, _WHY):
        service(tenant_id=worker.tenant_id, worker_id=worker.worker_id, why=given["reason"])


_REGISTERED: Final = [
    *("worker_id", "endpoint", "principal", "capabilities", "registered_at", "unregistered_at"),
    *("approved_at", "signed_at", "trust_ends_at", "probed_at", "probe_fault"),
]


@admin.register(Worker)
class WorkerAdmin(OperatorAdmin):
    renews_list = True
    actions_list = ["add_server"]
    actions_detail = ["approve", "quarantine", "release", "unregister"]
    list_display = ["worker_id", "standing", "effective_tier", "tier_reason", "current_load", "last_heartbeat_at"]
    list_filter = ["state", "effective_tier", "tenant"]
    search_fields = ["worker_id"]
    fieldsets = [
        (
            None,
            {
                "fields": [
                    "standing",
                    "effective_tier",
                    "what_it_may",
                    "current_load",
                    "last_heartbeat_at",
                    "drift",
                    "found_by",
                ]
            },
        ),
        (
            "Registration",
            {"fields": [*_REGISTERED, linked("signing_key", "Signed by"), "described"], "classes": ["collapse"]},
        ),
    ]
    inlines = [OfferInline, EventInline]

    @admin.display(description="State", ordering="state")
    def standing(self, worker: Worker) -> str:
        return "Unregistered" if worker.unregistered_at else worker.get_state_display()

    @list_verb(
        "Add a server",
        explanation="Look at an MCP server now and register it. Its tools can't be used until you approve them.",
        permission="workers.operate_worker",
        form=AddServerForm,
        submit="Look at it",
    )
    def add_server(self, request: HttpRequest, given: Mapping[str, Any]) -> tuple[str, str]:
        seen = services.visit(given["url"])
        with acting_in(given["tenant"].pk, _WHY):
            principal = services.principal_for_servers(tenant_id=given["tenant"].pk)
            added = services.add_server(principal=principal, url=given["url"], seen=seen, why=given["reason"])
            worker = selectors.worker_named(added.worker_id)
            self.log_change(request, worker, f"Add a server: {given['reason']}")
        page = reverse("admin:workers_worker_change", args=[worker.pk])
        return page, f"{worker} offers {len(added.tools)} tools. Look at them, then approve those you trust."

    @verb(
        "Approve tools",
        explanation="They may be used in plans whatever the tier, and what they claim to touch counts."
        " Another version of a tool needs another approval.",
        permission="workers.operate_worker",
        form=ApproveForm,
        possible=lambda worker: worker.unregistered_at is None and _unapproved(worker.pk).exists(),
    )
    def approve(self, worker: Worker, given: Mapping[str, Any]) -> str:
        with acting_in(worker.tenant_id, _WHY):
            names = services.approve_tools(
                tenant_id=worker.tenant_id, worker_id=worker.worker_id, uids=given["tools"], why=given["reason"]
            )
        return f"Approved: {', '.join(names)}."

    @verb(
        "Quarantine",
        explanation="Plans and calls exclude it until you release it, whatever it reports.",
        permission="workers.operate_worker",
        possible=lambda worker: worker.unregistered_at is None and worker.state != State.QUARANTINED,
    )
    def quarantine(self, worker: Worker, given: Mapping[str, Any]) -> str:
        _operate(services.quarantine, worker, given)
        return f"{worker} is in quarantine."

    @verb(
        "Release",
        explanation="End its quarantine. It is offline until a heartbeat or a probe shows otherwise.",
        permission="workers.operate_worker",
        possible=lambda worker: worker.unregistered_at is None and worker.state == State.QUARANTINED,
    )
    def release(self, worker: Worker, given: Mapping[str, Any]) -> str:
        _operate(services.release, worker, given)
        return f"{worker} is released."

    @verb(
        "Unregister",
        explanation="Take it out of the registry. It may register again with a new signature, unless it is in quarantine.",
        permission="workers.operate_worker",
        possible=lambda worker: worker.unregistered_at is None,
    )
    def unregister(self, worker: Worker, given: Mapping[str, Any]) -> str:
        _operate(services.expel, worker, given)
        return f"{worker} is unregistered."

    @admin.display(description="Sources")
    def found_by(self, worker: Worker) -> str:
        """What lists it; nothing if it registered itself."""
        sources = WorkerSource.objects.filter(pk__in=worker.entries.values("source")).order_by("name")
        return format_html_join(", ", "{}", ((link_to(one),) for one in sources)) or "-"

    @admin.display(description="Manifest")
    def described(self, worker: Worker) -> str:
        return as_json(worker.manifest)

    @admin.display(description="What its tier allows")
    def what_it_may(self, worker: Worker) -> str:
        tier = Tier(worker.effective_tier)
        an_hour = worker.calls_per_hour(tier)
        return format_html_join(
            "",
            "<div>{}: <strong>{}</strong></div>",
            [
                ("Effects", ", ".join(sorted(ALLOWED[tier])) or "none"),
                ("Calls an hour", f"{an_hour:g}"),
                ("Because", worker.tier_reason),
            ],
        )


@admin.register(SigningKey)
class SigningKeyAdmin(OperatorAdmin):
    actions_detail = ["revoke"]
    list_display = ["key_id", "ceiling", "enrolled_at", "revoked_at"]
    list_filter = ["ceiling", "tenant"]

    @verb(
        "Revoke",
        explanation="End the trust in it for good. All MCP workers that it has signed are untrusted at once.",
        permission="workers.operate_signingkey",
        possible=lambda key: key.revoked_at is None,
    )
    def revoke(self, key: SigningKey, given: Mapping[str, Any]) -> str:
        with acting_in(key.tenant_id, _WHY):
            stripped = services.revoke_key(tenant_id=key.tenant_id, key_id=key.key_id, why=given["reason"])
        return f"{key} is revoked; {stripped} MCP workers are untrusted now."


class SourceEntryInline(_Rows):
    model = SourceEntry
    fields = ["key", "worker", "named_at", "asked_at", "faults", "fault"]


@admin.register(WorkerSource)
class WorkerSourceAdmin(OperatorAdmin):
    list_display = ["name", "kind", "address", "principal", "enabled", "looked_at", "faults", "fault"]
    list_filter = ["kind", "enabled", "tenant"]
    list_select_related = ["principal"]
    search_fields = ["name", "address"]
    inlines = [SourceEntryInline]
    actions_detail = ["look_now"]

    @verb(
        "Look now",
        explanation="Ask all that it lists for their tools.",
        permission="workers.operate_worker",
        possible=lambda source: source.enabled,
    )
    def look_now(self, source: WorkerSource, _given: Mapping[str, Any]) -> str:
        with acting_in(source.tenant_id, _WHY):
            services.change_source(tenant_id=source.tenant_id, name=source.name)
        return f"{source} is looked at within a second."
