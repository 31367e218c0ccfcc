# Each target creates .venv if necessary and installs its requirements into it.
PYTHON ?= python3
VENV ?= .venv
PORT ?= 8000
HOST ?= 127.0.0.1
ARGS ?=
# Jobs that the worker of `make run` runs at once; the setting LIMITS of the standalone site allows as many.
CONCURRENCY ?= 4
# Most tests wait for child processes: more test processes than processors keep the processors busy.
PARALLEL ?= 4

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet install --constraint constraints.txt
STANDALONE := $(VENV)/.standalone-installed
DEV := $(VENV)/.dev-installed

# At a terminal, running jobs get 5 s to stop before they are handed back.
run: export JOBSCHEDULER_SHUTDOWN_GRACE_SEC ?= 5

.PHONY: help run free-port test test-sqlite test-postgres check format matrix rehearse clients bench chaos docs messages clean
.DEFAULT_GOAL := help

help:
	@echo "make run      run the web console and a worker on http://$(HOST):$(PORT)/ (PORT= and HOST= change it)"
	@echo "make test     run all tests on SQLite, then on PostgreSQL (ARGS= is passed to pytest)"
	@echo "make check    check lint, format, types, architecture, migrations, settings"
	@echo "make format   apply the fixes of the linter and the formatter"
	@echo "make matrix   test the built wheel in another site on every Django and Python (ARGS=\"--django 6.1 --python 3.12\": one cell)"
	@echo "make rehearse run the steps of the Dockerfile without Docker, about a minute (needs the package index)"
	@echo "make clients  lint the OpenAPI document and compile a generated TypeScript client (needs npm and its registry)"
	@echo "make bench    run the benchmarks"
	@echo "make chaos    run the tests with kills, crashes and many processes, about an hour (ARGS=--short)"
	@echo "make docs     update the generated pages of docs/"
	@echo "make messages update and compile the translation catalogues (needs gettext)"
	@echo "make clean    remove .venv, builds and caches, but not the database"

# Before anything is installed: the port may be in use.
free-port:
	@$(PYTHON) jobs/management/ports.py $(HOST) $(PORT)

run: free-port $(STANDALONE)
	@$(PY) manage.py migrate --verbosity 0
	@$(PY) manage.py collectstatic --no-input --verbosity 0
	@$(PY) manage.py ensureadmin
	@env -u ADMIN_PASSWORD $(PY) manage.py runscheduler --host $(HOST) --port $(PORT) --concurrency $(CONCURRENCY)

test: $(DEV)
	@failed=0; \
	$(MAKE) --no-print-directory test-sqlite || failed=1; \
	$(MAKE) --no-print-directory test-postgres || failed=1; \
	exit $$failed

test-sqlite: $(DEV)
	@echo "== SQLite"
	@env -u DATABASE_URL $(PY) -m pytest --numprocesses $(PARALLEL) --dist worksteal $(ARGS)

test-postgres: $(DEV)
	@echo "== PostgreSQL"
	@$(PY) -m tests.postgres $(PY) -m pytest --numprocesses $(PARALLEL) --dist worksteal $(ARGS)

check: $(DEV)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) -m tests.packaging.plain_words
	$(PY) manage.py makemigrations --check --dry-run --settings tests.settings
	ENV_FILE= HTTPS=True $(PY) manage.py check --deploy --fail-level WARNING

format: $(DEV)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

matrix: $(DEV)
	nice -n 19 $(PY) -m tests.packaging.matrix $(ARGS)

rehearse: $(DEV)
	nice -n 19 $(PY) -m tests.packaging.dockerfile

clients: $(DEV)
	$(PY) -m tests.packaging.clients

bench: $(DEV)
	$(PY) -m bench $(ARGS)

chaos: $(DEV)
	$(PY) -m tests.chaos $(ARGS)

docs: $(DEV)
	$(PY) docs/generate.py

messages: $(DEV)
	$(PY) -m tests.packaging.messages

clean:
	rm -rf $(VENV) build dist staticfiles *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is required; choose one with PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot create virtual environments; on Debian: apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }

# The build tools are installed first, from the same constraints, so that builds are reproducible.
$(STANDALONE): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV) …"
	@$(PIP) setuptools wheel
	@$(PIP) --no-build-isolation --editable '.[standalone]'
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(STANDALONE)
	@echo "installing the development tools into $(VENV) …"
	@$(PIP) --no-build-isolation --editable '.[standalone,dev]'
	@touch $@ $(STANDALONE)
