"""Generates, checks and proves the patches that make training scripts count applied updates. Run: python -m tools."""
