"""Labels of fields and of a permission, in the words of the console."""

from django.db import migrations, models, router


OLD_NAME, NEW_NAME = "Can quiet and stop workers", "Can drain and stop workers"


def rename_permission(apps, schema_editor, names=(OLD_NAME, NEW_NAME)):
    """Rename the stored permission: Django creates missing ones, and keeps the name of an existing one."""
    alias = schema_editor.connection.alias
    if not router.allow_migrate(alias, "auth", model_name="permission"):
        return
    permissions = apps.get_model("auth", "Permission").objects.using(alias)
    stored = permissions.filter(content_type__app_label="jobscheduler_jobs", codename="stop_worker", name=names[0])
    stored.update(name=names[1])


def restore_permission(apps, schema_editor):
    rename_permission(apps, schema_editor, (NEW_NAME, OLD_NAME))


class Migration(migrations.Migration):
    dependencies = [
        ("jobscheduler_jobs", "0019_final_jobs"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [
        migrations.RunPython(rename_permission, restore_permission, elidable=True),
        migrations.AlterModelOptions(
            name="worker",
            options={
                "ordering": ("-id",),
                "permissions": [("stop_worker", "Can drain and stop workers")],
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
            },
        ),
        migrations.AlterField(
            model_name="apitoken",
            name="tenant",
            field=models.CharField(
                blank=True, help_text="Default: all tenants", max_length=64, null=True, verbose_name="tenant"
            ),
        ),
        migrations.AlterField(
            model_name="concurrencylimit",
            name="max",
            field=models.IntegerField(blank=True, help_text="Default: unlimited", null=True, verbose_name="maximum"),
        ),
        migrations.AlterField(
            model_name="job",
            name="fire_time",
            field=models.DateTimeField(blank=True, null=True, verbose_name="due time"),
        ),
        migrations.AlterField(
            model_name="job",
            name="hold",
            field=models.BooleanField(default=False, verbose_name="on hold"),
        ),
        migrations.AlterField(
            model_name="jobgroup",
            name="cancel_requested",
            field=models.BooleanField(default=False, verbose_name="cancelled manually"),
        ),
        migrations.AlterField(
            model_name="jobminute",
            name="recovered",
            field=models.BigIntegerField(db_default=0, help_text="Their worker was lost.", verbose_name="recovered"),
        ),
        migrations.AlterField(
            model_name="jobtemplate",
            name="overridable",
            field=models.JSONField(
                blank=True,
                help_text="Params that a run may set. By default all, or none if the template contains a secret.",
                null=True,
                verbose_name="overridable params",
            ),
        ),
        migrations.AlterField(
            model_name="lease",
            name="outcome",
            field=models.TextField(blank=True, default="", verbose_name="outcome"),
        ),
        migrations.AlterField(
            model_name="worker",
            name="request",
            field=models.CharField(
                blank=True,
                choices=[
                    ("RUNNING", "Running"),
                    ("QUIET", "Draining"),
                    ("STOPPING", "Stopping"),
                    ("STOPPED", "Stopped"),
                ],
                default="",
                max_length=8,
                verbose_name="requested state",
            ),
        ),
        migrations.AlterField(
            model_name="apitoken",
            name="maker",
            field=models.CharField(blank=True, editable=False, max_length=255, null=True, verbose_name="created by"),
        ),
        migrations.AlterField(
            model_name="job",
            name="gate",
            field=models.SmallIntegerField(
                choices=[(0, "not queued"), (1, "scheduled"), (2, "waiting for its target"), (3, "ready")],
                default=0,
                verbose_name="gate",
            ),
        ),
        migrations.AlterField(
            model_name="jobgroup",
            name="round",
            field=models.IntegerField(
                default=1, help_text="A retry reopens a finished group for another run.", verbose_name="runs"
            ),
        ),
        migrations.AlterField(
            model_name="poller",
            name="most",
            field=models.IntegerField(default=1, verbose_name="maximum per poll"),
        ),
        migrations.AlterField(
            model_name="poller",
            name="polled_at",
            field=models.DateTimeField(verbose_name="last poll"),
        ),
        migrations.AlterField(
            model_name="worker",
            name="requested_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="requested at"),
        ),
    ]
