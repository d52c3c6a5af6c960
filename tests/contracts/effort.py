"""How much the searches of this folder try: enough for CI, and more where it is asked for (`make long-test`)."""

import os

EXAMPLES = int(os.environ.get("EXAMPLES", "1"))
"""So many times as many sequences of commits and claims."""
