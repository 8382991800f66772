from django.db import migrations

# What a document must have that contains another, whatever else it has: all its marks. One for each path to a value,
# with the value, and to what holds values, with its kind; the elements of an array have its path. Numbers that are equal
# read the same. A mark begins with a space, as no word does, and tells nothing of what it stands for.
CREATE = """
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
DROP = "drop function memory_marks(jsonb);"

FILL = """
    insert into memory_posting (tenant_id, scope, term, passage_id, frequency, length, of_context)
    select p.tenant_id, p.scope, mark, p.id, 0, p.length, false
    from memory_passage p
    left join memory_observation o on o.id = p.observation_id
    left join memory_concept c on c.id = p.concept_id
    cross join lateral unnest(memory_marks(nullif(coalesce(o.metadata, c.metadata), '{}'))) m(mark);
    set constraints all immediate;
    set constraints all deferred;
"""
EMPTY = """
    delete from memory_posting where term like ' %';
    delete from memory_commonword where term like ' %';
"""


class Migration(migrations.Migration):
    dependencies = [("memory", "0015_items_of_a_time")]

    operations = [migrations.RunSQL(CREATE, DROP), migrations.RunSQL(FILL, EMPTY)]
