"""The command `quarterturn`, also as `python -m quarterturn_lab`: it comes with the library, what it needs does not."""

import sys

from quarterturn_lab.cli.doctor import NEEDED

MODULES = {"PIL" if package == "pillow" else package for package in NEEDED}


def main() -> None:
    """Run the command line; without the packages of the extra `lab` say in one line how to install them."""
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
