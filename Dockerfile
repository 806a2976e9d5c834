# One image for every verb: operator, builders, shard servers, routers. `make image` builds it. With SPARK=1 it also has
# Spark and Java, for drivers and executors of builds by Spark: `make image-spark`.
# It needs only the package registries of Debian, Python, Rust and Go. Docker's classic builder is enough.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG GO_IMAGE=golang:1.26-bookworm

# oras pushes images of shards. go.sum has the checksums of its sources.
FROM ${GO_IMAGE} AS oras
ARG GOPROXY
WORKDIR /src
COPY server/oras/go.mod server/oras/go.sum ./
RUN CGO_ENABLED=0 GOTOOLCHAIN=local \
      go build -mod=readonly -buildvcs=false -trimpath -ldflags '-s -w' -o /oras oras.land/oras/cmd/oras \
 && /oras version

FROM ${PYTHON_IMAGE} AS build
# pip's variables for mirrors of its registry; make image passes them if they are set.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_DEFAULT_TIMEOUT
# The same for cargo. CARGO_MIRROR is the index of a mirror of crates.io: sparse+https://…/
ARG CARGO_MIRROR
ARG CARGO_HTTP_TIMEOUT
ARG CARGO_NET_RETRY
# cargo 1.85 or newer builds the native kernels. Debian 12 has it under these names, Debian 13 as "cargo rustc".
ARG RUST_PACKAGES="cargo-web rustc-web"
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_ROOT_USER_ACTION=ignore \
    CARGO_HOME=/opt/cargo PYO3_NO_PYTHON=1 LOOKUPDB_NATIVE=1
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
      binutils gcc libc6-dev ${RUST_PACKAGES}
WORKDIR /src
RUN python3 -m venv /opt/lookupdb
# The dependencies change less often than the code, so they get their own layer. Some contain debug symbols.
# Iceberg's library is part of the image. Delta's takes 150 MB: --build-arg EXTRA=delta adds it.
ARG EXTRA
COPY requirements/iceberg.txt requirements/delta.txt requirements/
RUN for name in iceberg $EXTRA; do \
      /opt/lookupdb/bin/pip install --quiet --no-deps --require-hashes --only-binary :all: -r requirements/$name.txt \
        || exit 1; \
    done \
 && find /opt/lookupdb -name '*.so*' -type f -exec strip --strip-debug {} +
# The same for crates: build an empty library in place of ours, and clean it, because cargo compares file times.
COPY server/native/Cargo.toml server/native/Cargo.lock server/native/
RUN mkdir -p server/native/src "$CARGO_HOME" \
 && if [ -n "$CARGO_MIRROR" ]; then \
      printf '[source.crates-io]\nreplace-with = "mirror"\n[source.mirror]\nregistry = "%s"\n' "$CARGO_MIRROR" \
        > "$CARGO_HOME/config.toml"; \
    fi \
 && cd server/native && echo '//! Empty.' > src/lib.rs \
 && cargo build --quiet --release --locked \
 && cargo clean --quiet --release --package lookupdb-native
# Spark, which is a source package of 430 MB. Builds need its core, SQL and Kubernetes alone.
ARG SPARK
COPY requirements/image-spark.txt requirements/
RUN if [ -n "$SPARK" ]; then \
      DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-setuptools python3-wheel \
      && grep -A1 '^pyspark==' requirements/image-spark.txt > /tmp/pyspark.txt \
      && PYTHONPATH=/usr/lib/python3/dist-packages /opt/lookupdb/bin/pip install --quiet --no-deps --no-build-isolation \
           --require-hashes -r /tmp/pyspark.txt \
      && /opt/lookupdb/bin/pip install --quiet --no-deps --require-hashes --only-binary :all: -r requirements/image-spark.txt \
      && cd /opt/lookupdb/lib/python3*/site-packages/pyspark \
      && rm -rf data examples sbin tests */tests jars/breeze* jars/cats-kernel* jars/datanucleus* jars/derby* jars/hive-* \
           jars/lapack* jars/rocksdbjni* jars/scala-compiler* jars/spark-connect* jars/spark-graphx* jars/spark-hive* \
           jars/spark-mllib* jars/spark-pipelines* jars/spark-streaming* jars/spark-yarn* jars/spire*; \
    fi
COPY . .
# Remove build tools. Compile bytecode now, since nothing can be written later, and without time stamps: layers may lose
# fractions of a second. Skip the Kubernetes client's 1,500 generated modules (60 MB): the operator imports none of them.
RUN /opt/lookupdb/bin/pip install --quiet --no-deps --no-build-isolation --no-index . \
 && cd / && /opt/lookupdb/bin/lookupdb --version \
 && /opt/lookupdb/bin/pip uninstall --quiet --yes hatchling editables pathspec pluggy tomlkit trove-classifiers \
 && /opt/lookupdb/bin/pip uninstall --quiet --yes setuptools pip \
 && find /opt/lookupdb -name __pycache__ -prune -exec rm -rf {} + \
 && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -x '/client/(api|models)/' /opt/lookupdb/lib

FROM ${PYTHON_IMAGE} AS run
ARG SPARK
# Debian 13 has 21.
ARG JAVA_PACKAGES="openjdk-17-jre-headless"
RUN if [ -n "$SPARK" ]; then \
      mkdir -p /usr/share/man/man1 \
      && apt-get update \
      && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ${JAVA_PACKAGES}; \
    fi
RUN groupadd --gid 10001 lookupdb \
 && useradd --uid 10001 --gid 10001 --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin lookupdb \
 && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /tmp/* /root/.cache
# Remove installers, and Perl, which only package scripts use. Keep the package records for scanners.
RUN rm -rf /usr/bin/apt* /usr/bin/pip* /usr/local/bin/pip* /usr/bin/perl* /usr/lib/*/perl-base \
 && find /usr/lib /usr/local/lib -maxdepth 3 -path '*-packages/*' \( -name 'pip*' -o -name 'setuptools*' -o -name 'wheel*' \) \
      -prune -exec rm -rf {} +
COPY --from=build /opt/lookupdb /opt/lookupdb
COPY --from=oras /oras /usr/local/bin/oras
# The bill of materials lists what is installed now. It has no time stamp: the same image gives the same bytes.
COPY supply_chain /tmp/sbom/supply_chain
COPY requirements/iceberg.txt requirements/delta.txt requirements/image-spark.txt /tmp/sbom/requirements/
COPY server/native/Cargo.lock /tmp/sbom/server/native/
COPY server/oras/go.mod /tmp/sbom/server/oras/
RUN mkdir -p /usr/share/doc/lookupdb && cd /tmp/sbom \
 && if [ -n "$SPARK" ]; then mv requirements/image-spark.txt requirements/iceberg.txt; fi \
 && PYTHONDONTWRITEBYTECODE=1 /opt/lookupdb/bin/python -m supply_chain.sbom --image > /usr/share/doc/lookupdb/sbom.cdx.json \
 && rm -rf /tmp/sbom

# One layer, without files that the base image installed and deleted.
FROM scratch
LABEL org.opencontainers.image.title=lookupdb org.opencontainers.image.licenses=Apache-2.0 \
      dev.lookupdb.sbom=/usr/share/doc/lookupdb/sbom.cdx.json
COPY --from=run / /
# The root may be read-only: only volumes and /tmp are written.
ENV PATH=/opt/lookupdb/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /
USER 10001:10001
ENTRYPOINT ["lookupdb"]
