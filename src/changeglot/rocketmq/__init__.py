"""RocketMQ 5 as a source and a sink of Spark, over its remoting protocol; no jar, no proxy.

    from changeglot import rocketmq

    rocketmq.register(spark)
    servers = {"nameServers": "localhost:9876"}
    messages = spark.readStream.format("rocketmq").options(**servers, topics="orders,customers").load()
    others.write.format("rocketmq").options(**servers, topic="copies").mode("append").save()

What comes out, and which options there are, says `RocketMQSource`.
"""

from __future__ import annotations

from importlib.util import find_spec

from pyspark.sql import SparkSession

from changeglot.errors import MissingError
from changeglot.rocketmq.client import NoTopic, OffsetGone
from changeglot.rocketmq.datasource import RocketMQSource
from changeglot.rocketmq.messages import RocketMQError

__all__ = ["NoTopic", "OffsetGone", "RocketMQError", "RocketMQSource", "register"]


def register(spark: SparkSession) -> None:
    """Makes `format("rocketmq")` known to the session."""
    if find_spec("pyarrow") is None:
        raise MissingError(
            "Spark's data sources in Python need pyarrow, which is not installed",
            hint="pip install 'changeglot[rocketmq]', here and wherever Spark's workers run.",
        )
    spark.dataSource.register(RocketMQSource)
