"""Base classes of our admin pages: lists that stay fast at a million rows, payload for those who may see it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partialmethod
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db.models import AutoField, Model, Q, QuerySet, UUIDField
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import URLPattern, path, reverse
from django.utils.text import capfirst, format_lazy, smart_split, unescape_string_literal
from django.utils.translation import gettext_lazy as _

from jobs import db
from jobs.admin import screens

QUOTES = "\"'"
CAP = 10_000  # counting stops here: a page of a huge list opens as fast as one of a small list
VIEW_PAYLOAD = "jobscheduler_jobs.view_payload"
LARGEST_KEY = 2**63 - 1  # of any database
PAYLOAD_HIDDEN = _("Hidden. Seeing it takes the permission “Can see params, artifacts and logs”.")


def may_view_payload(request: HttpRequest) -> bool:
    return request.user.has_perm(VIEW_PAYLOAD)


class CappedInt(int):
    """A count that was broken off; prints as "10000+"."""

    def __str__(self) -> str:
        # Django groups the digits of any int, and would take the plus for one of them ("100,00+").
        return int.__repr__(self) + ("" if settings.USE_THOUSAND_SEPARATOR else "+")


def capped_count(queryset: QuerySet[Any], cap: int = CAP) -> int:
    found = queryset.order_by().values("pk")[: cap + 1].count()
    return CappedInt(cap) if found > cap else found


class CappedPaginator(Paginator):
    cap = CAP

    @cached_property
    def count(self) -> int:
        return capped_count(self.object_list, self.cap)  # type: ignore[arg-type]


def _matches(model: type[Model], name: str, value: str) -> Q | None:
    field: Any = model._meta.get_field(name)
    if isinstance(field.target_field if field.is_relation else field, UUIDField):
        known = _uuid(value)
        return None if known is None else Q(**{field.attname: known})
    if value.endswith("*"):
        return Q(**{f"{name}__startswith": value[:-1]})
    return Q(**{name: value})


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] in QUOTES and text[-1] == text[0]:
        return unescape_string_literal(text)
    return text


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

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.model_admin.complete_rows(request, self.result_list)


class LeanAdmin(admin.ModelAdmin):
    """`payload` names what takes a permission of its own to see: on a page, and in a list `payload_columns`.

    Search without a scan over text: ids, and qualifiers such as `type:mail.*` that name a column. `qualifiers` maps a
    word to a field, `id_field` is what a bare id means, `name_field` what a bare word begins.
    """

    search_fields = ("pk",)  # shows the search box; what is searched is decided here
    qualifiers: Mapping[str, str] = {}
    id_field = "pk"
    name_field = ""
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

    def __init__(self, model: type[Model], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        words = " ".join(f"{word}:…" for word in self.qualifiers)
        first = _("the beginning of a name") if self.name_field else _("a whole id")
        explained = _("Finds {first}; also {words} (a final * stands for anything).") if words else _("Finds {first}.")
        self.search_help_text = format_lazy(explained, first=first, words=words)  # type: ignore[misc]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        for word in smart_split(search_term):
            condition = self._condition(word)
            if condition is None:
                return queryset.none(), False
            queryset = queryset.filter(condition)
        return queryset, False

    def _condition(self, word: str) -> Q | None:
        """None: this can match nothing."""
        name, colon, value = word.partition(":")
        if colon and name.lower() in self.qualifiers:
            return _matches(self.model, self.qualifiers[name.lower()], _unquoted(value))
        word = _unquoted(word).removeprefix("#")
        if (known := _uuid(word)) is not None:
            return Q(**{self.id_field: known})
        if word.isascii() and word.isdigit() and isinstance(self.model._meta.pk, AutoField):
            return Q(pk=int(word[:20]))
        return Q(**{f"{self.name_field}__startswith": word}) if self.name_field else None

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LeanChangeList

    def live_mark(self) -> str:
        """What changes with the list, see `console.live_page`; a list without one does not renew itself."""
        return ""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        view = super().changelist_view
        if request.method != "GET" or not self.has_view_permission(request):
            return view(request, extra_context)

        def build(shared: dict[str, Any]) -> Any:
            return view(request, {**shared, **self.above_list(request), **(extra_context or {})})

        return screens.live_page(self.admin_site, request, self.live_mark(), build)

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        """Give the rows of a page what its columns show beside their fields, looked up for all of them at once."""

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


def _action(verb: Any) -> Any:
    def run(self: VerbAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self.act(request, verb, queryset)

    run.__name__ = verb.name
    return admin.action(permissions=[verb.name], description=verb.action)(run)


class VerbAdmin(LeanAdmin):
    """Verbs on rows, each with its own permission: POST to `<key>/verb/<name>/`, and an action of the list for `many`.

    A subclass names its `buttons`, and says what they do to a selection (`act`) and to one row (`perform_one`).
    """

    buttons: tuple[Any, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "buttons" in cls.__dict__:
            cls.actions = [_action(button) for button in cls.buttons if button.many]
            for button in cls.buttons:
                setattr(cls, f"has_{button.name}_permission", partialmethod(cls._has, button.permission))

    def verbs(self) -> Mapping[str, Any]:
        return {button.name: button for button in self.buttons}

    def may(self, request: HttpRequest, verb: Any) -> bool:
        return bool(getattr(self, f"has_{verb.name}_permission")(request))

    def _has(self, permission: str, request: HttpRequest) -> bool:
        return request.user.has_perm(permission)

    def act(self, request: HttpRequest, verb: Any, queryset: QuerySet[Any]) -> HttpResponse | None:
        raise NotImplementedError

    def perform_one(self, request: HttpRequest, verb: Any, row: Any) -> HttpResponse:
        raise NotImplementedError

    # A site may wrap requests in a transaction; a verb on thousands of rows must not hold all their locks to the end.
    @db.non_atomic
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        return super().changelist_view(request, extra_context)

    @db.non_atomic
    def verb_view(self, request: HttpRequest, object_id: str, verb: str) -> HttpResponse:
        known = self.verbs()
        if verb not in known:
            raise Http404
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_view_permission(request) and self.may(request, known[verb])):
            raise PermissionDenied
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404
        return self.perform_one(request, known[verb], row)

    def verb_url(self, row: Any, name: str) -> str:
        route = f"admin:{self.opts.app_label}_{self.opts.model_name}_verb"
        return reverse(route, args=[row.pk, name], current_app=self.admin_site.name)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.verb_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_verb"
        return [path("<path:object_id>/verb/<slug:verb>/", view, name=name), *super().get_urls()]


def never(self: admin.ModelAdmin, request: HttpRequest, obj: Model | None = None) -> bool:
    """Refuse a permission to every user."""
    return False


class StateAdmin(LeanAdmin):
    """What the scheduler writes and people only read."""

    actions: Any = None

    has_add_permission = has_change_permission = has_delete_permission = never


def fieldset(title: Any, *fields: Any, folded: bool = False) -> tuple[Any, Any]:
    """Describe a part of a page as Django wants it; a field may be a tuple of several that share a line."""
    return title, {"fields": fields, "classes": ("collapse",) if folded else ()}


def log_history(request: HttpRequest, rows: Any, message: str, flag: int = CHANGE) -> None:
    """Write it into Django's own history of these rows."""
    user_id: Any = request.user.pk
    if rows:
        LogEntry.objects.log_actions(user_id, rows, flag, message)
