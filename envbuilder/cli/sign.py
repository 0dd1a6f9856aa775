"""``envbuilder sign``: stand for an image with a signature, or make the key for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from envbuilder.publish.signing.interface import Signer


@click.command(name="sign")
@click.argument("reference", required=False, metavar="[REFERENCE@sha256:...]")
@click.option("--key", type=click.Path(dir_okay=False, path_type=Path), help="A private key: ed25519 or ECDSA.")
@click.option("--keyless", is_flag=True, help="Sign as the identity you log in with, through Sigstore.")
@click.option("--new-key", type=click.Path(dir_okay=False, path_type=Path), help="Make a key pair: FILE and FILE.pub.")
def command(reference: str | None, key: Path | None, keyless: bool, new_key: Path | None) -> int:
    """Sign an image in a registry, named by its digest. The signature is stored beside it.

    What is signed is an in-toto statement on the digest of the image's manifest, in a DSSE envelope. `envbuilder pull`
    on a host whose policy asks for it takes no image without one (docs/signing.md).

    A key is one that `openssl genpkey -algorithm ed25519`, `ssh-keygen -t ed25519` or --new-key makes. The password of
    an encrypted one is read from ENVBUILDER_KEY_PASSWORD, or asked for.

    \b
    Example:
      envbuilder sign --new-key release.key
      envbuilder sign registry.example.org/team/p40@sha256:2c26b46b... --key release.key
    """
    if new_key:
        if reference or key or keyless:
            raise click.UsageError("--new-key makes a key and signs nothing.")
        return _new_key(new_key)
    if not reference:
        raise click.UsageError("name an image by its digest: host/name@sha256:...")
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.publish.verifying import sign_published

    signer = open_signer(key, keyless=keyless)
    if signer is None:
        raise click.UsageError("sign with --key FILE or with --keyless.")
    with TerminalProgress() as progress:
        digest = sign_published(reference, signer, progress)
    click.echo(f"{reference} is signed by {signer.who}\nthe signature is {digest}")
    return 0


def signing_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--sign FILE`` and ``--keyless`` of a command that sends an image away."""
    keyless = click.option("--keyless", is_flag=True, help="Sign it as the identity you log in with, through Sigstore.")
    key = click.option(
        "--sign", "key", type=click.Path(dir_okay=False, path_type=Path), help="Sign it with this private key."
    )
    return key(keyless(function))


def open_signer(key: Path | None, *, keyless: bool) -> Signer | None:
    """Who signs: a key, asking for its password where it has one; whoever logs in; nobody."""
    if key and keyless:
        raise click.UsageError("sign with a key or with --keyless, not with both.")
    if not key and not keyless:
        return None
    if key is None:
        from envbuilder.publish.signing.keyless import KeylessSigner

        return KeylessSigner.open()
    from envbuilder.publish.signing.keys import PASSWORD, PasswordNeededError, load_signer

    try:
        return load_signer(key, os.environ.get(PASSWORD))
    except PasswordNeededError:
        if not sys.stdin.isatty():
            raise
        return load_signer(key, click.prompt(f"password of {key}", hide_input=True, err=True))


def _new_key(path: Path) -> int:
    from envbuilder.publish.signing.keys import PASSWORD, new_key

    password = os.environ.get(PASSWORD)
    if password is None and sys.stdin.isatty():
        text = f"password of {path} (empty for none)"
        password = click.prompt(
            text, hide_input=True, confirmation_prompt=True, default="", show_default=False, err=True
        )
    identifier = new_key(path, password or "")
    click.echo(f"{path} is the private key{'' if password else ', not encrypted'}: keep it to yourself")
    click.echo(f"{path}.pub is the public key: name it in the policy of the hosts that pull\nkey {identifier}")
    return 0
