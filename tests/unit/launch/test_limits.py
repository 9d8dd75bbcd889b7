from __future__ import annotations

import resource

from swapd.launch.limits import raise_nofile


def test_soft_limit_is_raised_and_the_old_one_told() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert raise_nofile() == before[0]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
