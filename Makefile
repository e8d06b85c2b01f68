# nbddp: every command of a developer. `make help` lists them.
#
#   PYTHON          the Python that makes the environment          (default: python3)
#   VENV            where the environment is                       (default: .venv)
#   TORCH           the build of torch that is tested              (default: pinned, below)
#   PIP_TORCH_ARGS  more arguments for pip when it installs torch  (default: none)
#   TESTS           what `make test` and its kin run               (default: all tests)
#
# Where the plain index serves the CUDA build of torch (Linux on x86), 2 GB are saved by naming the
# index with the CPU builds in PIP_TORCH_ARGS="--index-url <address>"; the address is on
# pytorch.org, under "Get started". With GPUs, leave it empty.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
# Pinned, so that what the tests and the notebooks show can be reproduced; `pip install nbddp`
# takes any torch from the lower bound in pyproject.toml upwards, and CI tests both ends.
TORCH ?= torch==2.13.0
PIP_TORCH_ARGS ?=
TESTS ?=
OLDEST_PYTHON ?= python3.11
NEWEST_PYTHONS ?= python3.12 python3.13
REPEAT ?= 50
CELLS ?= 5000
# One more than there are cores: a test waits for its ranks now and then.
WORKERS ?= 3
SEED ?= 1
FAULTS ?= 1000
FRAMES ?= 100000

# Tests start hundreds of processes. Each would compile nbddp again if none may keep the bytecode.
export PYTHONDONTWRITEBYTECODE :=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# What a person wants to see of pip: that it advances. Its warnings are about its own settings.
PROGRESS := 2> >(grep -v '^WARNING' >&2) | awk '\
  /^Collecting/ { if (++n % 20 == 0) print "      " n " packages found" } \
  /Downloading .* (M|G)B/ { sub(/^ */, "      "); print } \
  /^Installing/ { print "      installing" } \
  /^Successfully installed/ { print "      " NF - 2 " packages installed" } \
  { fflush() }'
READY := $(VENV)/.nbddp-ready
NOTEBOOKS = $(wildcard notebooks/*.ipynb)

# --- environment ---------------------------------------------------------------------------------

.PHONY: help
help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY)  ## make the environment in .venv; done again when pyproject.toml changes

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "$(PYTHON) is not Python 3.11 or newer; name one: make setup PYTHON=/path/to/python"; exit 1; }
	@echo "[1/3] environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "no venv module (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }

# `--no-compile`: of ten thousand modules a few are ever imported, and compiled then.
$(READY): pyproject.toml | $(PY)
	@echo "[2/3] $(TORCH) (some minutes the first time)"
	@$(PIP) install --no-compile $(PIP_TORCH_ARGS) "$(TORCH)" $(PROGRESS)
	@echo "[3/3] nbddp and its tools"
	@$(PIP) install --no-compile -e ".[demo,lab,test,browser,bench,lint]" $(PROGRESS)
	@touch $@

# --- checks --------------------------------------------------------------------------------------

.PHONY: check
check: $(READY)  ## lint, format, types, imports, spelling
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/codespell

.PHONY: format
format: $(READY)  ## format the code and fix what ruff can fix
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

SUITE := -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10 -o log_level=INFO

.PHONY: test
test: $(READY)  ## run the test suite
	$(PY) $(SUITE) -m "not slow and not full" $(TESTS)

.PHONY: test-full
test-full: $(READY)  ## run it with tests that repeat or compare for long, and those in a browser
	$(PY) $(SUITE) -m "not slow" $(TESTS)

.PHONY: test-fast
test-fast: $(READY)  ## run the tests that start no rank: tests/unit and tests/wire
	$(PY) -m pytest -q -n $(WORKERS) --dist loadfile tests/unit tests/wire

.PHONY: test-engines
test-engines: $(READY)  ## run the tests of torchrun, Open MPI, Ray, Kubernetes and PSI/J as engines; installs the last three
	@$(PIP) install -e ".[ray,k8s,psij,engines]" $(PROGRESS)
	$(PY) -m pytest -q tests/unit/launch tests/machines/test_engines.py tests/machines/test_ray.py \
	  tests/machines/test_k8s.py tests/machines/test_psij.py

.PHONY: test-slow
test-slow: $(READY)  ## run what that leaves out: each benchmark once, Notebook 7, variants of what it runs
	$(PY) -m pytest -q -m slow -o log_level=INFO $(TESTS)

# Environments of their own, made once: remove the folder to have one made again.
.PHONY: test-oldest
test-oldest:  ## run it with the lowest versions that pyproject.toml allows, in .venv-oldest
	@mkdir -p .venv-oldest
	@sed -n '/^dependencies = \[/,/^\]/s/^ *"\([^">]*\)>=\([^"]*\)".*/\1==\2/p' pyproject.toml \
	  > .venv-oldest/constraints.txt
	PIP_CONSTRAINT=$(CURDIR)/.venv-oldest/constraints.txt $(MAKE) test-full VENV=.venv-oldest \
	  PYTHON=$(OLDEST_PYTHON) TORCH="$$(grep ^torch .venv-oldest/constraints.txt)"

.PHONY: test-newest
test-newest:  ## run it with NEWEST_PYTHONS and the newest releases, in .venv-3.12 and so on
	@for python in $(NEWEST_PYTHONS); do \
	  version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])') \
	    || { echo "name the Pythons: make test-newest NEWEST_PYTHONS='/path/to/python ...'"; exit 1; }; \
	  venv=.venv-$$version; \
	  echo "== $$venv"; $(MAKE) test-full VENV=$$venv PYTHON=$$python; \
	done

.PHONY: browser
browser: $(READY)  ## run the tests in JupyterLab and Notebook 7 (needs a Chromium)
	$(PY) -m pytest -q tests/browser

.PHONY: gpu
gpu: $(READY)  ## run the trials on a GPU, and write out/gpu/report.md and .json
	NBDDP_GPU_REPORT=out/gpu $(PY) -m pytest -q tests/gpu

.PHONY: gpu-dry
gpu-dry: $(READY)  ## run the same trials on CPU with Gloo: whether they are sound
	NBDDP_GPU_DRY=1 $(PY) -m pytest -q tests/gpu

.PHONY: chaos
chaos: $(READY)  ## run the tests of deaths and floods REPEAT times (50)
	@for i in $$(seq 1 $(REPEAT)); do \
	  echo "chaos $$i/$(REPEAT)"; $(PY) -m pytest -q -x tests/chaos; \
	done

.PHONY: bench
bench: $(READY)  ## run the benchmarks, each beside its baseline
	$(PY) -m tests.bench

.PHONY: growth
growth: $(READY)  ## run CELLS cells (5000) of each kind, and see that no process grows with them
	NBDDP_TIMES=1000 $(PY) -m pytest -q tests/pool/test_tensor_lifetimes.py
	$(PY) -m tests.growth -n $(CELLS)

.PHONY: soak
soak: $(READY)  ## run FAULTS random faults (1000) from SEED (1) on one pool, each with a check after it
	$(PY) -m tests.soak --seed $(SEED) -n $(FAULTS)

.PHONY: soak-tests
soak-tests: $(READY)  ## run `make test` 10 times, and 3 times beside 6 busy processes
	$(PY) -m tests.repeat

.PHONY: fidelity
fidelity: $(READY)  ## run PyTorch's own distributed tests on traced and on stock groups, in turns
	$(PY) -m tests.fidelity

.PHONY: fuzz
fuzz: $(READY)  ## send FRAMES torn and senseless frames (100000) to hub, agent and ranks
	$(PY) -m tests.fuzz -n $(FRAMES)

# --- notebooks -----------------------------------------------------------------------------------

.PHONY: demo
demo: $(READY)  ## run the first notebook headless; prints it, writes out/*.ipynb and out/*.html
	$(PY) -m notebooks.execute --out out notebooks/00_first_cell.ipynb

.PHONY: notebooks
notebooks: $(READY)  ## run all notebooks and save their outputs in them
	$(PY) -m notebooks.execute --inplace $(NOTEBOOKS)

.PHONY: screenshots
screenshots: $(READY)  ## take pictures of the main views in JupyterLab, into docs/images
	$(PY) -m docs.screenshots

.PHONY: lab
lab: $(READY)  ## open JupyterLab on the notebooks
	$(VENV)/bin/jupyter-lab --notebook-dir notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

# --- distribution --------------------------------------------------------------------------------

.PHONY: wheel
wheel: $(READY)  ## build dist/nbddp-*.whl
	@mkdir -p dist && rm -f dist/nbddp-*.whl
	@$(PIP) --quiet wheel --no-deps --wheel-dir dist .
	@ls dist/nbddp-*.whl

.PHONY: clean
clean:  ## remove what the commands made, but not .venv
	rm -rf build dist out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find nbddp tests notebooks -name __pycache__ -type d -prune -exec rm -rf {} +
