from django.db import migrations, models


class Migration(migrations.Migration):
    """What the API needs: the window of a token's rate limit, and lists by target and by tenant."""

    dependencies = [("jobscheduler_jobs", "0004_rollup_columns")]

    operations = [
        migrations.AddField("apitoken", "window_at", models.DateTimeField(null=True, blank=True, editable=False)),
        migrations.AddField("apitoken", "window_count", models.IntegerField(null=True, blank=True, editable=False)),
        migrations.AddIndex(
            "job",
            models.Index(fields=["target", "id"], condition=models.Q(target__isnull=False), name="job_of_target"),
        ),
        migrations.AddIndex(
            "job", models.Index(fields=["tenant", "id"], condition=~models.Q(tenant="default"), name="job_of_tenant")
        ),
    ]
