"""Bearer tokens of the API; only their digest is stored."""

from __future__ import annotations

from django.db import models
from django.db.models import Q, Value
from django.db.models.functions import Coalesce, Now
from django.utils.translation import gettext_lazy as _

from jobs.ids import uuid7
from jobs.models.routing import RoutedManager

SCOPES = ("read", "submit", "operate", "work", "admin")


class TokenQuerySet(models.QuerySet["ApiToken"]):
    def usable(self) -> TokenQuerySet:
        """Return the tokens that were not revoked and have not expired."""
        return self.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=Now()), revoked_at__isnull=True)


class ApiToken(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(_("name"), max_length=200)
    tenant = models.CharField(_("tenant"), max_length=64, null=True, blank=True, help_text=_("Default: all tenants"))
    scopes = models.JSONField(_("scopes"), default=list)
    addons = models.JSONField(_("addons"), null=True, blank=True)  # that `work` is bound to; null: all
    # The primary key, as text, of the user who created it; null: created by a command or Python code.
    maker = models.CharField(_("created by"), max_length=255, null=True, blank=True, editable=False)
    prefix = models.CharField(_("prefix"), max_length=16)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    created_at = models.DateTimeField(_("created"), db_default=Now())
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True)
    revoked_at = models.DateTimeField(_("revoked"), null=True, blank=True)
    window_at = models.DateTimeField(null=True, blank=True, editable=False)  # of API_RATE_LIMIT, while that is set
    window_count = models.IntegerField(null=True, blank=True, editable=False)

    objects = RoutedManager.from_queryset(TokenQuerySet)()

    class Meta:
        db_table = "jobscheduler_apitoken"
        verbose_name = _("API token")
        verbose_name_plural = _("API tokens")
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(  # tenant names are not empty
                Coalesce("tenant", Value("")), "name", condition=Q(revoked_at__isnull=True), name="apitoken_name"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
