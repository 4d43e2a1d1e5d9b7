"""The one exception whose message is meant for the user."""


class UserError(ValueError):
    """Bad input. The message says what was passed, what was expected and which config key to change.

    The command line prints it on one line, without a traceback, and exits with status 2.
    """
