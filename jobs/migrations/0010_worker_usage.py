from django.db import migrations, models
from django.utils.translation import gettext_lazy as _


class Migration(migrations.Migration):
    """What a worker takes of its host."""

    dependencies = [("jobscheduler_jobs", "0009_dispatch")]

    operations = [
        migrations.AddField("worker", "rss_bytes", models.BigIntegerField(_("memory"), null=True, blank=True)),
        migrations.AddField(
            "worker", "cpu_percent", models.FloatField(_("processor, of one core"), null=True, blank=True)
        ),
    ]
