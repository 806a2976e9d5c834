# The developer interface: see `make help`. It installs locked and hashed requirements into .venv.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LINTS := server/tests/test_words.py server/tests/test_native_sources.py server/tests/test_docstrings.py # tests of the code's text, which `make check` runs
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.run native ## build 28,000 airports into 4 shards, serve them on http://127.0.0.1:8080; Ctrl-C stops it
	$(BIN)/lookupdb up -f examples/airports.yaml

test: $(VENV)/.test native oras ## tests without a cluster: five minutes on two cores
	$(BIN)/pytest -n 5 --dist worksteal -m "not long" $(addprefix --ignore=,$(LINTS)) # on two processors: many tests wait, each process collects for 7 s

test-long: $(VENV)/.test native ## long tests: whole lives, faults at every step, many processes; four minutes
	$(BIN)/pytest -n 6 --dist worksteal -m long

test-spark: $(VENV)/.spark native ## builds with Spark, whole and interrupted (needs Java 17); four minutes
	$(BIN)/pytest -n 0 -W default server/spark/tests

test-console: $(VENV)/.test native ## drive the console in a headless Chromium, which must be installed (apt-get install chromium); two minutes
	@command -v chromium > /dev/null || { echo "test-console needs Chromium: apt-get install chromium"; exit 1; }
	$(BIN)/pytest -q -n 0 operator/browser/tests

oras: ## build oras, which pushes images, into .tools (needs Go)
	@server/oras/install

native: ## build the native kernels, if cargo is installed; LOOKUPDB_NATIVE=0 skips them
	@$(PYTHON) server/native/native_build.py

check: lint chart ## lint, types, layers, words, sizes, the native kernels, the chart; -j2 runs two at a time

lint: $(VENV)/.test ## all of check but the chart
	$(BIN)/ruff format --check --diff .
	$(BIN)/ruff check .
	$(BIN)/mypy
	cd operator && ../$(BIN)/lint-imports --config ../pyproject.toml --no-cache
	$(BIN)/pytest -q $(LINTS)
	$(BIN)/python server/native/native_check.py
	$(BIN)/python server/size_budget.py

audit: .tools/bin/osv-scanner ## check locked dependencies for advisories; supply_chain/osv-scanner.toml lists the ignored ones
	supply_chain/audit $(OPTIONS)

sbom: $(VENV)/.run ## write the lock files' bill of materials to dist/; an image contains its own
	@mkdir -p dist
	$(BIN)/python -m supply_chain.sbom > dist/sbom.cdx.json

provenance: $(VENV)/.run .tools/bin/cosign ## sign a release's provenance with KEY; SUBJECTS are files, IMAGES name@sha256:…
	@mkdir -p dist
	$(BIN)/python -m supply_chain.provenance --builder $(BUILDER) $(addprefix --file ,$(SUBJECTS)) \
	  $(addprefix --subject ,$(IMAGES)) $(addprefix --base-image ,$(BASE_IMAGES)) > dist/lookupdb.statement.json
	supply_chain/sign $(KEY) dist/lookupdb.statement.json dist/lookupdb.sigstore.json
BUILDER ?= https://lookupdb.dev/builders/by-hand/v1

test-supply: $(VENV)/.test .tools/bin/osv-scanner .tools/bin/cosign ## test audit and provenance with their tools; needs no network once these are built
	$(BIN)/pytest -q -n 0 supply_chain/tools/tests

prometheus: .tools/bin/prometheus ## build promtool and prometheus into .tools (needs Go)

.tools/bin/prometheus .tools/bin/promtool &: charts/prometheus/go.mod charts/prometheus/go.sum
	@echo "building promtool and prometheus (three minutes, once)"
	@charts/prometheus/install
	@touch .tools/bin/prometheus .tools/bin/promtool

chart: $(VENV)/.test .tools/bin/promtool ## lint and test the Helm chart and its alerts (needs Go, to build helm, kubeconform and promtool into .tools)
	PYTHON=$(BIN)/python charts/tools/install
	.tools/bin/helm lint --strict --quiet charts/lookupdb
	$(BIN)/pytest -q -n 2 --dist worksteal charts/tests

docs: $(VENV)/.docs ## build the documentation into site/; fails for a broken link, an unknown heading or a missing page
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "the documentation is in site/; read it with $(BIN)/python -m http.server --directory site --bind 127.0.0.1"

pictures: $(VENV)/.run ## draw the pictures of docs/pictures from the text files beside them
	$(BIN)/python -m docs_tools.drawing

dashboards: $(VENV)/.test ## write the Grafana dashboards of the chart from charts/dashboards
	$(BIN)/python -m charts.dashboards

draw-dashboards: $(VENV)/.test ## draw the dashboards from the data of PROMETHEUS, until END; OPTIONS='--dataset airports --minutes 30'
	$(BIN)/python -m docs_tools.dashboard_pictures --prometheus $(PROMETHEUS) --end $(END) $(OPTIONS)
PROMETHEUS ?= http://127.0.0.1:9090
END ?= $$(date +%s)

console-pictures: $(VENV)/.test native ## draw the pictures of the console: `lookupdb up` under load, in a headless Chromium
	$(BIN)/python -m docs_tools.screens

SECONDS ?= 60
fuzz: $(VENV)/.test ## fuzz for SECONDS, half of them the native kernels: damaged files, values, requests, replies, rows, tokens
	LOOKUPDB_FUZZ_EXAMPLES=$$(($(SECONDS) * 50)) $(BIN)/pytest -q -n0 --timeout=0 server/tests/test_route_access.py -k "no_mutation or no_random"
	$(BIN)/python server/native/native_fuzz.py $$(($(SECONDS) / 2))
	$(BIN)/python -m fuzzing $$(($(SECONDS) / 2))

SEED ?= 0
soak: $(VENV)/.test ## simulate random lives of datasets for SECONDS, or STEPS=100000, from SEED on; check invariants at each step
	@cd operator/tests && ../../$(BIN)/python -m operator_support.soak --seed $(SEED) $(if $(STEPS),--steps $(STEPS),--seconds $(SECONDS))

crd: ## copy the CRD from crds/ into the chart
	cp crds/lookupdatasets.lookupdb.dev.yaml charts/lookupdb/files/crd.yaml

sync-client: $(VENV)/.test ## generate the Python client for threads from the one for asyncio
	$(BIN)/python server/generate_sync_client.py

format: $(VENV)/.test ## format the code for `make check`
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-operator: $(VENV)/.test ## measure the operator by number of datasets and write docs/measurements.md (an hour; OPTIONS='--datasets 50' for less)
	$(BIN)/python -m benchmarks.operator_load --write $(OPTIONS)

bench: $(VENV)/.bench native ## compare with peers (Debian's redis-server, webdis, nutcracker, wrk) and write docs/benchmarks.md
	$(BIN)/python -m benchmarks

redis-clients: $(VENV)/.test native ## query `lookupdb up` with go-redis, ioredis, node-redis, Jedis, Lettuce, redis-py, redis-cli, redis-benchmark, if installed
	$(BIN)/python -m e2e.clients.run

http-clients: $(VENV)/.bench native ## query `lookupdb up` with aiohttp, httpx, requests, urllib3, Go's net/http, Node's fetch and http, if installed
	$(BIN)/python -m e2e.clients.http_clients

image: ## build the container image IMAGE from PYTHON_IMAGE, with oras built in GO_IMAGE; EXTRA=delta adds 150 MB to read Delta tables
	docker build --network=host $(addprefix --build-arg ,PYTHON_IMAGE GO_IMAGE EXTRA $(PASSED)) --tag $(IMAGE) .
	@bytes=$$(docker image inspect --format '{{.Size}}' $(IMAGE)); echo "$(IMAGE): $$((bytes / 1000000)) MB"; \
	  [ -n "$(EXTRA)" ] || [ "$$bytes" -lt 450000000 ] || { echo "the image must be smaller than 450 MB"; exit 1; }
IMAGE ?= lookupdb:$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' server/lookupdb/__init__.py)
image-spark: ## build IMAGE_SPARK, the same with Spark and Java, for builds by Spark
	docker build --network=host --build-arg SPARK=1 $(addprefix --build-arg ,PYTHON_IMAGE GO_IMAGE $(PASSED)) --tag $(IMAGE_SPARK) .
	@bytes=$$(docker image inspect --format '{{.Size}}' $(IMAGE_SPARK)); echo "$(IMAGE_SPARK): $$((bytes / 1000000)) MB"
IMAGE_SPARK ?= $(subst lookupdb:,lookupdb-spark:,$(IMAGE))
PASSED := PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_DEFAULT_TIMEOUT \
  CARGO_MIRROR CARGO_HTTP_TIMEOUT CARGO_NET_RETRY RUST_PACKAGES JAVA_PACKAGES GOPROXY \
  HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy

e2e: $(VENV)/.test .tools/bin/prometheus ## run the scenarios on the cluster of KUBECONFIG, or on a new one of kind; E2E_ARGS are pytest's
	e2e/run

lock: ## resolve and lock the dependencies (needs uv); UPGRADE=--upgrade takes the newest
	uv pip compile --quiet $(UPGRADE) $(LOCK) --group build -o requirements/run.txt
	uv pip compile --quiet $(LOCK) --group build --extra iceberg -c requirements/run.txt -o requirements/iceberg.txt
	uv pip compile --quiet $(LOCK) --group build --extra delta -c requirements/iceberg.txt -o requirements/delta.txt
	uv pip compile --quiet $(LOCK_OPTIONS) --group report -c requirements/run.txt -o requirements/report.txt
	uv pip compile --quiet $(LOCK) --group build --group test -c requirements/iceberg.txt -c requirements/delta.txt -c requirements/report.txt -o requirements/test.txt
	uv pip compile --quiet $(LOCK) --group build --group bench -c requirements/test.txt -o requirements/bench.txt
	uv pip compile --quiet $(LOCK) --group build --group docs -c requirements/test.txt -o requirements/docs.txt
	uv pip compile --quiet $(LOCK) --group build --group test --extra spark -c requirements/test.txt -o requirements/spark.txt
	uv pip compile --quiet $(LOCK) --group build --extra spark --extra iceberg -c requirements/spark.txt -o requirements/image-spark.txt
LOCK_OPTIONS := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
LOCK := pyproject.toml --extra all $(LOCK_OPTIONS)

clean: ## remove everything installed and built here
	rm -rf $(VENV) .tools .lookupdb .bench site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf server/native/target server/native/fuzz/target server/lookupdb/_native.abi3.so*

# Tools for releases, locked by go.mod and go.sum. Each takes minutes, once, and needs Go 1.26.
.tools/bin/cosign: TOOL := github.com/sigstore/cosign/v3/cmd/cosign
.tools/bin/osv-scanner: TOOL := github.com/google/osv-scanner/v2/cmd/osv-scanner
.tools/bin/cosign .tools/bin/osv-scanner: supply_chain/tools/go.mod supply_chain/tools/go.sum
	@echo "building $@ (minutes, once)"
	@GOFLAGS=-modcacherw GOWORK=off CGO_ENABLED=0 GOBIN=$(CURDIR)/.tools/bin GOOS= GOARCH= \
	  go install -C supply_chain/tools -mod=readonly -buildvcs=false -trimpath -ldflags '-s -w' $(TOOL)
	@touch $@

# One stamp for each set of requirements. Each also installs the project, editable, and fetches nothing unlocked.
# --no-deps: the lock is complete, and overrides one package's requirement ([tool.uv]).
$(VENV)/.%: requirements/%.txt pyproject.toml | $(BIN)/python
	@echo "installing requirements/$*.txt into $(VENV) (a minute or two for downloads)"
	@$(PIP) install --no-deps --require-hashes -r $<
	@$(PIP) install --no-deps --no-build-isolation --no-index --editable .
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("lookupdb needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": set PYTHON=...") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)

.PHONY: help demo test test-long test-spark test-console console-pictures oras native fuzz soak check lint audit sbom provenance test-supply sync-client prometheus chart docs pictures dashboards draw-dashboards crd format bench bench-operator redis-clients http-clients image image-spark e2e lock clean
