"""Programs of others, which read what `quarterturn export` writes, in an environment of their own: .venv-tools."""

collect_ignore = ["run_wsinfer.py"]  # runs there
