"""What the console's templates say in one word: `{{ job.status|badge }}`, `{{ moment|when }}`, `{{ span|roughly }}`."""

from __future__ import annotations

from django import template

from jobs.admin import formatting

register = template.Library()
register.filter("badge", formatting.badge)
register.filter("when", formatting.when)
register.filter("roughly", formatting.roughly)
register.filter("duration", formatting.duration)
register.filter("grouped", formatting.grouped)
