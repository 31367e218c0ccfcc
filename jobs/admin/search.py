"""Search without a scan over text: ids, and qualifiers such as `type:mail.*` that name a column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin
from django.db.models import AutoField, Model, Q, QuerySet, UUIDField
from django.http import HttpRequest
from django.utils.text import format_lazy, smart_split, unescape_string_literal
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite

QUOTES = "\"'"


class QualifiedSearch(admin.ModelAdmin):
    """`qualifiers` maps a word to a field, `id_field` is what a bare id means, `name_field` what a bare word begins."""

    search_fields = ("pk",)  # shows the search box; what is searched is decided here
    qualifiers: Mapping[str, str] = {}
    id_field = "pk"
    name_field = ""

    def __init__(self, model: type[Model], admin_site: AdminSite) -> None:
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
        return self._bare(_unquoted(word).removeprefix("#"))

    def _bare(self, word: str) -> Q | None:
        if (known := _uuid(word)) is not None:
            return Q(**{self.id_field: known})
        if word.isascii() and word.isdigit() and isinstance(self.model._meta.pk, AutoField):
            return Q(pk=int(word[:20]))
        return Q(**{f"{self.name_field}__startswith": word}) if self.name_field else None


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
