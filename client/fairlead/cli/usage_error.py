"""What every part of the command line raises where the user gave something wrong.

A module of its own, so that nothing has to be imported to recognize it.
"""

from __future__ import annotations


class UsageError(ValueError):
    """Something that was given is wrong: the message says what, and the command ends with the code for usage."""
