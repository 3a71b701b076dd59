# Every target first brings .venv up to date (scripts/setup; it takes no time when nothing changed).
.PHONY: install fmt lint types imports check docs test test-fast chaos cov debug bench bench-report bench-spark bench-delays profile demo pipeline run clean

BIN := .venv/bin

install:
	@scripts/setup

fmt: install
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

lint types imports: install
	scripts/check $@

check: install
	scripts/check

# Regenerates docs/reference from the code; a test fails while it is stale
docs: install
	$(BIN)/python scripts/reference

# On all cores; plain pytest runs on one
SPREAD := -n auto --maxprocesses 4 --dist loadfile
test: install
	$(BIN)/pytest $(SPREAD) $(ARGS)

test-fast: install
	$(BIN)/pytest -m "not slow and not spark" $(ARGS)

# What takes longer than a test may: thousands of simulated scripts, the proof of the log over many seeds, sectors that
# cannot be read at a start, every way of restoring a backup, 20,000 flipped bytes, real kills and bad input
SEEDS ?= 5
SCRIPTS ?= 5000
MIXED ?= 2000
chaos: install
	$(BIN)/pytest -n auto --maxprocesses 4 tests/scenarios/test_generated_scripts.py --chaos-seeds $(SCRIPTS) $(ARGS)
	$(BIN)/pytest -n auto --maxprocesses 4 tests/scenarios/test_mixed_scripts.py --chaos-seeds $(MIXED) $(ARGS)
	$(BIN)/pytest tests/scenarios/test_every_prefix.py tests/scenarios/test_broken_builds.py tests/scenarios/test_retry_crashes.py \
	  tests/scenarios/test_unreadable_log.py tests/scenarios/test_restores.py --chaos-seeds $(SEEDS) $(ARGS)
	$(BIN)/pytest tests/broker/store/test_bit_flips.py --chaos-seeds 20 $(ARGS)
	$(BIN)/python tests/chaos/kills.py --cycles 25
	$(BIN)/python tests/chaos/processes.py --seconds 600
	$(BIN)/python tests/chaos/retries.py --seconds 120
	$(BIN)/python tests/chaos/restarts.py --stops 20 --kills 20
	$(BIN)/python tests/chaos/input.py --minutes 2

cov: install
	$(BIN)/coverage run $(BIN)/pytest $(ARGS) && $(BIN)/coverage report

# asyncio's own checks: slow callbacks, calls from the wrong thread, coroutines that were never awaited
debug: install
	PYTHONASYNCIODEBUG=1 $(BIN)/python -X dev $(BIN)/pytest -m "not slow and not spark" $(ARGS)

# All benchmarks, next to other brokers that are installed, in less than 20 minutes; ARGS="produce --size 1024" for one of them
bench: install
	$(BIN)/python tools/bench/with_peers.py $(or $(ARGS),all)

# The measured part of docs/benchmarks.md and its plots, from docs/benchmarks.json; RUN=1 measures first
bench-report: install
	$(if $(RUN),$(BIN)/python tools/bench/with_peers.py all --json > docs/benchmarks.json.new && mv docs/benchmarks.json.new docs/benchmarks.json)
	$(BIN)/python tools/bench/report.py

# Spark's scan of a topic against Parquet and tuples; ARGS=--quick for a tenth of it (docs/benchmarks.md)
bench-spark: install
	$(BIN)/python tools/bench/spark_scan.py $(ARGS)

# What a million delayed messages cost while they wait; ARGS=--quick to see that it works
bench-delays: install
	$(BIN)/python tools/bench/delays.py $(ARGS)

# A flame graph of broker and clients under a load, with py-spy: .cache/profile.svg; ARGS="consume --rounds 1" for another load
profile: install
	test -x .cache/py-spy/bin/py-spy || $(BIN)/python -m pip install --quiet --target .cache/py-spy py-spy
	.cache/py-spy/bin/py-spy record --subprocesses --rate 500 --output .cache/profile.svg -- $(BIN)/rmq-bench $(or $(ARGS),produce --rounds 1)

demo: install
	$(BIN)/python examples/demo.py

# Orders through a broker, ordered consumers and Spark, to Parquet and a report: ARGS="--dir out --orders 20000"
pipeline: install
	$(BIN)/python examples/pipeline $(ARGS)

run: install
	$(BIN)/rmq-broker start $(ARGS)

clean:
	rm -rf .venv .cache .typing build dist spark/plugin/rmq.egg-info .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
