# The verbs of this project.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
KUBE ?= 1.36.3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS := build/docs-env
NATIVE := build/native/libnvidia-ml.so.1
C_SOURCES := $(wildcard src/*.h) $(shell find src/simulator src/isolation src/selftest src/limit_hook -type f 2>/dev/null)

HISTORIES ?= 10000
FUZZ ?= 100000
SEED ?= 0

.PHONY: help demo test check fuzz histories lint house docs golden fmt native sanitize proto image release e2e conformance cluster bench gpu gpu-bundle gpu-cluster gpu-page gpu-rehearsal lock clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

demo: $(STAMP) $(NATIVE) ## Three nodes of simulated GPUs, from allocatable to what a pod receives
	@$(BIN)/python -m tools.demo

test: $(STAMP) $(NATIVE) ## After an edit: units, properties, contracts, one test of each fault class
	@echo "==> tests"
	@PYTHON=$(BIN)/python tests/run.sh

check: $(STAMP) $(NATIVE) ## Every test but those of make lint; downloads and builds other projects' clients of the GPU once
	@echo "==> all tests; those of other projects' programs download and build these once, into a cache"
	@PYTHON=$(BIN)/python tests/run.sh all

fuzz: $(STAMP) $(NATIVE) ## Every parser of foreign input with random input: FUZZ=100000 a parser
	@echo "==> fuzz"
	@GPU_DEVICE_PLUGIN_FUZZ=$(FUZZ) $(BIN)/python -m pytest -q tests/fuzz

histories: $(STAMP) $(NATIVE) ## Random histories of a node in virtual time: HISTORIES=10000 SEED=0
	@echo "==> histories"
	@$(BIN)/python -m tests.histories --count $(HISTORIES) --seed $(SEED)

lint: $(STAMP) $(NATIVE) ## Formatting, lint, types, layers; docs and prose agree with the program
	@echo "==> ruff";        $(BIN)/ruff format --check src tests tools .ci && $(BIN)/ruff check src tests tools .ci
	@echo "==> mypy";        $(BIN)/mypy
	@echo "==> import-linter"; $(BIN)/lint-imports
	@echo "==> docs and prose"; $(BIN)/python -m pytest -q tests/test_docs.py tests/test_prose.py
	@echo "==> includes of src/isolation"; $(BIN)/python src/check_includes.py
	@echo "==> symbols of the C parts"; $(BIN)/python src/check_symbols.py
	@echo "==> clang-format"; if command -v clang-format >/dev/null; \
	  then find src -name '*.[ch]' -print0 | xargs -0 clang-format --dry-run -Werror; \
	  else echo "left out: clang-format is not installed (apt install clang-format)"; fi
	@echo "==> clang-tidy"; if command -v clang-tidy >/dev/null && command -v cc >/dev/null; \
	  then find src -name '*.c' -print0 | xargs -0 -n 8 -P 2 clang-tidy -p build/cmake --quiet 2>/dev/null; \
	  else echo "left out: no clang-tidy, or no C compiler (apt install clang-tidy gcc)"; fi

docs: $(DOCS)/.installed ## The docs as a site, of this tree and of each tag v*, into build/site/index.html
	@rm -rf build/site build/docs-of
	@export DOCS_VERSIONS="$$(git tag --list 'v*' --sort=-version:refname | xargs)"; \
	  export DOCS_COMMIT="$$(git log -1 --format='%cs, %h')"; \
	  $(DOCS)/bin/sphinx-build -q -W --keep-going -c docs/site . build/site; \
	  for version in $$DOCS_VERSIONS; do \
	    mkdir -p build/docs-of/$$version; git archive $$version | tar -x -C build/docs-of/$$version; \
	    DOCS_VERSION=$$version DOCS_COMMIT=$$(git log -1 --format=%cs $$version) \
	      $(DOCS)/bin/sphinx-build -q build/docs-of/$$version build/site/$$version -c build/docs-of/$$version/docs/site; \
	  done
	@echo "build/site/index.html"

$(DOCS)/.installed: .ci/docs.txt $(STAMP)
	@rm -rf $(DOCS) && $(BIN)/python -m venv --without-pip $(DOCS)
	@$(BIN)/python -m pip --python $(DOCS)/bin/python install --quiet --require-hashes -r .ci/docs.txt
	@touch $@

house: $(STAMP) ## How large the parts are, and how that changed since the last tag, or SINCE=COMMIT
	@$(BIN)/python -m tools.house $(SINCE)

# Not daemonset/, which needs helm: python -m tests.chart.rendering
WRITERS := tools.chart_values tools.contract_page tools.metadata_page tools.nvidia_schema tools.settings_page tools.words_file tools.dashboards.agent tools.dashboards.controller tests.chart.readme

golden: $(STAMP) ## Write again what tests compare with: tests/golden, generated pages, dashboards
	@mkdir -p build && touch build/golden-before
	@UPDATE_GOLDEN=1 $(BIN)/python -m pytest -q $$(grep -l golden_file -r tests --include='test_*.py')
	@find tests/golden -mindepth 2 -type f ! -newer build/golden-before -print -delete
	@for each in $(WRITERS); do $(BIN)/python -m $$each; done

fmt: $(STAMP) ## Format the Python code
	@$(BIN)/ruff format src tests tools .ci && $(BIN)/ruff check --fix src tests tools .ci

native: $(NATIVE) ## The C libraries, into build/native/

$(NATIVE): $(STAMP) $(C_SOURCES) src/CMakeLists.txt
	@echo "==> building the C libraries into build/native"
	@PYTHON=$(BIN)/python src/native.sh

sanitize: $(STAMP) $(NATIVE) ## The isolation tests with address, undefined and thread sanitizers
	@PYTHON=$(BIN)/python tests/isolation/sanitize.sh

image: $(STAMP) ## The agent's image for amd64 and arm64 and its SBOM, into build/image/
	@echo "==> the image"
	@.ci/image.sh

release: $(STAMP) ## Images, chart, kubectl plugins, SBOMs and checksums, into build/release/
	@.ci/release.sh

e2e: $(STAMP) $(NATIVE) ## A whole Kubernetes on this machine; KUBE=1.34.4 for the oldest supported
	@echo "==> e2e against Kubernetes $(KUBE)"
	@KUBE=$(KUBE) tests/e2e/install.sh
	@.ci/image.sh
	@KUBE=$(KUBE) tests/e2e/run.sh

conformance: $(STAMP) $(NATIVE) ## Parts of e2e on every combination of docs/conformance.md, or ROWS="8 9" of it; as root
	@$(BIN)/python -m tools.conformance $(ROWS)

cluster: $(STAMP) $(NATIVE) ## A Kubernetes without GPUs on this machine, and a shell in it; as root
	@KUBE=$(KUBE) tests/e2e/install.sh
	@KUBE=$(KUBE) tests/e2e/run.sh -- $(BIN)/python -m tests.e2e.playground

bench: $(STAMP) $(NATIVE) ## Measure, and write docs/benchmarks.md
	@$(BIN)/python -m tools.bench

gpu: $(STAMP) $(NATIVE) ## What needs a real card; says so where there is none
	@$(BIN)/python -m tools.gpu

gpu-bundle: $(STAMP) $(NATIVE) ## What `make gpu-cluster` needs without network, into build/gpu-bundle
	@KUBE=$(KUBE) tests/e2e/install.sh
	@.ci/image.sh amd64
	@echo "==> the bundle"
	@KUBE=$(KUBE) $(BIN)/python -m tools.gpu_cluster.bundle

# Nothing of this checkout but the bundle; SIMULATED=580.65.06, the version of a driver, for a simulated card.
gpu-cluster: ## From the bundle, a Kubernetes on this machine with slices of its card; as root
	@build/gpu-bundle/start --results build/gpu-cluster $(if $(SIMULATED),--simulated $(SIMULATED))

gpu-page: $(STAMP) ## What gpu-cluster measured into docs/benchmarks.md; FROM=folder of its results
	@$(BIN)/python -m tools.gpu_cluster.page $(or $(FROM),build/gpu-cluster)

gpu-rehearsal: $(STAMP) ## make gpu-cluster on a simulated card, from the bundle alone in an empty Debian; as root
	@tools/gpu_cluster/rehearse.sh

COMPILE := $(BIN)/uv pip compile --quiet --system-certs --generate-hashes --no-emit-index-url --no-header --universal

lock: $(STAMP) ## Write .ci/constraints.txt and the lists of test clients again
	@$(COMPILE) --all-extras --group build --group dev --python-version 3.11 pyproject.toml -o .ci/constraints.txt
	@$(COMPILE) --group docs --python-version 3.11 -o .ci/docs.txt
	@$(COMPILE) --group clients --python-version 3.11 -o .ci/clients.txt
	@$(COMPILE) --group clients-built -c .ci/clients.txt --python-version 3.11 -o .ci/clients-built.txt

$(STAMP): pyproject.toml .ci/constraints.txt proto/*.proto .ci/venv.sh
	@PYTHON=$(PYTHON) .ci/venv.sh
	@touch $(STAMP)

clean: ## Remove what was built
	@rm -rf build $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
