"""``python -m swapd``."""

from swapd.cli.main import main

main()
