"""`reach doctor`: what is not as it should be around a server, and what to do about it.

Each check is a function that answers with findings; it never raises for what it looks at. `findings.py` says what a
finding is; `machine.py`, `database.py` and `coordination.py` look at one thing each. What a running server knows of
its nodes and agents is asked by `cli/doctor_fleet.py`.
"""
