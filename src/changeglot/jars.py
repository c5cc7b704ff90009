"""Jars of Maven coordinates, as Spark finds them itself: its resolver, its settings, its cache."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from changeglot.errors import MissingError

#: What every Spark has itself, and wants in its own version.
SPARKS_OWN = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.logging.log4j:log4j-api",
    "org.apache.logging.log4j:log4j-core",
    "org.apache.logging.log4j:log4j-slf4j2-impl",
    "org.lz4:lz4-java",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
)


def resolve(packages: Sequence[str], *, excludes: Sequence[str] = (), transitive: bool = True) -> list[Path]:
    """The jars of `group:artifact:version`s and of all they need at run time, but Scala's library, which Spark has.

    What was found is remembered: asked again, nothing is started as long as all those files are there. `excludes` are
    `group:artifact`s.
    """
    if not packages:
        return []
    folder, asked = cache(), _asked(packages, excludes, transitive=transitive)
    memory = _memory(asked)
    found = _remembered(memory)
    if found is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    # Two that write the same cache at once break each other.
    with (folder / "jars.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _remembered(memory)
        if found is None:
            found = _resolved(packages, excludes, transitive=transitive, log=folder / "jars.log")
            draft = memory.with_suffix(".new")
            draft.write_text(json.dumps({**asked, "jars": list(map(str, found))}, indent=1))
            draft.replace(memory)
    return found


class Wanted(NamedTuple):
    """What `resolve` is asked."""

    packages: tuple[str, ...]
    excludes: tuple[str, ...] = ()
    transitive: bool = True


def first(*choices: Sequence[Wanted]) -> list[Path]:
    """The jars of the first choice that resolves; of one that was found before, if there is such."""
    for choice in choices:
        if all(_remembered(_memory(_asked(*wanted))) is not None for wanted in choice):
            return _all(choice)
    *earlier, last = choices
    for choice in earlier:
        try:
            return _all(choice)
        except MissingError:
            continue
    return _all(last)


def _all(choice: Sequence[Wanted]) -> list[Path]:
    return [
        jar
        for wanted in choice
        for jar in resolve(wanted.packages, excludes=wanted.excludes, transitive=wanted.transitive)
    ]


def cache() -> Path:
    """The folder for what was fetched or found once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "changeglot"


def _asked(packages: Sequence[str], excludes: Sequence[str], transitive: bool) -> dict[str, Any]:
    """What an answer depends on. Any: JSON."""
    return {
        "packages": list(packages),
        "excludes": list(excludes),
        "transitive": transitive,
        "spark": pyspark.__version__,
        # Where Spark looks may change what it finds.
        "settings": [os.environ.get(name) for name in ("SPARK_HOME", "SPARK_CONF_DIR", "DEFAULT_ARTIFACT_REPOSITORY")],
    }


def _memory(asked: Mapping[str, Any]) -> Path:
    """Any: JSON."""
    return cache() / f"jars-{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]}.json"


def _remembered(memory: Path) -> list[Path] | None:
    """What was found before; None if it is not known, or some of it is gone."""
    try:
        jars = [Path(jar) for jar in json.loads(memory.read_bytes())["jars"]]
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return jars if all(jar.is_file() for jar in jars) else None


def _resolved(packages: Sequence[str], excludes: Sequence[str], *, transitive: bool, log: Path) -> list[Path]:
    """Asks Spark, in a JVM that lives for this alone and says what it does into the log."""
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise MissingError(
            "no Java was found, and jars are fetched by Spark's",
            hint="Install Java 17 or 21 (Debian: openjdk-17-jre-headless) and put it on the PATH or into JAVA_HOME.",
        )
    with log.open("wb") as out, _jvm(out) as jvm:
        utilities = jvm.org.apache.spark.util.DependencyUtils
        settings = utilities.getIvyProperties()
        try:
            found = utilities.resolveMavenDependencies(
                transitive,
                ",".join(excludes),
                ",".join(packages),
                settings.repositories(),
                settings.ivyRepoPath(),
                jvm.scala.Option.apply(settings.ivySettingsPath()),
            ).mkString("\n")
        except Py4JJavaError as error:
            raise MissingError(
                f"fetching the jars of {', '.join(packages)}: {error.java_exception.getMessage()}",
                hint="Are the names right, and can this machine reach the repositories that Spark is set to ask "
                f"(spark.jars.repositories, spark.jars.ivySettings)? All that it tried is in {log}.",
            ) from error
    return [Path(jar) for jar in found.splitlines()]


@contextmanager
def _jvm(out: IO[bytes]) -> Iterator[Any]:
    """A JVM with Spark's classes and settings. Any: Py4J's view of them has no types."""
    try:
        # PySpark has no types here.
        gateway = launch_gateway(popen_kwargs={"stdout": out, "stderr": out})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        raise MissingError(
            "Spark's JVM, which fetches jars, did not start", hint=f"What it said is in {out.name}."
        ) from error
    try:
        yield gateway.jvm
    finally:
        # Under spark-submit it is the JVM of the whole program, which has to stay.
        if gateway.proc is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()
