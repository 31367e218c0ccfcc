"""Base classes of the admin pages: lists that stay fast at a million rows, and permission checks for payload."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partialmethod
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.exceptions import EmptyResultSet, PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import AutoField, Model, Q, QuerySet, UUIDField, Value
from django.db.models.lookups import In
from django.db.models.sql import Query
from django.forms import Media
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst, format_lazy, smart_split, unescape_string_literal
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from jobs import db
from jobs.admin import screens
from jobs.services.permissions import VIEW_PAYLOAD

QUOTES = "\"'"
COUNT_LIMIT = 10_000  # counting stops here, so that a page of a huge list opens as fast as one of a small list
TERM_LIMIT = 20  # of a search: each has a condition, and may take statements of its own
CHECKBOX = '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="{}">'
MAX_KEY = 2**63 - 1  # the largest integer key of any database
PAYLOAD_HIDDEN = _("Hidden: you need the permission “Can see params, artifacts and logs”.")


STYLES = Media(css={"all": ("jobs/console.css", "jobs/screens.css", "jobs/cards.css")})
# A script of the form template that is in no block uses them.
JQUERY = ("vendor/jquery/jquery.min.js", "jquery.init.js")


def _admin_scripts(*names: str) -> Media:
    return Media(js=[f"admin/js/{name}" for name in names])


def can_view_payload(request: HttpRequest) -> bool:
    return request.user.has_perm(VIEW_PAYLOAD)


class SearchTerm(NamedTuple):
    """A word of a search, or what follows a qualifier: `name` is "" or the qualifier in lower case."""

    name: str
    value: str


class CappedInt(int):
    """A count that stopped at its limit; prints as "10000+"."""

    def __str__(self) -> str:
        # Django groups the digits of any int, and would count the plus as one of them ("100,00+").
        return int.__repr__(self) + ("" if settings.USE_THOUSAND_SEPARATOR else "+")


def count_capped(queryset: QuerySet[Any], limit: int = COUNT_LIMIT) -> int:
    """Count the rows up to `limit`; more of them are a CappedInt."""
    keys = find_key_query(queryset)
    rows: QuerySet[Any] = queryset if keys is None else QuerySet(keys.model, keys.chain(), queryset.db)
    if not rows.query.is_sliced:
        rows = rows.order_by().values_list(Value(1))  # read from the index alone; a key, on SQLite, from each row
    connection = connections[queryset.db]
    try:
        sql, params = rows[: limit + 1].query.get_compiler(connection=connection).as_sql()
    except EmptyResultSet:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM ({sql}) counted", params)  # noqa: S608 — from the ORM
        count = int(cursor.fetchone()[0])
    return CappedInt(limit) if count > limit else count


def find_key_query(queryset: QuerySet[Any]) -> Query | None:
    """Return the query that finds the keys of a queryset, if it has no other condition.

    It finds each key once, and keys of existing rows alone, so that they are counted and sorted without these rows.
    """
    conditions, pk = queryset.query.where.children, queryset.model._meta.pk
    lookup: Any = conditions[0] if len(conditions) == 1 else None
    if not isinstance(lookup, In) or not isinstance(lookup.rhs, Query):
        return None
    is_key = (lookup.lhs.alias, lookup.lhs.target) == (queryset.query.base_table, pk)
    return lookup.rhs if is_key else None


class CappedPaginator(Paginator):
    """Counts rows up to a limit."""

    limit = COUNT_LIMIT

    @cached_property
    def count(self) -> int:
        return count_capped(self.object_list, self.limit)  # type: ignore[arg-type]


_QUALIFIER = re.compile(r"([A-Za-z_]+):(?!//)(.*)", re.DOTALL)  # "https://…" is a word


def split_terms(
    text: str, qualifiers: Collection[str], is_word: Callable[[str], bool] = lambda word: False
) -> tuple[list[SearchTerm], str]:
    """Return the terms of a search, and what is wrong with it: an unknown qualifier, or more than TERM_LIMIT terms.

    A space may follow a colon. A term in quotes is a word, whatever colons it has, and so is one that `is_word` knows.
    """
    terms: list[SearchTerm] = []
    pending = ""
    for word in smart_split(text.replace("\0", "")):
        if len(terms) == TERM_LIMIT:
            return [], _now("Search for at most %d terms at once.") % TERM_LIMIT
        match = _QUALIFIER.fullmatch(word)
        if pending:
            terms.append(SearchTerm(pending, _unquote(word)))
            pending = ""
        elif match is None or not qualifiers:
            terms.append(SearchTerm("", _unquote(word)))
        elif (name := match[1].lower()) not in qualifiers and is_word(word):
            terms.append(SearchTerm("", word))
        elif name not in qualifiers:
            values = {"name": match[1], "known": ", ".join(f"{qualifier}:" for qualifier in qualifiers)}
            return [], _now("Unknown search qualifier “%(name)s:”. Known: %(known)s.") % values
        elif match[2]:
            terms.append(SearchTerm(name, _unquote(match[2])))
        else:
            pending = name
    if pending:
        terms.append(SearchTerm(pending, ""))
    return terms, ""


def _field_condition(model: type[Model], name: str, value: str) -> Q | None:
    """Return the condition that a field has this value; None if no row can have it."""
    field: Any = model._meta.get_field(name)
    if isinstance(field.target_field if field.is_relation else field, UUIDField):
        key = parse_uuid(value)
        return None if key is None else Q(**{field.attname: key})
    if value.endswith("*"):
        return Q(**{f"{name}__startswith": value[:-1]})
    return Q(**{name: value})


def parse_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _unquote(text: str) -> str:
    if len(text) > 1 and text[0] in QUOTES and text[-1] == text[0]:
        return unescape_string_literal(text)
    return text


LIST_TITLES: dict[str, Any] = {}  # by "app_label.modelname": the titles that the navigation gives to lists


def list_title(opts: Any) -> str:
    """Return the title of a model's list: that of its entry in the navigation, else the plural of its name."""
    return str(LIST_TITLES.get(opts.label_lower) or capfirst(opts.verbose_name_plural))


class ConsoleChangeList(ChangeList):
    """Defers the columns that no list shows, such as params of a megabyte; its filters are above the table."""

    model_admin: ConsoleAdmin
    count_limit = COUNT_LIMIT

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.is_popup:
            self.title = list_title(self.opts)
        # Django would reverse the address of each row, and resolve it to add the filters to it.
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        self._list_path = reverse(name, current_app=self.model_admin.admin_site.name)
        self._row_query = f"?{self.preserved_filters}" if self.preserved_filters else ""
        self.preserved_filters = ""

    def url_for_result(self, result: Any) -> str:
        return f"{self._list_path}{quote(getattr(result, self.pk_attname))}/change/{self._row_query}"

    @property
    def filters(self) -> list[Any]:
        """The filters that are shown as selects; those that have tabs are left out."""
        return [spec for spec in self.filter_specs if not getattr(spec, "has_tabs", False)]

    @property
    def other_params(self) -> list[tuple[str, str]]:
        """The query parameters that the form with search and filters does not have."""
        names = {spec.parameter_name for spec in self.filters} | {SEARCH_VAR}
        return [(name, value) for name, value in self.params.items() if name not in names]

    @property
    def is_filtered(self) -> bool:
        return bool(self.query) or any(spec.value() for spec in self.filter_specs)  # type: ignore[attr-defined]

    @property
    def problem(self) -> str:
        """The problem of the search or of a filter; empty if there is none."""
        return next(filter(None, (getattr(spec, "problem", "") for spec in self.filter_specs)), self.search_problem)

    @property
    def is_capped(self) -> bool:
        return isinstance(self.result_count, CappedInt)

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        queryset = super().get_queryset(request, exclude_parameters).defer(*self.model_admin.list_defer)
        self.search_problem: str = request.__dict__.get("_search_problem", "")
        return queryset

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = self.read_page(self.result_list)
        self.model_admin.complete_rows(request, self.result_list)
        if not can_view_payload(request):
            for row in self.result_list:
                self.model_admin.hide_payload(row)

    def read_page(self, page: QuerySet[Any]) -> Any:
        """Return the rows of a page, given its query."""
        return page


class ConsoleAdmin(admin.ModelAdmin):
    """Base of all admins of the console: capped counts, an indexed search, live lists, permission checks for payload.

    `payload` names the fields of a page, and `payload_columns` the columns of a list, that require the permission
    `view_payload`. `hide_payload` hides what else handlers wrote into a row.

    The search never scans text. It finds ids, and terms such as `type:mail.*` that name a column: `qualifiers` maps a
    prefix to a field. A bare id is looked up in `id_field`, any other word is the beginning of `name_field`.
    """

    search_fields = ("pk",)  # shows the search box; get_search_results decides on the columns
    qualifiers: Mapping[str, str] = {}
    id_field = "pk"
    name_field = ""
    change_list_template = "jobs/list.html"
    change_form_template = "jobs/page_with_buttons.html"
    empty_text: Any = ""  # shown in place of an empty list
    empty_value_display = mark_safe('<span class="jc-none">–</span>')
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

    @property
    def media(self) -> Media:
        """The scripts that forms need; prepopulated fields and the widgets of other pages are not used."""
        return STYLES + _admin_scripts(*JQUERY, "core.js", "admin/RelatedObjectLookups.js")

    @property
    def list_media(self) -> Media:
        return STYLES + _admin_scripts("actions.js")

    def __init__(self, model: type[Model], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        self.search_help_text = self.describe_search()  # type: ignore[misc]

    def describe_search(self) -> Any:
        """Return what the search box finds."""
        prefixes = " ".join(f"{prefix}:…" for prefix in self.qualifiers)
        first = _("the beginning of a name") if self.name_field else _("a whole id")
        text = (
            _("Search by {first}, or by {words} Use * as a wildcard at the end.")
            if prefixes
            else _("Search by {first}.")
        )
        return format_lazy(text, first=first, words=prefixes)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        terms, problem = split_terms(search_term, self.qualifiers)
        if problem:
            self.report_search_problem(request, problem)
            return queryset.none(), False
        for term in terms:
            condition = self._search_condition(term, self.get_name_field(request))
            if condition is None:
                return queryset.none(), False
            queryset = queryset.filter(condition)
        return queryset, False

    def report_search_problem(self, request: HttpRequest, problem: str) -> None:
        """Show a problem above the list of this request."""
        request.__dict__["_search_problem"] = problem

    def get_name_field(self, request: HttpRequest) -> str:
        """Return the field that this user may search by its beginning; "" for none."""
        return self.name_field

    def _search_condition(self, term: SearchTerm, name_field: str) -> Q | None:
        """Return the condition for one search term; None if it can match no row."""
        if term.name:
            return _field_condition(self.model, self.qualifiers[term.name], term.value)
        text = term.value.removeprefix("#")
        if (key := parse_uuid(text)) is not None:
            return Q(**{self.id_field: key})
        if text.isascii() and text.isdigit() and isinstance(self.model._meta.pk, AutoField):
            return Q(pk=int(text[:20]))
        return Q(**{f"{name_field}__startswith": text}) if name_field else None

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ConsoleChangeList

    def list_version(self) -> str:
        """Return a string that changes with the list, see `screens.live_page`; "" for a list without live refresh."""
        return ""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        view = super().changelist_view
        if request.method != "GET" or not self.has_view_permission(request):
            return view(request, extra_context)

        def build(shared: dict[str, Any]) -> Any:
            context = {"media": self.list_media, **shared, **self.list_context(request), **(extra_context or {})}
            return view(request, context)

        return screens.live_page(self.admin_site, request, self.list_version(), build)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        shared = {"navigation": screens.build_navigation(self.admin_site, request)}
        return super().changeform_view(request, object_id, form_url, {**shared, **(extra_context or {})})

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Name the row in the title: "Schedule nightly report"."""
        if context.get("subtitle"):
            context.update(title=f"{capfirst(self.opts.verbose_name)} {context['subtitle']}", subtitle=None)
        return super().render_change_form(request, context, *args, **kwargs)

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        """Set the attributes that computed columns show, looked up for all rows of the page at once."""

    def action_checkbox(self, obj: Model) -> SafeString:
        """Show a row's checkbox. Django's own renders a template for each, which is a third of the time of the rows."""
        label = _now("Select this object for an action - {}").format(obj)
        return format_html(CHECKBOX, ACTION_CHECKBOX_NAME, obj.pk, label)

    def describe_missing(self, object_id: str) -> str:
        """Return the message for the address of a row that does not exist."""
        name = str(self.opts.verbose_name)
        return _now("There is no %(name)s %(id)s. It may have been deleted.") % {"name": name, "id": object_id[:100]}

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> HttpResponse:
        """Lead to the list, with a message."""
        self.message_user(request, self.describe_missing(object_id), messages.WARNING)
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        return HttpResponseRedirect(reverse(name, current_app=self.admin_site.name))

    def hide_payload(self, row: Any) -> None:
        """Hide the texts of handlers in a row that is only shown, for a user without the permission `view_payload`."""

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None and not can_view_payload(request):
            self.hide_payload(row)
        return row

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """Return further context of the list's template."""
        return {}

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        hidden = () if can_view_payload(request) else self.payload_columns
        return [name for name in super().get_list_display(request) if name not in hidden]

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        fieldsets = list(super().get_fieldsets(request, obj))
        if not self.payload or obj is None:
            return fieldsets
        if can_view_payload(request):
            return [*fieldsets, (_("Payload"), {"fields": self.payload})]
        return [*fieldsets, (_("Payload"), {"fields": (), "description": PAYLOAD_HIDDEN})]

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow only the declared filters: with any lookup in the URL, params could be guessed letter by letter."""
        return any(lookup in list_parameters(list_filter) for list_filter in self.list_filter)

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        """Ignore selected keys that no row can have, which the database would reject."""
        post = request.POST.copy()
        post.setlist(ACTION_CHECKBOX_NAME, [key for key in post.getlist(ACTION_CHECKBOX_NAME) if self._is_key(key)])
        request.POST = post  # type: ignore[assignment]
        return super().response_action(request, queryset, *args, **kwargs)

    def _is_key(self, text: Any) -> bool:
        try:
            key = self.model._meta.pk.to_python(text)
        except ValidationError:
            return False
        return not isinstance(key, int) or abs(key) <= MAX_KEY


def list_parameters(list_filter: Any) -> list[str]:
    """Return the names that a filter, or its class, has in the URL."""
    if hasattr(list_filter, "parameters"):
        return list(list_filter.parameters())
    return [getattr(list_filter, "parameter_name", "")]


def _build_list_action(action: Any) -> Any:
    def run(self: ActionAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self.run_on_selection(request, action, queryset)

    run.__name__ = action.name
    return admin.action(permissions=[action.name], description=action.list_label)(run)


class ActionAdmin(ConsoleAdmin):
    """Actions on rows, each with its own permission: POST to `<key>/verb/<name>/`, and a list action if `in_list`.

    A subclass sets `object_actions`, and implements how one runs on a selection (`run_on_selection`) and on one row
    (`run_on_object`).
    """

    object_actions: tuple[Any, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "object_actions" in cls.__dict__:
            cls.actions = [_build_list_action(action) for action in cls.object_actions if action.in_list]
            for action in cls.object_actions:
                setattr(cls, f"has_{action.name}_permission", partialmethod(cls._has_permission, action.permission))

    def page_actions(self) -> Mapping[str, Any]:
        """Return the actions that a row's page may run, by name."""
        return {action.name: action for action in self.object_actions}

    def can_run(self, request: HttpRequest, action: Any) -> bool:
        return bool(getattr(self, f"has_{action.name}_permission")(request))

    def _has_permission(self, permission: str, request: HttpRequest) -> bool:
        return request.user.has_perm(permission)

    def run_on_selection(self, request: HttpRequest, action: Any, queryset: QuerySet[Any]) -> HttpResponse | None:
        raise NotImplementedError

    def run_on_object(self, request: HttpRequest, action: Any, row: Any) -> HttpResponse:
        raise NotImplementedError

    # A site may wrap requests in a transaction; an action on thousands of rows must not hold all their locks.
    @db.non_atomic
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        return super().changelist_view(request, extra_context)

    @db.non_atomic
    def action_view(self, request: HttpRequest, object_id: str, verb: str) -> HttpResponse:
        """Run the action named `verb` on one row."""
        actions = self.page_actions()
        if verb not in actions:
            raise Http404
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_view_permission(request) and self.can_run(request, actions[verb])):
            raise PermissionDenied
        row = self.get_object(request, unquote(object_id))
        if row is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, unquote(object_id))
        return self.run_on_object(request, actions[verb], row)

    def action_url(self, row: Any, name: str) -> str:
        route = f"admin:{self.opts.app_label}_{self.opts.model_name}_verb"
        return reverse(route, args=[row.pk, name], current_app=self.admin_site.name)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.action_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_verb"
        return [path("<path:object_id>/verb/<slug:verb>/", view, name=name), *super().get_urls()]


def deny_permission(self: admin.ModelAdmin, request: HttpRequest, obj: Model | None = None) -> bool:
    """Refuse a permission to every user."""
    return False


class ReadOnlyAdmin(ConsoleAdmin):
    """Base of the admins of rows that only the scheduler writes."""

    actions: Any = None

    @property
    def media(self) -> Media:
        return STYLES + _admin_scripts(*JQUERY)

    has_add_permission = has_change_permission = has_delete_permission = deny_permission


def fieldset(title: Any, *fields: Any, folded: bool = False) -> tuple[Any, Any]:
    """Return a fieldset in Django's form; a field may be a tuple of several that share a line."""
    return title, {"fields": fields, "classes": ("collapse",) if folded else ()}


def log_history(request: HttpRequest, rows: Any, message: str, flag: int = CHANGE) -> None:
    """Write a message into Django's own history of these rows."""
    user_id: Any = request.user.pk
    if rows:
        LogEntry.objects.log_actions(user_id, rows, flag, message)
