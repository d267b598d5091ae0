"""The compiled loops of windows. `layout` declares their arrays, `assign` what they share.

aligned, sessions, sequential, any_order    which pane a row joins
firing                                      which panes are emitted
aggregate_runs, aggregate_rows              what is worked out per pane and group
"""
