import django.contrib.postgres.fields
import django.contrib.postgres.search
import django.db.models.deletion
from django.db import migrations, models
from django.db.models.expressions import RawSQL

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
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
            ),
            migrations.CreateModel(
                name="ConceptName",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("key", models.CharField(max_length=200)),
                    (
                        "concept",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="names", to="memory.concept"
                        ),
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
                    ("type", models.CharField(max_length=50)),
                    ("description", models.TextField(blank=True)),
                    ("recorded_at", models.DateTimeField()),
                    ("revised_at", models.DateTimeField()),
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
                            on_delete=django.db.models.deletion.CASCADE, related_name="outgoing", to="memory.concept"
                        ),
                    ),
                    (
                        "target",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="incoming", to="memory.concept"
                        ),
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
                ],
                options={
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
                    ("category", models.CharField(max_length=100)),
                    ("name", models.CharField(max_length=200)),
                    ("text", models.TextField()),
                    ("confidence", models.FloatField()),
                    ("evidence", models.JSONField(default=list)),
                    ("revision", models.PositiveIntegerField()),
                    ("recorded_at", models.DateTimeField()),
                    ("revised_at", models.DateTimeField()),
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
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
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
                    ("number", models.PositiveIntegerField()),
                    ("text", models.TextField()),
                    ("confidence", models.FloatField()),
                    ("evidence", models.JSONField(default=list)),
                    ("recorded_at", models.DateTimeField()),
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
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(
                            fields=("tenant", "pattern", "number"), name="memory_patternrevision_number_once"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("confidence__gte", 0), ("confidence__lte", 1)),
                            name="memory_patternrevision_confidence_between_0_and_1",
                        ),
                    ],
                    "indexes": [
                        models.Index(fields=["pattern", "recorded_at", "number"], name="memory_patternrevision_from")
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
                    ("fact_days", models.PositiveIntegerField()),
                    ("pattern_days", models.PositiveIntegerField()),
                    ("narrative_days", models.PositiveIntegerField()),
                    (
                        "share_with",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(max_length=50), null=True, size=None
                        ),
                    ),
                    ("rev", models.BigIntegerField(default=1)),
                    ("revised_at", models.DateTimeField()),
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
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                ],
                options={
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
                    ("rev", models.BigIntegerField(default=1)),
                    ("created_at", models.DateTimeField()),
                    ("revised_at", models.DateTimeField()),
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
                        "author",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
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
                ],
                options={
                    "indexes": [
                        models.Index(fields=["subject", "said_at", "id"], name="memory_item_of_subject"),
                        models.Index(
                            condition=models.Q(("superseded_by__isnull", False)),
                            fields=["superseded_by"],
                            name="memory_item_by_newer",
                        ),
                        models.Index(fields=["subject", "text_digest"], name="memory_item_of_text"),
                        models.Index(
                            condition=models.Q(("superseded_at", None)),
                            fields=["subject", "valid_from"],
                            name="memory_item_beginning",
                        ),
                        models.Index(fields=["subject", "-id"], name="memory_item_listed"),
                        models.Index(
                            condition=models.Q(("slot__isnull", False), ("superseded_at", None)),
                            fields=["subject", "slot", "valid_to"],
                            name="memory_item_answering",
                        ),
                        models.Index(
                            condition=models.Q(("superseded_at", None)),
                            fields=["subject", "text_digest", "valid_to"],
                            name="memory_item_saying",
                        ),
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
                            condition=models.Q(("superseded_by", models.F("id")), _negated=True),
                            name="memory_item_not_superseded_by_itself",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("slot", ""), _negated=True), name="memory_item_slot_has_a_name"
                        ),
                        models.UniqueConstraint(
                            condition=models.Q(("slot__isnull", False), ("superseded_at", None), ("valid_to", None)),
                            fields=("tenant", "subject", "slot"),
                            name="memory_item_slot_holds_one",
                        ),
                        models.UniqueConstraint(
                            condition=models.Q(("superseded_at", None), ("valid_to", None)),
                            fields=("tenant", "subject", "type", "text_digest"),
                            name="memory_item_said_once",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("superseded_by", None), ("superseded_at__isnull", False), _connector="OR"
                            ),
                            name="memory_item_superseded_by_an_item_at_a_time",
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
                    ("rev", models.BigIntegerField()),
                    ("digest", models.BinaryField(max_length=32)),
                    ("loaded_at", models.DateTimeField()),
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
                        "viewer",
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
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="loads",
                            to="memory.subject",
                        ),
                    ),
                ],
                options={
                    "indexes": [
                        models.Index(fields=["subject", "viewer", "loaded_at"], name="memory_envelopeloaded_to"),
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
                    ("digest", models.BinaryField(max_length=32)),
                    ("forgotten_at", models.DateTimeField()),
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
                        "domains",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(max_length=100), size=None
                        ),
                    ),
                    ("confidence_threshold", models.FloatField()),
                    ("requires_novel", models.BooleanField()),
                    ("revised_at", models.DateTimeField()),
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
                        "delegate",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
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
                ],
                options={
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
                    ("text", models.TextField()),
                    ("domain", models.CharField(blank=True, max_length=100)),
                    ("confidence", models.FloatField()),
                    ("evidence", models.JSONField(default=list)),
                    ("metadata", models.JSONField(default=dict)),
                    ("occurred_at", models.DateTimeField()),
                    ("recorded_at", models.DateTimeField()),
                    ("superseded_at", models.DateTimeField(null=True)),
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
                        "superseded_by",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="supersedes",
                            to="memory.observation",
                        ),
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
                ],
                options={
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
                    ],
                    "indexes": [
                        models.Index(
                            condition=models.Q(("session__isnull", False)),
                            fields=["session", "id"],
                            name="memory_observation_of_session",
                        )
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
                    ("domain", models.CharField(blank=True, max_length=100)),
                    ("length", models.PositiveIntegerField(default=0)),
                    ("recorded_at", models.DateTimeField()),
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
                        "observation",
                        models.OneToOneField(
                            null=True,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="passage",
                            to="memory.observation",
                        ),
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
                        "pattern",
                        models.OneToOneField(
                            null=True,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="passage",
                            to="memory.pattern",
                        ),
                    ),
                    ("scope", models.BigIntegerField(db_default=0)),
                    ("words", django.contrib.postgres.search.SearchVectorField(db_default="")),
                    (
                        "item",
                        models.OneToOneField(
                            null=True,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="passage",
                            to="memory.item",
                        ),
                    ),
                    ("embedder", models.IntegerField(null=True)),
                ],
                options={
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
                    "indexes": [
                        models.Index(fields=["tenant", "scope", "-recorded_at", "-id"], name="memory_passage_newest"),
                        models.Index(
                            fields=["tenant", "scope", "domain", "-recorded_at", "-id"], name="memory_passage_domain"
                        ),
                        models.Index(fields=["embedder", "id"], name="memory_passage_embedded"),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Session",
                fields=[
                    (
                        "id",
                        models.BigIntegerField(
                            db_default=RawSQL("(nextval('memory_passage_id_seq') >> 20)", ()),
                            editable=False,
                            primary_key=True,
                            serialize=False,
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
                    ("started_at", models.DateTimeField()),
                    ("last_active_at", models.DateTimeField()),
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
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    ("turns", models.PositiveIntegerField(db_default=0)),
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
                    ("is_forgotten", models.BooleanField(db_default=False)),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(
                            fields=("tenant", "principal", "conversation_id"), name="memory_session_conversation_once"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("turns__lte", 524272)), name="memory_session_turns_have_places"
                        ),
                    ],
                    "indexes": [
                        models.Index(fields=["tenant", "principal", "-last_active_at"], name="memory_session_recent"),
                        models.Index(
                            condition=models.Q(("subject__isnull", False)),
                            fields=["subject", "-last_active_at", "-id"],
                            name="memory_session_of_subject",
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
                    ("term", models.TextField()),
                    ("frequency", models.PositiveSmallIntegerField()),
                    ("length", models.PositiveIntegerField()),
                    (
                        "passage",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="postings", to="memory.passage"
                        ),
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
                    ("of_context", models.BooleanField(db_default=False)),
                    ("scope", models.BigIntegerField(db_default=0)),
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
                    ("scope", models.BigIntegerField()),
                    ("embedder", models.IntegerField()),
                    (
                        "embedding",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=apps.memory.models.vectors.RealField(), size=None
                        ),
                    ),
                    (
                        "passage",
                        models.OneToOneField(
                            on_delete=django.db.models.deletion.CASCADE, related_name="vector", to="memory.passage"
                        ),
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
                    ("scope", models.BigIntegerField()),
                    ("term", models.TextField()),
                    ("passages", models.BigIntegerField()),
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
                    ("scope", models.BigIntegerField()),
                    ("passages", models.BigIntegerField()),
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
                    ("observations", models.BigIntegerField()),
                    ("patterns", models.BigIntegerField()),
                    ("concepts", models.BigIntegerField()),
                    ("passages", models.BigIntegerField()),
                    ("words", models.BigIntegerField()),
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
                    ("folded", models.BooleanField(db_default=False)),
                ],
                options={
                    "indexes": [
                        models.Index(
                            fields=["tenant", "scope"],
                            include=("observations", "patterns", "concepts", "passages", "words"),
                            name="memory_tally_of_tenant",
                        ),
                        models.Index(
                            condition=models.Q(("folded", False)), fields=["tenant", "scope"], name="memory_tally_fresh"
                        ),
                        models.Index(
                            condition=models.Q(("passages__gt", 1000)),
                            fields=["tenant", "scope"],
                            name="memory_tally_large",
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
        immutable("memory_item", except_columns=("superseded_at", "superseded_by_id")),
        immutable("memory_envelopeloaded"),
        immutable("memory_forgotten"),
        migrations.RunSQL(PLACES, PLACES_BACK),
        migrations.RunSQL(MARKS, MARKS_BACK),
        migrations.RunSQL(INLINE, migrations.RunSQL.noop),
    ]
