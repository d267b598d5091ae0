"""For users' tests as well as ours: the laws every operator keeps, and data to try them on."""
