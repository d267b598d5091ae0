"""For users' tests as well as ours: the laws every operator keeps, and data to try them on.

laws.py         cutting the input and restarting from a snapshot change nothing
marbles.py      drawings of what goes in and comes out, as text that runs
fleet.py        a made-up recording of a fleet, and what must come out of it
hostile.py      columns and tables that break pipelines
snapshots.py    snapshots that were tampered with
"""
