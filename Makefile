# The developer interface: `make help` lists it. Everything is installed into .venv, from locked and hashed requirements.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.run native ## build 28,000 airports into 4 shards, serve them on http://127.0.0.1:8080; Ctrl-C stops it
	$(BIN)/lookupdb up -f examples/airports.yaml

test: $(VENV)/.test native oras ## what needs no cluster, in five minutes on two cores
	$(BIN)/pytest -n 8 --dist worksteal -m "not long" # two processors are enough: many tests wait for something

test-long: $(VENV)/.test native ## the rest of it, in four minutes more: whole lives, faults at every step, many processes
	$(BIN)/pytest -n 6 --dist worksteal -m long

oras: ## build oras, which pushes images, into .tools, where Go is
	@server/oras/install

native: ## build the native kernels, where cargo is; LOOKUPDB_NATIVE=0 does without
	@$(PYTHON) server/native/native_build.py

check: $(VENV)/.test ## lint, types, layers, words, sizes, the native kernels, the chart
	$(BIN)/ruff format --check --diff .
	$(BIN)/ruff check .
	$(BIN)/mypy
	cd operator && ../$(BIN)/lint-imports --config ../pyproject.toml --no-cache
	$(BIN)/pytest -q server/tests/test_words.py server/tests/test_native_sources.py
	$(BIN)/python server/native/native_check.py
	$(BIN)/python server/size_budget.py
	@$(MAKE) --no-print-directory chart

audit: .tools/bin/osv-scanner ## look for advisories about what is locked; fails by those that supply_chain/osv-scanner.toml does not name
	supply_chain/audit $(OPTIONS)

sbom: $(VENV)/.run ## write the bill of materials of the lock files to dist/; an image carries its own
	@mkdir -p dist
	$(BIN)/python -m supply_chain.sbom > dist/sbom.cdx.json

provenance: $(VENV)/.run .tools/bin/cosign ## sign where a release comes from, with the key KEY: SUBJECTS are files, and IMAGES name@sha256:… are too
	@mkdir -p dist
	$(BIN)/python -m supply_chain.provenance --builder $(BUILDER) $(addprefix --file ,$(SUBJECTS)) \
	  $(addprefix --subject ,$(IMAGES)) $(addprefix --base-image ,$(BASE_IMAGES)) > dist/lookupdb.statement.json
	supply_chain/sign $(KEY) dist/lookupdb.statement.json dist/lookupdb.sigstore.json
BUILDER ?= https://lookupdb.dev/builders/by-hand/v1

test-supply: $(VENV)/.test .tools/bin/osv-scanner .tools/bin/cosign ## test audit and provenance with their tools; needs no network once they are built
	$(BIN)/pytest -q -n 0 supply_chain/tools/tests

chart: $(VENV)/.test ## lint and test the Helm chart (needs Go, to build helm and kubeconform into .tools)
	PYTHON=$(BIN)/python charts/tools/install
	.tools/bin/helm lint --strict --quiet charts/lookupdb
	$(BIN)/pytest -q -n 2 --dist worksteal charts/tests

docs: $(VENV)/.docs ## build the documentation site into site/; a broken link, an unknown heading or a missing page fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "the documentation is in site/; to read it: $(BIN)/python -m http.server --directory site --bind 127.0.0.1"

pictures: $(VENV)/.run ## draw the pictures of docs/pictures anew from the text files beside them
	$(BIN)/python -m docs_tools.drawing

SECONDS ?= 60
fuzz: $(VENV)/.test ## send damaged files, values, requests, replies, rows and tokens for SECONDS, half of them to the native kernels, and see that promises are kept
	LOOKUPDB_FUZZ_EXAMPLES=$$(($(SECONDS) * 50)) $(BIN)/pytest -q -n0 --timeout=0 server/tests/test_route_access.py -k "no_mutation or no_random"
	$(BIN)/python server/native/native_fuzz.py $$(($(SECONDS) / 2))
	$(BIN)/python -m fuzzing $$(($(SECONDS) / 2))

SEED ?= 0
soak: $(VENV)/.test ## live random lives of datasets for SECONDS, or STEPS=100000, from SEED on, and check what must hold at each step
	@cd operator/tests && ../../$(BIN)/python -m operator_support.soak --seed $(SEED) $(if $(STEPS),--steps $(STEPS),--seconds $(SECONDS))

crd: ## copy the CRD from crds/ into the chart
	cp crds/lookupdatasets.lookupdb.dev.yaml charts/lookupdb/files/crd.yaml

sync-client: $(VENV)/.test ## generate the Python client for threads from the one for asyncio
	$(BIN)/python server/generate_sync_client.py

format: $(VENV)/.test ## rewrite the code as `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-operator: $(VENV)/.test ## measure what the operator costs, by number of datasets, and write it to docs/measurements.md (an hour; OPTIONS='--datasets 50' for less)
	$(BIN)/python -m benchmarks.operator_load --write $(OPTIONS)

bench: $(VENV)/.bench native ## measure against peers (Debian's redis-server, webdis, nutcracker, wrk) and write docs/benchmarks.md
	$(BIN)/python -m benchmarks

redis-clients: $(VENV)/.test native ## ask `lookupdb up` with go-redis, ioredis, node-redis, Jedis, Lettuce, redis-py, redis-cli and redis-benchmark (those whose Go, Node, Maven or Debian package is there)
	$(BIN)/python -m e2e.clients.run

http-clients: $(VENV)/.bench native ## ask `lookupdb up` the same with aiohttp, httpx, requests, urllib3, Go's net/http, Node's fetch and http (those whose Go or Node is there)
	$(BIN)/python -m e2e.clients.http_clients

image: ## build the container image IMAGE; PYTHON_IMAGE is its base, and GO_IMAGE has the Go that builds oras
	docker build --network=host $(addprefix --build-arg ,PYTHON_IMAGE GO_IMAGE $(PASSED)) --tag $(IMAGE) .
	@bytes=$$(docker image inspect --format '{{.Size}}' $(IMAGE)); echo "$(IMAGE): $$((bytes / 1000000)) MB"; \
	  [ "$$bytes" -lt 400000000 ] || { echo "an image is to be smaller than 400 MB"; exit 1; }
IMAGE ?= lookupdb:$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' server/lookupdb/__init__.py)
PASSED := PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_DEFAULT_TIMEOUT \
  CARGO_MIRROR CARGO_HTTP_TIMEOUT CARGO_NET_RETRY RUST_PACKAGES GOPROXY \
  HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy

e2e: $(VENV)/.test ## the stories on a real cluster: that of KUBECONFIG, else one made by kind; E2E_ARGS are pytest's
	e2e/run

lock: ## resolve the dependencies anew (needs uv)
	uv pip compile --quiet --upgrade $(LOCK) --group build -o requirements/run.txt
	uv pip compile --quiet $(LOCK_OPTIONS) --group report -c requirements/run.txt -o requirements/report.txt
	uv pip compile --quiet $(LOCK) --group build --group test -c requirements/run.txt -c requirements/report.txt -o requirements/test.txt
	uv pip compile --quiet $(LOCK) --group build --group bench -c requirements/test.txt -o requirements/bench.txt
	uv pip compile --quiet $(LOCK) --group build --group docs -c requirements/test.txt -o requirements/docs.txt
LOCK_OPTIONS := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
LOCK := pyproject.toml $(LOCK_OPTIONS)

clean: ## remove what was installed and built here
	rm -rf $(VENV) .tools .lookupdb .bench site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf server/native/target server/native/fuzz/target server/lookupdb/_native.abi3.so*

# Tools of releases, locked by go.mod and go.sum: minutes each, once. Needs Go 1.26 and its module proxy.
.tools/bin/cosign: TOOL := github.com/sigstore/cosign/v3/cmd/cosign
.tools/bin/osv-scanner: TOOL := github.com/google/osv-scanner/v2/cmd/osv-scanner
.tools/bin/cosign .tools/bin/osv-scanner: supply_chain/tools/go.mod supply_chain/tools/go.sum
	@echo "building $@ (minutes, once)"
	@GOFLAGS=-modcacherw GOWORK=off CGO_ENABLED=0 GOBIN=$(CURDIR)/.tools/bin GOOS= GOARCH= \
	  go install -C supply_chain/tools -mod=readonly -buildvcs=false -trimpath -ldflags '-s -w' $(TOOL)
	@touch $@

# One stamp for each set of requirements; each installs the project itself, editable, fetching nothing unlocked.
# --no-deps: the lock is complete, and holds a version that one package refuses on paper only ([tool.uv]).
$(VENV)/.%: requirements/%.txt pyproject.toml | $(BIN)/python
	@echo "installing requirements/$*.txt into $(VENV) (a minute or two, where they are downloaded)"
	@$(PIP) install --no-deps --require-hashes -r $<
	@$(PIP) install --no-deps --no-build-isolation --no-index --editable .
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("lookupdb needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": set PYTHON=...") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)

.PHONY: help demo test test-long oras native fuzz soak check audit sbom provenance test-supply sync-client chart docs pictures crd format bench bench-operator redis-clients http-clients image e2e lock clean
