"""What all our admin pages share: lists that stay fast at a million rows, payload for those who may see it."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from jobs.admin import console, live
from jobs.admin.paginator import CAP, CappedInt, CappedPaginator
from jobs.admin.search import QualifiedSearch

VIEW_PAYLOAD = "jobscheduler_jobs.view_payload"
LARGEST_KEY = 2**63 - 1  # of any database
PAYLOAD_HIDDEN = _("Hidden. Seeing it takes the permission “Can see params, artifacts and logs”.")


def may_view_payload(request: HttpRequest) -> bool:
    return request.user.has_perm(VIEW_PAYLOAD)


class LeanChangeList(ChangeList):
    """Leaves out the columns that no list shows, such as params of a megabyte; its filters stand above the table."""

    model_admin: LeanAdmin
    cap = CAP

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.is_popup:
            self.title = capfirst(str(self.opts.verbose_name_plural))

    @property
    def filters(self) -> list[Any]:
        """Those to choose from; what tabs offer is not offered twice."""
        return [spec for spec in self.filter_specs if not getattr(spec, "has_tabs", False)]

    @property
    def kept_params(self) -> list[tuple[str, str]]:
        """What the address says besides, and goes on saying when a filter is chosen."""
        chosen = {spec.parameter_name for spec in self.filters}
        return [(name, value) for name, value in self.params.items() if name not in chosen]

    @property
    def is_narrowed(self) -> bool:
        return bool(self.query) or any(spec.value() for spec in self.filter_specs)  # type: ignore[attr-defined]

    @property
    def is_capped(self) -> bool:
        return isinstance(self.result_count, CappedInt)

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        return super().get_queryset(request, exclude_parameters).defer(*self.model_admin.list_defer)


class LeanAdmin(QualifiedSearch):
    """`payload` names what takes a permission of its own to see: on a page, and in a list `payload_columns`."""

    change_list_template = "jobs/list.html"
    nothing_yet: Any = ""  # what an empty list says
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 200
    ordering: ClassVar[Any] = ("-pk",)
    sortable_by: ClassVar[Any] = ()
    list_select_related: ClassVar[Any] = ()
    list_defer: ClassVar[tuple[str, ...]] = ()
    payload: ClassVar[tuple[str, ...]] = ()
    payload_columns: ClassVar[tuple[str, ...]] = ()

    class Media:
        css = {"all": ("jobs/console.css", "jobs/screens.css")}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LeanChangeList

    def live_mark(self) -> str:
        """What changes with the list, see `jobs.admin.live`; a list without one does not renew itself."""
        return ""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        if request.method != "GET" or not self.has_view_permission(request):
            return super().changelist_view(request, extra_context)
        mark = self.live_mark()
        if mark and live.is_unchanged(request, mark):
            return live.not_modified(request, mark)
        shown = {**live.context(request, mark), "places": console.places(self.admin_site, request)}
        shown |= self.above_list(request)
        return live.stamped(super().changelist_view(request, {**shown, **(extra_context or {})}), request, mark)

    def above_list(self, request: HttpRequest) -> dict[str, Any]:
        """What else the list's page shows."""
        return {}

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        hidden = () if may_view_payload(request) else self.payload_columns
        return [name for name in super().get_list_display(request) if name not in hidden]

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        fieldsets = list(super().get_fieldsets(request, obj))
        if not self.payload or obj is None:
            return fieldsets
        shown = {"fields": self.payload} if may_view_payload(request) else {"fields": (), "description": PAYLOAD_HIDDEN}
        return [*fieldsets, (_("Payload"), shown)]

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Only our own filters: with any lookup in the URL, params could be guessed letter by letter."""
        return lookup in {getattr(each, "parameter_name", None) for each in self.list_filter}

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        """A key that cannot be one selects nothing."""
        post = request.POST.copy()
        post.setlist(ACTION_CHECKBOX_NAME, [key for key in post.getlist(ACTION_CHECKBOX_NAME) if self._is_key(key)])
        request.POST = post  # type: ignore[assignment]
        return super().response_action(request, queryset, *args, **kwargs)

    def _is_key(self, text: Any) -> bool:
        try:
            key = self.model._meta.pk.to_python(text)
        except ValidationError:
            return False
        return not isinstance(key, int) or abs(key) <= LARGEST_KEY


class StateAdmin(LeanAdmin):
    """What the scheduler writes and people only read."""

    actions: Any = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False
