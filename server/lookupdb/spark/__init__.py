"""Build with Apache Spark: needs ``pip install lookupdb[spark]`` and Java 17.

``build`` runs in the driver: it plans, merges what executors report, and publishes; ``session`` starts Spark and runs
its jobs. ``tasks`` runs in executors: it reads slices and writes shards with the functions of ``builder.core``, so the
files are those of a local build, byte for byte. No record passes through the driver. ``frames`` pushes a
DataFrame as a generation. ``pods`` checks the driver's rights on Kubernetes, and is the process of an executor's pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lookupdb.builder.options import BuildOptions
    from lookupdb.dataset.spec import DatasetSpec
    from lookupdb.spark.build import SparkEngine


def make_engine(spec: DatasetSpec, options: BuildOptions, conf: Mapping[str, str]) -> SparkEngine:
    """Return the engine of a build; ``conf`` overrides the properties in ``spec``. Raises EngineMissing if this machine
    cannot start Spark, and what ``SparkEngine`` raises."""
    from lookupdb.spark.session import check_environment

    check_environment()  # before pyarrow is imported
    from lookupdb.spark.build import SparkEngine

    return SparkEngine(spec, options, conf)


def __getattr__(name: str) -> Any:
    """Import ``write`` when it is used: it needs pyarrow."""
    if name == "write":
        from lookupdb.spark.frames import write

        return write
    raise AttributeError(name)
