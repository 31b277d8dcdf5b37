"""Why a part of a network cannot be rewritten."""


class Refusal(Exception):
    """Raised by a rule, with the reason. All of them are collected, and raised as one `ConversionError`."""
