"""What Kafka's source and sink share: the connector, the settings of a client, and a look at the brokers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from changeglot import jars
from changeglot.errors import ConfigError, MissingError
from changeglot.settings import jvm

#: Spark's connector.
_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
#: What the connector asks for delegation tokens. Its classes have not changed since the version named here.
_TOKENS, _TOKENS_VERSION = "org.apache.spark:spark-token-provider-kafka-0-10_2.13", "4.0.0"
#: The header by which a pipeline knows what another one has sent.
HEADER = "changeglot"
_SECONDS = 10
_TIMES = {"default.api.timeout.ms": str(_SECONDS * 1000), "request.timeout.ms": str(_SECONDS * 1000)}


def session_settings() -> dict[str, str]:
    """The connector's jars, for a session that is started: of the version that runs.

    Not every repository has every version of both: else the first one that this one is a correction of.
    """
    version = pyspark.__version__
    choices = [choice for each in (version, re.sub(r"\d+$", "0", version)) for choice in _choices(each)]
    return {"spark.jars": ",".join(map(str, jars.first(*choices)))}


def _choices(version: str) -> Iterator[Sequence[jars.Wanted]]:
    packages = (f"{_CONNECTOR}:{version}",)
    yield (jars.Wanted(packages, excludes=jars.SPARKS_OWN),)
    yield (
        jars.Wanted(packages, excludes=(*jars.SPARKS_OWN, _TOKENS)),
        jars.Wanted((f"{_TOKENS}:{_TOKENS_VERSION}",), (), False),
    )


def client(servers: str, words: Mapping[str, str]) -> dict[str, str]:
    """Settings of a client; those of a person may begin with `kafka.`, as Spark wants them."""
    return {"bootstrap.servers": servers, **{name.removeprefix("kafka."): value for name, value in words.items()}}


def options(servers: str, words: Mapping[str, str]) -> dict[str, str]:
    """The same as options of Spark's connector."""
    return {f"kafka.{name}": value for name, value in client(servers, words).items()}


@contextmanager
def admin(spark: SparkSession, settings: Mapping[str, str], path: str) -> Iterator[Any]:
    """Kafka's own AdminClient; what it complains of is told as of the option at `path`. Any: a Java object."""
    java = jvm(spark)
    properties = java.java.util.Properties()
    for name, value in {**_TIMES, **settings}.items():
        properties.put(name, value)
    try:
        made = java.org.apache.kafka.clients.admin.AdminClient.create(properties)
    except TypeError as error:
        hint = f"Start the session with spark.jars.packages={_CONNECTOR}:{pyspark.__version__}; `changeglot run` does."
        raise MissingError("Spark's connector for Kafka is not in this session", hint=hint) from error
    except Py4JJavaError as error:
        raise ConfigError(path, f"no client can be made of these settings: {_words(error)}") from error
    try:
        yield made
    except Py4JJavaError as error:
        raise _told(error, settings["bootstrap.servers"], path) from error
    finally:
        made.close(java.java.time.Duration.ofSeconds(1))


def lanes(spark: SparkSession, admin: Any, topics: Iterable[str]) -> dict[str, int]:
    """How many partitions each of the topics has that are there. Any: Kafka's client."""
    there = set(admin.listTopics().names().get())
    wanted = jvm(spark).java.util.ArrayList()
    for topic in topics:
        if topic in there:
            wanted.add(topic)
    found = admin.describeTopics(wanted).allTopicNames().get()
    return {topic: found[topic].partitions().size() for topic in wanted}


def _causes(error: Py4JJavaError) -> Iterator[Any]:
    """Any: exceptions of Java."""
    cause = error.java_exception
    while cause is not None:
        yield cause
        cause = cause.getCause()


def _words(error: Py4JJavaError) -> str:
    *_, last = _causes(error)
    return str(last.getMessage() or last.getClass().getSimpleName())


def _told(error: Py4JJavaError, servers: str, path: str) -> ConfigError:
    kinds = {str(cause.getClass().getSimpleName()) for cause in _causes(error)}
    if any("Authentication" in kind or "Authorization" in kind for kind in kinds):
        hint = "Look at the user, the password and the mechanism in its `kafka` words."
        return ConfigError(path, f"{servers} refuses these credentials: {_words(error)}", hint=hint)
    if "TimeoutException" in kinds:
        hint = "See that it runs and is reached from here, and that security.protocol is what it speaks."
        return ConfigError(path, f"no broker answers at {servers} within {_SECONDS} s", hint=hint)
    return ConfigError(path, f"{servers}: {_words(error)}")
