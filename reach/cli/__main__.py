"""`python -m reach.cli`: the same as `reach`."""

from reach.cli import main

main()
