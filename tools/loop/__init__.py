"""Reads training loops from a syntax tree: what is prepared, what steps, what guards, what counts."""
