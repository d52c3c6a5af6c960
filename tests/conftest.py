"""What holds for all tests."""

from hypothesis import settings

# How long an example takes says how busy the machine is: tests run beside one another. `make bench` measures speed.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
