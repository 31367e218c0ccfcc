"""The default AdminSite, and one of the host beside it that shows only jobs and groups."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.urls import path

import jobs.admin
import webhooks.admin
from jobs.admin.jobs import JobAdmin
from jobs.models import Job

backoffice = AdminSite(name="backoffice")
jobs.admin.register(backoffice)
webhooks.admin.register(backoffice)

narrow = AdminSite(name="narrow")
narrow.register(Job, JobAdmin)

urlpatterns = [
    path("admin/", admin.site.urls),
    path("backoffice/", backoffice.urls),
    path("narrow/", narrow.urls),
]
