"""The version, in the one place where it is written: the build reads it from here, and so does `relume --version`."""

__version__ = "0.1.0"
