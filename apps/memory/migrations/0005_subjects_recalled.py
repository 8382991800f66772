import django.db.models.deletion
from django.db import migrations, models

ONE_MEMORY = "memory_passage_of_one_memory"

# Items become findable within their subjects, and what was said in conversations with a subject is about it.
FILL = """
    insert into memory_passage (tenant_id, item_id, scope, domain, recorded_at, words, length)
    select i.tenant_id, i.id, i.subject_id, i.type, i.recorded_at, said.words,
           (select coalesce(sum(least(coalesce(cardinality(positions), 1), 32767)), 0) from unnest(said.words))
    from memory_item i cross join lateral (select to_tsvector('english', i.text) as words) said;

    insert into memory_posting (tenant_id, scope, term, passage_id, frequency, length, of_context)
    select p.tenant_id, p.scope, w.lexeme, p.id, least(coalesce(cardinality(w.positions), 1), 32767), p.length, false
    from memory_passage p cross join lateral unnest(p.words) w
    where p.item_id is not null;

    insert into memory_tally (tenant_id, scope, observations, patterns, concepts, passages, words)
    select tenant_id, scope, 0, 0, 0, count(*), sum(length)
    from memory_passage where item_id is not null
    group by tenant_id, scope;

    with moved as (
        update memory_passage p set scope = s.subject_id
        from memory_session s
        where p.id & 524288 = 0 and s.id = p.id >> 20 and s.subject_id is not null and p.scope <> s.subject_id
        returning p.id, p.tenant_id, p.scope, p.length, p.observation_id
    ), words as (
        update memory_posting g set scope = moved.scope from moved where g.passage_id = moved.id
    )
    insert into memory_tally (tenant_id, scope, observations, patterns, concepts, passages, words)
    select moved.tenant_id, place.scope, sum(sign * (o.superseded_at is null)::int), 0, 0, sum(sign),
           sum(sign * moved.length)
    from moved join memory_observation o on o.id = moved.observation_id
    cross join lateral (values (0, -1), (moved.scope, 1)) place(scope, sign)
    group by moved.tenant_id, place.scope;

    set constraints all immediate;
    set constraints all deferred;
"""

EMPTY = """
    delete from memory_posting where passage_id in (select id from memory_passage where item_id is not null);
    delete from memory_passage where item_id is not null;
    update memory_posting set scope = 0 where scope <> 0;
    update memory_passage set scope = 0 where scope <> 0;
    delete from memory_commonword where scope <> 0;
    delete from memory_wordcount where scope <> 0;
    delete from memory_tally;
    insert into memory_tally (tenant_id, scope, observations, patterns, concepts, passages, words)
    select p.tenant_id, 0, count(*) filter (where o.id is not null and o.superseded_at is null), count(p.pattern_id),
           count(p.concept_id), count(*), sum(p.length)
    from memory_passage p left join memory_observation o on o.id = p.observation_id
    group by p.tenant_id;
    set constraints all immediate;
    set constraints all deferred;
"""


class Migration(migrations.Migration):
    dependencies = [("memory", "0004_subjects")]

    operations = [
        migrations.RemoveConstraint(model_name="passage", name=ONE_MEMORY),
        migrations.AddField(
            model_name="passage",
            name="item",
            field=models.OneToOneField(
                null=True, on_delete=django.db.models.deletion.CASCADE, related_name="passage", to="memory.item"
            ),
        ),
        migrations.AddConstraint(
            model_name="passage",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("concept", None), ("item", None), ("observation__isnull", False), ("pattern", None)),
                    models.Q(("concept", None), ("item", None), ("observation", None), ("pattern__isnull", False)),
                    models.Q(("concept__isnull", False), ("item", None), ("observation", None), ("pattern", None)),
                    models.Q(("concept", None), ("item__isnull", False), ("observation", None), ("pattern", None)),
                    _connector="OR",
                ),
                name=ONE_MEMORY,
            ),
        ),
        migrations.RunSQL(FILL, EMPTY),
    ]
