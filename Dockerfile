# A build that must repeat names its base by digest: --build-arg PYTHON_IMAGE=python:3.13-slim@sha256:…
ARG PYTHON_IMAGE=python:3.13-slim
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY constraints.txt pyproject.toml setup.py README.md LICENSE ./
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir --constraint constraints.txt setuptools wheel
COPY jobs jobs
COPY schedules schedules
COPY webhooks webhooks
COPY jobscheduler jobscheduler
RUN /venv/bin/pip install --no-cache-dir --constraint constraints.txt --no-build-isolation '.[standalone]'

FROM ${PYTHON_IMAGE}
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 DJANGO_SETTINGS_MODULE=jobscheduler.settings STATIC_ROOT=/app/static
RUN useradd --system --uid 10001 --create-home --home-dir /app --shell /usr/sbin/nologin scheduler
COPY --from=build /venv /venv
WORKDIR /app
COPY templates templates
# A number, so that orchestrators can verify that it is not root.
USER 10001
RUN SECRET_KEY=unused-while-the-image-is-being-built django-admin collectstatic --no-input --verbosity 0
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://localhost:8000/healthz', timeout=4)"]
# Set SECRET_KEY and DATABASE_URL in the environment; run `django-admin migrate` once per release before the start.
CMD ["django-admin", "runscheduler", "--host", "0.0.0.0"]
