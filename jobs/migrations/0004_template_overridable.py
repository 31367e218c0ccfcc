from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0003_direct_call_bounds")]

    operations = [
        migrations.AddField(
            model_name="jobtemplate",
            name="overridable",
            field=models.JSONField(
                blank=True,
                help_text="Params that a run may set. Empty: all, or none if the template contains a secret.",
                null=True,
                verbose_name="overridable params",
            ),
        ),
    ]
