# One image for every verb: operator, builders, shard servers, routers. `make image` builds it.
# Nothing is fetched but from Debian's, Python's, Rust's and Go's package registries. Docker's classic builder will do.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG GO_IMAGE=golang:1.26-bookworm

# oras pushes images of shards. go.sum has the checksums of all that it is built from.
FROM ${GO_IMAGE} AS oras
ARG GOPROXY
WORKDIR /src
COPY server/oras/go.mod server/oras/go.sum ./
RUN CGO_ENABLED=0 GOTOOLCHAIN=local \
      go build -mod=readonly -buildvcs=false -trimpath -ldflags '-s -w' -o /oras oras.land/oras/cmd/oras \
 && /oras version

FROM ${PYTHON_IMAGE} AS build
# pip's own variables, for machines that reach its registry through a mirror; make image passes them if they are set.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_DEFAULT_TIMEOUT
# The same for cargo. CARGO_MIRROR is the index of a registry that stands in for crates.io: sparse+https://…/
ARG CARGO_MIRROR
ARG CARGO_HTTP_TIMEOUT
ARG CARGO_NET_RETRY
# What builds the native kernels: cargo 1.85 or newer. Debian 12 has it under these names, Debian 13 as "cargo rustc".
ARG RUST_PACKAGES="cargo-web rustc-web"
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_ROOT_USER_ACTION=ignore \
    CARGO_HOME=/opt/cargo PYO3_NO_PYTHON=1 LOOKUPDB_NATIVE=1
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
      binutils gcc libc6-dev ${RUST_PACKAGES}
WORKDIR /src
RUN python3 -m venv /opt/lookupdb
# The dependencies change less often than the code: a layer of their own. Some come with symbols for debuggers.
COPY requirements/run.txt requirements/
RUN /opt/lookupdb/bin/pip install --quiet --no-deps --require-hashes --only-binary :all: -r requirements/run.txt \
 && find /opt/lookupdb -name '*.so*' -type f -exec strip --strip-debug {} +
# So do the crates. An empty library stands in for ours, which is then forgotten: cargo would go by the files' times.
COPY server/native/Cargo.toml server/native/Cargo.lock server/native/
RUN mkdir -p server/native/src "$CARGO_HOME" \
 && if [ -n "$CARGO_MIRROR" ]; then \
      printf '[source.crates-io]\nreplace-with = "mirror"\n[source.mirror]\nregistry = "%s"\n' "$CARGO_MIRROR" \
        > "$CARGO_HOME/config.toml"; \
    fi \
 && cd server/native && echo '//! Empty.' > src/lib.rs \
 && cargo build --quiet --release --locked \
 && cargo clean --quiet --release --package lookupdb-native
COPY . .
# What only builds is taken out again. Bytecode is compiled now, since nothing can be written later, and trusted as it
# stands: layers may lose the fractions of a file's time. Not that of the Kubernetes client's 1,500 generated modules
# (60 MB): the operator deals with objects as JSON and imports none of them.
RUN /opt/lookupdb/bin/pip install --quiet --no-deps --no-build-isolation --no-index . \
 && cd / && /opt/lookupdb/bin/lookupdb --version \
 && /opt/lookupdb/bin/pip uninstall --quiet --yes hatchling editables pathspec pluggy tomlkit trove-classifiers \
 && /opt/lookupdb/bin/pip uninstall --quiet --yes setuptools pip \
 && find /opt/lookupdb -name __pycache__ -prune -exec rm -rf {} + \
 && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -x '/client/(api|models)/' /opt/lookupdb/lib

FROM ${PYTHON_IMAGE} AS run
RUN groupadd --gid 10001 lookupdb \
 && useradd --uid 10001 --gid 10001 --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin lookupdb \
 && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /tmp/* /root/.cache
# Nothing can be installed any more: what installs goes, with the Perl that only packages' scripts use. The packages'
# records stay for scanners.
RUN rm -rf /usr/bin/apt* /usr/bin/pip* /usr/local/bin/pip* /usr/bin/perl* /usr/lib/*/perl-base \
 && find /usr/lib /usr/local/lib -maxdepth 3 -path '*-packages/*' \( -name 'pip*' -o -name 'setuptools*' -o -name 'wheel*' \) \
      -prune -exec rm -rf {} +
COPY --from=build /opt/lookupdb /opt/lookupdb
COPY --from=oras /oras /usr/local/bin/oras
# The bill of materials is of what is there now. It has no time in it: the same image gives the same bytes.
COPY supply_chain /tmp/sbom/supply_chain
COPY requirements/run.txt /tmp/sbom/requirements/
COPY server/native/Cargo.lock /tmp/sbom/server/native/
COPY server/oras/go.mod /tmp/sbom/server/oras/
RUN mkdir -p /usr/share/doc/lookupdb && cd /tmp/sbom \
 && PYTHONDONTWRITEBYTECODE=1 /opt/lookupdb/bin/python -m supply_chain.sbom --image > /usr/share/doc/lookupdb/sbom.cdx.json \
 && rm -rf /tmp/sbom

# One layer, so that what a base has installed, cached and deleted is not shipped.
FROM scratch
LABEL org.opencontainers.image.title=lookupdb org.opencontainers.image.licenses=Apache-2.0 \
      dev.lookupdb.sbom=/usr/share/doc/lookupdb/sbom.cdx.json
COPY --from=run / /
# The root may be read-only: nothing is written but to volumes and /tmp.
ENV PATH=/opt/lookupdb/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /
USER 10001:10001
ENTRYPOINT ["lookupdb"]
