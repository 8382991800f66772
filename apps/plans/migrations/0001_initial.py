import django.contrib.postgres.fields
import django.contrib.postgres.functions
import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import immutable, protect
from apps.core.tables import CreateModels, id_field, reference, tenant_field

# Whoever changes the tree waits for whoever does so already, and then sees it as that one left it.
TREE = """
create function plans_delegate_is_in_a_tree() returns trigger language plpgsql as $$
declare
    above bigint := new.parent_id;
    ranks int := 1;
begin
    if new.parent_id is null then
        return new;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('plans_delegate', new.tenant_id));
    select max(rank) into ranks from (
        with recursive below(id, rank) as (
            select new.id, 1
            union all
            select d.id, b.rank + 1 from plans_delegate d join below b on d.parent_id = b.id
            where d.tenant_id = new.tenant_id and d.id <> new.id and b.rank < 8
        )
        select rank from below
    ) counted;
    while above is not null loop
        if above = new.id then
            raise exception 'DeleGate % would be above itself', new.delegate_id
                using errcode = 'check_violation', constraint = 'plans_delegate_no_circle';
        end if;
        ranks := ranks + 1;
        if ranks > 8 then
            raise exception 'more than 8 DeleGates would stand above each other'
                using errcode = 'check_violation', constraint = 'plans_delegate_not_too_deep';
        end if;
        select parent_id into above from plans_delegate where tenant_id = new.tenant_id and id = above;
    end loop;
    return new;
end $$;
create trigger plans_delegate_is_in_a_tree before insert or update of parent_id on plans_delegate
    for each row execute function plans_delegate_is_in_a_tree();
"""
TREE_BACK = """
drop trigger plans_delegate_is_in_a_tree on plans_delegate;
drop function plans_delegate_is_in_a_tree();
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial")]

    operations = [
        CreateModels(
            migrations.CreateModel(
                name="Delegate",
                fields=[
                    id_field(),
                    ("delegate_id", models.CharField(max_length=100)),
                    ("scope", models.CharField(blank=True, max_length=200)),
                    ("created_at", models.DateTimeField()),
                    reference("parent", "plans.delegate", "children", null=True),
                    reference("principal", "principals.principal", "+"),
                    tenant_field(),
                    (
                        "key",
                        models.UUIDField(
                            db_default=django.contrib.postgres.functions.RandomUUID(),
                            editable=False,
                            help_text="What it is known by in every deployment, on the path of a wish.",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "delegate_id"), name="plans_delegate_id_once"),
                        models.UniqueConstraint(
                            condition=models.Q(("parent", None)), fields=("tenant",), name="plans_delegate_one_root"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("parent", models.F("id")), _negated=True),
                            name="plans_delegate_not_its_own_parent",
                        ),
                        models.UniqueConstraint(fields=("tenant", "principal"), name="plans_delegate_principal_once"),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Plan",
                fields=[
                    id_field(),
                    ("plan_id", models.CharField(max_length=100)),
                    ("intent", models.TextField()),
                    (
                        "status",
                        models.CharField(
                            choices=[
                                ("ready", "ready"),
                                ("needs_confirmation", "needs_confirmation"),
                                ("needs_input", "needs_input"),
                                ("needs_escalation", "needs_escalation"),
                            ],
                            max_length=20,
                        ),
                    ),
                    ("document", models.JSONField()),
                    ("receipt_id", models.CharField(max_length=100)),
                    ("receipt_uuid", models.UUIDField()),
                    ("created_at", models.DateTimeField()),
                    reference("delegate", "plans.delegate", "plans"),
                    (
                        "principal",
                        models.ForeignKey(
                            db_index=False,
                            help_text="Who asked for it.",
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.principal",
                        ),
                    ),
                    tenant_field(),
                    reference("replaces", "plans.plan", "successors", null=True),
                ],
                options={
                    "permissions": [("operate_plan", "Can confirm plans and answer their questions")],
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "plan_id"), name="plans_plan_id_once"),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("status__in", ["ready", "needs_confirmation", "needs_input", "needs_escalation"])
                            ),
                            name="plans_plan_status_known",
                        ),
                        models.UniqueConstraint(fields=("tenant", "replaces"), name="plans_plan_replaced_once"),
                    ],
                    "indexes": [models.Index(fields=["tenant", "principal", "-id"], name="plans_plan_of_principal")],
                },
            ),
            migrations.CreateModel(
                name="WaitingPlan",
                fields=[
                    id_field(),
                    ("expires_at", models.DateTimeField()),
                    reference("plan", "plans.plan", "+"),
                    tenant_field(),
                ],
                options={
                    "indexes": [models.Index(fields=["expires_at"], name="plans_waitingplan_expiry")],
                    "constraints": [models.UniqueConstraint(fields=("tenant", "plan"), name="plans_waitingplan_once")],
                },
            ),
            migrations.CreateModel(
                name="Outcome",
                fields=[
                    id_field(),
                    ("request", models.TextField()),
                    (
                        "tools",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(max_length=32), size=None
                        ),
                    ),
                    ("links", models.JSONField(default=list, help_text="Pairs of tools: from, to.")),
                    ("weight", models.FloatField(default=1)),
                    ("recorded_at", models.DateTimeField()),
                    reference("plan", "plans.plan", "outcomes", null=True),
                    tenant_field(),
                ],
                options={
                    "indexes": [models.Index(fields=["tenant", "-id"], name="plans_outcome_latest")],
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "plan"), name="plans_outcome_once_a_plan"),
                        models.CheckConstraint(
                            condition=models.Q(("weight__gt", 0), ("weight__lte", 1)),
                            name="plans_outcome_weight_is_a_share",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("tools__len__gt", 0)), name="plans_outcome_ran_something"
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="LearnedModel",
                fields=[
                    id_field(),
                    ("learned_from", models.PositiveIntegerField(help_text="How many outcomes it has learned from.")),
                    (
                        "last_outcome",
                        models.BigIntegerField(help_text="The number of the last of them: later ones are new."),
                    ),
                    ("body", models.BinaryField()),
                    ("learned_at", models.DateTimeField()),
                    tenant_field(),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant",), name="plans_learnedmodel_one_a_tenant")
                    ],
                },
            ),
        ),
        *(protect(f"plans_{name}") for name in ("delegate", "plan", "waitingplan", "outcome", "learnedmodel")),
        immutable("plans_plan", redactable=("intent", "document")),
        immutable("plans_outcome", redactable=("request",)),
        migrations.RunSQL(TREE, TREE_BACK),
    ]
