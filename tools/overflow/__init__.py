"""Proves on a running script what moves when an update is skipped."""
