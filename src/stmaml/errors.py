"""Errors meant for the person at the keyboard: one sentence that says what was expected, what came, what to do."""


class StmamlError(Exception):
    """Anything a user can mend. The command line prints it without a traceback and exits with code 2."""


class SettingError(StmamlError, ValueError):
    """A setting with a value that makes no sense."""


class SourceError(StmamlError, ValueError):
    """A task source that gave something no learner can use."""


class RunError(StmamlError):
    """A run folder that cannot be read or written."""
