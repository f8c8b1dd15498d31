"""Settings of hypothesis for all tests: a busy machine is no failure, and a commit passes or fails for its own sake."""

from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
