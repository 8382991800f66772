import django.contrib.postgres.operations
from django.db import migrations, models

from apps.core.rls import immutable_anew, kept

# A tombstone holds nothing that its recipient has not acked.
UNACKED_STAYS_WHOLE = """
create trigger digests_unacked_receipt_stays_whole before update on receipts_receipt
    for each row when (old.pruned_at is null and new.pruned_at is not null)
    execute function digests_unacked_receipt_is_kept();
create or replace function digests_unacked_receipt_is_kept() returns trigger language plpgsql as $$
begin
    if exists (select from digests_receiptstate where receipt_id = old.id and acked_at is null) then
        raise exception 'unacked receipts are kept' using errcode = 'integrity_constraint_violation',
            constraint = 'digests_unacked_receipt_is_kept';
    end if;
    return case when tg_op = 'DELETE' then old else new end;
end $$;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("digests", "0003_source_policy"),
        ("principals", "0003_retention_of_a_tenant"),
        ("receipts", "0004_retention"),
    ]

    operations = [
        migrations.CreateModel(
            name="Round",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=50, unique=True)),
                ("position", models.BigIntegerField(default=0)),
                ("begun_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("found", models.JSONField(default=dict)),
                ("result", models.JSONField(default=dict)),
            ],
        ),
        # Walks are the system's; others may look at how far they are.
        migrations.RunSQL(
            "revoke insert, update, delete on digests_round from gatehouse_app, gatehouse_operator",
            migrations.RunSQL.noop,
        ),
        migrations.AddField(model_name="entry", name="pruned", field=models.IntegerField(db_default=0, default=0)),
        django.contrib.postgres.operations.AddConstraintNotValid(
            model_name="entry",
            constraint=models.CheckConstraint(
                condition=models.Q(("pruned__gte", 0), ("pruned__lte", models.F("count"))),
                name="digests_entry_pruned_of_its_receipts",
            ),
        ),
        immutable_anew(
            "digests_entry",
            except_columns=("superseded_by_seq", "superseded_at", "acked_at", "supersedes_id"),
            redactable=("title", "summary"),
            prunable=("pruned",),
        ),
        kept("digests_entry"),
        kept("digests_thread"),
        kept("digests_receiptstate"),
        migrations.RunSQL(UNACKED_STAYS_WHOLE, "drop trigger digests_unacked_receipt_stays_whole on receipts_receipt"),
    ]
