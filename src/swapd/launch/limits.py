"""swapd's own limit of open files: a proxy needs more than shells allow, its children get theirs back."""

from __future__ import annotations

import resource


def raise_nofile() -> int:
    """Raise the soft limit to the hard one; returns the soft limit as it was, for the children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft
