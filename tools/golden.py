"""Rewrites `changes` of the golden files from what the codecs say now: `make golden`. A person reads the diff."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import told

import changeglot


def main() -> None:
    """Decodes every golden message and writes what it says into its file."""
    spark = changeglot.session(cores=2, spark__ui__showConsoleProgress="false")
    for setting, group in told.by_setting().items():
        name, options, tables = told.arguments(setting)
        decoded = changeglot.decode(told.messages(spark, group), name, options=options, tables=tables)
        changes = told.changes_of(decoded, "name")
        for golden in group:
            golden.content["changes"] = changes.get(golden.name, [])
            text = json.dumps(golden.content, indent=1, ensure_ascii=False) + "\n"
            golden.path.write_text(text, "utf-8")
            print(golden.name)


if __name__ == "__main__":
    main()
