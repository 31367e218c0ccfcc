"""URLs of the standalone site: the console at admin/, everything else at the root."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.templatetags.static import static
from django.urls import include, path, reverse
from django.views.generic import RedirectView

from jobscheduler.login import LoginForm

handler400 = "jobscheduler.error_pages.bad_request"
handler403 = "jobscheduler.error_pages.permission_denied"
handler404 = "jobscheduler.error_pages.page_not_found"
handler500 = "jobscheduler.error_pages.server_error"

admin.site.login_form = LoginForm
admin.site.site_url = None  # there is no site beside the console
# The pages of django-q2 unpickle rows of the database, and their forms name any function to call.
admin.site.unregister([model for model in admin.site._registry if model._meta.app_label == "django_q"])


def open_console(request: HttpRequest) -> HttpResponse:
    """Redirect to the overview; a user who may not see it gets the admin's index or its log-in page."""
    if admin.site.has_permission(request) and request.user.has_perm("jobscheduler_jobs.view_job"):
        return HttpResponseRedirect(reverse("admin:jobscheduler_jobs_overview"))
    return admin.site.admin_view(admin.site.index)(request)


def show_icon(request: HttpRequest) -> HttpResponse:
    return HttpResponseRedirect(static("jobs/favicon.svg"))


urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index"), name="landing"),
    path("favicon.ico", show_icon),
    path("admin/", open_console),
    path("admin/", admin.site.urls),
    path("", include("jobscheduler.urls")),
]
