"""The test kit that ships: manual clock, builders, contract suites, faults, simulation."""
