"""The lab's errors for modules that do without torch: the classes, which import it, are fetched to be raised."""


def data_error(message: str) -> ValueError:
    from quarterturn_lab.errors import DataError

    return DataError(message)


def config_error(message: str) -> ValueError:
    from quarterturn_lab.errors import ConfigError

    return ConfigError(message)


def run_error(message: str) -> ValueError:
    from quarterturn_lab.errors import RunError

    return RunError(message)
