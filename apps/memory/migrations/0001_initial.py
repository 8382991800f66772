from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import HashIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import migrations, models
from django.db.models import Index, Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce, Least

from apps.core.rls import immutable
from apps.core.tables import CreateModels, table
from apps.memory.models import RealField

# The places of memories: see apps.memory.models.MESSAGE_BITS. The steps are 1 << SPAN_BITS, from the middle of a span on.
PLACES = "create sequence memory_place increment by 1048576 start with 1572864"
PLACES_BACK = "drop sequence memory_place"

# Vectors stay in their pages while they fit, since each is read where there are few.
INLINE = "alter table memory_vector alter column embedding set storage main"

# The marks of a JSON document. A document that contains another has all its marks, and perhaps more. There is one for each
# path to a value, with the value, and for each path to an object or array, with its kind; elements of an array have its path.
# Equal numbers have the same mark. A mark begins with a space, as no word does, and does not show what it stands for.
MARKS = """
    create function memory_marks(document jsonb) returns text[] language sql immutable strict parallel safe as $$
        with recursive part(path, value) as (
            select '', document
            union all
            select part.path || inside.step, inside.value
            from part cross join lateral (
                select '.' || e.key as step, e.value
                from jsonb_each(case jsonb_typeof(part.value) when 'object' then part.value else '{}' end) e
                union all
                select '', e.value
                from jsonb_array_elements(case jsonb_typeof(part.value) when 'array' then part.value else '[]' end) e
            ) inside
        )
        select coalesce(array_agg(distinct ' ' || left(md5(path || ' ' || case jsonb_typeof(value)
            when 'object' then '{'
            when 'array' then '['
            when 'number' then trim_scale((value #>> '{}')::numeric)::text
            else value::text end), 16)), '{}')
        from part where path <> ''
    $$;
"""
MARKS_BACK = "drop function memory_marks(jsonb);"


def _principal(*, null: bool = False) -> Any:
    return models.ForeignKey(
        db_index=False, null=null, on_delete=models.PROTECT, related_name="+", to="principals.principal"
    )


def _link(to: str, name: str, *, null: bool = False, on_delete: Any = models.CASCADE) -> Any:
    return models.ForeignKey(db_index=False, null=null, on_delete=on_delete, related_name=name, to=f"memory.{to}")


def _names(longest: int) -> Any:
    return ArrayField(base_field=models.CharField(max_length=longest), default=list, size=None)


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial")]

    operations = [
        migrations.RunSQL(PLACES, PLACES_BACK),
        CreateModels(
            table(
                "Subject",
                ("key", models.CharField(max_length=200)),
                ("display_name", models.CharField(blank=True, max_length=200)),
                ("learning_level", models.CharField(blank=True, max_length=50)),
                ("domains", _names(100)),
                ("preferences", models.JSONField(default=dict)),
                ("memory_enabled", models.BooleanField(default=True)),
                ("learn_patterns", models.BooleanField(default=True)),
                ("share_with", ArrayField(base_field=models.CharField(max_length=50), null=True, size=None)),
                ("anonymize_dates", models.BooleanField(default=False)),
                ("delete_after_days", models.PositiveIntegerField(null=True)),
                ("expires_at", models.DateTimeField(null=True)),
                ("added_by", _principal(null=True)),
                ("author", _principal(null=True)),
                ("rev", models.BigIntegerField(default=1)),
                ("created_at", models.DateTimeField()),
                ("revised_at", models.DateTimeField()),
                indexes=[
                    Index(
                        condition=Q(expires_at__isnull=False),
                        fields=["expires_at"],
                        name="memory_subject_expiring",
                    )
                ],
                constraints=[
                    models.UniqueConstraint(fields=("tenant", "key"), name="memory_subject_key_once"),
                    models.CheckConstraint(condition=Q(rev__gte=1), name="memory_subject_rev_counts_from_1"),
                    models.CheckConstraint(
                        condition=Q(expires_at=None) | Q(delete_after_days__isnull=False),
                        name="memory_subject_that_keeps_all_never_expires",
                    ),
                ],
            ),
            table(
                "MemoryPolicy",
                ("fact_days", models.PositiveIntegerField()),
                ("pattern_days", models.PositiveIntegerField()),
                ("narrative_days", models.PositiveIntegerField()),
                ("share_with", ArrayField(base_field=models.CharField(max_length=50), null=True, size=None)),
                ("author", _principal(null=True)),
                ("revised_at", models.DateTimeField()),
                verbose_name_plural="memory policies",
                constraints=[
                    models.UniqueConstraint(fields=("tenant",), name="memory_memorypolicy_once"),
                ],
            ),
            table(
                "PromotionPolicy",
                ("delegate", _principal()),
                ("domains", ArrayField(base_field=models.CharField(max_length=100), size=None)),
                ("confidence_threshold", models.FloatField()),
                ("requires_novel", models.BooleanField()),
                ("author", _principal()),
                ("revised_at", models.DateTimeField()),
                verbose_name_plural="promotion policies",
                constraints=[
                    models.UniqueConstraint(fields=("tenant", "delegate"), name="memory_promotionpolicy_once"),
                ],
            ),
            table(
                "EnvelopeLoaded",
                ("subject", _link("subject", "loads")),
                ("viewer", _principal()),
                ("rev", models.BigIntegerField()),
                ("digest", models.BinaryField(max_length=32)),
                ("loaded_at", models.DateTimeField()),
                verbose_name_plural="envelopes loaded",
                indexes=[
                    Index(fields=["subject", "-id"], name="memory_envelopeloaded_listed"),
                    Index(fields=["loaded_at"], name="memory_envelopeloaded_old"),
                ],
            ),
            table(
                "Session",
                (
                    "id",
                    models.BigIntegerField(
                        db_default=RawSQL("(nextval('memory_place') >> 20)", ()),
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("principal", _principal()),
                ("subject", _link("subject", "sessions", null=True)),
                ("conversation_id", models.CharField(max_length=200)),
                ("platform", models.CharField(blank=True, max_length=50)),
                ("title", models.CharField(blank=True, max_length=200)),
                ("summary", models.TextField(blank=True)),
                ("topics", _names(100)),
                ("tone", models.CharField(blank=True, max_length=100)),
                ("message_count", models.PositiveIntegerField(db_default=0)),
                ("started_at", models.DateTimeField()),
                ("last_active_at", models.DateTimeField()),
                key=False,
                indexes=[
                    Index(fields=["tenant", "principal", "-last_active_at", "-id"], name="memory_session_recent"),
                    Index(
                        condition=Q(subject__isnull=False),
                        fields=["subject", "-last_active_at", "-id"],
                        name="memory_session_of_subject",
                    ),
                ],
                constraints=[
                    models.CheckConstraint(
                        condition=Q(message_count__lte=524272), name="memory_session_messages_have_places"
                    ),
                    models.UniqueConstraint(
                        fields=("tenant", "principal", "conversation_id"), name="memory_session_conversation_once"
                    ),
                ],
            ),
            table(
                "Memory",
                (
                    "place",
                    models.BigIntegerField(
                        db_default=RawSQL("nextval('memory_place')", ()), editable=False, unique=True
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("observation", "Observation"),
                            ("pattern", "Pattern"),
                            ("concept", "Concept"),
                            ("item", "Item"),
                        ],
                        max_length=11,
                    ),
                ),
                ("author", _principal()),
                ("session", _link("session", "messages", null=True)),
                ("subject", _link("subject", "memories", null=True)),
                (
                    "scope",
                    models.GeneratedField(
                        db_persist=True, expression=Coalesce("subject_id", 0), output_field=models.BigIntegerField()
                    ),
                ),
                ("key", models.CharField(max_length=200, null=True)),
                ("name", models.CharField(blank=True, db_default="", max_length=200)),
                ("domain", models.CharField(blank=True, db_default="", max_length=100)),
                ("text", models.TextField(blank=True)),
                (
                    "aliases",
                    ArrayField(
                        base_field=models.CharField(max_length=200),
                        db_default=RawSQL("'{}'::varchar[]", ()),
                        default=list,
                        size=None,
                    ),
                ),
                ("speaker", models.CharField(blank=True, db_default="", max_length=100)),
                ("source", models.CharField(blank=True, db_default="", max_length=200)),
                ("confidence", models.FloatField(null=True)),
                ("evidence", models.JSONField(default=list)),
                ("metadata", models.JSONField(default=dict)),
                ("revision", models.PositiveIntegerField(null=True)),
                ("occurred_at", models.DateTimeField(null=True)),
                ("recorded_at", models.DateTimeField()),
                ("revised_at", models.DateTimeField(null=True)),
                ("text_digest", models.BinaryField(max_length=32, null=True)),
                ("slot", models.CharField(max_length=200, null=True)),
                ("slot_key", models.CharField(max_length=200, null=True)),
                ("stated", models.BooleanField(db_default=False, default=False)),
                ("valid_from", models.DateTimeField(null=True)),
                ("valid_to", models.DateTimeField(null=True)),
                ("superseded_at", models.DateTimeField(null=True)),
                ("superseded_by", _link("memory", "supersedes", null=True, on_delete=models.SET_NULL)),
                ("words", SearchVectorField(db_default="", editable=False)),
                ("length", models.PositiveIntegerField(db_default=0, editable=False)),
                ("embedder", models.IntegerField(editable=False, null=True)),
                verbose_name_plural="memories",
                indexes=[
                    Index(fields=["tenant", "scope", "-recorded_at", "-place"], name="memory_memory_newest"),
                    Index(fields=["tenant", "scope", "domain", "-recorded_at", "-place"], name="memory_memory_domain"),
                    Index(fields=["embedder", "place"], name="memory_memory_embedded"),
                    HashIndex(
                        condition=Q(session=None, subject=None, superseded_at=None),
                        fields=["text"],
                        name="memory_memory_of_text",
                    ),
                    Index(
                        condition=Q(kind="item", superseded_at=None, valid_to=None),
                        fields=["tenant", "subject", "domain", "-occurred_at", "-id"],
                        name="memory_memory_current",
                    ),
                    Index(
                        condition=Q(kind="item", superseded_at=None, valid_to__isnull=False),
                        fields=["subject", "domain", "valid_to"],
                        name="memory_memory_ending",
                    ),
                    Index(
                        condition=Q(text_digest__isnull=False),
                        fields=["subject", "text_digest"],
                        name="memory_memory_saying",
                    ),
                    Index(
                        condition=Q(kind="item", superseded_at=None),
                        fields=["subject", "-id"],
                        name="memory_memory_standing",
                    ),
                    Index(
                        condition=Q(subject__isnull=False),
                        fields=["subject", "kind", "-id"],
                        name="memory_memory_listed",
                    ),
                    Index(
                        models.F("subject"),
                        Least("occurred_at", "recorded_at"),
                        condition=Q(subject__isnull=False),
                        name="memory_memory_said",
                    ),
                    Index(
                        condition=Q(superseded_by__isnull=False),
                        fields=["superseded_by", "-id"],
                        name="memory_memory_by_newer",
                    ),
                    Index(condition=Q(session__isnull=False), fields=["session"], name="memory_memory_of_session"),
                ],
                constraints=[
                    models.CheckConstraint(
                        condition=Q(("kind__in", ["observation", "pattern", "concept", "item"])),
                        name="memory_memory_kind_known",
                    ),
                    models.CheckConstraint(
                        condition=Q(confidence__gte=0, confidence__lte=1),
                        name="memory_memory_confidence_between_0_and_1",
                    ),
                    models.CheckConstraint(
                        condition=Q(superseded_by=None) | Q(superseded_at__isnull=False),
                        name="memory_memory_superseded_at_a_time",
                    ),
                    models.CheckConstraint(
                        condition=~Q(superseded_by=models.F("id")),
                        name="memory_memory_not_superseded_by_itself",
                    ),
                    models.CheckConstraint(
                        condition=Q(superseded_at=None) | Q(superseded_at__gte=models.F("recorded_at")),
                        name="memory_memory_known_before_superseded",
                    ),
                    models.CheckConstraint(
                        condition=(~Q(kind="concept") | Q(key__isnull=False))
                        & (~Q(kind="pattern") | Q(confidence__isnull=False, revision__isnull=False))
                        & (~Q(kind="observation") | Q(confidence__isnull=False, occurred_at__isnull=False))
                        & (Q(session=None) | Q(kind="observation"))
                        & (
                            Q(text_digest=None, slot=None, valid_from=None, valid_to=None) & ~Q(kind="item")
                            | Q(
                                kind="item",
                                domain__in=["USER_FACT", "USER_PATTERN", "SHARED_NARRATIVE"],
                                subject__isnull=False,
                                confidence__isnull=False,
                                text_digest__isnull=False,
                                valid_from__isnull=False,
                                occurred_at__isnull=False,
                            )
                        ),
                        name="memory_memory_has_the_fields_of_its_kind",
                    ),
                    models.CheckConstraint(
                        condition=Q(valid_to=None) | Q(valid_to__gt=models.F("valid_from")),
                        name="memory_memory_valid_for_a_while",
                    ),
                    models.CheckConstraint(
                        condition=Q(
                            Q(slot=None, slot_key=None),
                            Q(
                                ("slot__isnull", False),
                                ("slot_key__isnull", False),
                                ~Q(slot=""),
                                ~Q(slot_key=""),
                            ),
                            _connector="OR",
                        ),
                        name="memory_memory_slot_has_a_name_and_a_key",
                    ),
                    models.UniqueConstraint(
                        condition=Q(kind="pattern"),
                        fields=("tenant", "domain", "name"),
                        name="memory_memory_pattern_once",
                    ),
                    models.UniqueConstraint(
                        condition=Q(slot_key__isnull=False, superseded_at=None, valid_to=None),
                        fields=("tenant", "subject", "slot_key"),
                        name="memory_memory_slot_holds_one",
                    ),
                    models.UniqueConstraint(
                        condition=Q(kind="item", superseded_at=None, valid_to=None),
                        fields=("tenant", "subject", "domain", "text_digest", "slot_key"),
                        name="memory_memory_item_said_once",
                        nulls_distinct=False,
                    ),
                ],
            ),
            table(
                "Revision",
                ("author", _principal()),
                ("memory", _link("memory", "revisions")),
                ("number", models.PositiveIntegerField(null=True)),
                ("domain", models.CharField(blank=True, max_length=100)),
                ("text", models.TextField(blank=True)),
                ("aliases", _names(200)),
                ("confidence", models.FloatField(null=True)),
                ("evidence", models.JSONField(default=list)),
                ("metadata", models.JSONField(default=dict)),
                ("recorded_at", models.DateTimeField()),
                ("superseded_at", models.DateTimeField()),
                indexes=[Index(fields=["memory", "superseded_at", "id"], name="memory_revision_until")],
            ),
            table(
                "ConceptName",
                ("key", models.CharField(max_length=200)),
                ("concept", models.ForeignKey(on_delete=models.CASCADE, related_name="names", to="memory.memory")),
                constraints=[models.UniqueConstraint(fields=("tenant", "key"), name="memory_conceptname_once")],
            ),
            table(
                "Relationship",
                ("author", _principal()),
                ("source", _link("memory", "outgoing")),
                ("target", _link("memory", "incoming")),
                ("type", models.CharField(max_length=50)),
                ("description", models.TextField(blank=True)),
                ("recorded_at", models.DateTimeField()),
                ("revised_at", models.DateTimeField()),
                indexes=[
                    Index(fields=["source", "-id"], name="memory_relationship_from"),
                    Index(fields=["target", "-id"], name="memory_relationship_to"),
                    Index(fields=["tenant", "type", "-id"], name="memory_relationship_of_type"),
                    Index(fields=["tenant", "-id"], name="memory_relationship_newest"),
                ],
                constraints=[
                    models.UniqueConstraint(
                        fields=("tenant", "source", "target", "type"), name="memory_relationship_once"
                    )
                ],
            ),
            table(
                "SearchTerm",
                ("scope", models.BigIntegerField(db_default=0)),
                ("term", models.TextField()),
                (
                    "memory",
                    models.ForeignKey(
                        db_column="place",
                        on_delete=models.CASCADE,
                        related_name="terms",
                        to="memory.memory",
                        to_field="place",
                    ),
                ),
                ("frequency", models.PositiveSmallIntegerField()),
                ("length", models.PositiveIntegerField()),
                ("of_context", models.BooleanField(db_default=False)),
                ("superseded", models.BooleanField(db_default=False)),
                constraints=[
                    models.UniqueConstraint(
                        fields=("tenant", "scope", "term", "memory"),
                        include=("frequency", "length", "of_context", "superseded"),
                        name="memory_searchterm_once",
                    )
                ],
            ),
            table(
                "TermFrequency",
                ("scope", models.BigIntegerField()),
                ("term", models.TextField()),
                ("memories", models.BigIntegerField()),
                constraints=[
                    models.UniqueConstraint(
                        fields=("tenant", "scope", "term"), include=("memories",), name="memory_termfrequency_once"
                    )
                ],
            ),
            table(
                "SearchTotals",
                ("scope", models.BigIntegerField(db_default=0)),
                ("observations", models.BigIntegerField()),
                ("patterns", models.BigIntegerField()),
                ("concepts", models.BigIntegerField()),
                ("memories", models.BigIntegerField()),
                ("words", models.BigIntegerField()),
                ("folded", models.BooleanField(db_default=False)),
                indexes=[
                    Index(condition=Q(folded=False), fields=["tenant", "scope"], name="memory_searchtotals_fresh"),
                    Index(
                        condition=Q(memories__gt=1000),
                        fields=["tenant", "scope"],
                        name="memory_searchtotals_large",
                    ),
                    Index(
                        fields=["tenant", "scope"],
                        include=("observations", "patterns", "concepts", "memories", "words"),
                        name="memory_searchtotals_of_scope",
                    ),
                ],
            ),
            table(
                "Vector",
                (
                    "memory",
                    models.OneToOneField(
                        db_column="place",
                        on_delete=models.CASCADE,
                        related_name="vector",
                        to="memory.memory",
                        to_field="place",
                    ),
                ),
                ("scope", models.BigIntegerField()),
                ("embedder", models.IntegerField()),
                ("embedding", ArrayField(base_field=RealField(), size=None)),
                indexes=[Index(fields=["tenant", "scope", "embedder"], name="memory_vector_of_scope")],
            ),
        ),
        immutable(
            "memory_memory",
            # What supersedes it, whom it is about once its session has a subject, and what belongs to the search index.
            except_columns=("superseded_at", "superseded_by_id", "subject_id", "scope", "words", "length", "embedder"),
            redactable=("evidence",),
            when="old.kind in ('observation', 'item')",
        ),
        immutable("memory_revision", redactable=("evidence",)),
        immutable("memory_envelopeloaded"),
        migrations.RunSQL(MARKS, MARKS_BACK),
        migrations.RunSQL(INLINE, migrations.RunSQL.noop),
    ]
