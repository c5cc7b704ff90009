"""pgoutput's messages, byte by byte, become lines."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest

from changeglot.capture.pgoutput import Column, Decoder, Relation
from changeglot.capture.spool import field
from changeglot.errors import ChangeglotError

#: 2024-01-02 03:04:05.678901, in microseconds since 2000 and since 1970.
THEN, SINCE_1970 = 757_479_845_678_901, 1_704_164_645_678_901


def begin(position: int = 100, transaction: int = 7) -> bytes:
    return struct.pack(">cqqI", b"B", position, THEN, transaction)


def commit(position: int = 100, end: int = 148) -> bytes:
    return struct.pack(">cBqqq", b"C", 0, position, end, THEN)


def relation(oid: int = 1, identity: bytes = b"d", table: str = "t") -> bytes:
    columns = b"".join(
        struct.pack(">B", key) + name.encode() + b"\0" + struct.pack(">Ii", kind, modifier)
        for key, name, kind, modifier in ((1, "id", 23, -1), (0, "größe", 1700, 655366), (0, "mood", 16400, -1))
    )
    named = b"public\0" + table.encode() + b"\0"
    return b"R" + struct.pack(">I", oid) + named + identity + struct.pack(">H", 3) + columns


def row(*values: str | bytes | None) -> bytes:
    """None is NULL, and b"u" a value that was not told."""
    told = b"".join(
        b"n"
        if each is None
        else each
        if isinstance(each, bytes)
        else struct.pack(">cI", b"t", len(each.encode())) + each.encode()
        for each in values
    )
    return struct.pack(">H", len(values)) + told


def change(kind: bytes, *parts: bytes, oid: int = 1) -> bytes:
    return kind + struct.pack(">I", oid) + b"".join(parts)


def lines(*payloads: bytes) -> list[list[str]]:
    """Fields of the lines; the relation is called by its table."""
    decoder = Decoder(lambda relation: relation.table)
    for payload in payloads:
        decoder.read(payload)
    return [line.split("\t") for line in decoder.taken().decode().splitlines()]


def test_a_transaction_becomes_lines_of_which_one_is_the_last() -> None:
    found = lines(
        begin(),
        b"O" + struct.pack(">q", 5) + b"elsewhere\0",
        relation(),
        change(b"I", b"N", row("1", "2.50", None)),
        change(b"U", b"N", row("1", "3.50", b"u")),
        change(b"D", b"K", row("1", None, None)),
        commit(),
    )
    same = ["7", str(SINCE_1970), ""]
    assert found == [
        ["i", "t", "100", "0", "0", *same, "", "1", "2.50", r"\N"],
        ["u", "t", "100", "1", "0", *same, "", "1", "3.50", r"\-"],
        ["d", "t", "100", "2", "1", *same, "K", "1", r"\-", r"\-"],
    ]


def test_old_rows_are_whole_or_the_key_alone() -> None:
    whole = change(b"U", b"O", row("1", None, "big"), b"N", row("1", "2", b"u"))
    key = change(b"U", b"K", row("1", None, None), b"N", row("2", None, b"u"))
    found = lines(begin(), relation(), whole, key, change(b"D", b"O", row("2", None, "x")), commit())
    assert [each[8:] for each in found] == [
        ["O", "1", "2", "big", "1", r"\N", "big"],
        ["K", "2", r"\N", r"\-", "1", r"\-", r"\-"],
        ["O", "2", r"\N", "x"],
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (r"\N", r"\\N"),
        (r"\-", r"\\-"),
        ("a\tb", r"a\tb"),
        ("a\nb\r", r"a\nb\r"),
        ("", ""),
        ("💜 'q' \"q\"", "💜 'q' \"q\""),
        ("\\", r"\\"),
    ],
)
def test_a_value_is_escaped_and_null_is_not_text(value: str, said: str) -> None:
    ((*_, first, second, third),) = lines(begin(), relation(), change(b"I", b"N", row(value, None, value)), commit())
    assert (first, second, third) == (said, r"\N", said)


def test_rows_of_all_kinds_of_values_become_the_same_values_in_lines() -> None:
    drawn = random.Random(7)
    texts = ["", "t", "n", "u", "N", "Berlin", "Peru", "nnn", "\t", "\\N", "\\-", "t\\0", "\bt", "x" * 92, "ä" * 128]
    texts += ["tn" * 58, "N" * 0x74]
    large = ["tn" * 128, "n" * 0x4E00, "t" * 0x7400, "\bn" * (1 << 15)]

    def values() -> list[str | bytes | None]:
        weights = drawn.choice([(9, 0, 0, 0), (9, 1, 0, 0), (9, 0, 2, 0), (9, 1, 2, 2)])
        return [drawn.choice(each) for each in drawn.choices((texts, large, [None], [b"u"]), weights, k=3)]

    def told(new: Sequence[str | bytes | None], old: Sequence[str | bytes | None] = ()) -> list[str]:
        filled = [old[place] if old and each == b"u" else each for place, each in enumerate(new)]
        marks = {None: rb"\N", b"u": rb"\-"}
        return [
            (marks[e] if e is None or isinstance(e, bytes) else field(e.encode())).decode() for e in (*filled, *old)
        ]

    payloads, wanted = [begin(), relation()], []
    for _ in range(500):
        new, old = values(), [None if each == b"u" else each for each in values()]
        key: list[str | bytes | None] = [drawn.choice(texts), None, None]
        payloads += [
            change(b"I", b"N", row(*new)),
            change(b"U", b"N", row(*new)),
            change(b"U", b"O", row(*old), b"N", row(*new)),
            change(b"U", b"K", row(*key), b"N", row(*new)),
            change(b"D", b"O", row(*old)),
            change(b"D", b"K", row(*key)),
        ]
        only_key = [key[0], b"u", b"u"]
        wanted += [
            ["i", "", *told(new)],
            ["u", "", *told(new)],
            ["u", "O", *told(new, old)],
            ["u", "K", *told(new), *told(only_key)],
            ["d", "O", *told(old)],
            ["d", "K", *told(only_key)],
        ]
    assert [[each[0], *each[8:]] for each in lines(*payloads, commit())] == wanted


def test_a_relation_that_is_told_again_is_as_it_was_told_last() -> None:
    names = iter(["first", "second", None])
    decoder = Decoder(lambda _: next(names))
    for payload in (
        begin(),
        relation(),
        change(b"I", b"N", row("1", "2", "3")),
        relation(),
        change(b"I", b"N", row("1", "2", "3")),
        relation(),
        change(b"I", b"N", row("1", "2", "3")),
        commit(),
    ):
        decoder.read(payload)
    assert [line.split(b"\t")[1] for line in decoder.taken().splitlines()] == [b"first", b"second"]


def test_a_truncate_of_two_tables_is_two_lines_without_values() -> None:
    both = b"T" + struct.pack(">IBII", 2, 1, 1, 2)
    found = lines(begin(), relation(1, table="a"), relation(2, table="b"), both, commit())
    assert [(each[0], each[1], each[3], each[4], len(each)) for each in found] == [
        ("t", "a", "0", "0", 9),
        ("t", "b", "1", "1", 9),
    ]


def message(flags: int, position: int, content: bytes) -> bytes:
    return struct.pack(">cBq", b"M", flags, position) + b"pre\0" + struct.pack(">I", len(content)) + content


def test_messages_are_of_a_transaction_or_stand_alone() -> None:
    decoder = Decoder(lambda relation: relation.table)
    assert decoder.read(message(0, 90, b"a\tb"))
    assert decoder.end == 90
    assert decoder.taken() == b"m\t\t89\t0\t1\t\t\t\t\tpre\ta\\tb\n"
    found = lines(begin(), message(1, 95, b"x"), commit())
    assert found == [["m", "", "100", "0", "1", "7", str(SINCE_1970), "", "", "pre", "x"]]


def test_a_relation_is_told_with_its_types_and_may_be_left_out() -> None:
    told: list[Relation] = []

    def named(relation: Relation) -> str | None:
        told.append(relation)
        return None if relation.table == "other" else "r"

    decoder = Decoder(named)
    for payload in (
        begin(),
        b"Y" + struct.pack(">I", 16400) + b"shop\0mood\0",
        relation(),
        relation(2, b"f", "other"),
        change(b"I", b"N", row("1", None, None), oid=2),
        change(b"I", b"N", row("1", None, None)),
        change(b"U", b"N", row("1", None, None), oid=2),
        change(b"D", b"K", row("1", None, None), oid=2),
        b"T" + struct.pack(">IBI", 1, 0, 2),
    ):
        assert not decoder.read(payload)
        assert decoder.within
    assert decoder.taken() == b""
    assert decoder.read(commit())
    assert (decoder.within, decoder.end) == (False, 148)
    assert decoder.taken().count(b"\n") == 1
    columns = (Column("id", True, 23, -1, ""), Column("größe", False, 1700, 655366, ""))
    assert told[0] == Relation(1, "public", "t", "d", (*columns, Column("mood", False, 16400, -1, "shop.mood")))
    assert (told[1].oid, told[1].identity) == (2, "f")


def test_what_is_not_of_the_protocol_is_an_error() -> None:
    with pytest.raises(ChangeglotError, match="unknown kind, 'S'"):
        lines(b"S\0")
    with pytest.raises(ChangeglotError, match="a value of an unknown kind, 'b'"):
        lines(begin(), relation(), change(b"I", b"N", row(b"b")))
