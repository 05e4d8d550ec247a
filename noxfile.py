"""Runs the trials under the oldest and the newest Lightning that is supported: `pip install nox && nox -s lowest`."""

from __future__ import annotations

import nox

nox.options.sessions = ["lowest", "newest"]


def trials(session: nox.Session, *requirements: str) -> None:
    """Installs the package for its tests, with these requirements, and runs the trials."""
    session.install("-e", ".[test]", *requirements)
    session.run(
        "python", "-c", "import lightning, torch; print('lightning', lightning.__version__, 'torch', torch.__version__)"
    )
    session.run("pytest", "tests/trials", *session.posargs)


@nox.session
def lowest(session: nox.Session) -> None:
    """The lowest Lightning that `pyproject.toml` allows; a test of what came later is skipped there."""
    # Its `RichProgressBar` does not know the insides of rich 14.1 and later.
    trials(session, "lightning==2.5.0.post0", "rich<14.1")


@nox.session
def newest(session: nox.Session) -> None:
    """The newest Lightning that `pyproject.toml` allows."""
    trials(session, "--upgrade", "lightning")
