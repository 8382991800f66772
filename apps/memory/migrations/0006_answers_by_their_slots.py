"""Items by what they answer: slots are told apart as names are, and the same words may answer two of them."""

import unicodedata
from typing import Any, Final

from django.db import migrations, models
from django.db.models import Q

_LONGEST: Final = 200


def _key_of(slot: str) -> str:
    key = " ".join(unicodedata.normalize("NFKC", slot).casefold().split())
    return key if 0 < len(key) <= _LONGEST else slot


def give_keys(apps: Any, schema_editor: Any) -> None:
    """Give each item what its slot is compared by; of several that stand without an end only one, the others keep their
    slot as it is written, by which nothing newer finds them."""
    rows = apps.get_model("memory", "Item").objects.filter(slot__isnull=False)
    schema_editor.execute("alter table memory_item disable trigger memory_item_is_immutable")
    rows.update(slot_key=models.F("slot"))
    found = rows.order_by("-pk").values_list("pk", "subject", "slot", "superseded_at", "valid_to")
    held = {(subject, slot) for _, subject, slot, *ends in found.iterator() if ends == [None, None]}
    for pk, subject, slot, *ends in found.iterator():
        key = _key_of(slot)
        if key == slot or (ends == [None, None] and (subject, key) in held):
            continue
        held |= {(subject, key)} if ends == [None, None] else set()
        rows.filter(pk=pk).update(slot_key=key)
    schema_editor.execute("alter table memory_item enable trigger memory_item_is_immutable")


class Migration(migrations.Migration):
    dependencies = [("memory", "0005_what_sessions_said_earlier")]

    operations = [
        migrations.RemoveConstraint(model_name="item", name="memory_item_slot_has_a_name"),
        migrations.RemoveConstraint(model_name="item", name="memory_item_slot_holds_one"),
        migrations.RemoveConstraint(model_name="item", name="memory_item_said_once"),
        migrations.RemoveIndex(model_name="item", name="memory_item_answering"),
        migrations.AddField(model_name="item", name="slot_key", field=models.CharField(max_length=200, null=True)),
        migrations.RunPython(give_keys, migrations.RunPython.noop),
        migrations.AddIndex(
            model_name="item",
            index=models.Index(
                condition=Q(("slot_key__isnull", False), ("superseded_at", None)),
                fields=["subject", "slot_key", "valid_to"],
                name="memory_item_answering",
            ),
        ),
        migrations.AddConstraint(
            model_name="item",
            constraint=models.CheckConstraint(
                condition=~Q(slot="") & ~Q(slot_key=""), name="memory_item_slot_has_a_name"
            ),
        ),
        migrations.AddConstraint(
            model_name="item",
            constraint=models.CheckConstraint(
                condition=Q(slot=None, slot_key=None) | Q(slot__isnull=False, slot_key__isnull=False),
                name="memory_item_slot_has_a_key",
            ),
        ),
        migrations.AddConstraint(
            model_name="item",
            constraint=models.UniqueConstraint(
                condition=Q(("slot_key__isnull", False), ("superseded_at", None), ("valid_to", None)),
                fields=("tenant", "subject", "slot_key"),
                name="memory_item_slot_holds_one",
            ),
        ),
        migrations.AddConstraint(
            model_name="item",
            constraint=models.UniqueConstraint(
                condition=Q(("superseded_at", None), ("valid_to", None)),
                fields=("tenant", "subject", "type", "text_digest", "slot_key"),
                name="memory_item_said_once",
                nulls_distinct=False,
            ),
        ),
    ]
