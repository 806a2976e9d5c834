"""Sessions of Spark that many tests share, each with one JVM, and an S3 server that executors reach."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.buckets import s3_server, variables
from support.faults import Proxy, faulty_proxy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""JVMs that live for seconds: compiling their code well takes longer than it saves."""
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.network.timeout": "600s",
    "spark.worker.timeout": "600",
    "spark.log.level": "OFF",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "1024m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "3s",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def s3() -> Iterator[tuple[str, Proxy]]:
    """The URL of an S3 server behind a proxy, in the environment of every executor that starts after this."""
    with s3_server() as server, faulty_proxy(server) as (url, proxy), pytest.MonkeyPatch.context() as environment:
        for name, value in variables(url).items():
            environment.setenv(name, value)
        yield url, proxy


@pytest.fixture(scope="session")
def session(
    request: pytest.FixtureRequest, s3: tuple[str, Proxy], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """The active session of the master in the parameter, which builds borrow."""
    import pyspark
    from pyspark.sql import SparkSession

    logging.getLogger("py4j").setLevel(logging.WARNING)
    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(request.param)
    for name, value in {**CONF, "spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder)}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    application = session.sparkContext.applicationId
    session.stop()
    # The folder of the workers of local-cluster.
    shutil.rmtree(Path(pyspark.__file__).parent / "work" / application, ignore_errors=True)
