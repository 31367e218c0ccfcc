"""A name belongs to one worker that has not stopped."""

from typing import Any

from django.db import migrations, models
from django.db.models import Exists, F, OuterRef, Q


def stop_earlier_processes(apps: Any, schema_editor: Any) -> None:
    """Mark the rows of processes that a later one of the same name has replaced: they were killed."""
    workers = apps.get_model("jobscheduler_jobs", "Worker").objects.using(schema_editor.connection.alias)
    later = workers.filter(name=OuterRef("name"), stopped_at__isnull=True, pk__gt=OuterRef("pk"))
    earlier = list(workers.filter(Exists(later), stopped_at__isnull=True).values_list("pk", flat=True))
    workers.filter(pk__in=earlier).update(state="STOPPED", stopped_at=F("heartbeat_at"), busy=0)


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0009_deadlines")]

    operations = [
        migrations.RunPython(stop_earlier_processes, migrations.RunPython.noop),
        migrations.AddConstraint(
            model_name="worker",
            constraint=models.UniqueConstraint(
                condition=Q(("stopped_at__isnull", True)), fields=("name",), name="worker_name_in_use"
            ),
        ),
    ]
