"""The standalone site: settings, urls, wsgi and asgi for the apps jobs, schedules and webhooks."""

from jobscheduler.shadow_check import require_unshadowed

__version__ = "0.1.0"

require_unshadowed()
