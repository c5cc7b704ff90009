"""A local Spark session with the kernel in it."""

from __future__ import annotations

import os
import shutil
import sys

from pyspark.sql import SparkSession

from changeglot import kernel
from changeglot.errors import MissingError

#: Decoding is one generated method, larger than what the JVM compiles and Spark generates when not told otherwise; and
#: an expression of thousands of parts, the source line of each of which Spark would ask Python for.
_JVM = (
    "-XX:-DontCompileHugeMethods -XX:MaxNodeLimit=200000 -XX:NodeLimitFudgeFactor=4000"
    # A pipeline of some tables nearly fills the usual 240 MB, and was then seen to take two or three times as long.
    " -XX:ReservedCodeCacheSize=1g"
    # Spark looks through what an error says, character by character, one call within another.
    " -Xss4m"
    # Most objects die with their row: no barriers are needed to find the others.
    " -XX:+UseParallelGC"
)
FAST = {
    "spark.driver.extraJavaOptions": _JVM,
    "spark.executor.extraJavaOptions": _JVM,
    "spark.sql.codegen.maxFields": "250",
    # Of a hundred, the usual, a pipeline of some tables throws out in each batch what the next one needs.
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


def session(*, cores: int | None = None, driver_memory: str | None = None, **settings: str) -> SparkSession:
    """The session that is active, with the kernel made known to it; else a new one on this machine.

    A setting's name is Spark's with `__` for each dot: `spark__sql__shuffle__partitions="4"`.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        kernel.prepare(active)
        return active
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise MissingError(
            "no Java was found, and Spark needs one",
            hint="Install Java 17 or 21 (Debian: openjdk-17-jre-headless) and put it on the PATH or into JAVA_HOME.",
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{cores or '*'}]").appName("changeglot")
    given = {name.replace("__", "."): value for name, value in settings.items()}
    memory = given.get("spark.driver.memory", driver_memory or "2g")
    fixed = {
        **kernel.settings(),
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores or os.cpu_count() or 2),
        **FAST,
        # All of it from the beginning: it would be collected in full each time before it grows.
        "spark.driver.extraJavaOptions": f"{_JVM} -Xms{memory}",
        **given,
    }
    # Others' jars beside the kernel's, not in its place.
    fixed["spark.jars"] = ",".join(dict.fromkeys([kernel.settings()["spark.jars"], *fixed["spark.jars"].split(",")]))
    for name, value in fixed.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
