"""``envbuilder push``: a stack's image to a registry, or over ssh to a host that has only an engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuilder.cli.image_options import image_options
from envbuilder.cli.sign import open_signer, signing_options

if TYPE_CHECKING:
    from envbuilder.publish.export import Exported
    from envbuilder.publish.signing.interface import Signer


@click.command(name="push")
@click.argument("stack")
@click.argument("where", metavar="REF|ssh://[USER@]HOST[:PORT]")
@image_options
@signing_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    stack: str, where: str, target: str, slim: bool, engine: str, key: Path | None, keyless: bool, as_json: bool
) -> None:
    """Push STACK's image to REF in a registry, or into the engine of another host over ssh.

    Only layers that are not there yet move; a broken upload goes on where it stopped. Logins are those of docker
    login, podman login or buildah login. The digest printed at the end names the image on every host.

    To a registry go with it what is in it (docs/sbom.md) and where it comes from, and with --sign a signature
    (docs/signing.md).

    \b
    Example:
      envbuilder push p40-debian registry.example/team/p40-debian:2025-09
      envbuilder push p40-debian registry.example/team/p40-debian:2025-09 --sign release.key
      envbuilder push p40-debian ssh://me@p40-host
    """
    import json

    from envbuilder.cli.progress import TerminalProgress

    over_ssh = where.startswith("ssh://")
    if over_ssh and (key or keyless):
        raise click.UsageError("a signature goes to a registry or into an archive; over ssh goes the image alone.")
    if not over_ssh:
        from envbuilder.publish.push import check_target

        check_target(where)
    signer = open_signer(key, keyless=keyless)
    with TerminalProgress() as progress:
        exported = exported_image(stack, target, engine, progress, slim=slim, evidence=not over_ssh, signer=signer)
        result = _over_ssh(exported, where, progress) if over_ssh else _to_registry(exported, where, progress)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _show(result)


def exported_image(
    stack: str,
    target: str,
    engine: str,
    progress: Any,
    *,
    slim: bool,
    evidence: bool = True,
    signer: Signer | None = None,
) -> Exported:
    """The stack's image as a layout in the cache, with what is said of it beside it."""
    from envbuilder.image.choose import choose_engine
    from envbuilder.image.names import image_tag
    from envbuilder.publish.evidence import lay_evidence
    from envbuilder.publish.export import export
    from envbuilder.stack.loading import load_stack

    chosen = choose_engine(engine)
    exported = export(chosen, image_tag(load_stack(stack)[0].name, target, slim=slim), progress)
    if evidence:
        lay_evidence(exported, chosen.name, signer, progress)
    return exported


def _to_registry(exported: Exported, where: str, progress: Any) -> dict[str, Any]:
    from envbuilder.publish.evidence import documents_beside, send_evidence
    from envbuilder.publish.push import push
    from envbuilder.publish.remote import Remote

    remote = Remote.open(where)
    pushed = push(exported, remote, progress)
    send_evidence(exported, remote, progress)
    return {
        "image": exported.image.reference,
        "to": pushed.reference,
        "pinned": pushed.pinned,
        "digest": pushed.digest,
        "config": exported.config.digest,
        "bytes_moved": pushed.moved,
        "bytes_skipped": pushed.skipped,
        "documents": documents_beside(exported),
    }


def _over_ssh(exported: Exported, where: str, progress: Any) -> dict[str, Any]:
    from envbuilder.publish.ssh import push_over_ssh

    sent = push_over_ssh(exported, where, progress)
    return {
        "image": exported.image.reference,
        "to": where,
        "name": sent.name,
        "engine": sent.engine,
        "digest": exported.digest,
        "config": exported.config.digest,
        "bytes_moved": sent.moved,
        "bytes_skipped": max(0, exported.size - sent.moved),
    }


def _show(result: dict[str, Any]) -> None:
    moved, skipped = result["bytes_moved"] / 1e6, result["bytes_skipped"] / 1e6
    click.echo(f"   image  {result['image']}")
    click.echo(f"      to  {result['to']}")
    click.echo(f"  digest  {result['digest']}")
    click.echo(f"   moved  {moved:.1f} MB" + (f"; {skipped:.1f} MB was there already" if skipped else ""))
    for document in result.get("documents", []):
        click.echo(f"    with  {document}")
    if "pinned" in result:
        click.echo(f"\non the other host:\n  envbuilder pull {result['pinned']}")
    else:
        click.echo(
            f"\non the other host, whose {result['engine']} calls it {result['name']}:\n  envbuilder verify --gpu 0"
        )
