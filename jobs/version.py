"""The version of the distribution, kept where the engine may read it."""

__version__ = "0.1.0"
