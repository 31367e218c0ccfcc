"""URLs of the standalone site: the console at admin/, everything else at the root."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index"), name="landing"),
    path("admin/", admin.site.urls),
    path("", include("jobscheduler.urls")),
]
