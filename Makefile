# The commands of the README. Each sets up what it needs; none asks for a thing installed by hand but python3,
# git and, for the sandbox, root on a Debian or Ubuntu machine.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SANDBOX := -i inventories/sandbox
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Molecule's own place is under the home directory, by the name of this folder alone: two clones called the same
# would share what it believes is up.
export MOLECULE_EPHEMERAL_DIRECTORY := $(CURDIR)/.cache/molecule

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(READY): requirements.lock pyproject.toml
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --editable .
	touch $@

.PHONY: setup
setup: $(READY) ## Make .venv from the lock

.PHONY: sandbox-up
sandbox-up: setup ## Bring up two Spark look-alikes with the real engine on CPU
	ansible-playbook $(SANDBOX) sandbox/up.yml

.PHONY: sandbox-down
sandbox-down: setup ## Take the sandbox down; images and caches stay
	ansible-playbook $(SANDBOX) sandbox/down.yml

.PHONY: deploy
deploy: sandbox-up ## Everything once: sandbox, one Spark, then two as one, gates, an answer of each
	ansible-playbook $(SANDBOX) deploy.yml -l spark1
	ansible-playbook $(SANDBOX) deploy.yml -l spark1,spark2 -e sandbox_serves=pair-ray
	@vllm-spark report
	@echo "      (in this shell first: source .venv/bin/activate)"

.PHONY: test
test: setup ## Everything that CI runs
	# The sandbox comes up while the rest is judged: it waits for a network and a disk more than for a core.
	$(MAKE) --jobs=2 --output-sync=target sandbox-up lint unit engine router
	$(MAKE) molecule

.PHONY: lint
lint: setup ## ansible-lint, yamllint, ruff, mypy, shellcheck
	ruff check .
	ruff format --check .
	mypy
	yamllint --strict .
	git ls-files -co --exclude-standard | grep -v '\.j2$$' | xargs grep -lsE '^#!/bin/(ba)?sh' | xargs shellcheck
	ANSIBLE_INVENTORY=inventories/sandbox ansible-lint --offline

.PHONY: unit
unit: setup ## Pure logic, seconds
	pytest

.PHONY: engine
engine: setup ## Every recipe against the parser of the vLLM that it pins; minutes at first, then seconds
	pytest tests/engine

.PHONY: router
router: setup ## The gate against real routers, LiteLLM and nginx; minutes at first, then one
	pytest tests/router

# Molecule trusts its notes of an earlier run more than the sandbox, and would not bring it up. What failed is said
# last, since it lies thousands of lines above the recap; the log is not among those notes, which end with the run.
define scenarios
	molecule reset
	mkdir -p $(dir $(SAID)) && rm -f $(SAID)
	molecule test $(1) || { rc=$$?; grep -aE -A 12 'fatal: |failed: |\[ERROR\]' $(SAID) | tail -n 24 | cut -c -2000; exit $$rc; }
endef
SAID := .cache/molecule.log

# An hour and a half, which `make test` has no time for: pairs that start some twenty times, images built and carried.
LONG := bundle fabric faults images operators pairs recovery refusals remove rollback

.PHONY: molecule
molecule: setup ## Scenarios on the sandbox, but for the long ones; half an hour
	$(call scenarios,--all $(addprefix --exclude=,$(LONG)))

.PHONY: molecule-long
molecule-long: setup ## The long ones
	$(call scenarios,$(addprefix --scenario-name=,$(LONG)))

.PHONY: molecule-%
molecule-%: setup
	$(call scenarios,--scenario-name $*)

.PHONY: bench-converge
bench-converge: sandbox-up ## What a deploy that changes nothing costs, against one ssh
	ansible-playbook $(SANDBOX) deploy.yml -l spark1 >/dev/null
	python tests/bench/converge.py

.PHONY: bench-switch
bench-switch: sandbox-up ## How long nothing answers while a model takes another's place, by phase
	ansible-playbook $(SANDBOX) deploy.yml -l spark1 >/dev/null
	python tests/bench/switch.py

.PHONY: bench-copy
bench-copy: sandbox-up ## Bytes per second from Spark to Spark, against one rsync stream and the floor
	python tests/bench/copying.py

.PHONY: bench-doctor
bench-doctor: setup ## How fast the doctor reads, and how much memory it takes
	python tests/bench/doctor.py

.PHONY: lock
lock: setup ## Resolve pyproject.toml to requirements.lock again
	uv pip compile --quiet --python-version 3.11 --universal --extra dev pyproject.toml --output-file requirements.lock

.PHONY: clean
clean: ## Remove the sandbox, the virtual environment and every cache
	if [ -e $(READY) ]; then ansible-playbook $(SANDBOX) sandbox/down.yml -e sandbox_purge=true; fi
	rm -rf $(VENV) .sandbox .cache reports .mypy_cache .ruff_cache .pytest_cache
