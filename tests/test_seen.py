"""What was sent twice is read once, whatever a broker took of it, and in the order in which it was meant."""

from __future__ import annotations

import random
from pathlib import Path

from pyspark.sql import SparkSession

from changeglot.notes import Notes
from changeglot.seen import seen
from changeglot.sources.base import LANE, PLACE, SENT

SCHEMA = f"what STRING, {PLACE} STRING, {LANE} STRING, {SENT} STRING"


def test_of_any_attempts_to_send_each_message_is_read_once_in_its_order(spark: SparkSession, tmp_path: Path) -> None:
    for seed in range(3):
        rng = random.Random(seed)
        log: list[tuple[str, str | None]] = []
        for batch in range(3):
            wanted = [(f"b{batch}n{n}", f"{batch} {n} writer/1") for n in range(1, rng.randrange(3, 9))]
            for _ in range(rng.randrange(3)):
                # An attempt that fails: some arrive, maybe not the first of them.
                log += [message for message in wanted if rng.random() < 0.5]
            log += wanted
            # Others write there too, and what they write again is theirs.
            log += [("other", None)] * rng.randrange(3)
        cuts = sorted(rng.sample(range(1, len(log)), 3))
        read: list[tuple[str, str]] = []
        for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(log)], strict=True)):
            rows = [(what, f"t {offset:05}", "t 0", sent) for offset, (what, sent) in enumerate(log)][begin:end]
            frame = spark.createDataFrame(rows, SCHEMA)
            notes = Notes(spark, str(tmp_path / str(seed)))
            # The second time as after a crash.
            for _ in range(2):
                found = seen(frame, notes, number).once()
                assert found.columns == frame.columns
            read += [(row[PLACE], row["what"]) for row in found.collect()]
        ordered = [what for _, what in sorted(read)]
        sent = [what for what in ordered if what != "other"]
        assert sent == [f"b{b}n{n}" for b in range(3) for n in range(1, 9) if f"b{b}n{n}" in dict(log)]
        assert ordered.count("other") == sum(1 for what, _ in log if what == "other")
