"""What a command says when the lock it works from is not the project's own."""

from __future__ import annotations

import click


def tell_borrowed(stack: str) -> None:
    """Say on standard error that the built-in lock of ``stack`` serves, where a project keeps locks but not this."""
    from envbuilder.lock.reading import is_borrowed

    if is_borrowed(stack):
        click.echo(
            f"note: this project has no lock of {stack}; the one that came with envbuilder serves "
            f"(make your own: envbuilder lock {stack})",
            err=True,
        )
