import json
from html.parser import HTMLParser

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand
from django.test import Client


class Command(BaseCommand):
    """Opens a page as a superuser, changes fields of its form and sends it. Prints the answer's status and errors."""

    def add_arguments(self, parser):
        parser.add_argument("path")
        parser.add_argument("changes", type=json.loads)

    def handle(self, path, changes, **options):
        client = Client()
        client.force_login(get_user_model().objects.filter(is_superuser=True).first())
        form = Form()
        form.feed(client.get(path).content.decode())
        missing = changes.keys() - form.fields.keys()
        answer = client.post(path, {**form.fields, **changes})
        errors = answer.context["errors"] if answer.status_code == 200 and "errors" in answer.context else ""
        self.stdout.write(json.dumps({"status": answer.status_code, "missing": sorted(missing), "errors": str(errors)}))


class Form(HTMLParser):
    """What a browser would send of all forms on the page, buttons left out."""

    def __init__(self):
        super().__init__()
        self.fields, self._select, self._text = {}, None, None

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "input" and attributes.get("type") not in ("submit", "button", "checkbox", "radio"):
            self._keep(attributes, attributes.get("value") or "")
        elif tag == "input" and "checked" in attributes:
            self._keep(attributes, attributes.get("value", "on"))
        elif tag == "select":
            self._select = attributes
        elif tag == "option" and self._select and "selected" in attributes:
            self._keep(self._select, attributes.get("value", ""))
        elif tag == "textarea":
            self._text = attributes
            self._keep(attributes, "")

    def handle_data(self, data):
        if self._text is not None:
            self.fields[self._text.get("name", "")] += data.removeprefix("\n")

    def handle_endtag(self, tag):
        if tag == "textarea":
            self._text = None
        elif tag == "select":
            self._select = None

    def _keep(self, text, value):
        if text.get("name"):
            self.fields[text["name"]] = value
