"""The maker and the addons of a token, and names that identify a usable token of a tenant."""

from typing import Any

from django.db import migrations, models
from django.db.models import Q, Value
from django.db.models.functions import Coalesce

NAME_LENGTH = 200


def number_duplicate_names(apps: Any, schema_editor: Any) -> None:
    """Keep the name of the oldest usable token of a tenant, and number the later ones: `robot`, `robot (2)`."""
    tokens = apps.get_model("jobscheduler_jobs", "ApiToken").objects.using(schema_editor.connection.alias)
    rows = list(tokens.filter(revoked_at__isnull=True).order_by("pk").values_list("pk", "tenant", "name"))
    taken = {(tenant, name) for _pk, tenant, name in rows}
    seen: set[tuple[str | None, str]] = set()
    for pk, tenant, name in rows:
        if (tenant, name) not in seen:
            seen.add((tenant, name))
            continue
        number, new_name = 1, name
        while (tenant, new_name) in taken:
            number += 1
            suffix = f" ({number})"
            new_name = name[: NAME_LENGTH - len(suffix)] + suffix
        taken.add((tenant, new_name))
        tokens.filter(pk=pk).update(name=new_name)


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0004_template_overridable")]

    operations = [
        migrations.AddField(
            model_name="apitoken",
            name="addons",
            field=models.JSONField(blank=True, null=True, verbose_name="addons"),
        ),
        migrations.AddField(
            model_name="apitoken",
            name="maker",
            field=models.CharField(blank=True, editable=False, max_length=255, null=True, verbose_name="made by"),
        ),
        migrations.RunPython(number_duplicate_names, migrations.RunPython.noop),
        migrations.AddConstraint(
            model_name="apitoken",
            constraint=models.UniqueConstraint(
                Coalesce("tenant", Value("")), "name", condition=Q(revoked_at__isnull=True), name="apitoken_name"
            ),
        ),
    ]
