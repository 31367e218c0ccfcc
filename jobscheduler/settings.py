"""Settings of the standalone site, read from the environment; `.env.example` lists every variable."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import environ
from django.core.exceptions import ImproperlyConfigured

import jobscheduler.unshadowed  # noqa: F401
from jobs import conf
from jobscheduler.settings_helpers import (
    complete_database,
    parse_log_level,
    read_or_create_secret,
    require_long_secret,
)

CODE_DIR = Path(__file__).resolve().parent.parent
IN_CHECKOUT = (CODE_DIR / "manage.py").exists()
BASE_DIR = CODE_DIR if IN_CHECKOUT else Path.cwd()

env = environ.Env()
if env_file := os.environ.get("ENV_FILE", str(BASE_DIR / ".env")):
    env.read_env(env_file)
if "ensureadmin" not in sys.argv:
    os.environ.pop("ADMIN_PASSWORD", None)  # no other process needs it, nor do the processes that it starts

DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = env.str("SECRET_KEY", default="")
if not SECRET_KEY:
    if not IN_CHECKOUT:
        raise ImproperlyConfigured("Set SECRET_KEY: only a development checkout creates its own.")
    SECRET_KEY = read_or_create_secret(BASE_DIR / ".secret_key")
if not DEBUG:
    require_long_secret(SECRET_KEY)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "jobscheduler",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "jobs",
    "schedules",
    "webhooks",
]
# A qcluster is optional, beside our own worker: it may run the maintenance, but it runs no jobs.
if env.bool("DJANGO_Q", default=False):
    INSTALLED_APPS.append("django_q")
Q_CLUSTER = {"name": "jobscheduler", "orm": "default", "workers": 1, "timeout": 60, "retry": 120, "max_attempts": 1}
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "jobscheduler.security_headers.SecurityHeaders",
    "jobscheduler.health.ProbesFirst",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "jobscheduler.sessions.SessionLimits",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "jobscheduler.site"
CSRF_FAILURE_VIEW = "jobscheduler.error_pages.csrf_failure"
WSGI_APPLICATION = "jobscheduler.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {"default": complete_database(env.db("DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'db.sqlite3'}"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

SESSION_COOKIE_AGE = env.int("SESSION_SECONDS", default=12 * 3600)
SESSION_IDLE_AGE = env.int("SESSION_IDLE_SECONDS", default=2 * 3600)

LANGUAGE_CODE = "en"
USE_I18N = True
USE_TZ = True
TIME_ZONE = env.str("TIME_ZONE", default="UTC")

STATIC_URL = "static/"
STATIC_ROOT = env.str("STATIC_ROOT", default=str(BASE_DIR / "staticfiles"))
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "jobscheduler.static.OptionalManifestStorage"},
}
WHITENOISE_USE_FINDERS = not Path(STATIC_ROOT, "staticfiles.json").exists()

JOBSCHEDULER = {"LIMITS": {"global": 4}, **conf.from_environ(os.environ)}
if env.bool("HTTPS", default=False):
    JOBSCHEDULER.setdefault("NUM_PROXIES", 1)
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_SSL_REDIRECT = True
    SECURE_REDIRECT_EXEMPT = [r"^(healthz|readyz)$"]  # probes use plain HTTP, directly to the process
    SECURE_HSTS_SECONDS = env.int("HSTS_SECONDS", default=365 * 24 * 3600)
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    # HSTS for subdomains is the choice of the domain's owner.
    SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "jobs.log_formats.SafeFormatter",
            "format": "{asctime} {levelname:<7} {name}: {message}",
            "style": "{",
        }
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": parse_log_level(env.str("LOG_LEVEL", default="INFO"))},
    # Django's handlers mail administrators and print only under DEBUG; ours replaces both.
    "loggers": {
        "django": {"handlers": [], "propagate": True},
        "waitress.queue": {"level": "ERROR"},  # it logs a warning for every request that waits for a thread
    },
}
