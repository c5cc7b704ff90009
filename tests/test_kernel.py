"""The kernel: exact both ways, strict, limited, and never an exception."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest
import told
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

import changeglot
from changeglot import kernel
from changeglot.codecs import CODECS

IMAGE = f"row: {kernel.IMAGE}"


def read(spark: SparkSession, shape: str, *messages: bytes) -> list[Row]:
    changeglot.prepare(spark)
    df = spark.createDataFrame([(m,) for m in messages], "value binary").coalesce(1)
    return df.select(kernel.read(F.col("value"), shape).alias("r")).select("r.*").collect()


EXACT = {
    "0": "integer",
    "-0": "integer",
    "18446744073709551615": "integer",
    "1" + "0" * 64: "integer",
    "1.10": "number",
    "1590315269000.123456789": "number",
    "12345678901234567890123456789012345678901234567890.123456789012345": "number",
    "1E400": "number",
    "1e-7": "number",
    '""': "string",
    '"\\u0000\\u0001"': "string",
    '"\\ud83d\\ude00 \U0001f600 \u4e2d"': "string",
    '"a\\"\\\\\\/\\b\\f\\n\\r\\tz"': "string",
    "true": "boolean",
    "false": "boolean",
    "null": "null",
    '{"a": [1.0, {}]}': "object",
    "[1.0,  2]": "array",
}


def test_values_keep_every_digit_and_character_and_their_kind(spark: SparkSession) -> None:
    found = read(spark, f"a: {kernel.VALUE}", *(b'{"a": %s}' % text.encode() for text in EXACT))
    for (text, kind), row in zip(EXACT.items(), found, strict=True):
        assert row["problem"] is None
        assert row["a"]["kind"] == kind
        expected = json.loads(text) if kind == "string" else None if kind == "null" else text
        assert row["a"]["text"] == expected


def test_what_is_read_is_written_again(spark: SparkSession) -> None:
    message = b'{"row":{%s}}' % b",".join(b'"%d":%s' % (n, text.encode()) for n, text in enumerate(EXACT))
    df = spark.createDataFrame([(message,)], "value binary")
    body = df.select(kernel.read(F.col("value"), IMAGE).alias("r"))
    written = body.select(kernel.write(F.struct(F.col("r.row").alias("row"))).alias("w")).collect()[0]["w"]
    assert told.same_json(bytes(written).decode(), message.decode())


def test_absent_null_and_value_are_three_facts(spark: SparkSession) -> None:
    shape = f"{IMAGE}, a: {kernel.VALUE}, b: {kernel.VALUE}, c: {kernel.VALUE}"
    (row,) = read(spark, shape, b'{"row":{"x":null,"y":""},"a":null,"b":""}')
    assert row["row"]["values"] == {"x": None, "y": ""}
    assert row["row"]["kinds"] == "zs"
    assert row["a"]["kind"] == "null"
    assert row["b"]["text"] == ""
    assert row["c"] is None


BAD = {
    b"": "empty",
    b"  ": "empty",
    b"{": "the end",
    b'{"a":1}x': "something follows",
    b"{'a':1}": "expected a string",
    b'{"a":01}': "must not begin with 0",
    b'{"a":1.}': "needs digits",
    b'{"a":+1}': "expected a value",
    b'{"a":NaN}': "expected",
    b'{"a":"\t"}': "control character",
    b'{"a":"\xff"}': "not UTF-8",
    b'{"a":"\xc0\xaf"}': "not UTF-8",
    b'{"a":"\xed\xa0\x80"}': "not UTF-8",
    b'{"a":"\\ud800"}': "half of a surrogate pair",
    b'{"a":"\\x"}': "unknown escape",
    b'{"a":"\\u12"}': "hexadecimal",
    b'{"a":1,"a":2}': 'two members named "a"',
    b'{"row":{"x":1,"\\u0078":2}}': 'row: two members named "x"',
    b'{"row":[1]}': "row: expected an object, found an array",
    b'{"n":"x"}': "n: expected a whole number",
    b'{"n":9223372036854775808}': "n: expected a smaller number",
    b"[1]": "expected an object, found an array",
    b'"a"': "expected an object, found a string",
    b'{"a":' + b"[" * 200 + b"]" * 200 + b"}": "nested deeper than",
}


def test_a_bad_message_has_a_reason_and_nothing_else(spark: SparkSession) -> None:
    rows = read(spark, f"{IMAGE}, a: STRING, n: BIGINT", *BAD)
    for (message, reason), row in zip(BAD.items(), rows, strict=True):
        assert reason in row["problem"], message[:40]
        assert (row["row"], row["a"], row["n"]) == (None, None, None)


def test_a_byte_order_mark_and_large_values_are_read(spark: SparkSession) -> None:
    large = b"x" * (1 << 20)
    mark, big = read(spark, IMAGE, b'\xef\xbb\xbf{"row":{"a":"b"}}', b'{"row":{"a":"%s"}}' % large)
    assert mark["row"]["values"] == {"a": "b"}
    assert big["row"]["values"] == {"a": large.decode()}


def test_images_of_many_tables_keep_their_own_names(spark: SparkSession) -> None:
    """Names are remembered from row to row: lists that share their beginnings, or end early, must not mix."""
    rng = random.Random(7)
    rows = [{f"c{rng.randrange(9)}": str(rng.randrange(99)) for _ in range(rng.randrange(6))} for _ in range(3000)]
    found = read(spark, IMAGE, *(json.dumps({"row": row}).encode() for row in rows))
    assert [row["row"]["values"] for row in found] == rows


def test_null_arguments_never_show_the_row_before(spark: SparkSession) -> None:
    """Spark's generated code hands functions what stands in a variable, NULL or not."""
    changeglot.prepare(spark)
    rows = [(n, {"a": str(n)} if n % 2 else None) for n in range(200)]
    df = spark.createDataFrame(rows, "n int, m map<string,string>").coalesce(1)
    pick = F.when(F.col("n") % 3 == 0, F.col("m"))
    found = df.select("n", kernel.overlay(pick, F.lit(None).cast("map<string,string>")).alias("m")).collect()
    assert {r["n"]: r["m"] for r in found} == {n: (m if n % 3 == 0 else None) for n, m in rows}


def test_columns_are_completed_by_what_images_have_beside_them(spark: SparkSession) -> None:
    changeglot.prepare(spark)
    types = kernel.COLUMNS.replace("name:", "`name=@`:").replace("type:", "`type=.`:")
    body = f"types: {types}, a: {kernel.IMAGE}, b: {kernel.IMAGE}"
    cases = {
        '{"types":{"x":"int","y":"text"},"a":{"x":1,"y":""},"b":{"y":""}}': "x int, y text",
        '{"types":{"x":"int"},"a":{"x":1},"b":{"x":1,"z":"new"}}': "x int, z string",
        '{"types":{"x":"int"},"a":{"w":true},"b":{"x":1}}': "x int, w boolean",
        '{"types":{"x":"int"},"b":{"x":1}}': "x int",
        '{"types":{"x":null},"a":{"x":1.5}}': "x number",
        '{"a":{"x":null},"b":{"x":[]}}': "x array",
    }
    read = spark.createDataFrame([(text,) for text in cases], "value string").coalesce(1)
    read = read.select(kernel.read(F.col("value").cast("binary"), body).alias("m")).select("m.*")
    found = read.select(kernel.completed(F.col("types"), F.col("a"), F.col("b")).alias("c")).collect()
    said = [", ".join(f"{c['name']} {c['type'] or c['json']}" for c in row["c"]) for row in found]
    assert said == list(cases.values())


def test_columns_as_one_text_are_the_columns_again(spark: SparkSession) -> None:
    changeglot.prepare(spark)
    full = {"name": 'say "hi"\\\n\u4e2d', "type": "enum('a','b')", "jdbc": -5, "nullable": False, "json": "string"}
    partly = {**dict.fromkeys(full), "name": "a"}
    # The same ones again and again, as of one table; and some that are like them.
    lists = [[full, partly], [partly], [full, partly], [], None, [{**partly, "jdbc": 0}], [partly], [full]]
    made = spark.createDataFrame([(n, each) for n, each in enumerate(lists)], f"n int, c {kernel.COLUMNS}").coalesce(1)
    told = made.select("n", "c", kernel.listed(F.col("c")).alias("text"))
    found = told.select("c", "text", F.from_json("text", kernel.COLUMNS).alias("again")).orderBy("n").collect()
    assert [row["again"] for row in found] == [row["c"] for row in found]
    assert [row["text"] for row in found][1:5:2] == ['[{"name":"a"}]', "[]"]


def test_numbers_sort_as_text(spark: SparkSession) -> None:
    rng = random.Random(7)
    numbers = [tuple(rng.choice((0, 9, 10, 99, 10**9, 2**64 - 1)) for _ in range(rng.randrange(4))) for _ in range(300)]
    rows = spark.createDataFrame([(list(map(Decimal, each)),) for each in numbers], "n ARRAY<DECIMAL(20, 0)>")
    found = {
        tuple(map(int, row["n"])): row["text"] for row in rows.withColumn("text", kernel.sortable(F.col("n"))).collect()
    }
    assert sorted(found, key=lambda each: found[each]) == sorted(found)
    odd = spark.createDataFrame([(None,), ([None, Decimal(7)],)], "n ARRAY<DECIMAL(20, 0)>")
    assert [row[0] for row in odd.select(kernel.sortable(F.col("n"))).collect()] == [None, "A7"]


def test_structs_are_unlike_where_they_differ(spark: SparkSession) -> None:
    changeglot.prepare(spark)
    kind = "struct<m: map<string,string>, s: struct<a: int, b: array<bigint>>, t: string>"
    one = {"m": {"a": "1", "b": None}, "s": {"a": 1, "b": [1, 2]}, "t": "x"}
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({**one, "m": {"b": None, "a": "1"}}, []),
        ({**one, "m": {"b": None, "c": "1"}}, ["m"]),
        ({**one, "m": None, "t": None}, ["m", "t"]),
        ({**one, "s": {"a": 1, "b": [1, None]}}, ["s"]),
        ({**one, "s": None}, ["s"]),
    ]
    df = spark.createDataFrame([(one, other) for other, _ in cases], f"a {kind}, b {kind}").coalesce(1)
    found = df.select(kernel.unlike(F.col("a"), F.col("b")).alias("names")).collect()
    assert [row["names"] for row in found] == [names for _, names in cases]
    empty = spark.createDataFrame(
        [({"s": None}, {"s": {"a": None}})], "a struct<s: struct<a: int>>, b struct<s: struct<a: int>>"
    )
    assert empty.select(kernel.unlike(F.col("a"), F.col("b")).alias("names")).head() == Row(names=[])


def hostile() -> list[bytes]:
    """The golden messages cut, swapped, bent and broken, the same ones each time."""
    rng = random.Random(11)
    found = [b"null", b"true", b"0", b'"default"', b"default", b"{}", b"[]", b"[{}]", b"\x00", b"\xff\xfe{}"]
    wrong: list[Any] = [
        None,
        True,
        -1,
        1.5,
        "x",
        [],
        {},
        [[]],
        {"a": {}},
        [None],
        "9" * 400,
        -(2**63),
        "9" * 30,
        2**63 - 1,
        "1e30",
    ]
    for golden in told.goldens():
        text = golden.content["message"].encode()
        found.append(text[: rng.randrange(len(text))])
        broken = bytearray(text)
        broken[rng.randrange(len(text))] = rng.randrange(256)
        found.append(bytes(broken))
        try:
            bent = json.loads(text)
        except ValueError:
            continue
        spots = [(bent, name) for name in bent] if isinstance(bent, dict) else []
        for inner, name in list(spots):
            if isinstance(inner[name], dict):
                spots += [(inner[name], deeper) for deeper in inner[name]]
        for inner, name in spots:
            kept = inner[name]
            inner[name] = rng.choice(wrong)
            found.append(json.dumps(bent).encode())
            inner[name] = kept
    return found


@pytest.mark.parametrize("format", [*CODECS, "auto"])
def test_decode_never_raises_and_drops_nothing_unsaid(spark: SparkSession, format: str) -> None:
    messages = hostile()
    df = spark.createDataFrame(list(enumerate(messages)), "id int, value binary")
    df = df.withColumn("key", F.when(F.col("id") % 3 == 0, F.col("value")))
    found = changeglot.decode(df, format).select("id", "op", "problem", "raw").collect()
    for row in found:
        assert (row["op"] is None) == (row["problem"] is not None)
        assert (row["raw"] is None) == (row["problem"] is None)
        if row["raw"] is not None:
            assert bytes(row["raw"]["value"]) == messages[row["id"]]
    # Only what says nothing gives nothing: what is empty, and tombstones, which Arcion alone has.
    tombstones = {b"default", b'"default"', b"null"} if format in ("arcion", "auto") else set()
    assert set(messages) - {messages[row["id"]] for row in found} <= {b"", *tombstones}


def test_fields_between_tabs_are_an_image_in_which_absent_null_and_text_differ(spark: SparkSession) -> None:
    texts = ["plain", "", "a\tb\nc\rd\\e\b\f\v", "\\N", "\\-", "grüße \U0001f600", "-", "N"]
    escapes = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
    escaped = ["".join(escapes.get(each, each) for each in text) for text in texts]
    names = [f"c{n}" for n in range(len(texts))]
    rng = random.Random(3)
    cases: list[tuple[str, dict[str, str | None] | None, int]] = []
    for _ in range(200):
        chosen = [rng.choice([None, "", *zip(escaped, texts, strict=True)]) for _ in names]
        fields = ["\\N" if each is None else "\\-" if each == "" else each[0] for each in chosen]
        told = {n: each and each[1] for n, each in zip(names, chosen, strict=True) if each != ""}
        before = rng.randrange(3)
        cases.append(("\t".join([*escaped[:before], *fields, *escaped[: rng.randrange(2)]]), told, before))
    cases += [("\t".join(["x"] * (len(names) - 1)), None, 0), ("x", None, 2), ("\\", None, 0)]
    columns = f"from_json('{json.dumps([{'name': name} for name in names])}', '{kernel.COLUMNS}')"
    changeglot.prepare(spark)
    lines = spark.createDataFrame(cases, "line STRING, told MAP<STRING, STRING>, skip INT").coalesce(1)
    found = lines.select("told", kernel.fields(F.col("line"), F.expr(columns), F.col("skip"))["values"].alias("read"))
    for row in found.collect():
        assert row["read"] == row["told"]
