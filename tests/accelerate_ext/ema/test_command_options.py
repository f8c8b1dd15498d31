"""Figures as the commands show them."""

import pytest

from accelerate_ext.ema.command_options import readable


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (128e6, "128 MB"),
        (999.6e6, "1e+03 MB"),
        (2.5e9, "2.5 GB"),
        (4e12, "4 TB"),
        (3e15, "3e+03 TB"),
    ],
)
def test_sizes_have_the_unit_that_people_use(size, shown):
    assert readable(size) == shown
