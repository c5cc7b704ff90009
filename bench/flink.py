"""Flink SQL over the same text files: its canal-json and debezium-json, and lines as its floor.

usage: flink.py DATA CORES, in the environment of requirements-flink.txt; started by run.py.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment
from pyflink.version import __version__
from shop import TABLES, UNION, Data
from worker import Contender, Job, own_stdout, serve


@dataclass(frozen=True)
class Reading:
    """One way to read the messages: under which columns, by which format of Flink's."""

    kind: str
    columns: Iterable[str]
    format: str
    options: dict[str, str] = field(default_factory=dict)


READINGS: dict[str, Reading] = {
    "Flink raw lines, canal": Reading("canal", ["line"], "raw"),
    "Flink raw lines, debezium": Reading("debezium", ["line"], "raw"),
    "Flink canal-json, union of columns": Reading("canal", UNION, "canal-json"),
    "Flink canal-json, one table of four": Reading(
        "canal", TABLES["orders"], "canal-json", {"canal-json.table.include": "orders"}
    ),
    "Flink debezium-json, union of columns": Reading("debezium", UNION, "debezium-json"),
    # This format has no filter: all messages are read, into the columns of one table.
    "Flink debezium-json, columns of one table": Reading("debezium", TABLES["orders"], "debezium-json"),
}


def found_java() -> None:
    """Says where Java is, if nobody did."""
    java = shutil.which("java")
    if "JAVA_HOME" not in os.environ and java:
        os.environ["JAVA_HOME"] = str(Path(java).resolve().parents[1])


def environment(cores: int, settings: Mapping[str, str] = MappingProxyType({})) -> TableEnvironment:
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    configuration.set_string("parallelism.default", str(cores))
    configuration.set_string("taskmanager.numberOfTaskSlots", str(cores))
    configuration.set_string("rest.bind-address", "127.0.0.1")
    configuration.set_string("rest.bind-port", "0")
    # Formats of changes are for streams only; the files are bounded, so the stream ends.
    streaming = EnvironmentSettings.new_instance().in_streaming_mode()
    return TableEnvironment.create(streaming.with_configuration(configuration).build())


def declare(flink: TableEnvironment, name: str, columns: Iterable[str], **options: str) -> None:
    declared = ", ".join(f"`{column}` STRING" for column in columns)
    given = ", ".join(f"'{option}' = '{value}'" for option, value in options.items())
    flink.execute_sql(f"CREATE TABLE {name} ({declared}) WITH ({given})")


def job(flink: TableEnvironment, number: int, reading: Reading, data: Data) -> Job:
    source, sink = f"source_{number}", f"sink_{number}"
    path = data.text(reading.kind).resolve().as_uri()
    options = {"connector": "filesystem", "path": path, "format": reading.format}
    declare(flink, source, reading.columns, **options, **reading.options)
    declare(flink, sink, reading.columns, connector="blackhole")
    return lambda: flink.execute_sql(f"INSERT INTO {sink} SELECT * FROM {source}").wait()


def main() -> None:
    answers = own_stdout()
    data, cores = Data.load(Path(sys.argv[1])), int(sys.argv[2])
    found_java()
    flink = environment(cores)
    jobs = {
        Contender(name, data.rows, data.sizes[reading.kind]): job(flink, number, reading, data)
        for number, (name, reading) in enumerate(READINGS.items())
    }
    serve(answers, {"versions": {"Flink": __version__}}, jobs)


if __name__ == "__main__":
    main()
