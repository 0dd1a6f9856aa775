# `make image` builds and verifies an image, `make test` runs the whole test suite. Both do all their own set-up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPILE = $(BIN)/uv pip compile --quiet --generate-hashes --no-header --universal --upgrade
RELOCK = $(COMPILE) --python-version 3.10

# The second environment: what the image of p40-debian holds, by its own lock, and pytest.
SMOKE := .smoke-venv

.PHONY: image e2e test lint unit smoke bench fuzz schema docs relock-tools clean

test: lint unit smoke

# The environment of the tool and its tests, made anew whenever a pin changes.
$(VENV)/.ready: requirements/uv.txt requirements/dev.txt pyproject.toml
	@sh requirements/python.sh $(PYTHON)
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --require-hashes -r requirements/dev.txt
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

# From nothing to a verified image. STACK=p40 or STACK=p40-debian; without it, the first whose sources all answer.
image: $(VENV)/.ready
	@$(BIN)/envbuilder image $(STACK)

# The slow real thing: whole images, both engines.
e2e: $(VENV)/.ready $(SMOKE)/.ready
	$(BIN)/pytest -m e2e tests/e2e
	PYTHONPATH=$(CURDIR) $(SMOKE)/bin/python -m pytest -m e2e tests/smoke

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

unit: $(VENV)/.ready
	$(BIN)/pytest -n 2 --dist loadgroup -m "not e2e"

$(SMOKE)/.ready: $(VENV)/.ready locks/p40-debian.requirements.txt requirements/smoke.txt
	$(BIN)/uv venv --quiet --clear --python 3.11 $(SMOKE)
	VIRTUAL_ENV=$(CURDIR)/$(SMOKE) $(BIN)/uv pip install --quiet --require-hashes -r locks/p40-debian.requirements.txt
	VIRTUAL_ENV=$(CURDIR)/$(SMOKE) $(BIN)/uv pip install --quiet --require-hashes -r requirements/smoke.txt
	touch $@

smoke: $(SMOKE)/.ready
	PYTHONPATH=$(CURDIR) $(SMOKE)/bin/python -m pytest tests/smoke -m "not e2e"

# Times and ratios, measured side by side in one run; nothing here passes or fails.
bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks.bench_lock
	$(BIN)/python -m benchmarks.bench_audit
	$(BIN)/python -m benchmarks.bench_explain
	$(BIN)/python -m benchmarks.bench_data

# A million inputs for everything that reads bytes of strangers (RUNS changes it); a find is written to build/fuzz.
RUNS ?= 1000000
FUZZ := build/fuzz/.venv
fuzz: $(FUZZ)/.ready
	cd build/fuzz && PYTHONPATH=$(CURDIR) $(CURDIR)/$(FUZZ)/bin/python $(CURDIR)/tests/fuzz/fuzz_audit.py corpus -runs=$(RUNS)

$(FUZZ)/.ready: $(VENV)/.ready requirements/fuzz.txt
	$(BIN)/uv venv --quiet --clear --python 3.11 $(FUZZ)
	VIRTUAL_ENV=$(CURDIR)/$(FUZZ) $(BIN)/uv pip install --quiet --require-hashes -r requirements/fuzz.txt
	VIRTUAL_ENV=$(CURDIR)/$(FUZZ) $(BIN)/uv pip install --quiet --constraints requirements/dev.txt lz4 zstandard isal
	touch $@

# The JSON Schemas that editors read, made from the models.
schema: $(VENV)/.ready
	$(BIN)/python -c "from pathlib import Path; from envbuilder.stack.schema import MODELS, schema_text; \
	  [Path('docs/schema', name).write_text(schema_text(name)) for name in MODELS]"
	$(BIN)/python -c "from pathlib import Path; from envbuilder.report.schema import FILENAME, report_schema_text; \
	  Path('docs/schema', FILENAME).write_text(report_schema_text())"

# The page of every rule of explain and lint, made from the rules.
docs: $(VENV)/.ready
	$(BIN)/python -m envbuilder.diagnose.pages docs/rules

relock-tools: $(VENV)/.ready
	$(RELOCK) -o requirements/uv.txt requirements/uv.in
	$(RELOCK) -o requirements/dev.txt pyproject.toml requirements/dev.in
	$(COMPILE) --python-version 3.11 -o requirements/smoke.txt requirements/smoke.in
	$(COMPILE) --python-version 3.11 -o requirements/scanner.txt requirements/scanner.in

clean:
	rm -rf $(VENV) $(SMOKE) dist build
