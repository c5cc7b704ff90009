"""The golden messages and the laws, over all codecs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import told
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import changeglot
from changeglot.codecs import CODECS, resolve


@pytest.mark.parametrize("setting", told.by_setting())
def test_golden_messages_decode_to_their_changes_and_encode_back(spark: SparkSession, setting: str) -> None:
    group = told.by_setting()[setting]
    name, options, tables = told.arguments(setting)
    decoded = changeglot.decode(told.messages(spark, group), name, options=options, tables=tables)
    assert told.changes_of(decoded, "name") == {g.name: g.content["changes"] for g in group if g.content["changes"]}
    encoded = changeglot.encode(decoded, name, options=options, tables=tables).where("spoken")
    first: dict[str, Any] = {}
    for row in encoded.select("name", "key", F.col("value").cast("string").alias("value")).collect():
        first.setdefault(row["name"], row)
    for golden in group:
        if golden.content["reencodes"] is True and golden.content["changes"]:
            message = first[golden.name]
            assert told.same_json(message["value"], golden.content["message"]), golden.name
            if golden.content.get("key") is not None:
                assert told.same_json(bytes(message["key"]).decode(), golden.content["key"]), golden.name


def test_one_codec_detects_each_golden_message(spark: SparkSession) -> None:
    found = {row["name"]: row for row in changeglot.detect(told.messages(spark, told.goldens())).collect()}
    for golden in told.goldens():
        # A heartbeat has no image and so no types: the typed format cannot be told from the other.
        expected = "oms" if golden.name == "oms-typed/heartbeat" else golden.format
        assert found[golden.name]["format"] == expected, golden.name
        assert found[golden.name]["evidence"], golden.name


def test_mixed_messages_decode_as_each_part_alone_does(spark: SparkSession) -> None:
    plain = [g for g in told.goldens() if not g.content.get("options") and not g.content.get("tables")]
    alone: dict[str, list[dict[str, Any]]] = {}
    for name in CODECS:
        part = [g for g in plain if g.format == name and g.name != "oms-typed/heartbeat"]
        alone |= told.changes_of(changeglot.decode(told.messages(spark, part), name), "name")
    mixed = [g for g in plain if g.name != "oms-typed/heartbeat"]
    assert told.changes_of(changeglot.decode(told.messages(spark, mixed)), "name") == alone


@pytest.mark.parametrize("format", [*CODECS, "auto"])
def test_no_python_and_no_action_is_in_the_plan(spark: SparkSession, format: str) -> None:
    messages = spark.createDataFrame([(b"{}",)], "value binary")
    changes = changeglot.decode(messages, format)
    frames: list[DataFrame] = [changes, changeglot.detect(messages)]
    if format != "auto":
        frames.append(changeglot.encode(changes, format))
    for frame in frames:
        plan = frame._jdf.queryExecution().toString()
        assert "Python" not in plan
        assert "Arrow" not in plan


def test_streams_decode_as_batches_do(spark: SparkSession, tmp_path: Any) -> None:
    lines = [json.dumps(json.loads(g.content["message"])) for g in told.goldens() if g.format == "canal"]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "messages.txt").write_text("\n".join(lines) + "\n", "utf-8")
    stream = changeglot.translate(spark.readStream.text(str(tmp_path / "in")), "dataworks", "canal")
    query = (
        stream.where("spoken")
        .select(F.col("value").cast("string"))
        .writeStream.format("text")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    batch = changeglot.translate(spark.read.text(str(tmp_path / "in")), "dataworks", "canal").where("spoken")
    expected = sorted(row[0] for row in batch.select(F.col("value").cast("string")).collect())
    assert sorted(row[0] for row in spark.read.text(str(tmp_path / "out")).collect()) == expected


def test_the_documents_names_are_known_in_any_case() -> None:
    names = {
        "Default": "oms",
        "CANAL": "canal",
        "Dataworks": "dataworks",
        "SharePlex": "shareplex",
        "Sharplex": "shareplex",
        "DefaultExtendColumnType": "oms-typed",
        "ShapeMessage": "electric",
        "JSON CDC": "arcion",
    }
    assert {name: resolve(name) for name in names} == names
    with pytest.raises(changeglot.ChangeglotError, match='Did you mean "canal"'):
        resolve("cannal")
