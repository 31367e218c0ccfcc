"""A host site before the installation: its own user model, its own admin, integer keys, its own way of
writing numbers. What it adds for us is written to the end of its files, from the guide."""

import json
import os

SECRET_KEY = "somebody else's"
ALLOWED_HOSTS = ["testserver", "127.0.0.1"]
ROOT_URLCONF = "mainsite.urls"
AUTH_USER_MODEL = "accounts.Customer"
USE_TZ = True
USE_THOUSAND_SEPARATOR = True
LANGUAGE_CODE = "de"
TIME_ZONE = "America/New_York"
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "accounts",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
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
STATIC_URL = "assets/"
DATABASES = {"default": json.loads(os.environ["SITE_DATABASE"])}
