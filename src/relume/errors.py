"""Every error that relume raises on purpose, in one tree.

::

    RelumeError
    ├── ConfigError (ValueError)      a flag, a setting or an environment that cannot work
    │   └── IncompatibleTorch         torch is missing or too old
    ├── UsageError (RuntimeError)     the script used the API in a way that cannot be exact
    │   ├── ProtectError              what was given to `run.protect` cannot be protected
    │   ├── StepError                 a step was left, skipped or used out of order
    │   └── GradientError             a gradient arrived where or in a form that has no meaning
    ├── DataError (ValueError)        the dataset or its settings make no steps
    │   └── BatchError                a batch is not like the ones before it
    ├── MemoryShortage (MemoryError)  the arena does not fit
    ├── StateError (RuntimeError)     protected state cannot be kept, or what was kept cannot be trusted
    ├── WireError                     a peer broke the protocol
    │   └── FrameError                bytes that are no message
    └── RunLost                       the run cannot go on

A message says what happened, to whom, and what the person can do. The death of another worker is never an
exception here: it is an incident, told by the agent (Invariant 4 and scenario 15).
"""

from __future__ import annotations


class RelumeError(Exception):
    """The root of the tree: catch this to catch anything that relume raises on purpose."""


class ConfigError(RelumeError, ValueError):
    """A flag, a setting or an environment variable that cannot work."""


class IncompatibleTorch(ConfigError):
    """torch is missing, or older than relume can use."""


class UsageError(RelumeError, RuntimeError):
    """The script used the API in a way that cannot give an exact result."""


class ProtectError(UsageError):
    """What was given to `run.protect` cannot be protected."""


class StepError(UsageError):
    """A step was left early, entered out of order, or used after its end."""


class GradientError(UsageError):
    """A gradient arrived outside a shard, or in a form that cannot be summed."""


class DataError(RelumeError, ValueError):
    """The dataset or its settings make no steps."""


class BatchError(DataError):
    """A batch is not built like the ones before it."""


class MemoryShortage(RelumeError, MemoryError):
    """The arena does not fit into this host's memory."""


class StateError(RelumeError, RuntimeError):
    """Protected state that cannot be copied exactly, or a copy of it that cannot be trusted."""


class WireError(RelumeError):
    """A peer broke the protocol."""


class FrameError(WireError):
    """Bytes that are no message: too long, cut short, or not decodable."""


class RunLost(RelumeError):
    """The run cannot go on: its agent is gone or has told this worker to stop."""
