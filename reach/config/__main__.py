"""`python -m reach.config > docs/configuration.md`."""

import sys

from reach.config import reference

sys.stdout.write(reference())
