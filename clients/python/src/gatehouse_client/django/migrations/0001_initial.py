from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            name="DeferredTask",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("request", models.JSONField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("task_id", models.CharField(blank=True, max_length=50)),
                ("refusal", models.TextField(blank=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("refusal", ""), ("task_id", "")), fields=["id"], name="gatehouse_unsent"
                    )
                ]
            },
        )
    ]
