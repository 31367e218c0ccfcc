from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0002_invariants")]

    operations = [
        migrations.AddField(
            model_name="lease",
            name="api_token",
            field=models.UUIDField(blank=True, editable=False, null=True),
        ),
        migrations.AlterModelOptions(
            name="lease",
            options={
                "ordering": ("-id",),
                "permissions": [("end_lease", "Can end direct calls")],
                "verbose_name": "lease",
                "verbose_name_plural": "leases",
            },
        ),
    ]
