# The two commands of the README are `make demo` and `make test`; each makes its own virtual environment.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

.PHONY: demo test test-engines lint bench clean

$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/refract fetch --model smollm2
	$(BIN)/refract score --candidate ctk=q8_0,ctv=turbo3 --json-out demo-report.json

test: $(VENV)/.dev
	$(BIN)/python -m pytest tests --ignore=tests/engines

test-engines: $(VENV)/.dev $(VENV)/.demo
	$(BIN)/refract fetch --model smollm2
	$(BIN)/python -m pytest tests/engines

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.demo
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist
