"""The patches that make the Transformers Trainer count applied updates: one a file, in `series.STEPS` order."""
