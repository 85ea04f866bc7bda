# Each target does everything that is missing first: on a fresh Debian 12 or 13 machine with
# python3, make and git, `make up` is all there is to type (as root).
#
#   HUBERNATE_STATE   where everything lies (default /var/lib/hubernate)
#   ARGS              arguments for `hubernate up` and `hubernate demo`
#   PYTEST_ARGS       arguments for pytest
#   WORKERS           how many files of tests run at once (2; 0: one after the other, for a debugger)
#   ROUNDS, SEED      how many rounds of `make chaos` (10), and which (random)

SHELL := /bin/bash
HUBERNATE_STATE ?= /var/lib/hubernate
HUBERNATE_DOWNLOADS ?= $(HUBERNATE_STATE)
ROUNDS ?= 10
WORKERS ?= 2
export HUBERNATE_STATE HUBERNATE_DOWNLOADS
# A terminal's own colours and sizes are kept; an active environment of somebody else's is not.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME

PYTHON ?= python3
BIN := $(HUBERNATE_DOWNLOADS)/venv/bin
BRING := $(PYTHON) -B hub_config/setup/bootstrap.py
# Tests mostly wait. A file stays whole, for what its tests share; the long ones come first.
IN_PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help up down doctor demo sync setup test e2e chaos pictures check format tool

help: ## Show the targets
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

up: ## Start JupyterHub and everything around it on http://127.0.0.1:8000
	@$(BRING) runtime && exec $(BIN)/hubernate up $(ARGS)

down: ## Suspend all sessions and end what `make up` started
	@$(BIN)/hubernate down $(ARGS)

doctor: ## Say what is wrong on this machine, and what to do about it
	@$(BRING) runtime && $(BIN)/hubernate doctor $(ARGS)

demo: ## Play the whole story without a person, in less than two minutes
	@$(BRING) runtime && $(BIN)/hubernate demo $(ARGS)

sync setup: ## Only bring what is missing, with everything that tests need
	@$(BRING) test

test: ## Run all tests (PYTEST_ARGS='tests/snapshot -x' for some)
	@$(BRING) test && $(BIN)/python -m pytest $(IN_PARALLEL) $(PYTEST_ARGS)

e2e: ## Run only the tests through the real Hub, proxy, CRIU and store
	@$(BRING) test && $(BIN)/python -m pytest -m e2e $(IN_PARALLEL) $(PYTEST_ARGS)

bench-%: ## Run one benchmark; the last line is a JSON object
	@$(BRING) test && $(BIN)/python -m tests.bench.$(subst -,_,$*) $(ARGS)

chaos: ## Let random faults strike real sessions; the last line is a JSON object (ROUNDS=n SEED=n)
	@$(BRING) test && $(BIN)/python -m tests.chaos --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

pictures: ## Take the docs' screenshots and GIF anew, through the browser test
	@$(BRING) test && HUBERNATE_SCREENSHOTS=$(CURDIR)/docs/images \
		$(BIN)/python -m pytest -q tests/e2e/test_browser.py -k suspend_resume
	@$(BIN)/python -m tests.e2e.gif docs/images

check: ## Format, lint, types, layers: what has to hold before each commit
	@$(BRING) check
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: ## Bring the source into the one format
	@$(BRING) check
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

tool: ## Run one tool of the environment (RUN='ruff check')
	@$(BRING) check && $(BIN)/$(RUN)
