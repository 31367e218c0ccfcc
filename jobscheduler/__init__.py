"""The assembled product: settings, urls, wsgi and asgi around the apps jobs, schedules and webhooks."""

from jobscheduler.shadow_check import refuse_shadows

__version__ = "0.1.0"

refuse_shadows()
