"""Composition root: builds everything and passes it down."""
