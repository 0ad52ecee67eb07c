"""Mixes: which operations, keys and values a load has."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from batchkeeper import InvalidSettingError
from batchkeeper.bench.load.mixes import KINDS, READY_MADE, Keys, load_mix
from batchkeeper.bench.load.work import picker

FINE = "[operations]\nget = 0.5\nput = 0.5\n"


@pytest.mark.parametrize("name", READY_MADE)
def test_each_ready_made_mix_is_one(name: str) -> None:
    """They have a name, a description, and shares of known operations."""
    mix = load_mix(name)
    assert mix.name == name
    assert mix.description
    assert set(mix.operations) <= set(KINDS)
    assert sum(mix.operations.values()) == pytest.approx(1)


def test_a_mix_of_a_file_is_as_it_says(tmp_path: Path) -> None:
    """Every table of the file has its effect; what is left out has its default."""
    file = tmp_path / "mine.toml"
    file.write_text(
        'description = "mine"\n[operations]\nget = 0.25\ntransaction = 0.75\n'
        '[keys]\ncount = 10\ndistribution = "hot"\nhot_keys = 2\n[values]\nbytes = 7\n'
        "[conflicts]\nshare = 0.5\n[transactions]\nsize = 2\n"
    )
    mix = load_mix(str(file))
    assert mix.description == "mine"
    assert mix.operations == {"get": 0.25, "transaction": 0.75}
    assert (mix.keys.count, mix.keys.hot_keys, mix.keys.hot_share) == (10, 2, 0.9)
    assert (mix.values.bytes, mix.conflicts, mix.transaction_size) == (7, 0.5, 2)


def test_real_records_lie_beside_the_file(tmp_path: Path) -> None:
    """A line is a value; of an object with a text called value, this text is."""
    lines = ["plain text", json.dumps({"path": "/a", "value": "the value"}), '{"other": 1}']
    with gzip.open(tmp_path / "records.jsonl.gz", "wt") as records:
        records.write("\n".join(lines) + "\n")
    file = tmp_path / "mine.toml"
    file.write_text(FINE + '[values]\nfile = "records.jsonl.gz"\n')
    assert load_mix(str(file)).values.records == (b"plain text", b"the value", b'{"other": 1}')


def test_the_mix_of_the_documents_is_one(tmp_path: Path) -> None:
    """The example in docs/benchmark.md can be pasted, and the kinds of operations are all there."""
    document = (Path(__file__).parents[3] / "docs/benchmark.md").read_text()
    found = re.search(r"```toml\n(.*?)```", document, re.DOTALL)
    assert found is not None
    file = tmp_path / "shop.toml"
    file.write_text(found[1])
    assert load_mix(str(file)).keys.count == 20_000
    for kind, about in KINDS.items():
        assert f"| `{kind}` | {about} |" in document
    for name in READY_MADE:
        assert f"| `{name}` | " in document


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[operations]\nget = 0.5\n", "must add up to 1, not to 0.5: get 0.5"),
        ("[operations]\nget = 0.5\nput = 0.6\n", "not to 1.1: get 0.5 + put 0.6"),
        ("[operations]\ngett = 1\n", "unknown key in [operations] 'gett'; did you mean get?"),
        ("[operation]\nget = 1\n", "unknown key 'operation'; did you mean operations?"),
        ("", "the table [operations] is missing"),
        ("operations = 1\n", "operations must be a table, [operations]"),
        (FINE + "[keys]\ncuont = 1\n", "unknown key in [keys] 'cuont'; did you mean count?"),
        (FINE + "[keys]\ncount = -1\n", "keys.count must be an int from 0 to 10000000, not -1"),
        (FINE + "[keys]\ncount = 0\n", "keys.count must be more than 0 for get, put"),
        (FINE + '[keys]\ndistribution = "even"\n', "must be one of uniform, zipf, hot, not 'even'"),
        (FINE + "[conflicts]\nshare = 2\n", "conflicts.share must be from 0 to 1, not 2"),
        (FINE + '[values]\nbytes = 1\nfile = "x"\n', "[values] has either bytes or file"),
        (FINE + '[values]\nfile = "absent"\n', "cannot be read: [Errno 2]"),
        ("[operations\n", "not TOML: "),
    ],
)
def test_what_is_wrong_with_a_mix_is_said(text: str, message: str, tmp_path: Path) -> None:
    """The message names the file, the key and the rule, and the nearest known name."""
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(InvalidSettingError) as caught:
        load_mix(str(file))
    assert str(caught.value).startswith(f"the mix {file}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hubb", "unknown mix 'hubb'; did you mean hub? (there are hub, "),
        ("absent.toml", "the mix absent.toml cannot be read: No such file"),
    ],
)
def test_a_mix_that_is_not_there(name: str, message: str) -> None:
    """A word is taken for a name, and what has a suffix for a file."""
    with pytest.raises(InvalidSettingError, match=message.replace("(", r"\(").replace("?", r"\?")):
        load_mix(name)


def drawn(keys: Keys, count: int) -> list[int]:
    """How often each key is drawn, the most used first."""
    pick = picker(keys, count, random.Random(1))
    found = Counter(pick() for _ in range(50_000))
    assert set(found) <= set(range(count))
    return [times for _, times in found.most_common()]


def test_keys_are_used_as_the_distribution_says() -> None:
    """Evenly, by the law of Zipf, or nine in ten operations on the hot ones."""
    even = drawn(Keys(distribution="uniform"), 100)
    assert len(even) == 100
    assert even[0] < 1.3 * even[-1]
    zipf = drawn(Keys(distribution="zipf", skew=1.0), 100)
    assert zipf[0] / zipf[1] == pytest.approx(2, rel=0.15)
    assert zipf[0] / zipf[3] == pytest.approx(4, rel=0.2)
    hot = drawn(Keys(distribution="hot", hot_keys=2, hot_share=0.9), 100)
    assert sum(hot[:2]) == pytest.approx(0.9 * 50_000, rel=0.05)
