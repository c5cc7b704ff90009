"""The one canonical text of a value, by type family, and how formats spell it.

| family    | canonical text                                                                      |
|-----------|-------------------------------------------------------------------------------------|
| integer   | digits, as they came: `-1`, `18446744073709551615`                                  |
| decimal   | digits, as they came, with trailing zeros: `10.50`                                   |
| float     | the number as it came: `1e-7`, `NaN`                                                 |
| boolean   | `true`, `false`                                                                      |
| text      | the text                                                                             |
| binary    | Base64 with padding                                                                  |
| bit       | Base64 of its bytes, the highest first                                               |
| date      | `2024-01-02`; what is no date (`0000-00-00`) stays as it came                        |
| time      | `03:04:05.5`                                                                         |
| datetime  | `2024-01-02 03:04:05.5`: a clock without a zone                                      |
| timestamp | `2024-01-02 03:04:05.5Z`: a moment, to the nanosecond                                |
| zoned     | as timestamp if it came in UTC, else with its zone as it came                        |
| json      | the JSON text, as it came                                                            |
| enum, set | the label; the labels, comma separated                                               |
| interval  | as it came                                                                           |

A column of unknown type keeps its text, and `columns.json` tells the JSON kind that it came in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Type names (lower case, without parameters) by family. A name of several words that is not here counts as its first.
_NAMES: Final[dict[str, str]] = {
    "integer": "tinyint smallint mediumint int integer bigint int1 int2 int3 int4 int8 int16 int32 int64 uint8 uint16"
    " uint32 uint64 long short byte serial bigserial smallserial year oid",
    "decimal": "decimal numeric number dec fixed money smallmoney",
    "float": "float double real float4 float8 float32 float64 binary_float binary_double",
    "boolean": "boolean bool",
    "text": "char character nchar varchar varchar2 nvarchar nvarchar2 bpchar text tinytext mediumtext longtext ntext"
    " clob nclob string var_string uuid uniqueidentifier inet cidr macaddr name citext xml rowid univarchar unichar",
    "binary": "binary varbinary blob tinyblob mediumblob longblob bytea bytes raw image geometry point linestring"
    " polygon multipoint multilinestring multipolygon geometrycollection rowversion",
    "bit": "bit varbit",
    "date": "date",
    "time": "time timetz",
    "datetime": "datetime datetime2 smalldatetime",
    "timestamp": "timestamp timestamptz",
    "zoned": "zoned_datetime datetimeoffset",
    "json": "json jsonb",
    "enum": "enum",
    "set": "set",
    "interval": "interval interval_day_to_second interval_year_to_month",
}

#: java.sql.Types by the name that stands for it.
JDBC: Final[dict[str, int]] = {
    "bit": -7, "tinyint": -6, "bigint": -5, "longblob": -4, "varbinary": -3, "binary": -2, "longtext": -1,
    "char": 1, "numeric": 2, "decimal": 3, "int": 4, "smallint": 5, "float": 6, "real": 7, "double": 8,
    "varchar": 12, "boolean": 16, "date": 91, "time": 92, "timestamp": 93, "json": 1111, "blob": 2004,
    "clob": 2005, "timestamptz": 2014,
}  # fmt: skip

#: The type that a JSON kind stands for where a format wants one and none was declared.
JSON_TYPES: Final[dict[str, str]] = {
    "json integer": "bigint",
    "json number": "decimal",
    "json string": "varchar",
    "json boolean": "boolean",
    "json object": "json",
    "json array": "json",
}

FAMILY: Final[dict[str, str]] = {
    **{word: family for family, words in _NAMES.items() for word in words.split()},
    "timestamp with time zone": "timestamp",
    "timestamp with local time zone": "timestamp",
    "timestamp without time zone": "datetime",
    "binary large object": "binary",
    "binary varying": "binary",
}

_JSON_RULES: Final = {
    "json integer": "NUMBER",
    "json number": "NUMBER",
    "json string": "TEXT",
    "json boolean": "BOOLEAN",
    "json object": "JSON",
    "json array": "JSON",
}

#: Values as OceanBase's formats spell them; the kernel's Spelling.java tells what each rule does.
OCEANBASE: Final = {
    "integer": "NUMBER",
    "decimal": "NUMBER",
    "float": "NUMBER",
    "boolean": "ZERO_ONE",
    "binary": "BASE64",
    "bit": "BASE64",
    "timestamp": "EPOCH",
}


def rules(families: Mapping[str, str], *, kinds: bool = True) -> dict[str, str]:
    """The kernel's table of rules by type name, from a format's rule by family; a family without a rule is text.

    >>> rules({"binary": "HEX"})["bytea"], rules({"binary": "HEX"})["int"]
    ('HEX', 'TEXT')
    """
    table = {word: families.get(family, "TEXT") for word, family in FAMILY.items()}
    for word, code in JDBC.items():
        table[f"jdbc {code}"] = table[word]
    return {**table, **(_JSON_RULES if kinds else {})}


def by_family(types: Mapping[str, str]) -> dict[str, str]:
    """A table of type names from one by family, for JSON kinds too."""
    table = {word: types[family] for word, family in FAMILY.items() if family in types}
    for word, code in JDBC.items():
        table[f"jdbc {code}"] = table[word]
    return {**table, **{kind: table[word] for kind, word in JSON_TYPES.items()}}


def codes() -> dict[str, str]:
    """The JDBC code of each type name and JSON kind."""
    nearest = {
        "integer": "int", "decimal": "decimal", "float": "double", "boolean": "boolean", "text": "varchar",
        "binary": "blob", "bit": "bit", "date": "date", "time": "time", "datetime": "timestamp",
        "timestamp": "timestamp", "zoned": "timestamptz", "json": "json", "enum": "char", "set": "char",
        "interval": "varchar",
    }  # fmt: skip
    special = {
        "int64": "bigint",
        "mediumint": "int",
        "int8": "bigint",
        "long": "bigint",
        "bigserial": "bigint",
    }
    table = {word: str(JDBC[nearest[family]]) for word, family in FAMILY.items()}
    table |= {word: str(code) for word, code in JDBC.items()}
    table |= {word: str(JDBC[same]) for word, same in special.items()}
    return {**table, **{kind: table[word] for kind, word in JSON_TYPES.items()}}


#: What a JDBC code or a JSON kind is called where a type's name is wanted.
NAMED: Final[dict[str, str]] = {
    **JSON_TYPES,
    **{f"jdbc {code}": word for word, code in JDBC.items()},
}
