"""Rows that are written and deleted through services, never by the admin itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from jobs import actors
from jobs.admin.buttons import ButtonAdmin
from jobs.admin.showing import isolated
from jobs.errors import JobSchedulerError


class ServedAdmin(ButtonAdmin):
    delete_by: Callable[..., object]  # of the services: takes a key and an actor; a subclass says it as a staticmethod

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        self.delete_by(obj.pk, actor=actors.user(request.user))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for key in list(queryset.values_list("pk", flat=True)):
            self.delete_by(key, actor=actors.user(request.user))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, Any, Any]:
        """What goes with a row may be a million rows: nobody wants them listed one by one."""
        listed = [isolated(str(row)) for row in objs]
        missing = set() if self.has_delete_permission(request) else {str(self.opts.verbose_name)}
        return listed, {str(self.opts.verbose_name_plural): len(listed)}, missing, []

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """What only the service can know, or what another request did meanwhile, may still refuse."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except JobSchedulerError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
