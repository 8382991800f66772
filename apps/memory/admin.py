from collections.abc import Sequence
from typing import Any, Final

from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html, format_html_join

from apps.core.admin import ExactTextFilter, OperatorAdmin, link_to, link_to_list, linked, start_of
from apps.memory import selectors
from apps.memory.models import Memory, PromotionPolicy, Session, Subject
from apps.memory.states import Kind

_LATEST: Final = 20


class _Admin(OperatorAdmin):
    list_filter: Sequence[Any] = ["tenant"]


@admin.register(Memory)
class MemoryAdmin(_Admin):
    list_display = [
        "__str__", "name", "text", "domain", "confidence", linked("subject", "Subject"), linked("author", "Author"),
        "recorded_at", linked("superseded_by", "Superseded by"),
    ]  # fmt: skip
    list_select_related = ["author", "subject", "superseded_by"]
    list_filter = ["kind", ("domain", ExactTextFilter), "stated", "tenant"]
    search_fields = ["text", "name", "aliases"]
    exclude = ["words"]


@admin.register(Session)
class SessionAdmin(_Admin):
    list_display = ["__str__", linked("principal", "Principal"), "platform", "tone", "started_at", "last_active_at"]
    list_select_related = ["principal"]
    list_filter = [("platform", ExactTextFilter), "tenant"]
    search_fields = ["title", "summary"]


@admin.register(Subject)
class SubjectAdmin(_Admin):
    list_display = [
        "key", "display_name", "memory_enabled", "learn_patterns", "share_with", "rev", "added_by", "author", "revised_at",
    ]  # fmt: skip
    list_select_related = ["added_by", "author"]
    list_filter = ["memory_enabled", "tenant"]
    search_fields = ["=key", "display_name"]
    readonly_fields = ["latest_items", "all_items", "envelope"]

    @admin.display(description="Latest current items")
    def latest_items(self, subject: Subject) -> str:
        latest = subject.memories.filter(kind=Kind.ITEM, superseded_at=None).order_by("-id")[:_LATEST]
        lines = ((item.domain, link_to(item), start_of(item.text, 200)) for item in latest)
        return format_html_join("", "<p>{} {}: {}</p>", lines) or "-"

    @admin.display(description="All items")
    def all_items(self, subject: Subject) -> str:
        return link_to_list("memory_memory", "those of this subject", subject=subject.pk)

    @admin.display(description="Envelope, as its author's prompt gets it")
    def envelope(self, subject: Subject) -> str:
        return format_html(
            '<pre class="whitespace-pre-wrap">{}</pre>', selectors.prompt_of(subject, now=timezone.now())
        )


@admin.register(PromotionPolicy)
class PromotionPolicyAdmin(_Admin):
    list_display = ["delegate", "tenant", "domains", "confidence_threshold", "requires_novel", "author", "revised_at"]
    list_select_related = ["tenant", "delegate", "author"]
    list_filter = ["tenant", "requires_novel"]
