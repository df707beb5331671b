# Everything here works on a fresh machine with make and Python 3.11 to 3.13; the first use of a target installs what it needs into
# $(VENV), later uses start at once. Variables: PYTHON (the interpreter for a new $(VENV)), VENV, ARGS (for `make test`, `make demo` and `make bench`),
# JSON (a file for the rows of `make bench`), PROCESSES (how many tests `make test` and `make long` run side by side, by default five more than
# there are processors, since many tests wait; 0: in one process, for a debugger).

VENV ?= .venv
PYTHON ?=
ARGS ?=
JSON ?=
PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 5)

python := $(VENV)/bin/python
pip := $(python) -m pip --disable-pip-version-check --quiet
installed := $(VENV)/installed

# An editable install names the directory it was made in; after a copy or a move it is made again.
ifneq ($(wildcard $(installed)/place),)
ifneq ($(shell cat $(installed)/place),$(CURDIR))
$(shell rm -f $(installed)/project)
endif
endif

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test long versions torch lint format bench growth peers pairs deaths soak pauses chaos fuzz simulate house docs links tutorial pictures photographs release clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-8s %s\n' "$$name" "$$text"; done

demo: $(installed)/project ## index the standard library on a cluster while its nodes are killed; under a minute
	$(VENV)/bin/understudy demo $(ARGS)

test: $(installed)/tests ## run the tests; ARGS="-k words" selects some
	@$(python) -m tests.byte_code
	$(python) -m pytest --numprocesses=$(PROCESSES) --dist=worksteal -m 'not long' $(ARGS)

long: $(installed)/tests ## run the tests that take a minute or more, which `make test` leaves out, and try new random examples
	@$(python) -m tests.byte_code
	$(python) -m pytest --numprocesses=$(PROCESSES) --dist=worksteal --timeout=600 --hypothesis-profile=exploring -m 'long or hypothesis' $(ARGS)

# Those on PATH, and those that pyenv has installed. Each in an environment of its own; VERSIONS names other interpreters, ARGS other tests.
VERSIONS ?= $(wildcard $(foreach minor,11 12 13,$(lastword $(shell command -v python3.$(minor) 2>/dev/null) $(sort $(wildcard $(HOME)/.pyenv/versions/3.$(minor).*/bin/python)))))

versions: $(installed)/tests ## the quick tests on every other Python 3.11 to 3.13 that is here; VERSIONS="python3.13" ARGS="-m 'not long'" for more
	@set -e; ours=$$($(python) -c 'import sys; print(*sys.version_info[:2], sep=".")'); ran=; \
	for each in $(VERSIONS); do \
	  its=$$("$$each" -c 'import sys; print(*sys.version_info[:2], sep=".")') || { echo "$$each does not run, and is left out"; continue; }; \
	  if [ "$$its" = "$$ours" ]; then continue; fi; \
	  echo "+ Python $$its: $$each"; ran="$$ran $$its"; \
	  OTHER_PYTHON=$(abspath $(python)) $(MAKE) --no-print-directory VENV=$(VENV)-$$its PYTHON="$$each" ARGS='$(or $(ARGS),-m "not slow and not long and not cluster")' test; \
	done; \
	for each in 3.11 3.12 3.13; do \
	  case " $$ran $$ours " in *" $$each "*) ;; *) echo "versions: Python $$each is not here, and was not tested" ;; esac; \
	done; \
	echo "versions: tested$${ran:- none} beside $$ours"

# In an environment of its own: without PyTorch everything else is tested as most people have it. PyPI's PyTorch for Linux brings CUDA, of several
# gigabytes; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu has builds without it.
torch: ## train real PyTorch jobs over our rendezvous while their agents are killed, in $(VENV)-torch; 10 minutes
	@$(MAKE) --no-print-directory VENV=$(VENV)-torch $(VENV)-torch/installed/torch
	$(VENV)-torch/bin/python -m pytest -m torch tests/pytorch $(ARGS)

# With the packages of the tests, whose types mypy needs: it checks the tests as well.
lint: $(installed)/lint $(installed)/tests ## ruff, flake8-async, mypy --strict, basedpyright
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m flake8 .
	$(python) -m mypy --strict actors runtime understudy tests
	$(python) -m basedpyright --pythonpath $(python)

format: $(installed)/lint ## rewrite the code as ruff formats it, imports sorted
	$(python) -m ruff check --select I --fix .
	$(python) -m ruff format .

bench: $(installed)/tests ## speed and weight beside the bare floor, 11 minutes; JSON=file writes data too, ARGS="--only echo" selects, "--only pages" (dashboards, 10 minutes more) is not among all
	$(python) -m tests.benchmarks $(if $(JSON),--json $(JSON)) $(ARGS)

growth: $(installed)/tests ## what calls, actors, names, children, references and nodes cost the more there are, 5 minutes; ARGS="--full" goes up to a million, NODES="100 200"
	$(python) -m tests.growth $(ARGS)
	$(python) -m tests.growth.nodes $(NODES)

# Ray, PyTorch and the others are installed in environments of their own below $(VENV)-peers; Erlang is a package of the system.
# PEERS_MEMBERS=4: so many processes for the maps, instead of two.
peers: $(installed)/tests ## this library beside Ray, Dask, xoscar, torch.rpc, gRPC, multiprocessing and Erlang, 15 minutes; ARGS="--only ray"
	$(python) -m tests.peers --environments $(VENV)-peers $(ARGS)

# PyTorch's program, of several gigabytes, runs where `make peers` has installed it, and Erlang's where the system has it.
pairs: $(installed)/tests ## the programs of the page "Coming from", theirs and ours: Ray, Dask, Celery, asyncio, Erlang; 2 minutes
	$(python) -m tests.peers.environments $(VENV)-peers
	PEERS=$(VENV)-peers $(python) -m pytest tests/documentation/test_coming_from.py $(ARGS)

soak: $(installed)/tests ## 200,000 calls through a proxy that spoils their connections; ARGS="CALLS SEED" changes that
	$(python) -m tests.links.proxied_calls $(ARGS)

deaths: $(installed)/tests ## how long until a death is known and an actor answers elsewhere, 10 minutes; ARGS="KILLS PAUSES" changes that
	$(python) -m tests.benchmarks.deaths $(ARGS)

pauses: $(installed)/tests ## 200 nodes stopped for longer than their lease, and an oracle for owners that overlap; ARGS="PAUSES SEED" changes that
	$(python) -m tests.cluster.pausing $(ARGS)

chaos: $(installed)/tests ## nodes, hosts, etcd and the founder killed, stopped and cut off for 25 minutes; ARGS="namespaces --seconds 60" for one
	$(python) -m tests.chaos $(ARGS)

fuzz: $(installed)/tests ## a million mutated frames against the decoder, and a million from proven peers against a node; ARGS="FRAMES SEED"
	$(python) -m tests.wire.fuzz $(ARGS)
	$(python) -m tests.wire.proven $(ARGS)

simulate: $(installed)/project ## whole clusters under the faults of SEEDS seeds (5000), from FIRST (0) on
	$(VENV)/bin/understudy simulate --seed $(or $(FIRST),0) --seeds $(or $(SEEDS),5000)

house: $(installed)/tests ## print the size and form of the code: files, circles, comments, assertions
	$(python) -m tests.house

docs: $(installed)/docs ## build docs/_build/html
	$(python) -m sphinx -W --keep-going -b html docs docs/_build/html

links: $(installed)/docs ## ask each external address that the pages name, over the network
	$(python) docs/external_links.py docs docs/_build/links

tutorial: $(installed)/tests ## follow the tutorial in a fresh virtual environment outside the checkout, 1 minute
	$(python) -m tests.tutorial.fresh

pictures: $(installed)/tests ## photograph the dashboard of a cluster in trouble for the pages Watch and Debug, with Chromium
	$(python) -m tests.documentation.dashboard_pictures

photographs: $(installed)/tests docs ## photograph each page of the site in light and dark, wide and narrow, with Chromium
	$(python) -m tests.documentation.photographs docs/_build/photographs

# From the files of the last commit alone. The second build has another directory, umask, time zone and locale, and comes later: what shows
# in the files would differ. Without isolation, so that the build tools are those that pyproject.toml pins.
release: $(installed)/release ## build dist/*.tar.gz and dist/*.whl of the last commit, twice, compare them and print their hashes
	@set -e; \
	git rev-parse --verify --quiet HEAD >/dev/null || { echo "error: make release builds a commit, and this is no clone of the repository" >&2; exit 1; }; \
	[ -z "$$(git status --porcelain)" ] || echo "note: what is not committed is left out"; \
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct); \
	rm -rf build/release dist; \
	build() { \
	  mkdir -p "build/release/$$1" && git archive HEAD | tar -x -C "build/release/$$1" \
	    && (cd "build/release/$$1" && $(abspath $(python)) -m build --no-isolation --outdir "$(CURDIR)/build/release/$$2" . >"$(CURDIR)/build/release/$$2.log" 2>&1) \
	    || { cat "build/release/$$2.log"; exit 1; }; \
	  (cd "build/release/$$2" && sha256sum *) >"build/release/$$2.sha256"; \
	}; \
	build sources first; \
	(umask 077; export TZ=Pacific/Kiritimati LC_ALL=C; build other/sources second); \
	diff build/release/first.sha256 build/release/second.sha256 \
	  || { echo "error: two builds of one commit differ; look at build/release/first and build/release/second" >&2; exit 1; }; \
	mv build/release/first dist; cp build/release/first.sha256 dist/SHA256SUMS; \
	echo "dist: commit $$(git rev-parse --short HEAD), built twice with equal hashes:"; cat dist/SHA256SUMS

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) $(VENV)-torch $(VENV)-peers $(VENV)-3.* docs/_build docs/failures/errors build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find actors runtime understudy tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: a file under $(installed) is newer than pyproject.toml while what it names is installed.

$(installed)/tests $(installed)/lint $(installed)/docs $(installed)/release: $(installed)/%: $(installed)/project
	$(pip) install --group $*
	@touch $@

$(installed)/project: $(installed)/environment pyproject.toml
	@# The distribution had this name before; both at once would install two commands and plug-ins.
	$(pip) uninstall --quiet --yes understudy
	$(pip) install --editable .
	@printf '%s\n' '$(CURDIR)' > $(installed)/place
	@touch $@

$(installed)/torch: $(installed)/tests
	$(pip) install --group torch
	@touch $@

# A virtual environment that works is kept, whoever made it: two interpreters in one directory would break each other. The last line
# replaces the pip of Python 3.11 and 3.12, which cannot read dependency groups.
supported := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
candidates := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)

$(installed)/environment:
	@if $(python) -c '$(supported)' 2>/dev/null && $(python) -m pip --version >/dev/null 2>&1; then exit; fi; \
	for candidate in $(candidates); do \
	  if "$$candidate" -c '$(supported)' 2>/dev/null; then \
	    "$$candidate" -c 'import ensurepip, venv' 2>/dev/null \
	      || { echo "error: $$candidate cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }; \
	    echo "$$candidate -m venv --clear $(VENV)"; \
	    exec "$$candidate" -m venv --clear $(VENV); \
	  fi; \
	done; \
	echo "error: no Python 3.11 to 3.13 among: $(candidates); name one: make PYTHON=/path/to/python3.12 ..." >&2; exit 1
	$(pip) install --upgrade 'pip>=25.1'
	@mkdir -p $(installed) && touch $@
