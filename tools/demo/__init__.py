"""Runs that show what the series change: an unpatched release beside a patched one."""
