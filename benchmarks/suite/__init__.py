"""Tidegate beside what a user would pick instead, on the same data, in one run."""
