from collections.abc import Sequence
from typing import Any, Final

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html, format_html_join

from apps.core.admin import ExactTextFilter, OperatorAdmin, link_to, start_of
from apps.memory.models import (
    CommonWord,
    Concept,
    ConceptName,
    ConceptRevision,
    EnvelopeLoaded,
    Item,
    MemoryPolicy,
    Observation,
    Passage,
    Pattern,
    PatternRevision,
    Posting,
    PromotionPolicy,
    Relationship,
    Session,
    Subject,
    Tally,
    Vector,
    WordCount,
)

_LATEST: Final = 20


class MemoryAdmin(OperatorAdmin):
    """What all memories show: who wrote them, in which tenant."""

    list_select_related = ["author", "tenant"]
    list_filter: Sequence[Any] = ["tenant"]

    @admin.display(description="Author")
    def author_link(
        self, memory: Observation | Concept | ConceptRevision | Item | Pattern | PatternRevision | Relationship
    ) -> str:
        return link_to(memory.author)


@admin.register(Observation)
class ObservationAdmin(MemoryAdmin):
    list_display = ["__str__", "text", "domain", "confidence", "author_link", "recorded_at", "newer"]
    list_select_related = ["author", "superseded_by"]
    list_filter = [("domain", ExactTextFilter), "tenant"]
    search_fields = ["text"]

    @admin.display(description="Superseded by")
    def newer(self, observation: Observation) -> str:
        return link_to(observation.superseded_by)


@admin.register(Concept)
class ConceptAdmin(MemoryAdmin):
    list_display = ["name", "type", "aliases", "author_link", "recorded_at", "revised_at"]
    list_filter = [("type", ExactTextFilter), "tenant"]
    search_fields = ["name", "aliases"]


@admin.register(ConceptRevision)
class ConceptRevisionAdmin(MemoryAdmin):
    list_display = ["__str__", "concept_link", "type", "aliases", "author_link", "recorded_at", "superseded_at"]
    list_select_related = ["author", "concept"]

    @admin.display(description="Concept")
    def concept_link(self, revision: ConceptRevision) -> str:
        return link_to(revision.concept)


@admin.register(ConceptName)
class ConceptNameAdmin(OperatorAdmin):
    list_display = ["key", "concept_link"]
    list_select_related = ["concept"]
    list_filter = ["tenant"]
    search_fields = ["=key"]

    @admin.display(description="Concept")
    def concept_link(self, name: ConceptName) -> str:
        return link_to(name.concept)


@admin.register(Relationship)
class RelationshipAdmin(MemoryAdmin):
    list_display = ["__str__", "source_link", "type", "target_link", "author_link", "recorded_at"]
    list_select_related = ["author", "source", "target"]
    list_filter = [("type", ExactTextFilter), "tenant"]

    @admin.display(description="From")
    def source_link(self, relationship: Relationship) -> str:
        return link_to(relationship.source)

    @admin.display(description="To")
    def target_link(self, relationship: Relationship) -> str:
        return link_to(relationship.target)


@admin.register(Pattern)
class PatternAdmin(MemoryAdmin):
    list_display = ["name", "category", "confidence", "revision", "author_link", "revised_at"]
    list_filter = [("category", ExactTextFilter), "tenant"]
    search_fields = ["name", "text"]


@admin.register(PatternRevision)
class PatternRevisionAdmin(MemoryAdmin):
    list_display = ["__str__", "pattern_link", "number", "confidence", "author_link", "recorded_at"]
    list_select_related = ["author", "pattern"]

    @admin.display(description="Pattern")
    def pattern_link(self, revision: PatternRevision) -> str:
        return link_to(revision.pattern)


@admin.register(Session)
class SessionAdmin(OperatorAdmin):
    list_display = ["__str__", "principal_link", "platform", "tone", "started_at", "last_active_at"]
    list_select_related = ["principal"]
    list_filter = [("platform", ExactTextFilter), "tenant"]
    search_fields = ["title", "summary"]

    @admin.display(description="Principal")
    def principal_link(self, session: Session) -> str:
        return link_to(session.principal)


@admin.register(Passage)
class PassageAdmin(OperatorAdmin):
    list_display = ["__str__", "memory_link", "domain", "length", "recorded_at"]
    list_select_related = ["observation", "pattern", "concept", "item"]
    list_filter = ["tenant"]

    @admin.display(description="Memory")
    def memory_link(self, passage: Passage) -> str:
        return link_to(passage.observation or passage.pattern or passage.concept or passage.item)


@admin.register(Posting)
class PostingAdmin(OperatorAdmin):
    list_display = ["term", "passage_link", "frequency", "length"]
    list_select_related = ["passage"]
    list_filter = ["tenant"]
    search_fields = ["term__exact"]

    @admin.display(description="Passage")
    def passage_link(self, posting: Posting) -> str:
        return link_to(posting.passage)


@admin.register(Vector)
class VectorAdmin(OperatorAdmin):
    list_display = ["__str__", "passage_link", "embedder"]
    list_select_related = ["passage"]
    list_filter = ["tenant"]
    exclude = ["embedding"]  # hundreds of numbers that say nothing to a reader

    @admin.display(description="Passage")
    def passage_link(self, vector: Vector) -> str:
        return link_to(vector.passage)


@admin.register(Tally)
class TallyAdmin(OperatorAdmin):
    list_display = ["__str__", "tenant", "observations", "patterns", "concepts", "passages", "words"]
    list_select_related = ["tenant"]
    list_filter = ["tenant"]


@admin.register(Subject)
class SubjectAdmin(OperatorAdmin):
    list_display = [
        "key", "display_name", "memory_enabled", "learn_patterns", "share_with", "rev", "added_by", "author", "revised_at",
    ]  # fmt: skip
    list_select_related = ["added_by", "author"]
    list_filter = ["memory_enabled", "tenant"]
    search_fields = ["=key", "display_name"]
    readonly_fields = ["latest_items", "all_items"]

    @admin.display(description="Latest items that stand")
    def latest_items(self, subject: Subject) -> str:
        latest = subject.items.filter(superseded_at=None).order_by("-id")[:_LATEST]
        lines = ((item.type, link_to(item), start_of(item.text, 200)) for item in latest)
        return format_html_join("", "<p>{} {}: {}</p>", lines) or "-"

    @admin.display(description="All items")
    def all_items(self, subject: Subject) -> str:
        address = reverse("admin:memory_item_changelist", query={"subject": subject.pk})
        return format_html('<a href="{}" class="text-primary-600">those of this subject</a>', address)


@admin.register(Item)
class ItemAdmin(MemoryAdmin):
    list_display = ["__str__", "subject_link", "type", "text", "slot", "confidence", "stated", "author_link", "said_at"]
    list_select_related = ["author", "subject"]
    list_filter = [("type", ExactTextFilter), "stated", "tenant"]
    search_fields = ["text"]

    @admin.display(description="Subject")
    def subject_link(self, item: Item) -> str:
        return link_to(item.subject)


@admin.register(MemoryPolicy)
class MemoryPolicyAdmin(OperatorAdmin):
    list_display = [
        "__str__", "tenant", "fact_days", "pattern_days", "narrative_days", "share_with", "author", "revised_at",
    ]  # fmt: skip
    list_select_related = ["tenant", "author"]
    list_filter = ["tenant"]


@admin.register(EnvelopeLoaded)
class EnvelopeLoadedAdmin(OperatorAdmin):
    list_display = ["__str__", "subject_link", "viewer_link", "rev", "loaded_at"]
    list_select_related = ["subject", "viewer"]
    list_filter = ["tenant"]

    @admin.display(description="Subject")
    def subject_link(self, load: EnvelopeLoaded) -> str:
        return link_to(load.subject)

    @admin.display(description="Viewer")
    def viewer_link(self, load: EnvelopeLoaded) -> str:
        return link_to(load.viewer)


@admin.register(CommonWord)
class CommonWordAdmin(OperatorAdmin):
    list_display = ["term", "tenant", "scope", "passages"]
    list_select_related = ["tenant"]
    list_filter = ["tenant"]
    search_fields = ["term__exact"]


@admin.register(WordCount)
class WordCountAdmin(OperatorAdmin):
    list_display = ["__str__", "tenant", "scope", "passages"]
    list_select_related = ["tenant"]
    list_filter = ["tenant"]


@admin.register(PromotionPolicy)
class PromotionPolicyAdmin(OperatorAdmin):
    list_display = ["delegate", "tenant", "domains", "confidence_threshold", "requires_novel", "author", "revised_at"]
    list_select_related = ["tenant", "delegate", "author"]
    list_filter = ["tenant", "requires_novel"]
