"""For the site: examples in docstrings become blocks of code, and torch's classes get their short names."""

import re

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$|>>> ).*\n?|^>>> .*\n?)*)+", re.MULTILINE)


def fenced(text: str) -> str:
    """Docstring with a fence around each example.

    >>> print(fenced("Sum.\\n\\n>>> 1 + 1\\n2"))
    Sum.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text).rstrip()


class Doctests(griffe.Extension):
    """Called by griffe for every object that it reads."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
