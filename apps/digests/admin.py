from django.contrib import admin
from django.utils.html import format_html_join

from apps.core.admin import ExactTextFilter, OperatorAdmin, link_to
from apps.digests.models import Entry, Inbox, ReceiptState, Thread
from apps.receipts.models import Receipt

_SHOWN = 50


@admin.register(Inbox)
class InboxAdmin(OperatorAdmin):
    list_display = ["__str__", "principal_link", "last_seq", "visible_unread", "pending_unread", "enabled", "window"]
    list_filter = ["enabled", "tenant"]
    list_select_related = ["principal"]
    search_fields = ["principal__name"]
    readonly_fields = ["entry_links", "thread_links"]

    @admin.display(description="Principal")
    def principal_link(self, inbox: Inbox) -> str:
        return link_to(inbox.principal)

    @admin.display(description="Visible entries")
    def entry_links(self, inbox: Inbox) -> str:
        live = inbox.entries.filter(acked_at=None, superseded_by_seq=None).order_by("sequence")[:_SHOWN]
        return format_html_join(", ", "{}", ((link_to(entry),) for entry in live)) or "-"

    @admin.display(description="Open threads")
    def thread_links(self, inbox: Inbox) -> str:
        threads = inbox.threads.filter(closed_at=None).order_by("id")[:_SHOWN]
        return format_html_join(", ", "{}", ((link_to(thread),) for thread in threads)) or "-"


@admin.register(Thread)
class ThreadAdmin(OperatorAdmin):
    list_display = ["__str__", "inbox_link", "revision", "receipt_count", "pending_count", "flush_due_at", "closed_at"]
    list_filter = [("closed_at", admin.EmptyFieldListFilter), ("source_system", ExactTextFilter), "tenant"]
    list_select_related = ["inbox__principal"]
    search_fields = ["resource_ref"]
    ordering = ["-id"]
    readonly_fields = ["snapshot_links"]

    @admin.display(description="Inbox")
    def inbox_link(self, thread: Thread) -> str:
        return link_to(thread.inbox)

    @admin.display(description="Snapshots")
    def snapshot_links(self, thread: Thread) -> str:
        snapshots = thread.snapshots.order_by("-revision")[:_SHOWN]
        rows = ((link_to(entry), entry.flush_reason, entry.count) for entry in snapshots)
        return format_html_join(", ", "{} ({}, {})", rows) or "-"


@admin.register(Entry)
class EntryAdmin(OperatorAdmin):
    list_display = [
        "__str__",
        "inbox_link",
        "sequence",
        "kind",
        "thread_link",
        "count",
        "flush_reason",
        "published_at",
        "superseded_by_seq",
        "acked_at",
    ]
    list_filter = [
        "kind",
        "flush_reason",
        ("source_system", ExactTextFilter),
        ("acked_at", admin.EmptyFieldListFilter),
        "tenant",
    ]
    list_select_related = ["inbox__principal", "thread"]
    ordering = ["-id"]
    readonly_fields = ["receipt_links"]

    @admin.display(description="Inbox")
    def inbox_link(self, entry: Entry) -> str:
        return link_to(entry.inbox)

    @admin.display(description="Thread")
    def thread_link(self, entry: Entry) -> str:
        return link_to(entry.thread)

    @admin.display(description="Receipts")
    def receipt_links(self, entry: Entry) -> str:
        receipts = Receipt.objects.filter(pk__in=entry.receipt_ids).order_by("id")
        return format_html_join(", ", "{}", ((link_to(receipt),) for receipt in receipts)) or "-"


@admin.register(ReceiptState)
class ReceiptStateAdmin(OperatorAdmin):
    list_display = ["receipt_link", "inbox_link", "place_link", "pending", "delivered_at", "acked_at", "archived_at"]
    list_filter = ["pending", ("acked_at", admin.EmptyFieldListFilter), "tenant"]
    list_select_related = ["receipt", "inbox__principal", "entry", "thread"]
    ordering = ["-receipt_id"]

    @admin.display(description="Receipt")
    def receipt_link(self, state: ReceiptState) -> str:
        return link_to(state.receipt)

    @admin.display(description="Inbox")
    def inbox_link(self, state: ReceiptState) -> str:
        return link_to(state.inbox)

    @admin.display(description="Place")
    def place_link(self, state: ReceiptState) -> str:
        return link_to(state.entry or state.thread)
