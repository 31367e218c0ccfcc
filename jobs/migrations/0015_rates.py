"""Rates of limits: their token buckets, and what jobs have taken from them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobscheduler_jobs", "0014_diagnostics_permission"),
    ]

    operations = [
        migrations.CreateModel(
            name="TokenSpend",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("tenant", models.CharField(max_length=64)),
                ("job_type", models.CharField(max_length=200)),
                ("resource", models.CharField(max_length=200)),
                ("addon_id", models.CharField(blank=True, default="", max_length=200)),
                ("reserved", models.BigIntegerField()),
                ("taken", models.BigIntegerField()),
                ("used_before", models.BigIntegerField(default=0)),
            ],
            options={
                "db_table": "jobscheduler_tokenspend",
            },
        ),
        migrations.AddField(
            model_name="concurrencylimit",
            name="bucket_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="concurrencylimit",
            name="burst",
            field=models.IntegerField(blank=True, null=True, verbose_name="burst"),
        ),
        migrations.AddField(
            model_name="concurrencylimit",
            name="rate",
            field=models.CharField(blank=True, default="", max_length=20, verbose_name="rate"),
        ),
        migrations.AddField(
            model_name="concurrencylimit",
            name="rate_level",
            field=models.FloatField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="concurrencylimit",
            name="token_level",
            field=models.FloatField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="concurrencylimit",
            name="token_rate",
            field=models.CharField(blank=True, default="", max_length=20, verbose_name="token rate"),
        ),
        migrations.AddField(
            model_name="lease",
            name="token_limit",
            field=models.BigIntegerField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="lease",
            name="tokens_used",
            field=models.BigIntegerField(default=0, editable=False),
        ),
        migrations.AddConstraint(
            model_name="concurrencylimit",
            constraint=models.CheckConstraint(
                condition=models.Q(("burst__isnull", True), ("burst__gte", 1), _connector="OR"),
                name="limit_burst_range",
            ),
        ),
    ]
