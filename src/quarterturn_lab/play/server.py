"""Serves the page to this machine alone: loopback, no other hosts, nothing fetched from elsewhere."""

import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from importlib.util import find_spec

from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.play.pair import Exhibit

HOST = "127.0.0.1"
NAMES = [HOST, "localhost"]
# Whatever the page's framework asks for elsewhere, such as fonts, the browser refuses.
ONLY_HERE = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'none'"

SILENT = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def check_installed() -> None:
    """Raise if the packages of the extra are missing."""
    if find_spec("gradio") is None:
        raise RunError('the playground needs gradio: pip install "quarterturn[play]"')


def bound(port: int) -> socket.socket:
    """A socket at a port of this machine; 0 takes any that is free."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: a number from 0 to 65535 is needed")
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
    except OSError as error:
        found.close()
        why = os.strerror(error.errno or 0).lower()
        raise RunError(f"--port {port} cannot be used, {why}: give another one, or 0 for any that is free") from None
    return found


def serve(exhibits: list[Exhibit], listening: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve the page until the process is ended. `ready` gets its address."""
    with tempfile.TemporaryDirectory(prefix="quarterturn-play-") as folder:
        os.environ.update(SILENT, GRADIO_TEMP_DIR=folder)  # pictures that are dropped are gone at the end
        import gradio as gr  # type: ignore[import-not-found]
        import uvicorn  # type: ignore[import-not-found]
        from fastapi import FastAPI, Request, Response  # type: ignore[import-not-found]
        from starlette.middleware.trustedhost import TrustedHostMiddleware  # type: ignore[import-not-found]

        from quarterturn_lab.play import view
        from quarterturn_lab.play.page import page

        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=NAMES)

        @app.middleware("http")  # type: ignore[untyped-decorator]
        async def only_here(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
            response = await call(request)
            response.headers["Content-Security-Policy"] = ONLY_HERE
            return response

        gr.mount_gradio_app(
            app,
            page(exhibits),
            "/",
            server_name=HOST,
            footer_links=[],
            max_file_size="50mb",
            ssr_mode=False,
            enable_monitoring=False,
            mcp_server=False,
            theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),  # none to fetch
            css=view.STYLE,
        )
        ready(f"http://{HOST}:{listening.getsockname()[1]}")
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
