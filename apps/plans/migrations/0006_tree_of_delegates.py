from django.db import migrations, models

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


class Migration(migrations.Migration):
    dependencies = [
        ("plans", "0005_keys_of_delegates"),
    ]

    operations = [
        migrations.AddConstraint(
            model_name="delegate",
            constraint=models.UniqueConstraint(fields=("tenant", "principal"), name="plans_delegate_principal_once"),
        ),
        migrations.RunSQL(
            TREE,
            "drop trigger plans_delegate_is_in_a_tree on plans_delegate; drop function plans_delegate_is_in_a_tree();",
        ),
    ]
