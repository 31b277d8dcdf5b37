"""These tests are for the environment that `make test-play` makes, in which there are gradio and selenium."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("gradio") and find_spec("selenium") else ["*"]
