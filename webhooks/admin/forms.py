"""An endpoint as a person writes it, each field through the same gate as the API's."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from jobs import parsing
from jobs.errors import InvalidInput
from webhooks import services
from webhooks.addresses import LONGEST_URL
from webhooks.events import PATTERNS
from webhooks.models import WebhookEndpoint


class EndpointForm(forms.ModelForm):
    url = forms.CharField(
        label=_("URL"), max_length=LONGEST_URL, strip=False, widget=forms.TextInput(attrs={"class": "vURLField"})
    )
    events = forms.MultipleChoiceField(
        label=_("Events"),
        choices=[(name, name) for name in PATTERNS],
        widget=forms.CheckboxSelectMultiple,
        help_text=_("job.* is all of jobs, * is everything."),
    )

    class Meta:
        model = WebhookEndpoint
        fields = ("tenant", "url", "events", "enabled")

    def clean_tenant(self) -> str:
        return str(self._through(lambda value: parsing.tenant(value), "tenant"))

    def clean_url(self) -> str:
        return str(self._through(services.GATES["url"], "url"))

    def said(self) -> dict[str, Any]:
        """What services take to change."""
        return {name: self.cleaned_data[name] for name in services.GATES if name in self.changed_data}

    def _through(self, gate: Any, field: str) -> Any:
        try:
            return gate(self.cleaned_data[field])
        except InvalidInput as error:
            raise ValidationError(error.errors[0]["msg"]) from None
