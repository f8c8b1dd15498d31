"""The files that the Trainer series changes, at the paths of the upstream repository."""

TRAINER = "src/transformers/trainer.py"
CALLBACKS = "src/transformers/trainer_callback.py"
ARGUMENTS = "src/transformers/training_args.py"
NOTEBOOK = "src/transformers/utils/notebook.py"
