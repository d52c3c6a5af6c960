# Everything a developer or CI does, by name. `make` alone prints the list.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
PIP    := $(BIN)/python -m pip --disable-pip-version-check
BUF_VERSION := 1.75.0
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help setup constraints deploy-check services gen gen-check golden stubs node examples buf-check lint format types test sim planted fuzz api-check kill-test cluster-test storm-test long-test interop demo cluster bench ci clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Set-up

setup: $(STAMP) ## Create .venv with everything that is needed; does nothing when it is up to date

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -n 1). Name another one: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@
	@echo "Ready: $(BIN)/reach"

constraints: ## Write constraints.txt anew: the newest versions that pyproject.toml allows
	@$(PYTHON) tools/constraints.py

services: ## Install what the cluster tests need (etcd, PostgreSQL) if this is Debian and root; never fails
	@sh tools/services.sh

##@ Contract

gen: $(STAMP) ## Generate gen/python from protos/
	@$(BIN)/python tools/gen.py

gen-check: $(STAMP) ## Check that gen/python is what `make gen` would write
	@$(BIN)/python tools/gen.py --check

stubs: $(STAMP) ## Generate stubs of the contract for LANG=go, java, node, python, cpp … into build/stubs; ARGS="--out FOLDER"
	@LC_ALL=C.UTF-8 $(BIN)/python tools/stubs.py $(ARGS) $(LANG)

node: $(STAMP) ## Build the Node SDK in sdks/node, where node and npm are; skipped, loudly, where not
	@sh tools/node.sh "$(CURDIR)/$(BIN)/python"

examples: $(STAMP) ## Build the Go and Java examples from the contract and try them with a real server, where go and mvn are
	@OTHER_LANGUAGES=go,java $(BIN)/python -m pytest -q -rs tests/examples/test_other_languages.py

golden: $(STAMP) ## Write tests/golden/contract.txt anew, after a wanted change of the contract
	@$(BIN)/python -m tests.contract_text tests/golden/contract.txt

buf-check: ## Lint the protos with buf (skipped, loudly, where neither buf nor npx is found)
	@BUF_VERSION=$(BUF_VERSION) sh tools/buf.sh lint protos

##@ Checks

lint: $(STAMP) ## Check style, format and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

format: $(STAMP) ## Format the code and repair what ruff can repair
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(STAMP) ## Check the types (mypy, strict)
	@$(BIN)/mypy

test: $(STAMP) ## Run all tests, JOBS=4 files at a time; ARGS="-k retry -x" goes to one pytest
	@$(BIN)/python tools/run_tests.py $(ARGS)

SEEDS ?= 1000

sim: $(STAMP) ## Simulate faults; SEEDS=1000 histories, or SEED=7 for one, again; NODES=3 of several nodes; ARGS="--seconds 60" etc.
	@$(BIN)/python -m reach.testing.sim $(if $(NODES),--nodes $(NODES)) $(if $(SEED),--first $(SEED) --seeds 1,--seeds $(SEEDS)) $(ARGS)

planted: $(STAMP) ## See which history of the simulation finds each of the bugs that are planted on purpose
	@$(BIN)/python -m pytest -q -s tests/sim/test_planted.py

INPUTS ?= 100000

fuzz: $(STAMP) ## Bad input in bulk: INPUTS=100000 messages, all orders of stream frames up to LONGEST=5 (takes an hour)
	@$(BIN)/python -m tests.fuzz bytes --count $(INPUTS) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.fuzz http --count 50000 $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.fuzz live --longest 3
	@$(BIN)/python -m tests.fuzz orders --longest $(or $(LONGEST),5) --open-for 1

api-check: $(STAMP) ## Ask a server all that its OpenAPI document promises; EACH=20 requests of a kind for each path (a minute)
	@$(BIN)/python tools/api_check.py --each $(or $(EACH),20) $(if $(SEED),--seed $(SEED))

kill-test: $(STAMP) ## kill -9 of servers and of agents under 250 tasks a second, KILLS=100 of each
	@RATE=250 KILLS=$(or $(KILLS),100) $(BIN)/python -m pytest -q -s tests/e2e/test_kills.py $(ARGS)

cluster-test: $(STAMP) ## Faults of a cluster of real nodes in full: kill -9 of NODE_KILLS=30 nodes under load, and what else befalls one
	@NODE_KILLS=$(or $(NODE_KILLS),30) ROUNDS=$(or $(ROUNDS),5) LEASE_SECONDS=2 PUBLIC=all CUTS=all RESTARTS=all AGENTS=1000 QUIET_SECONDS=$(or $(QUIET_SECONDS),600) NODE_CLUSTER=1 $(BIN)/python -m pytest -q -s tests/e2e/test_cluster*.py tests/e2e/test_node_gone.py tests/e2e/test_node_sdk.py tests/e2e/test_public_tests.py $(ARGS)

storm-test: $(STAMP) ## All agents fail for 30 s, and twice the work that can be done for 60 s
	@STORM_SECONDS=30 OVERLOAD_SECONDS=60 $(BIN)/python -m pytest -q -s tests/e2e/test_overload.py $(ARGS)

long-test: $(STAMP) ## A computation of 40 s with progress and without, and over HTTP, and EXAMPLES=10 times as many orders of commits
	@COMPUTATION_SECONDS=40 $(BIN)/python -m pytest -q -s tests/e2e/test_reachability.py -k HLT_7 $(ARGS)
	@COMPUTATION_SECONDS=40 $(BIN)/python -m pytest -q -s tests/e2e/test_http_agents.py -k takes_its_time $(ARGS)
	@EXAMPLES=$(or $(EXAMPLES),10) $(BIN)/python -m pytest -q --timeout 3000 tests/contracts/test_journal.py tests/contracts/test_fences.py -k any_sequence

interop: $(STAMP) ## Agent frameworks that serve A2A (FRAMEWORKS=… or all), each in an environment of its own, made if it is not there
	@$(BIN)/python -m tests.interop.frameworks --missing $(FRAMEWORKS)
	@$(BIN)/python -m pytest -q -s tests/interop $(ARGS)

deploy-check: $(STAMP) ## Lint what is in deploy/; a linter that is not here is skipped, loudly
	@$(BIN)/python tools/deploy_check.py

ci: lint types gen-check buf-check deploy-check node test ## Everything CI runs

##@ Use

demo: $(STAMP) ## Run the demo; ARGS="--json FILE ..." goes to `reach demo`
	@$(BIN)/reach demo $(ARGS)

cluster: $(STAMP) services ## Run a cluster on this machine until Ctrl-C; ARGS="--base 9100 --data FOLDER" etc.
	@$(BIN)/python -m reach.testing.cluster $(ARGS)

bench: $(STAMP) ## Measure; ARGS="PRF-1 PRF-2" picks
	@$(BIN)/python -m bench $(ARGS)

clean: ## Remove what was built or cached, .venv too
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
