"""Records as lines of JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchkeeper.ops import ABSENT, Check, Delete, InvalidPathError, Put
from batchkeeper.ops.json_lines import json_value, parse_part, parse_record


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"path": "/a", "value": "text"}', b"text"),
        (b'{"value": "", "path": "/a"}\n', b""),
        (b'  {"path": "/a", "value": "\\u00e4\xe4\xb8\xad"}\r\n', "ä中".encode()),
        (b'{"path": "/a", "value": "\\ud83d\\ude00"}', "😀".encode()),
        (b'{"path": "/a", "value": {"base64": "AP8="}}', b"\x00\xff"),
        (b'{"path": "/a", "value": {"base64": ""}}', b""),
        (b'{"path": "/a", "value": "x", "version": 3, "note": null}', b"x"),
        (
            b'{"path": "/a", "value": {"b": 1.5, "a": ["\\u00e4", null]}}',
            '{"b":1.5,"a":["ä",null]}'.encode(),
        ),
        (b'{"path": "/a", "value": {}}', b"{}"),
        (b'\xef\xbb\xbf{"path": "/a", "value": [1, {"base64": "AP8="}]}', b'[1,{"base64":"AP8="}]'),
    ],
)
def test_a_line_is_a_put(line: bytes, value: bytes) -> None:
    """A value is a string in UTF-8, base64, or the JSON of an object; others are ignored."""
    assert parse_record(line) == Put("/a", value)
    assert parse_record(line, ABSENT) == Put("/a", value, ABSENT)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON.*column 2"),
        (b'{"path": "/a", "value": "x"} {}', "not JSON: Extra data"),
        (b'{"path": "/a", "value": "\xff"}', r"not UTF-8.*byte 26"),
        (b"[]", "not a record"),
        (b"null", "not a record"),
        (b'{"value": "x"}', "not a record"),
        (b'{"path": "/a", "value": "x", "path": "/b"}', "the field 'path' comes twice"),
        (b'{"path": "/a", "value": null}', "must be a string or"),
        (b'{"path": "/a", "value": 7}', "must be a string or"),
        (b'{"path": "/a", "value": {"base64": 7}}', "must be a string or"),
        (b'{"path": "/a", "value": {"base64": "AA==", "x": 1}}', "must be a string or"),
        (b'{"path": "/a", "value": {"x": 1e999}}', "a number that is none in JSON"),
        (b'{"path": "/a", "value": {"x": "\\ud800"}}', "lone surrogate"),
        (b'{"path": "/a", "value": {"base64": "A"}}', "not base64"),
        (b'{"path": "/a", "value": {"base64": "A A="}}', "not base64"),
        (b'{"path": "/a", "value": {"base64": "\\u00e4"}}', "ASCII"),
        (b'{"path": "/a", "value": "\\ud800"}', "lone surrogate"),
        (b'{"path": "/a", "value": ' + b"[" * 200_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line: bytes, reason: str) -> None:
    """A line that is not a record raises a ValueError with the reason."""
    with pytest.raises(ValueError, match=reason):
        parse_record(line)


@pytest.mark.parametrize("path", ['"a"', '"/a/"', '"/\\ud800"', "7", "null"])
def test_a_bad_path_is_a_bad_line(path: str) -> None:
    """A path against the rule is the ValueError that every operation raises for it."""
    with pytest.raises(InvalidPathError):
        parse_record(f'{{"path": {path}, "value": "x"}}'.encode())


@given(st.binary() | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode))
def test_what_is_spelled_is_read_back(value: bytes) -> None:
    """Any bytes, spelled in JSON and parsed, are the same bytes."""
    line = json.dumps({"path": "/a", "value": json_value(value)}).encode()
    assert parse_record(line).value == value


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (b'{"op": "check", "path": "/a", "expected_version": 3}', Check("/a", 3)),
        (b'{"op": "check", "path": "/a", "expected_version": "absent"}', Check("/a", ABSENT)),
        (
            b'{"op": "check", "path": "/a", "expected_revision": 7}',
            Check("/a", expected_revision=7),
        ),
        (b'{"op": "put", "path": "/a", "value": "x"}', Put("/a", b"x")),
        (
            b'{"op": "put", "path": "/a", "value": {"base64": "AP8="}, "expected_version": -1}',
            Put("/a", b"\x00\xff", ABSENT),
        ),
        (b'{"path": "/a", "op": "delete"}', Delete("/a")),
        (
            b'{"op": "delete", "path": "/a", "expected_version": 1, "expected_revision": 2}',
            Delete("/a", 1, expected_revision=2),
        ),
    ],
)
def test_a_line_is_an_operation_of_a_transaction(line: bytes, part: object) -> None:
    """Checks, puts and deletes, with their conditions; a missing value may be called absent."""
    assert parse_part(line) == part


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b'{"op": "delete", "path": "/a", "expected_version": null}', "must not be null"),
        (b'{"path": "/a"}', "must be one of 'check', 'put', 'delete', not None"),
        (b'{"op": "get", "path": "/a"}', "not 'get'"),
        (b'{"op": ["put"], "path": "/a"}', '"op" must be one of'),
        (b'{"op": "put", "path": "/a"}', 'a put needs "value"'),
        (b'{"op": "delete"}', 'a delete needs "path"'),
        (b'{"op": "check", "path": "/a"}', "needs an expected_version"),
        (b'{"op": "check", "path": "/a", "expected_verison": 1}', "no field 'expected_verison'"),
        (b'{"op": "delete", "path": "/a", "value": "x"}', "a delete has no field 'value'"),
        (b'{"op": "delete", "path": "/a", "expected_version": "absent"}', "cannot expect ABSENT"),
        (b'{"op": "put", "path": "/a", "value": "x", "expected_version": "3"}', "expected_version"),
        (b'{"op": "put", "path": "a", "value": "x"}', "must start with"),
        (b'{"op": "put", "path": 7, "value": "x"}', "path"),
        (b'{"op": "put", "path": "/a", "value": "x", "expected_revision": 0}', "expected_revision"),
    ],
)
def test_what_is_wrong_with_an_operation_is_said(line: bytes, reason: str) -> None:
    """A misspelt condition is refused, because nobody would check it."""
    with pytest.raises(ValueError, match=reason):
        parse_part(line)
