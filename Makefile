# The commands of the README. Each installs what it needs. Requirements are python3, git and, for the sandbox, root on a
# Debian or Ubuntu machine.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The Python of the virtual environment: make setup PYTHON=python3.13. A shell that sources .venv/bin/activate can run the
# verbs from any folder.
PYTHON := python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
SANDBOX := -i inventories/sandbox
FACTORY := -i inventories/factory
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Molecule's default state folder is in the home directory and depends only on the name of this folder: two clones with
# the same name would share their state.
export MOLECULE_EPHEMERAL_DIRECTORY := $(CURDIR)/.cache/molecule

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# A site without internet: make setup BUNDLE=DIR [SIGNERS=FILE] verifies the bundle and installs its wheels. UNSIGNED=yes
# accepts a bundle without a signature.
SIGNERS := inventories/site/allowed_signers
ifdef BUNDLE
export PIP_NO_INDEX := 1
export PIP_FIND_LINKS := $(BUNDLE)/wheels
endif

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { printf '%s\n' "$(PYTHON) is \
	$$($(PYTHON) --version 2>&1) — expected: Python 3.11 or newer. Fix: make setup PYTHON=python3.13, after installing it. \
	See docs/operations/controllers.md" | tr -s '\t ' ' '; exit 1; }
	$(if $(BUNDLE),PYTHONPATH=src PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m vllm_spark.transfer.bundle_check \
	'$(BUNDLE)' --signers '$(SIGNERS)' $(if $(UNSIGNED),--unsigned))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --requirement requirements.lock
	# The build uses the setuptools of requirements.lock, so that nothing is installed without a hash.
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@grep -q ANSIBLE_CONFIG $(BIN)/activate || printf 'export ANSIBLE_CONFIG=%q\n' '$(CURDIR)/ansible.cfg' >>$(BIN)/activate
	touch $@

.PHONY: setup
setup: $(READY) ## Create .venv from requirements.lock, for use

$(READY_DEV): requirements-dev.lock $(READY)
	$(BIN)/pip install --quiet --require-hashes --requirement requirements-dev.lock
	touch $@

.PHONY: setup-dev
setup-dev: $(READY_DEV) ## Add what the sandbox and the tests need, from requirements-dev.lock

.PHONY: sandbox-up
sandbox-up: setup-dev ## Start two stand-ins for Sparks with the real engine on a CPU; SPARKS=4 starts four
	rm -f .sandbox/serves
	# The sandbox has no lines of its own, so its tasks show the progress.
	ANSIBLE_STDOUT_CALLBACK=ansible.builtin.default ansible-playbook $(SANDBOX) sandbox/up.yml

.PHONY: sandbox-down
sandbox-down: setup-dev ## Remove the sandbox; images and caches are kept
	ansible-playbook $(SANDBOX) sandbox/down.yml

.PHONY: deploy
deploy: sandbox-up ## Start the sandbox, deploy on one Spark, then on a pair
	ansible-playbook $(SANDBOX) deploy.yml -l spark1
	# If it fails, it puts tiny back, and the file that later runs read says so by its absence.
	ansible-playbook $(SANDBOX) deploy.yml -l spark1,spark2 -e sandbox_serves=pair-ray
	echo pair-ray >.sandbox/serves
	@echo "      (in this shell first: source .venv/bin/activate)"

.PHONY: test
test: setup-dev ## Run everything that CI runs
	# The sandbox starts in parallel with the other checks, because it mostly waits for network and disk.
	$(MAKE) --jobs=2 --output-sync=target sandbox-up lint unit slow integration engine router browser edge metrics look-alike
	$(MAKE) containers
	$(MAKE) molecule

.PHONY: lint
lint: setup-dev ## Run ansible-lint, yamllint, ruff, mypy, import-linter, shellcheck, the budget and the build of the collection
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	python -m lab.budget
	ansible-galaxy collection build --force --output-path .cache . >/dev/null
	yamllint --strict .
	git ls-files -co --exclude-standard | grep -v '\.j2$$' | xargs grep -lsE '^#!/bin/(ba)?sh' | xargs shellcheck
	ANSIBLE_INVENTORY=inventories/sandbox ansible-lint --offline

.PHONY: unit
unit: setup-dev ## Run the tests of pure logic, and those of the laboratory; one minute
	python -m lab.budget unit pytest --numprocesses auto -m 'not slow' tests/unit tests/lab

.PHONY: quick types touched
quick: setup-dev ## Run ruff, mypy and the unit tests of the packages that the change touches; seconds
	ruff check .
	ruff format --check .
	$(MAKE) --jobs=2 --output-sync=target types touched
types: setup-dev
	mypy
touched: setup-dev
	tests=$$(python tests/touched.py) && { test -z "$$tests" || pytest --quiet -m 'not slow' $$tests; }

.PHONY: slow
slow: setup-dev ## Run the tests that `unit` leaves out: soaks, memory, hundreds of inputs; half a minute
	python -m lab.budget slow pytest --numprocesses auto -m slow tests/unit tests/lab

.PHONY: fuzz
fuzz: setup-dev ## Read up to 25,000 damaged recipes, inventories, lock files, records, replies and checkpoints; ten minutes
	PYTHONPATH=tests:collections:sandbox/engine python -m fuzz

.PHONY: integration
integration: setup-dev ## Run the tests with sockets, processes and playbooks; two minutes
	pytest --numprocesses auto tests/integration

# A shell without bytecode, such as CI's, would compile every module in every process.
unit slow quick integration: export PYTHONDONTWRITEBYTECODE :=
unit slow quick integration: export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/bytecode

# The sandbox brings the Docker engine.
.PHONY: containers
containers: sandbox-up ## Hand the launches of all recipes to docker create; seconds
	pytest tests/containers

.PHONY: look-alike
look-alike: sandbox-up ## Run the unit and integration tests in a Spark's image, by its Python 3.13; four minutes
	python tests/look_alike.py --numprocesses auto tests/unit tests/integration

.PHONY: engine
engine: setup-dev ## Check every recipe with the parser of its vLLM version; first minutes, then seconds
	pytest tests/engine

.PHONY: engine-flags
engine-flags: setup-dev ## Write recipes/engines from the parsers of the vLLM versions in tests/engine/engines.yml
	python tests/engine/engine_data.py

.PHONY: router
router: setup-dev ## Test the failover gate with LiteLLM and nginx; first minutes, then one minute
	pytest tests/router

.PHONY: browser
browser: site ## Look at the site and at reports of a bench in headless Chromium, at three widths; two minutes
	tests/browser/install
	pytest tests/browser

.PHONY: edge
edge: setup-dev ## Test the edge by a real HAProxy, scripted engines and the clients of owners; three minutes
	tests/edge/install
	pytest tests/edge

.PHONY: metrics
metrics: setup-dev ## Record figures by the distribution's Prometheus and judge each alert, the page and the dashboard; four minutes
	tests/metrics/install
	pytest tests/metrics

# Molecule relies on its state of an earlier run and would not start the sandbox, so the state is reset first. The
# failures are printed last, because they are thousands of lines above the recap. The log is outside of Molecule's state,
# which the end of the run removes.
define scenarios
	molecule reset
	mkdir -p $(dir $(SAID)) && rm -f $(SAID)
	molecule test $(1) || { rc=$$?; grep -aE -A 12 'fatal: |failed: |\[ERROR\]' $(SAID) | tail -n 24 | cut -c -2000; exit $$rc; }
endef
SAID := .cache/molecule.log

# These take two hours, too long for `make test`: pairs start about twenty times, images are built and copied.
# Those of more than two Sparks start a larger sandbox.
MORE := three four
LONG := bench bundle day edge fabric factory faults images metrics notify offline operators own pairs recipe recovery refusals remove rollback several upgrade

.PHONY: molecule
molecule: setup-dev ## Run a scenario of one Spark, of a pair and of the switch; a quarter of an hour
	$(call scenarios,--all $(addprefix --exclude=,$(LONG) $(MORE)))

.PHONY: molecule-long
molecule-long: setup-dev ## Run the long scenarios; two hours
	$(call scenarios,$(addprefix --scenario-name=,$(LONG)))
	$(MAKE) molecule-more

.PHONY: molecule-more
molecule-more $(addprefix molecule-,$(MORE)): export SPARKS := 4
molecule-more: setup-dev ## Run the scenarios of three and four Sparks; they take more memory
	$(call scenarios,$(addprefix --scenario-name=,$(MORE)))

.PHONY: molecule-%
molecule-%: setup-dev
	$(call scenarios,--scenario-name $*)

# They measure the engine itself.
bench-switch bench-others: export SANDBOX_OPEN := true

.PHONY: bench-converge
bench-converge: sandbox-up ## Measure a deploy that changes nothing, for 1, 2 and with SPARKS=4 for 4 Sparks
	python tests/bench/converge.py

.PHONY: bench-plan
bench-plan: setup-dev ## Measure plan.yml for 1 to 64 hosts: CPU time, modules and lines
	python tests/bench/plan.py

.PHONY: bench-switch
bench-switch: sandbox-up ## Measure the downtime of a switch, by phase
	ansible-playbook $(SANDBOX) deploy.yml -l spark1 >/dev/null
	python tests/bench/switch.py

.PHONY: bench-copy
bench-copy: sandbox-up ## Measure the copy rate between Sparks, compared with rsync, rclone and the floor
	python tests/bench/copying.py

.PHONY: bench-client
bench-client: setup-dev ## Measure the error of the bench client against scripted streams, and its CPU time
	python tests/bench/client.py

.PHONY: bench-servers
bench-servers: setup-dev ## Judge the bench by scripted servers of every kind: scripted, reported, error or fault
	python tests/bench/servers.py

.PHONY: bench-verdict
bench-verdict: setup-dev ## Measure the power of a verdict: false alarms, and how slow a server must be to be seen
	python tests/bench/verdict.py

.PHONY: bench-others
bench-others: sandbox-up ## Measure the decode of a real engine by the bench and by other tools, in one run
	python tests/bench/others.py

.PHONY: bench-others-scripted
bench-others-scripted: setup-dev ## Judge the bench and other tools by scripted servers, in one run: the error of each figure
	python tests/bench/others_scripted.py

.PHONY: bench-edge
bench-edge: setup-dev ## Measure what the edge adds to a stream: time to the first event, events per second
	tests/edge/install
	python tests/bench/edge.py

# FAIR: arguments of the program, such as those of a real engine. `python tests/bench/fair.py -h` has them.
.PHONY: bench-fair
bench-fair: setup-dev ## Measure what a batch job does to the first token of an interactive client, with and without classes
	tests/edge/install
	python tests/bench/fair.py $(FAIR)

.PHONY: bench-doctor
bench-doctor: setup-dev ## Judge the doctor by real logs, and measure its speed and memory use
	python tests/bench/doctor_logs.py
	python tests/bench/doctor.py

.PHONY: release
release: setup-dev ## Move changelogs/fragments into CHANGELOG.md under VERSION, and set it; make release VERSION=1.2.3
	python -m lab.pages.changelog '$(VERSION)'

.PHONY: dist
dist: setup-dev ## Build wheel, sdist and collection of a commit twice, with checksums; make dist KEY=FILE signs, REF=TAG
	python -m lab.dist $(if $(REF),--ref '$(REF)') $(if $(KEY),--key '$(KEY)')

.PHONY: docs
docs: setup-dev ## Write the pages of docs/reference and of roles, the root's playbooks, the schema's gates and README's table
	python -m lab

# Its packages are not in .venv, so that `make setup-dev` does not grow by them.
SITE := .cache/site

$(SITE)/.ready: lab/site/requirements.lock $(READY_DEV)
	uv pip install --quiet --require-hashes --target $(SITE)/packages --requirement lab/site/requirements.lock
	touch $@

.PHONY: site
site: $(SITE)/.ready ## Build the site of docs/ in build/site, with a search that works from disk; half a minute
	PYTHONPATH=$(SITE)/packages python -m sphinx --quiet --fail-on-warning --jobs auto --conf-dir lab/site \
	  --doctree-dir $(SITE)/doctrees docs build/site
	@echo "file://$(CURDIR)/build/site/index.html"

# The first lock has a wheel of every package for every platform of pyproject.toml. The second one has its versions.
COMPILE := uv pip compile --quiet --generate-hashes --python-version 3.11 --universal --group build pyproject.toml

.PHONY: lock
lock: setup-dev ## Update requirements.lock, requirements-dev.lock and lab/site/requirements.lock from pyproject.toml
	$(COMPILE) --only-binary :all: --output-file requirements.lock
	$(COMPILE) --extra dev --constraint requirements.lock --output-file requirements-dev.lock
	uv pip compile --quiet --generate-hashes --python-version 3.11 --universal --group site \
	  --constraint requirements-dev.lock --output-file lab/site/requirements.lock

.PHONY: clean
clean: ## Remove the sandbox, the virtual environment and every cache
	if [ -e $(READY_DEV) ]; then \
	  for flavour in "$(FACTORY)" "$(SANDBOX)"; do ansible-playbook $$flavour sandbox/down.yml -e sandbox_purge=true; done; fi
	rm -rf $(VENV) .sandbox .sandbox-factory .cache build dist reports .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
