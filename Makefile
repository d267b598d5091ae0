# Two commands from nothing: `make demo` and `make test`. Both make their own environment in .venv
# and need only Python 3.11 or newer; Spark's Java comes from a wheel where the machine has none.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-all test-apart corpus laws lint docs bench bench-more bench-quick faults golden matrix release-check clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "tidegate needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@# axe-core checks the page in the tests; they skip it, with this reason, where there is no npm
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/axe axe-core@4 2>/dev/null \
	  || echo "no axe-core: npm is missing or has no network"
	@touch $@

# Once for all workers of a test run: each would compile the same kernels at the same time.
$(VENV)/.compiled: $(STAMP) $(shell find src -name '*.py')
	$(BIN)/tidegate warm
	@touch $@

demo: $(STAMP) ## a fleet's recording put in order and in step on Spark, with a table of what came out
	$(BIN)/tidegate demo

test: $(VENV)/.compiled ## the tests to run before every commit (seven minutes on two cores)
	TIDEGATE_EXAMPLES=$${TIDEGATE_EXAMPLES:-0.5} $(BIN)/python -m pytest -n 4 --dist loadgroup --no-loadscope-reorder -m 'not long and not apart' $(ARGS)

test-long: $(VENV)/.compiled ## the longer ones: whole commands, killed drivers, a real Kafka
	$(BIN)/python -m pytest -n 4 --dist loadgroup --no-loadscope-reorder -m long $(ARGS)

test-all: test test-long ## both

test-apart: $(VENV)/.compiled ## what needs a machine to itself: a cluster, Spark Connect, the wheel alone, 100,000 keys, kills
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m apart $(ARGS)

corpus: $(VENV)/.compiled ## every file of the corpus from inspect and init through a run on Spark to its page
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m 'long or apart or not long' tests/profile/test_corpus.py tests/spark/test_corpus_runs.py $(ARGS)

laws: $(VENV)/.compiled ## the property tests with ten times as many examples as in make test
	TIDEGATE_EXAMPLES=5 $(BIN)/python -m pytest -n 4 --dist loadgroup --no-loadscope-reorder -m laws $(ARGS)

lint: $(STAMP) ## ruff, mypy and the layers of imports, as CI runs them
	$(BIN)/ruff check src tests benchmarks examples docs/_site docs/scenarios tools
	$(BIN)/ruff format --check src tests benchmarks examples docs/_site docs/scenarios tools
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## the site, in build/site, with pictures drawn from what the operators do now
	$(BIN)/python docs/scenarios --to docs/pictures --rules docs/explain
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(STAMP) ## measure beside peers and limits (an hour; ARGS=--resume goes on, ARGS=keys-100 is one piece)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	PYTHONPATH=benchmarks $(BIN)/python -m suite $(ARGS)
	$(if $(filter-out --resume,$(ARGS)),,$(MAKE) bench-more)

bench-more: $(STAMP) ## growth, latency, state and profile of the Spark path, and every operator alone
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/growth.py
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/spark_profile.py
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/spark_state.py
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/spark_latency.py
	$(BIN)/python benchmarks/eventtime.py
	$(BIN)/python benchmarks/sync.py
	$(BIN)/python benchmarks/batching.py
	$(BIN)/python benchmarks/windows.py
	$(BIN)/python benchmarks/deltas.py
	$(BIN)/python benchmarks/spark_step.py
	$(BIN)/python benchmarks/mcap_reader.py
	$(BIN)/python benchmarks/columnar.py
	$(BIN)/python benchmarks/mcap_sets.py
	$(BIN)/python benchmarks/align.py
	$(BIN)/python benchmarks/dataset.py

bench-quick: $(STAMP) ## has our share of a limit fallen by a fifth? (under three minutes)
	PYTHONPATH=benchmarks $(BIN)/python -m suite --quick

faults: $(STAMP) ## kill runs, break sources and disks, soak, fuzz (two hours or more; ARGS="--kills 5" FUZZ="--seconds 9")
	PYTHONPATH=tests $(BIN)/python -m faults $(ARGS)
	TIDEGATE_FUZZ=20 $(BIN)/python -m pytest tests/hostile
	PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ)

golden: $(STAMP) ## record the snapshots that every later version must read (tests/golden)
	PYTHONPATH=tests $(BIN)/python -m golden

matrix: $(STAMP) ## the tests on Spark 4.1 to 4.3 and Python 3.11 to 3.13, each in its own environment (ARGS=spark-4.1)
	$(BIN)/python tools/matrix.py $(ARGS)

release-check: $(STAMP) ## build wheel and sdist, install the wheel into an empty environment, run the demo there
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	rm -rf build/release && $(BIN)/python -m build --outdir build/release .
	$(PYTHON) -m venv build/release/venv
	build/release/venv/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls build/release/*.whl)[spark]"
	build/release/venv/bin/python tools/bill_of_materials.py build/release
	cd build/release && venv/bin/tidegate demo

clean: ## remove what the other commands made
	rm -rf $(VENV) build demo-out .mypy_cache .ruff_cache .hypothesis
