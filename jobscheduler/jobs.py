"""The job types of the demo: every worker of the standalone site runs them."""

from jobs.demo.handlers import register_handlers

register_handlers()
