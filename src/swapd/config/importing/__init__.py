"""Other programs' configurations as TOML: read with line numbers, said again in swapd's words, the rest listed."""
