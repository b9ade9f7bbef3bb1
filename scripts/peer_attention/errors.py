"""What ends the script with a sentence."""


class Missing(Exception):
    """Something outside this script that has to be installed or built, or does not fit."""
    exit_code = 3


class Disagreement(Exception):
    """The sides would not do the same work."""
    exit_code = 1
