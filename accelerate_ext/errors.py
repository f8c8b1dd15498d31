"""The errors that this package raises on its own account."""


class SkippedUpdatesError(RuntimeError):
    """So many updates in a row were skipped that training has stopped making progress."""


class RankDisagreementError(RuntimeError):
    """Processes of one run counted different numbers of updates, so their weights or schedules no longer agree."""


class CheckpointError(ValueError):
    """A file that this package wrote into a checkpoint cannot be used."""
