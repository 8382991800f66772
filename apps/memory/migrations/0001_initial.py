import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.contrib.postgres.search
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.comparison
from django.db import migrations, models

import apps.memory.models.vectors
from apps.core.rls import immutable, protect
from apps.core.tables import CreateModels

# Places: see the models Passage and Session.
PLACES = "alter sequence memory_passage_id_seq increment by 1048576 start with 1572864 restart"
PLACES_BACK = "alter sequence memory_passage_id_seq increment by 1 start with 1 restart"

# A row of numbers stays in its page as long as it fits: each is read where few are compared.
INLINE = "alter table memory_vector alter column embedding set storage main"

# What a document must have that contains another, whatever else it has: all its marks. One for each path to a value,
# with the value, and to what holds values, with its kind; the elements of an array have its path. Numbers that are equal
# read the same. A mark begins with a space, as no word does, and tells nothing of what it stands for.
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


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial")]

    operations = [
        CreateModels(
            migrations.CreateModel(
                name="Concept",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "author",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    ("key", models.CharField(max_length=200)),
                    ("name", models.CharField(max_length=200)),
                    ("type", models.CharField(blank=True, max_length=50)),
                    (
                        "aliases",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(max_length=200), default=list, size=None
                        ),
                    ),
                    ("description", models.TextField(blank=True)),
                    ("metadata", models.JSONField(default=dict)),
                    ("recorded_at", models.DateTimeField()),
                    ("revised_at", models.DateTimeField()),
                ],
                options={
                    "indexes": [
                        django.contrib.postgres.indexes.HashIndex(
                            condition=models.Q(("description", ""), _negated=True),
                            fields=["description"],
                            name="memory_concept_of_description",
                        )
                    ],
                },
            ),
            migrations.CreateModel(
                name="ConceptName",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    ("key", models.CharField(max_length=200)),
                    (
                        "concept",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="names", to="memory.concept"
                        ),
                    ),
                ],
                options={
                    "constraints": [models.UniqueConstraint(fields=("tenant", "key"), name="memory_conceptname_once")],
                },
            ),
            migrations.CreateModel(
                name="ConceptRevision",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "author",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "concept",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="revisions",
                            to="memory.concept",
                        ),
                    ),
                    ("type", models.CharField(blank=True, max_length=50)),
                    (
                        "aliases",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(max_length=200), default=list, size=None
                        ),
                    ),
                    ("description", models.TextField(blank=True)),
                    ("metadata", models.JSONField(default=dict)),
                    ("recorded_at", models.DateTimeField()),
                    ("superseded_at", models.DateTimeField()),
                    ("is_forgotten", models.BooleanField(db_default=False)),
                ],
                options={
                    "indexes": [
                        models.Index(fields=["concept", "superseded_at", "id"], name="memory_conceptrevision_until")
                    ],
                },
            ),
            migrations.CreateModel(
                name="Relationship",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "author",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "source",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="outgoing",
                            to="memory.concept",
                        ),
                    ),
                    (
                        "target",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="incoming",
                            to="memory.concept",
                        ),
                    ),
                    ("type", models.CharField(max_length=50)),
                    ("description", models.TextField(blank=True)),
                    ("recorded_at", models.DateTimeField()),
                    ("revised_at", models.DateTimeField()),
                ],
                options={
                    "indexes": [
                        models.Index(fields=["source", "-id"], name="memory_relationship_from"),
                        models.Index(fields=["target", "-id"], name="memory_relationship_to"),
                        models.Index(fields=["tenant", "type", "-id"], name="memory_relationship_of_type"),
                        models.Index(fields=["tenant", "-id"], name="memory_relationship_newest"),
                    ],
                    "constraints": [
                        models.UniqueConstraint(
                            fields=("tenant", "source", "target", "type"), name="memory_relationship_once"
                        )
                    ],
                },
            ),
            migrations.CreateModel(
                name="Pattern",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "author",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    ("category", models.CharField(max_length=100)),
                    ("name", models.CharField(max_length=200)),
                    ("text", models.TextField()),
                    ("confidence", models.FloatField()),
                    ("evidence", models.JSONField(default=list)),
                    ("revision", models.PositiveIntegerField()),
                    ("recorded_at", models.DateTimeField()),
                    ("revised_at", models.DateTimeField()),
                ],
                options={
                    "indexes": [
                        django.contrib.postgres.indexes.HashIndex(fields=["text"], name="memory_pattern_of_text")
                    ],
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "category", "name"), name="memory_pattern_name_once"),
                        models.CheckConstraint(
                            condition=models.Q(("confidence__gte", 0), ("confidence__lte", 1)),
                            name="memory_pattern_confidence_between_0_and_1",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="PatternRevision",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "author",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "pattern",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="revisions",
                            to="memory.pattern",
                        ),
                    ),
                    ("number", models.PositiveIntegerField()),
                    ("text", models.TextField()),
                    ("confidence", models.FloatField()),
                    ("evidence", models.JSONField(default=list)),
                    ("recorded_at", models.DateTimeField()),
                ],
                options={
                    "indexes": [
                        models.Index(fields=["pattern", "recorded_at", "number"], name="memory_patternrevision_from")
                    ],
                    "constraints": [
                        models.UniqueConstraint(
                            fields=("tenant", "pattern", "number"), name="memory_patternrevision_number_once"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("confidence__gte", 0), ("confidence__lte", 1)),
                            name="memory_patternrevision_confidence_between_0_and_1",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="MemoryPolicy",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    ("fact_days", models.PositiveIntegerField()),
                    ("pattern_days", models.PositiveIntegerField()),
                    ("narrative_days", models.PositiveIntegerField()),
                    (
                        "share_with",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(max_length=50), null=True, size=None
                        ),
                    ),
                    (
                        "author",
                        models.ForeignKey(
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    ("revised_at", models.DateTimeField()),
                ],
                options={
                    "verbose_name_plural": "memory policies",
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant",), name="memory_memorypolicy_once"),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("fact_days__gte", 1), ("narrative_days__gte", 1), ("pattern_days__gte", 1)
                            ),
                            name="memory_memorypolicy_windows_last_a_day",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("fact_days__lte", 36500), ("narrative_days__lte", 36500), ("pattern_days__lte", 36500)
                            ),
                            name="memory_memorypolicy_windows_end",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Subject",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    ("key", models.CharField(max_length=200)),
                    ("display_name", models.CharField(blank=True, max_length=200)),
                    ("learning_level", models.CharField(blank=True, max_length=50)),
                    (
                        "domains",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(max_length=100), default=list, size=None
                        ),
                    ),
                    ("preferences", models.JSONField(default=dict)),
                    ("memory_enabled", models.BooleanField(default=True)),
                    ("learn_patterns", models.BooleanField(default=True)),
                    (
                        "share_with",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(max_length=50), null=True, size=None
                        ),
                    ),
                    ("anonymize_dates", models.BooleanField(default=False)),
                    ("delete_after_days", models.PositiveIntegerField(null=True)),
                    ("expires_at", models.DateTimeField(null=True)),
                    (
                        "added_by",
                        models.ForeignKey(
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "author",
                        models.ForeignKey(
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    ("rev", models.BigIntegerField(default=1)),
                    ("created_at", models.DateTimeField()),
                    ("revised_at", models.DateTimeField()),
                ],
                options={
                    "indexes": [
                        models.Index(
                            condition=models.Q(("expires_at__isnull", False)),
                            fields=["expires_at"],
                            name="memory_subject_expiring",
                        )
                    ],
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "key"), name="memory_subject_key_once"),
                        models.CheckConstraint(
                            condition=models.Q(("rev__gte", 1)), name="memory_subject_rev_counts_from_1"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("delete_after_days", None), ("delete_after_days__gte", 1), _connector="OR"
                            ),
                            name="memory_subject_is_kept_a_day_at_least",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("expires_at", None), ("delete_after_days__isnull", False), _connector="OR"
                            ),
                            name="memory_subject_that_keeps_all_never_expires",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Item",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "subject",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="items",
                            to="memory.subject",
                        ),
                    ),
                    (
                        "author",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "type",
                        models.CharField(
                            choices=[
                                ("USER_FACT", "User Fact"),
                                ("USER_PATTERN", "User Pattern"),
                                ("SHARED_NARRATIVE", "Shared Narrative"),
                            ],
                            max_length=16,
                        ),
                    ),
                    ("text", models.TextField()),
                    ("text_digest", models.BinaryField(max_length=32)),
                    ("slot", models.CharField(max_length=200, null=True)),
                    ("slot_key", models.CharField(max_length=200, null=True)),
                    ("confidence", models.FloatField()),
                    ("source", models.CharField(blank=True, max_length=200)),
                    ("stated", models.BooleanField(default=False)),
                    ("evidence", models.JSONField(default=list)),
                    ("valid_from", models.DateTimeField()),
                    ("valid_to", models.DateTimeField(null=True)),
                    ("said_at", models.DateTimeField()),
                    ("recorded_at", models.DateTimeField()),
                    ("superseded_at", models.DateTimeField(null=True)),
                    (
                        "superseded_by",
                        models.ForeignKey(
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.SET_NULL,
                            related_name="supersedes",
                            to="memory.item",
                        ),
                    ),
                ],
                options={
                    "indexes": [
                        models.Index(
                            condition=models.Q(("superseded_at", None), ("valid_to", None)),
                            fields=["tenant", "subject", "type", "-said_at", "-id"],
                            name="memory_item_current",
                        ),
                        models.Index(
                            condition=models.Q(("superseded_at", None), ("valid_to__isnull", False)),
                            fields=["subject", "type", "valid_to"],
                            name="memory_item_ending",
                        ),
                        models.Index(
                            condition=models.Q(("slot_key__isnull", False), ("superseded_at", None)),
                            fields=["subject", "slot_key", "valid_to"],
                            name="memory_item_answering",
                        ),
                        models.Index(
                            condition=models.Q(("superseded_at", None)),
                            fields=["subject", "text_digest", "valid_to"],
                            name="memory_item_saying",
                        ),
                        models.Index(
                            condition=models.Q(("superseded_at", None)),
                            fields=["subject", "-id"],
                            name="memory_item_standing",
                        ),
                        models.Index(fields=["subject", "-id"], name="memory_item_listed"),
                        models.Index(fields=["subject", "said_at", "id"], name="memory_item_of_subject"),
                        models.Index(fields=["subject", "text_digest"], name="memory_item_of_text"),
                        models.Index(
                            condition=models.Q(("superseded_by__isnull", False)),
                            fields=["superseded_by"],
                            name="memory_item_by_newer",
                        ),
                    ],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("confidence__gte", 0), ("confidence__lte", 1)),
                            name="memory_item_confidence_between_0_and_1",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("type__in", ["USER_FACT", "USER_PATTERN", "SHARED_NARRATIVE"])),
                            name="memory_item_type_known",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("valid_to", None), ("valid_to__gt", models.F("valid_from")), _connector="OR"
                            ),
                            name="memory_item_true_for_a_while",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("superseded_by", None), ("superseded_at__isnull", False), _connector="OR"
                            ),
                            name="memory_item_superseded_by_an_item_at_a_time",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("superseded_by", models.F("id")), _negated=True),
                            name="memory_item_not_superseded_by_itself",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("superseded_at", None),
                                ("superseded_at__gte", models.F("recorded_at")),
                                _connector="OR",
                            ),
                            name="memory_item_known_before_superseded",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("slot", ""), _negated=True), models.Q(("slot_key", ""), _negated=True)
                            ),
                            name="memory_item_slot_has_a_name",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("slot", None), ("slot_key", None)),
                                models.Q(("slot__isnull", False), ("slot_key__isnull", False)),
                                _connector="OR",
                            ),
                            name="memory_item_slot_has_a_key",
                        ),
                        models.UniqueConstraint(
                            condition=models.Q(
                                ("slot_key__isnull", False), ("superseded_at", None), ("valid_to", None)
                            ),
                            fields=("tenant", "subject", "slot_key"),
                            name="memory_item_slot_holds_one",
                        ),
                        models.UniqueConstraint(
                            condition=models.Q(("superseded_at", None), ("valid_to", None)),
                            fields=("tenant", "subject", "type", "text_digest", "slot_key"),
                            name="memory_item_said_once",
                            nulls_distinct=False,
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="EnvelopeLoaded",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "subject",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="loads",
                            to="memory.subject",
                        ),
                    ),
                    (
                        "viewer",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    ("rev", models.BigIntegerField()),
                    ("digest", models.BinaryField(max_length=32)),
                    ("loaded_at", models.DateTimeField()),
                ],
                options={
                    "verbose_name_plural": "envelopes loaded",
                    "indexes": [
                        models.Index(fields=["subject", "viewer", "loaded_at"], name="memory_envelopeloaded_to"),
                        models.Index(fields=["subject", "-id"], name="memory_envelopeloaded_listed"),
                        models.Index(fields=["loaded_at"], name="memory_envelopeloaded_old"),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Forgotten",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    ("digest", models.BinaryField(max_length=32)),
                    ("forgotten_at", models.DateTimeField()),
                ],
                options={
                    "constraints": [models.UniqueConstraint(fields=("tenant", "digest"), name="memory_forgotten_once")],
                },
            ),
            migrations.CreateModel(
                name="PromotionPolicy",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "delegate",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "domains",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(max_length=100), size=None
                        ),
                    ),
                    ("confidence_threshold", models.FloatField()),
                    ("requires_novel", models.BooleanField()),
                    (
                        "author",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    ("revised_at", models.DateTimeField()),
                ],
                options={
                    "verbose_name_plural": "promotion policies",
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "delegate"), name="memory_promotionpolicy_once"),
                        models.CheckConstraint(
                            condition=models.Q(("confidence_threshold__gte", 0), ("confidence_threshold__lte", 1)),
                            name="memory_promotionpolicy_threshold_between_0_and_1",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Observation",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "author",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "session",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="turns_said",
                            to="memory.session",
                        ),
                    ),
                    ("speaker", models.CharField(blank=True, db_default="", max_length=100)),
                    ("text", models.TextField()),
                    ("domain", models.CharField(blank=True, max_length=100)),
                    ("confidence", models.FloatField()),
                    ("evidence", models.JSONField(default=list)),
                    ("metadata", models.JSONField(default=dict)),
                    ("occurred_at", models.DateTimeField()),
                    ("recorded_at", models.DateTimeField()),
                    ("superseded_at", models.DateTimeField(null=True)),
                    (
                        "superseded_by",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="supersedes",
                            to="memory.observation",
                        ),
                    ),
                ],
                options={
                    "indexes": [
                        models.Index(
                            condition=models.Q(("session__isnull", False)),
                            fields=["session", "id"],
                            name="memory_observation_of_session",
                        ),
                        models.Index(
                            models.F("session"),
                            django.db.models.functions.comparison.Least("occurred_at", "recorded_at"),
                            condition=models.Q(("session__isnull", False), models.Q(("text", ""), _negated=True)),
                            name="memory_observation_said",
                        ),
                        django.contrib.postgres.indexes.HashIndex(
                            condition=models.Q(("session", None), ("superseded_at", None)),
                            fields=["text"],
                            name="memory_observation_of_text",
                        ),
                    ],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("confidence__gte", 0), ("confidence__lte", 1)),
                            name="memory_observation_confidence_between_0_and_1",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("superseded_at", None), ("superseded_by", None)),
                                models.Q(("superseded_at__isnull", False), ("superseded_by__isnull", False)),
                                _connector="OR",
                            ),
                            name="memory_observation_superseded_by_a_statement",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("superseded_by", models.F("id")), _negated=True),
                            name="memory_observation_not_superseded_by_itself",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("superseded_at", None),
                                ("superseded_at__gte", models.F("recorded_at")),
                                _connector="OR",
                            ),
                            name="memory_observation_known_before_superseded",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Passage",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "observation",
                        models.OneToOneField(
                            null=True,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="passage",
                            to="memory.observation",
                        ),
                    ),
                    (
                        "pattern",
                        models.OneToOneField(
                            null=True,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="passage",
                            to="memory.pattern",
                        ),
                    ),
                    (
                        "concept",
                        models.OneToOneField(
                            null=True,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="passage",
                            to="memory.concept",
                        ),
                    ),
                    (
                        "item",
                        models.OneToOneField(
                            null=True,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="passage",
                            to="memory.item",
                        ),
                    ),
                    ("scope", models.BigIntegerField(db_default=0)),
                    ("domain", models.CharField(blank=True, max_length=100)),
                    ("words", django.contrib.postgres.search.SearchVectorField(db_default="")),
                    ("length", models.PositiveIntegerField(default=0)),
                    ("recorded_at", models.DateTimeField()),
                    ("embedder", models.IntegerField(null=True)),
                ],
                options={
                    "indexes": [
                        models.Index(fields=["tenant", "scope", "-recorded_at", "-id"], name="memory_passage_newest"),
                        models.Index(
                            fields=["tenant", "scope", "domain", "-recorded_at", "-id"], name="memory_passage_domain"
                        ),
                        models.Index(fields=["embedder", "id"], name="memory_passage_embedded"),
                    ],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(
                                    ("concept", None), ("item", None), ("observation__isnull", False), ("pattern", None)
                                ),
                                models.Q(
                                    ("concept", None), ("item", None), ("observation", None), ("pattern__isnull", False)
                                ),
                                models.Q(
                                    ("concept__isnull", False), ("item", None), ("observation", None), ("pattern", None)
                                ),
                                models.Q(
                                    ("concept", None), ("item__isnull", False), ("observation", None), ("pattern", None)
                                ),
                                _connector="OR",
                            ),
                            name="memory_passage_of_one_memory",
                        )
                    ],
                },
            ),
            migrations.CreateModel(
                name="Session",
                fields=[
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "id",
                        models.BigIntegerField(
                            db_default=django.db.models.expressions.RawSQL(
                                "(nextval('memory_passage_id_seq') >> 20)", ()
                            ),
                            editable=False,
                            primary_key=True,
                            serialize=False,
                        ),
                    ),
                    (
                        "principal",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "subject",
                        models.ForeignKey(
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.SET_NULL,
                            related_name="sessions",
                            to="memory.subject",
                        ),
                    ),
                    ("conversation_id", models.CharField(max_length=200)),
                    ("platform", models.CharField(blank=True, max_length=50)),
                    ("title", models.CharField(blank=True, max_length=200)),
                    ("summary", models.TextField(blank=True)),
                    (
                        "topics",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(max_length=100), default=list, size=None
                        ),
                    ),
                    ("tone", models.CharField(blank=True, max_length=100)),
                    ("turns", models.PositiveIntegerField(db_default=0)),
                    ("is_forgotten", models.BooleanField(db_default=False)),
                    ("started_at", models.DateTimeField()),
                    ("last_active_at", models.DateTimeField()),
                ],
                options={
                    "indexes": [
                        models.Index(
                            condition=models.Q(("is_forgotten", False)),
                            fields=["tenant", "principal", "-last_active_at", "-id"],
                            name="memory_session_recent",
                        ),
                        models.Index(
                            condition=models.Q(("is_forgotten", False)),
                            fields=["tenant", "principal", "subject", "-last_active_at", "-id"],
                            name="memory_session_with",
                        ),
                        models.Index(
                            condition=models.Q(("subject__isnull", False)),
                            fields=["subject", "-last_active_at", "-id"],
                            name="memory_session_of_subject",
                        ),
                        models.Index(
                            condition=models.Q(("subject__isnull", False)),
                            fields=["subject", "-id"],
                            name="memory_session_listed",
                        ),
                    ],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("turns__lte", 524272)), name="memory_session_turns_have_places"
                        ),
                        models.UniqueConstraint(
                            fields=("tenant", "principal", "conversation_id"), name="memory_session_conversation_once"
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Posting",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    ("scope", models.BigIntegerField(db_default=0)),
                    ("term", models.TextField()),
                    (
                        "passage",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="postings", to="memory.passage"
                        ),
                    ),
                    ("frequency", models.PositiveSmallIntegerField()),
                    ("length", models.PositiveIntegerField()),
                    ("of_context", models.BooleanField(db_default=False)),
                    ("superseded", models.BooleanField(db_default=False)),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(
                            fields=("tenant", "scope", "term", "passage"),
                            include=("frequency", "length", "of_context", "superseded"),
                            name="memory_posting_once",
                        )
                    ],
                },
            ),
            migrations.CreateModel(
                name="Vector",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "passage",
                        models.OneToOneField(
                            on_delete=django.db.models.deletion.CASCADE, related_name="vector", to="memory.passage"
                        ),
                    ),
                    ("scope", models.BigIntegerField()),
                    ("embedder", models.IntegerField()),
                    (
                        "embedding",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=apps.memory.models.vectors.RealField(), size=None
                        ),
                    ),
                ],
                options={
                    "indexes": [models.Index(fields=["tenant", "scope", "embedder"], name="memory_vector_of_scope")],
                },
            ),
            migrations.CreateModel(
                name="CommonWord",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    ("scope", models.BigIntegerField()),
                    ("term", models.TextField()),
                    ("passages", models.BigIntegerField()),
                ],
                options={
                    "indexes": [models.Index(fields=["tenant", "term"], name="memory_commonword_of_term")],
                    "constraints": [
                        models.UniqueConstraint(
                            fields=("tenant", "scope", "term"), include=("passages",), name="memory_commonword_once"
                        )
                    ],
                },
            ),
            migrations.CreateModel(
                name="WordCount",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    ("scope", models.BigIntegerField()),
                    ("passages", models.BigIntegerField()),
                ],
                options={
                    "constraints": [models.UniqueConstraint(fields=("tenant", "scope"), name="memory_wordcount_once")],
                },
            ),
            migrations.CreateModel(
                name="Tally",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    ("scope", models.BigIntegerField(db_default=0)),
                    ("observations", models.BigIntegerField()),
                    ("patterns", models.BigIntegerField()),
                    ("concepts", models.BigIntegerField()),
                    ("passages", models.BigIntegerField()),
                    ("words", models.BigIntegerField()),
                    ("folded", models.BooleanField(db_default=False)),
                ],
                options={
                    "verbose_name_plural": "tallies",
                    "indexes": [
                        models.Index(
                            condition=models.Q(("folded", False)), fields=["tenant", "scope"], name="memory_tally_fresh"
                        ),
                        models.Index(
                            condition=models.Q(("passages__gt", 1000)),
                            fields=["tenant", "scope"],
                            name="memory_tally_large",
                        ),
                        models.Index(
                            fields=["tenant", "scope"],
                            include=("observations", "patterns", "concepts", "passages", "words"),
                            name="memory_tally_of_tenant",
                        ),
                    ],
                },
            ),
        ),
        *(
            protect(f"memory_{name}")
            for name in (
                "concept",
                "conceptname",
                "conceptrevision",
                "relationship",
                "pattern",
                "patternrevision",
                "memorypolicy",
                "subject",
                "item",
                "envelopeloaded",
                "forgotten",
                "promotionpolicy",
                "session",
                "observation",
                "passage",
                "posting",
                "vector",
                "commonword",
                "wordcount",
                "tally",
            )
        ),
        immutable(
            "memory_observation",
            except_columns=("superseded_at", "superseded_by_id"),
            redactable=("text", "speaker", "domain", "evidence", "metadata"),
        ),
        immutable("memory_patternrevision", redactable=("text", "evidence")),
        immutable("memory_conceptrevision", redactable=("type", "aliases", "description", "metadata", "is_forgotten")),
        immutable("memory_item", except_columns=("superseded_at", "superseded_by_id"), redactable=("evidence",)),
        immutable("memory_envelopeloaded"),
        immutable("memory_forgotten"),
        migrations.RunSQL(PLACES, PLACES_BACK),
        migrations.RunSQL(MARKS, MARKS_BACK),
        migrations.RunSQL(INLINE, migrations.RunSQL.noop),
    ]
