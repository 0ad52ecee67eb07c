"""Names as parts of paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchkeeper.hubs.errors import IllegalOperationError
from batchkeeper.hubs.names import escaped, name_text, text_of, unescaped
from batchkeeper.ops.paths import check_path

names = st.binary(min_size=1, max_size=6) | st.lists(
    st.sampled_from(b"ab!~./-0\x00\x7f\xff"), min_size=1, max_size=6
).map(bytes)


@given(names)
def test_any_name_is_a_part_of_a_path(name: bytes) -> None:
    """It becomes one valid part, from which the name can be read again."""
    part = escaped(name)
    assert "/" not in part
    check_path(f"/{part}")
    assert unescaped(part) == name


@given(st.lists(names, unique=True))
def test_escaped_names_sort_as_names(some: list[bytes]) -> None:
    """No two are alike, and the order is that of the bytes."""
    assert sorted(map(escaped, some)) == [*map(escaped, sorted(some))]


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_a_text_stands_for_its_bytes(name: str) -> None:
    """A text and its UTF-8 are the same name."""
    assert escaped(name) == escaped(name.encode())


@given(names)
def test_bytes_have_a_text(name: bytes) -> None:
    """The text of any bytes is the same name."""
    assert escaped(name_text(name)) == escaped(name)
    assert text_of(escaped(name)) == name_text(name)


def test_usual_names_stay_readable() -> None:
    """Letters, digits and most signs are not escaped."""
    assert escaped("orders-eu_1@x") == "orders-eu_1@x"
    assert escaped("persistent://a/b.c") == "persistent:.1.1a.1b.0c"


@given(st.text(st.sampled_from("a!~.0159fF"), max_size=5))
def test_what_was_never_escaped_is_no_name(part: str) -> None:
    """A part has a name only if that name is escaped to it."""
    name = unescaped(part)
    assert not name or escaped(name) == part


@pytest.mark.parametrize("name", ["", b"", None, 5, ["a"], "\ud800", "\udcc3\udca9"])
def test_other_values_are_no_names(name: object) -> None:
    """They are refused with a clear error."""
    with pytest.raises(IllegalOperationError, match="a name must"):
        escaped(name)  # type: ignore[arg-type]
