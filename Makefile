# The commands of the project. Each needs a Python interpreter with `venv` and nothing else: it makes its environment first, in .venv.
#
#   PYTHON=python3.12          the interpreter that .venv is made with (run `make clean` before changing it)
#   BUILD=cpu, BUILD=cuda      which builds of torch and jax to install; by default cuda where there is an NVIDIA GPU
#   PY=python3                 make no environment: this interpreter has torch, jax and the tools already
#   PYTHON_NEWEST=python3.13   the interpreter of the lane with the newest JAX, if the search below does not find the right one
#   PYTEST_ARGS="-m gpu"       arguments of pytest, for `make unit` and `make test`; by default, a process for each of up to 8 processors

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
# The targets write the same folders, and the test runner's closing line is to be the last one.
.NOTPARALLEL:

PYTHON ?= python3
ifndef BUILD
BUILD := $(shell if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then echo cuda; else echo cpu; fi)
endif
# JAX chooses its CUDA build by an extra, torch by its version (constraints/).
EXTRAS_cpu :=
EXTRAS_cuda := 'jax[cuda13]'

PACKAGES := spec torch_triton jax_pallas crosscheck
LINKS := $(CURDIR)/build/links

ifdef PY
PYTEST_ARGS ?=
ENVIRONMENT := links
RUN := PYTHONPATH=$(LINKS) $(PY) -P
else
# Whole files to each process, for their fixtures compile.
PYTEST_ARGS ?= -n auto --maxprocesses 8 --dist loadscope
PY := .venv/bin/python
ENVIRONMENT := links .venv/.$(BUILD)
# JAX from 0.11 on needs Python 3.12. pyenv's interpreters do not run under their own names unless they are activated.
ifndef PYTHON_NEWEST
PYTHON_NEWEST := $(shell for python in python3.13 python3.12 "$$(pyenv prefix 3.13 2>/dev/null)/bin/python" "$$(pyenv prefix 3.12 2>/dev/null)/bin/python" $(PYTHON); do \
	if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then echo "$$python"; break; fi; done)
endif
# -P keeps the repository's root off the import path, where `spec` would be importable a second time under the wrong name.
RUN := $(PY) -P
endif

.PHONY: crosscheck test test-peers lint docs newest unit wheel clean links

crosscheck: $(ENVIRONMENT)
	$(RUN) -m rlscan.crosscheck $(CROSSCHECK_ARGS)

test: lint docs newest unit

lint: $(ENVIRONMENT)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pyright --pythonpath "$$($(PY) -c 'import sys; print(sys.executable)')"

docs: $(ENVIRONMENT)
	$(RUN) -m mkdocs build --strict --quiet

unit: $(ENVIRONMENT)
	$(RUN) -m pytest $(PYTEST_ARGS)

# Beside the other libraries; once they are in .venv, `make unit` compares with them too.
test-peers: $(ENVIRONMENT)
ifneq ($(ENVIRONMENT),links)
	.venv/bin/python -m pip install --quiet -c constraints/$(BUILD).txt -e '.[dev,jax,torch,peers]' $(EXTRAS_$(BUILD))
endif
	$(RUN) -m pytest tests/test_compat.py tests/test_drop_ins.py tests/test_peers.py $(PYTEST_ARGS)

newest: $(if $(PYTHON_NEWEST),.venv-newest/.installed)
ifeq ($(PYTHON_NEWEST),)
	@printf '\n*** NOT RUN: the lane with the newest JAX. It needs Python 3.12 or newer: make test PYTHON_NEWEST=python3.13 ***\n\n'
else
	.venv-newest/bin/python -P -m pytest -m newest_jax
endif

wheel: $(ENVIRONMENT)
	$(RUN) -m build --no-isolation

clean:
	rm -rf .venv .venv-newest build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
	find $(PACKAGES) tests docs -name __pycache__ -prune -exec rm -rf {} +

# The installation is editable in setuptools' plain mode, which imports what lies in the folders now. The strict mode, which type checkers can
# read, links the files that existed when it was installed: a module added later would be missing until the next installation.
#
# An environment of the other build, or one whose installation broke off, is made anew; one that is only out of date is brought up to date.
.venv/.$(BUILD): pyproject.toml $(wildcard constraints/*.txt)
	@echo "Installing the packages of constraints/$(BUILD).txt into .venv; the first time takes minutes"
	test -e $@ || $(PYTHON) -m venv --clear .venv
	.venv/bin/python -m pip install --quiet -c constraints/$(BUILD).txt -e '.[dev,jax,torch]' $(EXTRAS_$(BUILD))
	touch $@

.venv-newest/.installed: pyproject.toml $(wildcard constraints/*.txt)
	test -e $@ || $(PYTHON_NEWEST) -m venv --clear .venv-newest
	.venv-newest/bin/python -m pip install --quiet -c constraints/newest.txt -e '.[jax]' chex hypothesis pytest
	touch $@

# The packages under their import names, for readers that follow neither `package-dir` nor an editable installation: pyright, and PY=.
links:
	@mkdir -p $(LINKS)/rlscan
	@for package in $(PACKAGES); do ln -sfn "../../../$$package" "$(LINKS)/rlscan/$$package"; done
