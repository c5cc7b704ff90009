"""Flink SQL from the same Canal messages into Iceberg tables, as its documentation has it for changes: upserts.

usage: flink_lake.py DATA FOLDER ICEBERG HADOOP CORES, in Flink's environment; started by load.py.
"""

import os
import sys
from itertools import count
from pathlib import Path

from flink import environment, found_java
from pyflink.table import TableEnvironment
from shop import MYSQL_TYPES, Data
from worker import Contender, own_stdout, serve

NAME = "Flink canal-json into Iceberg"
CHECKPOINT = "10 s"
_TYPES = {"varchar(255)": "STRING", "datetime": "TIMESTAMP(6)"}


def load(flink: TableEnvironment, data: Data, database: str) -> None:
    """Every table of the shop into a new table, all in one job."""
    flink.execute_sql(f"CREATE DATABASE lake.{database}")
    every = flink.create_statement_set()
    path = data.text("canal").resolve().as_uri()
    for table, types in MYSQL_TYPES.items():
        columns = ", ".join(f"`{name}` {_TYPES.get(kind, kind)}" for name, kind in types.items())
        columns += ", PRIMARY KEY (id) NOT ENFORCED"
        source, sink = f"{database}_{table}", f"lake.{database}.{table}"
        flink.execute_sql(
            f"CREATE TEMPORARY TABLE {source} ({columns}) WITH ('connector' = 'filesystem', 'path' = '{path}',"
            f" 'format' = 'canal-json', 'canal-json.table.include' = '{table}')"
        )
        flink.execute_sql(
            f"CREATE TABLE {sink} ({columns}) WITH ('format-version' = '2', 'write.upsert.enabled' = 'true')"
        )
        every.add_insert_sql(f"INSERT INTO {sink} SELECT * FROM {source}")
    every.execute().wait()


def main() -> None:
    answers = own_stdout()
    data, (folder, iceberg, hadoop, cores) = Data.load(Path(sys.argv[1])), sys.argv[2:]
    found_java()
    os.environ["HADOOP_CLASSPATH"] = hadoop
    flink = environment(int(cores), {"pipeline.jars": iceberg, "execution.checkpointing.interval": CHECKPOINT})
    flink.execute_sql(
        f"CREATE CATALOG lake WITH ('type' = 'iceberg', 'catalog-type' = 'hadoop', 'warehouse' = '{folder}')"
    )
    numbers = count()
    contender = Contender(NAME, data.rows, data.sizes["canal"])
    serve(answers, {}, {contender: lambda: load(flink, data, f"shop_{next(numbers)}")})


if __name__ == "__main__":
    main()
