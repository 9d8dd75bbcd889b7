"""What was measured, in SQLite."""
