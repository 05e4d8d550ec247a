"""Opens pages in a real, headless Chromium."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

# Whatever a page would load is refused, and the refusal is told on the console.
NOTHING = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">"""


def browse(path, tmp_path, *flags):
    """Opens a page in headless Chromium; returns the document as it is then, and the lines of its console."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'chromium'}"]
    command += ["--enable-logging=stderr", "--dump-dom", *flags, path.as_uri()]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def guarded(source, tmp_path) -> Path:
    """Writes a page that may load nothing."""
    path = tmp_path / "guarded.html"
    path.write_text(source.replace("<head>", f"<head>{NOTHING}"), encoding="utf-8")
    return path


def width_of(source, width, tmp_path) -> int:
    """Returns how wide a page is that is shown in a window of some width."""
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe style="width:{width}px;height:900px" srcdoc="{html.escape(source)}" onload="document.title = '
        'this.contentDocument.documentElement.scrollWidth"></iframe>',
        encoding="utf-8",
    )
    document, _ = browse(frame, tmp_path)
    return int(re.search(r"<title>(\d+)</title>", document)[1])
