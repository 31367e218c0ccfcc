"""What the console's templates say in one word: `{{ job.status|badge }}`, `{{ moment|when }}`, `{{ span|roughly }}`."""

from __future__ import annotations

from django import template

from jobs.admin import marks, showing

register = template.Library()
register.filter("badge", marks.badge)
register.filter("when", marks.when)
register.filter("roughly", marks.roughly)
register.filter("duration", showing.duration)
register.filter("grouped", showing.grouped)
