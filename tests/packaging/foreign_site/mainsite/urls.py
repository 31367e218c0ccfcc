from django.urls import path

from mainsite.backoffice import backoffice

urlpatterns = [path("backoffice/", backoffice.urls)]
