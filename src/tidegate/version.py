"""The version of the package, in a module of its own: a run writes it into its record."""

__all__ = ["__version__"]

__version__ = "0.1.0"
