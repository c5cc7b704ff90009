"""What Flink makes of a file of messages: `flink_reads.py FILE FORMAT [OPTION=VALUE ...]`, in Flink's own environment.

Prints the rows that are there in the end, as JSON.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

file, spoken, *options = sys.argv[1:]
java = shutil.which("java")
if "JAVA_HOME" not in os.environ and java:
    os.environ["JAVA_HOME"] = str(Path(java).resolve().parents[1])
flink = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
flink.get_config().set("parallelism.default", "1")
words = "".join(f", '{name}' = '{value}'" for name, value in (option.split("=", 1) for option in options))
flink.execute_sql(
    "CREATE TABLE told (id BIGINT, name STRING, amount DECIMAL(12, 2)) "
    f"WITH ('connector' = 'filesystem', 'path' = '{Path(file).as_uri()}', 'format' = '{spoken}'{words})"
)
rows: dict[int, list[object]] = {}
with flink.execute_sql("SELECT * FROM told").collect() as changes:
    for change in changes:
        key, name, amount = change
        if change.get_row_kind().name in ("INSERT", "UPDATE_AFTER"):
            rows[key] = [name, None if amount is None else str(amount)]
        else:
            rows.pop(key, None)
print(json.dumps(rows))
