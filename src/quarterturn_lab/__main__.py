"""Entry point of `quarterturn` and `python -m quarterturn_lab`; works even if the lab's packages are missing."""

import sys

from quarterturn_lab.cli.doctor import NEEDED

NAMES = {"pillow": "PIL"}  # of modules whose packages are called otherwise
MODULES = {NAMES.get(package, package.replace("-", "_")) for package in NEEDED}


def main() -> None:
    """Run the command line, or say in one line how to install the packages of the extra `lab`."""
    try:
        from quarterturn_lab.cli import app

        app.main()
    except ModuleNotFoundError as error:
        if error.name not in MODULES:
            raise
        sys.stderr.write(f'quarterturn: {error.name} is not installed: pip install "quarterturn[lab]"\n')
        sys.exit(2)


if __name__ == "__main__":
    main()
