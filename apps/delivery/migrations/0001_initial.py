from datetime import timedelta

from django.db import migrations, models
from django.db.models import F, Q

from apps.core.rls import immutable
from apps.core.tables import reference, table


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("principals", "0001_initial"),
        # Each of their steps renders the models that are there by then: before most of ours, they take less time.
        ("django_celery_beat", "0019_alter_periodictasks_options"),
        ("oauth2_provider", "0022_refreshtoken_token_family_index"),
    ]

    operations = [
        table(
            "Target",
            ("kind", models.CharField(max_length=10)),
            ("name", models.CharField(max_length=50, null=True)),
            ("url", models.CharField(max_length=500)),
            ("secret", models.TextField(editable=False)),
            ("former_secret", models.TextField(null=True, editable=False)),
            ("former_secret_until", models.DateTimeField(null=True)),
            ("timeout_seconds", models.PositiveSmallIntegerField(default=10)),
            ("endpoint", models.CharField(max_length=9, null=True)),
            ("known_as", models.CharField(max_length=50, null=True)),
            ("notify_lease", models.DurationField(default=timedelta(seconds=600))),
            ("min_unacked", models.IntegerField(default=1)),
            ("covered_seq", models.BigIntegerField(default=0)),
            ("woken_at", models.DateTimeField(null=True)),
            ("stopped_at", models.DateTimeField(null=True)),
            ("stopped_reason", models.CharField(max_length=200, null=True)),
            ("failures_in_a_row", models.PositiveIntegerField(default=0)),
            ("retry_at", models.DateTimeField(null=True)),
            ("busy_until", models.DateTimeField(null=True)),
            ("result", models.CharField(max_length=200, null=True)),
            ("sent", models.PositiveBigIntegerField(default=0)),
            ("failed", models.PositiveBigIntegerField(default=0)),
            ("dead", models.PositiveBigIntegerField(default=0)),
            ("wasted", models.PositiveBigIntegerField(default=0)),
            ("delivery_seconds", models.FloatField(default=0)),
            ("created_at", models.DateTimeField()),
            reference("principal", "principals.principal", "targets", null=True),
            permissions=[("operate_target", "Can stop and resume targets, and replay dead deliveries")],
            indexes=[
                models.Index(name="delivery_target_busy", fields=["busy_until"]),
            ],
            constraints=[
                models.UniqueConstraint(name="delivery_target_url_once", fields=["tenant", "principal", "url"]),
                models.UniqueConstraint(name="delivery_target_name_once", fields=["tenant", "name"]),
                models.CheckConstraint(
                    name="delivery_target_has_what_its_kind_needs",
                    condition=Q(endpoint=None, kind="webhook", known_as=None, name=None, principal__isnull=False)
                    | Q(
                        endpoint__in=["inbox", "universal", "gatehouse"],
                        kind="remote",
                        name__isnull=False,
                        principal=None,
                    ),
                ),
                models.CheckConstraint(
                    name="delivery_target_stopped_has_a_reason",
                    condition=Q(stopped_at=None, stopped_reason=None)
                    | Q(stopped_at__isnull=False, stopped_reason__isnull=False),
                ),
                models.CheckConstraint(
                    name="delivery_target_numbers_in_bounds",
                    condition=Q(covered_seq__gte=0, min_unacked__gte=1, timeout_seconds__range=(1, 60))
                    & Q(notify_lease__range=(timedelta(0), timedelta(days=7)), wasted__lte=F("sent")),
                ),
                models.CheckConstraint(
                    name="delivery_target_former_secret_has_an_end",
                    condition=Q(former_secret=None, former_secret_until=None)
                    | Q(former_secret__isnull=False, former_secret_until__isnull=False),
                ),
            ],
        ),
        table(
            "RemoteRoute",
            (
                "principal",
                models.OneToOneField(
                    primary_key=True,
                    serialize=False,
                    related_name="moved_to",
                    on_delete=models.PROTECT,
                    to="principals.principal",
                ),
            ),
            ("remote_name", models.CharField(max_length=50)),
            (
                "target",
                models.ForeignKey(related_name="routes", on_delete=models.PROTECT, to="delivery.target"),
            ),
            key=False,
        ),
        table(
            "Delivery",
            ("object_id", models.BigIntegerField(null=True)),
            ("reference", models.CharField(max_length=100, null=True)),
            ("recipient", models.CharField(max_length=50, null=True)),
            ("state", models.CharField(max_length=9, default="pending")),
            ("due_at", models.DateTimeField(null=True)),
            ("attempts", models.PositiveIntegerField(default=0)),
            ("failure", models.CharField(max_length=50, null=True)),
            ("said", models.CharField(max_length=600, null=True)),
            ("remote_id", models.CharField(max_length=100, null=True)),
            ("created_at", models.DateTimeField()),
            ("settled_at", models.DateTimeField(null=True)),
            reference("target", "delivery.target", "deliveries", on_delete=models.CASCADE),
            verbose_name_plural="deliveries",
            indexes=[
                models.Index(
                    name="delivery_delivery_due",
                    fields=["target", "due_at", "id"],
                    condition=Q(state="pending"),
                ),
                models.Index(name="delivery_delivery_by_state", fields=["target", "state", "id"]),
                models.Index(
                    name="delivery_delivery_by_object",
                    fields=["object_id"],
                    condition=Q(object_id__isnull=False),
                ),
            ],
            constraints=[
                models.UniqueConstraint(
                    name="delivery_delivery_once_per_target", fields=["tenant", "object_id", "target"]
                ),
                models.UniqueConstraint(
                    name="delivery_delivery_one_wake_at_a_time",
                    fields=["tenant", "target"],
                    condition=Q(object_id=None, state="pending"),
                ),
                models.CheckConstraint(
                    name="delivery_delivery_due_iff_pending",
                    condition=Q(due_at__isnull=False, settled_at=None, state="pending")
                    | Q(due_at=None, settled_at__isnull=False, state="delivered")
                    | Q(due_at=None, failure__isnull=False, settled_at__isnull=False, state="dead"),
                ),
            ],
        ),
        immutable(
            "delivery_delivery",
            except_columns=(
                "state",
                "due_at",
                "attempts",
                "failure",
                "said",
                "settled_at",
                "remote_id",
            ),
        ),
    ]
