"""Every warning from a module of Job Scheduler is an error."""

import warnings

warnings.filterwarnings("error", module=r"(jobs|schedules|webhooks|jobscheduler)(\.|$)")
