"""Other systems' names for what swapd does: what was written for them goes on working."""
