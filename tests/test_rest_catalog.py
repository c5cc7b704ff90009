"""Iceberg tables in a REST catalog: named by its address, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from rest import serving
from shop import write
from test_pipelines import CANAL, canal, pipeline, row, run, stored

from changeglot.pipeline import Pipeline


@contextmanager
def _in(made: Pipeline, spark: SparkSession) -> Iterator[SparkSession]:
    """A session of its own, for which the catalog is another one than in the other tests."""
    session = spark.newSession()
    for name, value in made.session_settings().items():
        if name.startswith("spark.sql.catalog."):
            session.conf.set(name, value)
    try:
        yield session
    finally:
        # The session that makes a DataFrame is the active one from then on.
        spark.createDataFrame([], "nothing INT")


def test_tables_lie_in_a_rest_catalog_and_outlive_it(spark: SparkSession, tmp_path: Path) -> None:
    messages = tmp_path / "messages"
    told = [
        [canal("rested", "INSERT", [row(1, name="a"), row(2, name="b")])],
        [canal("rested", "UPDATE", [row(1, name="c")], old=[{"name": "a"}]), canal("rested", "DELETE", [row(2)])],
    ]
    for batch, names in zip(told, ({1: "a", 2: "b"}, {1: "c"}), strict=True):
        write(messages, [batch])
        with serving(tmp_path) as uri:
            sink = {"type": "iceberg", "path": (tmp_path / "tables").as_uri(), "uri": uri}
            made = pipeline("iceberg", tmp_path, messages, sink=sink, source=CANAL)
            with _in(made, spark) as session:
                run(made, session)
                rows = stored(session, made, "rested", "orders")
            assert {key: state["name"] for key, state in rows.items()} == names
