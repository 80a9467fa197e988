# `make quickstart` and `make test` each build the virtual environment they need; nothing else is to be installed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
SGLANG := $(VENV)/sglang-ready
# one thread a process: two that share a core slow each other down several times over
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: quickstart test test-all sglang browser check bench clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

quickstart: $(READY)
	$(BIN)/python examples/calculator/quickstart.py

test: $(READY)
	$(BIN)/python -m pytest

test-all: $(READY) sglang browser
	$(BIN)/python -m pytest -m 'slow and not gpu'

# SGLang on the CPU, which its tests start: most of its dependencies are kernels for CUDA, so it comes without them
sglang: $(SGLANG)

$(SGLANG): $(READY) $(shell find tests/sglang_on_cpu -type f -not -path '*/__pycache__/*')
	$(BIN)/pip install --quiet --constraint constraints.txt --requirement tests/sglang_on_cpu/requirements.txt
	$(BIN)/pip install --quiet --no-deps sglang==0.5.21 sglang-router==0.3.2
	$(BIN)/pip install --quiet --no-deps --force-reinstall ./tests/sglang_on_cpu
	touch $@

# what the tests of the viewer click in; without it they fail under CI=true and are left out elsewhere
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium; } \
		|| echo "no chromium, which the tests of the viewer click in: apt-get install chromium"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) outputs .pytest_cache .mypy_cache .ruff_cache .hypothesis
