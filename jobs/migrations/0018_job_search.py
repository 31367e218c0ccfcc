"""Rows of the tags of jobs, kept by triggers, and the index of the end of a job's id: for searches in the console."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Cast, Right

from jobs.migrations._operations import InstallTriggers, VendorSQL

COPY_TAGS = {
    "postgresql": (
        "INSERT INTO jobscheduler_jobtag (job_id, tag) SELECT DISTINCT job.id, tag "
        "FROM jobscheduler_job job CROSS JOIN jsonb_array_elements_text(job.tags) AS tag WHERE job.tags <> '[]'",
    ),
    "sqlite": (
        "INSERT INTO jobscheduler_jobtag (job_id, tag) SELECT DISTINCT job.id, tag.value "
        "FROM jobscheduler_job job CROSS JOIN json_each(job.tags) AS tag WHERE job.tags <> '[]'",
    ),
}


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0017_unique_keys")]

    operations = [
        migrations.CreateModel(
            name="JobTag",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tag", models.CharField(max_length=64, verbose_name="tag")),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="jobscheduler_jobs.job",
                        verbose_name="job",
                    ),
                ),
            ],
            options={
                "verbose_name": "tag of a job",
                "verbose_name_plural": "tags of jobs",
                "db_table": "jobscheduler_jobtag",
            },
        ),
        migrations.AddConstraint(
            model_name="jobtag",
            constraint=models.UniqueConstraint(fields=("tag", "job"), name="jobtag_key"),
        ),
        migrations.AddIndex(
            model_name="jobevent",
            index=models.Index(
                Right(Cast("job_id", models.TextField()), 12),
                condition=models.Q(kind="SUBMITTED"),
                name="jobevent_of_id_tail",
            ),
        ),
        VendorSQL(forwards=COPY_TAGS, backwards={}),
        InstallTriggers(),
    ]
