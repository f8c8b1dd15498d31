"""Scripts that are run in a process of their own, never imported."""
