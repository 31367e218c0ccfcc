from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("backoffice/", admin.site.urls),
    path("scheduler/", include("jobscheduler.urls")),
]
