"""URLs of the standalone site: the console at admin/, everything else at the root."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from jobscheduler.login import LoginForm

admin.site.login_form = LoginForm
# The pages of django-q2 unpickle rows of the database, and their forms name any function to call.
admin.site.unregister([model for model in admin.site._registry if model._meta.app_label == "django_q"])

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index"), name="landing"),
    path("admin/", admin.site.urls),
    path("", include("jobscheduler.urls")),
]
