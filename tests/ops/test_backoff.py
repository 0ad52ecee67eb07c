"""The pauses between attempts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchkeeper.ops.backoff import Backoff

SECONDS = st.floats(min_value=1e-3, max_value=1e3)
FAILURES = st.one_of(st.integers(0, 20), st.integers(0, 10**9))


@given(SECONDS, SECONDS, FAILURES)
def test_pauses_double_up_to_the_longest(first: float, longest: float, failures: int) -> None:
    """Without jitter, the first pause is as given, and each is twice the one before, bounded."""
    backoff = Backoff(first, longest, least=1.0)
    assert backoff.pause(0) == min(first, longest)
    assert backoff.pause(failures + 1) == min(longest, 2 * backoff.pause(failures))


@given(SECONDS, SECONDS, st.floats(min_value=0.0, max_value=1.0), FAILURES)
def test_jitter_only_shortens_a_pause(
    first: float, longest: float, least: float, failures: int
) -> None:
    """No pause is longer than without jitter, nor shorter than the part that jitter leaves."""
    whole = Backoff(first, longest, least=1.0).pause(failures)
    assert whole * least <= Backoff(first, longest, least).pause(failures) <= whole


@given(SECONDS, SECONDS, st.floats(min_value=0.0, max_value=0.9), FAILURES)
def test_jitter_spreads_clients_out(
    first: float, longest: float, least: float, failures: int
) -> None:
    """Clients that failed equally often return at times spread over the range of the jitter."""
    whole = Backoff(first, longest, least=1.0).pause(failures)
    backoff = Backoff(first, longest, least)
    parts = [backoff.pause(failures) / whole for _ in range(100)]
    quarter = (1 - least) / 4
    assert min(parts) < least + quarter
    assert max(parts) > 1 - quarter
