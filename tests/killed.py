"""A process that runs a pipeline and dies where it is told: `killed.py PIPELINE.json SETTINGS.json STEP`.

STEP is the number of the step after which it is killed, it and its JVM, by SIGKILL; 0: never. With `each` the pipeline
fails after the first step and is begun anew, then after the second, and so on until it comes to its end: every place of
failure without a new JVM for each. A step is whatever writes to a table or a topic, or changes one. Says "ready" when
the pipeline starts and "done" at its end, with the number of steps or, with `each`, of failures.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

import changeglot
from changeglot import config
from changeglot.sinks.base import LakeSink

LAKE = ("once", "append", "begin", "create", "put", "add", "widen", "rename", "drop")
TOPICS = ("lanes", "send")


class Died(Exception):
    """Stands for the end of the process."""


def main() -> None:
    content, settings = (json.loads(Path(path).read_text()) for path in sys.argv[1:3])
    each = sys.argv[3] == "each"
    last = 1 if each else int(sys.argv[3])
    # It does not live long enough for the JVM to gain by its slower compiler.
    settings["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    spark = changeglot.session(cores=1, driver_memory="1g", **settings)
    once = content.pop("once", True)
    pipeline = config.pipeline(content, name="killed-" + content["sink"]["type"])
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm, done = gateway.proc.pid, 0

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        """Any: whatever the step takes and gives."""

        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal done
            given = step(*arguments, **named)
            done += 1
            if each and done >= last:
                raise Died
            if done == last:
                os.kill(jvm, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            return given

        return wrapped

    for sink in pipeline.sinks:
        kind = type(sink)
        for name in LAKE if isinstance(sink, LakeSink) else TOPICS:
            home = kind if name in vars(kind) else LakeSink
            setattr(home, name, counted(getattr(home, name)))
    print("ready", flush=True)
    while each:
        done = 0
        try:
            pipeline.run(spark, once=once).awaitTermination()
            break
        except StreamingQueryException:
            assert done >= last
            last += 1
    else:
        pipeline.run(spark, once=once).awaitTermination()
    print(f"done {last - 1 if each else done}", flush=True)


if __name__ == "__main__":
    main()
