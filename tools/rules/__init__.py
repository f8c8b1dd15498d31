"""One rewrite a file; `RULES` is the order in which they run."""
