from hypothesis import given
from hypothesis import strategies as st

from agentrl.utils.seeds import derive_seed

parts = st.lists(st.integers() | st.text())


@given(parts, parts)
def test_seed_depends_only_on_its_parts(one, other) -> None:
    assert 0 <= derive_seed(*one) < 2**63
    assert (derive_seed(*one) == derive_seed(*other)) == (one == other)


def test_derived_seed_is_the_same_in_all_versions() -> None:
    assert derive_seed(0, 1, 2) == 1772749440416956875
