"""Translates Canal messages of a topic into another one in Spark's real-time mode, until the input ends.

usage: realtime.py SERVERS FROM TO CHECKPOINT CORES, on Spark 4.2 or newer: before, Python has no such mode.
"""

import sys

import changeglot
from changeglot import kafka


def main() -> None:
    servers, come, go, checkpoint, cores = sys.argv[1:]
    spark = changeglot.session(cores=int(cores), driver_memory="4g", **kafka.session_settings())
    at = {"kafka.bootstrap.servers": servers}
    rows = spark.readStream.format("kafka").options(**at, subscribe=come, startingOffsets="earliest").load()
    told = changeglot.translate(rows.select("key", "value"), "canal", "canal").where("spoken").select("key", "value")
    writer = told.writeStream.format("kafka").options(**at, topic=go, checkpointLocation=checkpoint)
    query = writer.outputMode("update").trigger(realTime="5 minutes").start()
    sys.stdout.write("started\n")
    sys.stdout.flush()
    sys.stdin.read()
    problem = query.exception()
    query.stop()
    if problem is not None:
        raise problem


if __name__ == "__main__":
    main()
