from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join

from apps.core.admin import ExactTextFilter, OperatorAdmin, link_to, verb
from apps.receipts import selectors, services
from apps.receipts.errors import NotDead
from apps.receipts.models import (
    Arrival,
    Letter,
    Obligation,
    Receipt,
    ReceiptKey,
    RemoteTarget,
    Residence,
    UnmatchedCloser,
)
from apps.receipts.states import LetterState


@admin.register(Receipt)
class ReceiptAdmin(OperatorAdmin):
    list_display = ["receipt_id", "created_at", "source_system", "event_type", "recipient_link", "title", "surface"]
    list_filter = ["surface", ("source_system", ExactTextFilter), ("event_type", ExactTextFilter), "tenant"]
    list_select_related = ["recipient"]
    search_fields = ["receipt_id__exact"]
    ordering = ["-id"]
    exclude = ["caused_by", "pairs_with"]
    readonly_fields = ["cause_link", "pair_link", "consequence_links", "answer_links", "place_link", "obligation_link"]

    @admin.display(description="Recipient")
    def recipient_link(self, receipt: Receipt) -> str:
        return link_to(receipt.recipient)

    @admin.display(description="Caused by")
    def cause_link(self, receipt: Receipt) -> str:
        return link_to(receipt.caused_by)

    @admin.display(description="Pairs with")
    def pair_link(self, receipt: Receipt) -> str:
        return link_to(receipt.pairs_with)

    @admin.display(description="Consequences")
    def consequence_links(self, receipt: Receipt) -> str:
        return _links(*receipt.consequences.order_by("id")[:20])

    @admin.display(description="Answered by")
    def answer_links(self, receipt: Receipt) -> str:
        return _links(*receipt.pairs.order_by("id")[:20])

    @admin.display(description="Place in the inbox")
    def place_link(self, receipt: Receipt) -> str:
        return link_to(getattr(receipt, "state", None))

    @admin.display(description="Obligation")
    def obligation_link(self, receipt: Receipt) -> str:
        return link_to(getattr(receipt, "obligation", None))


def _links(*related: Model) -> str:
    return format_html_join(", ", "{}", ((link_to(one),) for one in related)) or "-"


@admin.register(ReceiptKey)
class ReceiptKeyAdmin(OperatorAdmin):
    list_display = ["source_system", "receipt_id", "created_at", "tenant"]
    list_filter = [("source_system", ExactTextFilter), "tenant"]
    list_select_related = ["tenant"]
    search_fields = ["receipt_id__exact"]
    exclude = ["key_digest", "content_digest"]
    ordering = ["-id"]


@admin.register(Obligation)
class ObligationAdmin(OperatorAdmin):
    list_display = ["receipt_link", "debtor_link", "creditor_link", "opened_at", "closed_at", "closer_link"]
    list_filter = [("closed_at", admin.EmptyFieldListFilter), "tenant"]
    list_select_related = ["receipt", "debtor", "creditor", "closed_by"]
    ordering = ["-receipt_id"]

    @admin.display(description="Receipt")
    def receipt_link(self, obligation: Obligation) -> str:
        return link_to(obligation.receipt)

    @admin.display(description="Debtor")
    def debtor_link(self, obligation: Obligation) -> str:
        return link_to(obligation.debtor)

    @admin.display(description="Creditor")
    def creditor_link(self, obligation: Obligation) -> str:
        return link_to(obligation.creditor)

    @admin.display(description="Closed by")
    def closer_link(self, obligation: Obligation) -> str:
        return link_to(obligation.closed_by)


@admin.register(UnmatchedCloser)
class UnmatchedCloserAdmin(OperatorAdmin):
    list_display = ["receipt_link", "reference", "tenant"]
    list_filter = ["tenant"]
    list_select_related = ["receipt", "tenant"]
    search_fields = ["reference__exact"]

    @admin.display(description="Receipt")
    def receipt_link(self, closer: UnmatchedCloser) -> str:
        return link_to(closer.receipt)


@admin.register(Arrival)
class ArrivalAdmin(OperatorAdmin):
    list_display = ["receipt_link", "tenant"]
    list_filter = ["tenant"]
    list_select_related = ["receipt", "tenant"]

    @admin.display(description="Receipt")
    def receipt_link(self, arrival: Arrival) -> str:
        return link_to(arrival.receipt)


@admin.register(RemoteTarget)
class RemoteTargetAdmin(OperatorAdmin):
    list_display = [
        "name",
        "tenant",
        "base_url",
        "door",
        "breaker",
        "failures_in_a_row",
        "retry_at",
        "waiting",
        "dead_letters",
        "delivered_count",
    ]
    list_filter = ["tenant", "breaker"]
    list_select_related = ["tenant"]
    search_fields = ["name"]
    readonly_fields = ["waiting", "dead_letters"]
    actions_detail = ["replay"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[RemoteTarget]:
        return selectors.with_letters()

    @admin.display(description="Waiting")
    def waiting(self, target: Any) -> str:
        return _letters_link(target, LetterState.PENDING, target.pending)

    @admin.display(description="Dead")
    def dead_letters(self, target: Any) -> str:
        return _letters_link(target, LetterState.DEAD, target.dead)

    @verb(
        "Replay dead letters",
        explanation="Try this target's dead letters again, a thousand at once. What it has already, it knows again.",
        permission="receipts.replay_remotetarget",
    )
    def replay(self, target: RemoteTarget, given: Mapping[str, Any]) -> str:
        replayed = services.replay(target=target)
        if not replayed:
            raise NotDead(f"No letter to {target} is dead.")
        return f"{replayed} letters to {target} are tried again."


def _letters_link(target: RemoteTarget, state: LetterState, count: int) -> str:
    address = reverse("admin:receipts_letter_changelist")
    return format_html(
        '<a href="{}?target__id__exact={}&state__exact={}" class="text-primary-600">{}</a>',
        address,
        target.pk,
        state.value,
        count,
    )


@admin.register(Letter)
class LetterAdmin(OperatorAdmin):
    list_display = [
        "__str__",
        "target_link",
        "receipt_link",
        "recipient_name",
        "state",
        "attempts",
        "due_at",
        "failure",
        "created_at",
        "settled_at",
    ]
    list_filter = ["state", "target", ("failure", ExactTextFilter), "tenant"]
    list_select_related = ["target", "receipt"]
    search_fields = ["receipt__receipt_id__exact"]
    ordering = ["-id"]
    actions_detail = ["replay"]

    @admin.display(description="Target")
    def target_link(self, letter: Letter) -> str:
        return link_to(letter.target)

    @admin.display(description="Receipt")
    def receipt_link(self, letter: Letter) -> str:
        return link_to(letter.receipt)

    @verb(
        "Replay",
        explanation="If it is dead, try it again. If the target has it already, it knows it again.",
        permission="receipts.replay_remotetarget",
    )
    def replay(self, letter: Letter, given: Mapping[str, Any]) -> str:
        if not services.replay(target=letter.target, letter_ids=[letter.pk]):
            raise NotDead(f"{letter} is not dead.")
        return f"{letter} is tried again."


@admin.register(Residence)
class ResidenceAdmin(OperatorAdmin):
    list_display = ["principal_link", "name_there", "target_link", "tenant"]
    list_filter = ["target", "tenant"]
    list_select_related = ["principal", "target", "tenant"]
    search_fields = ["name_there", "principal__name"]

    @admin.display(description="Principal")
    def principal_link(self, residence: Residence) -> str:
        return link_to(residence.principal)

    @admin.display(description="Target")
    def target_link(self, residence: Residence) -> str:
        return link_to(residence.target)
