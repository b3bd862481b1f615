# `make help` lists the commands; `make demo` and `make test` need nothing set up before.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PROGRESS := $(PYTHON) -m tools.progress
READY := $(VENV)/ready
FUZZ ?= 1000
REPEATS ?= 3
BASE_VENV := build/base-venv
BASE_READY := $(BASE_VENV)/ready
BASE_SITE = $(BASE_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
CODE := setup.py tools test $(wildcard torch examples benchmarks)

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz bench-collectives bench-compile bench-model bench-runtime wheel lint fix clean links

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## build the patched wheel, install it into .venv, run examples/demo.py
	@$(PY) -m tools use wheel $(VENV)
	@$(PY) examples/demo.py

test: links ## link our modules into .venv's torch and run all tests
	@$(PROGRESS) "run the tests" $(PY) -m pytest -n 2

fuzz: links ## compare 1,000 random autotuned ops with eager (FUZZ=n for n of them)
	@CUSTOM_OP_FUZZ_EXAMPLES=$(FUZZ) $(PY) test/inductor/test_custom_op_fuzz.py

bench-compile: links $(BASE_READY) ## compile times beside the stock base (REPEATS=n runs of each, 3)
	@$(PY) benchmarks/compile.py --repeats $(REPEATS) --base "$$($(BASE_SITE))"

bench-runtime: links $(BASE_READY) ## run times beside the stock base, what a dispatch costs, and the first size
	@$(PY) benchmarks/runtime.py --base "$$($(BASE_SITE))"
	@$(PY) benchmarks/dispatch_cost.py
	@$(PY) benchmarks/first_size.py

bench-model: links $(BASE_READY) ## run times of a decoder beside the stock base
	@$(PY) benchmarks/model.py --base "$$($(BASE_SITE))"

bench-collectives: links ## all_reduce + relu + scale on 2 GPUs (CPU=1: two processes on the CPU)
	@$(PY) benchmarks/collectives.py $(if $(CPU),--cpu)

wheel: $(READY) ## build the patched wheel into dist/
	@$(PY) setup.py bdist_wheel --reuse

lint: links ## ruff, types, and the patch series
	@$(VENV)/bin/ruff check $(CODE)
	@$(VENV)/bin/ruff format --check $(CODE)
	@$(PY) -m tools check
	@$(PY) -m tools.typecheck $(VENV)

fix: $(READY) ## let ruff mend and format what it can
	@$(VENV)/bin/ruff check --fix $(CODE)
	@$(VENV)/bin/ruff format $(CODE)

clean: ## remove .venv, build/ and dist/
	rm -rf $(VENV) build dist

links: $(READY)
	@$(PY) -m tools use links $(VENV)

$(READY): requirements-dev.txt
	@$(PROGRESS) "make $(VENV)" $(PYTHON) -m venv $(VENV)
	@$(PROGRESS) "install requirements-dev.txt" \
		$(PY) -m pip install --quiet --progress-bar=off -r requirements-dev.txt
	@touch $@

$(BASE_READY): base.toml | $(READY)
	@$(PROGRESS) "make $(BASE_VENV)" $(PY) -m venv $(BASE_VENV)
	@$(PY) -m tools use base $(BASE_VENV)
	@touch $@
