"""Patching verl for a card, in a folder or a wheel, and proving that it was."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from envbuilder.errors import InputError, Place
from envbuilder.patch import tree
from envbuilder.patch.manifest import find_manifest
from envbuilder.patch.plan import Plan, Site, make_plan
from envbuilder.patch.rules import load_rules
from envbuilder.patch.target import Target
from envbuilder.report import Confidence, Finding, Report, Severity, Verdict

# The release whose hook and overrides were read line by line and run.
HOOK_VERSION = "0.5.0"


def plan_for(path: Path, target: Target, *, hook: bool) -> Plan:
    """The plan for the verl in ``path`` (a folder that holds ``verl/``, or a wheel). Raises InputError.

    With ``hook``, verl is to run with external_lib and its overrides, known to be enough for 0.5.0 only.
    """
    plan = make_plan(tree.read(path), target, hook=hook)
    if hook and plan.version != HOOK_VERSION:
        raise InputError(
            f"which sites external_lib carries is known for verl {HOOK_VERSION}, not for {plan.version}",
            place=Place(str(path)),
            cure="Leave --hook out: the codemod then carries every site.",
        )
    return plan


def apply(path: Path, plan: Plan, output: Path | None = None) -> None:
    """Write the plan's changes: into the folder ``path``, or for a wheel into the new wheel ``output``."""
    if path.is_dir():
        tree.write_folder(path, plan.changes)
    else:
        assert output is not None
        tree.write_wheel(path, output, plan.changes)


def check(path: Path, target: Target, *, hook: bool) -> Report:
    """Whether every site of the verl in ``path`` is covered: rewritten, or carried by the hook or an override.

    Raises IntegrityError when the release has a manifest and a touched file differs from it.
    """
    plan = plan_for(path, target, hook=hook)
    open_sites = [site for site in plan.sites if site.by == "codemod"]
    manifest = find_manifest(plan.version, target, hook=hook)
    if open_sites:
        verdict, summary = Verdict.NO, f"{len(open_sites)} sites of verl {plan.version} are not covered"
    else:
        carried = f"; {len(plan.sites)} left to external_lib and its overrides" if hook else ""
        verdict, summary = Verdict.YES, f"every site of verl {plan.version} is covered{carried}"
        if manifest:
            manifest.verify(tree.read(path))
            summary += f"; all {len(manifest.file)} touched files are those of the manifest"
        else:
            summary += "; there is no manifest of this release to compare the bytes with"
    findings = [_finding(site, done=False) for site in plan.sites]
    return Report("patch verl", str(path), verdict, summary, tuple(findings), facts=_facts(plan))


def report(path: Path, plan: Plan, *, written: Path | None) -> Report:
    """Every site of a plan: what it was, what it becomes, why, and who carries it."""
    findings = [_finding(site, done=True) for site in plan.sites]
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, reason in plan.left.items():
        reasons[reason].append(name)
    findings += [
        Finding("verl-left-alone", Severity.ADVICE, "left alone", cause=reason, evidence=tuple(names))
        for reason, names in reasons.items()
    ]
    changed = sum(site.by == "codemod" for site in plan.sites)
    carried = len(plan.sites) - changed
    summary = f"verl {plan.version}: {len(plan.sites)} sites; {changed} rewritten in {len(plan.changes)} files"
    summary += f", {carried} carried by external_lib and its overrides" if carried else ""
    if not plan.sites:
        summary = f"verl {plan.version}: no site is left to rewrite"
    summary += f"; written to {written}" if written and plan.changes else ""
    return Report("patch verl", str(path), Verdict.YES, summary, tuple(findings), facts=_facts(plan))


def _finding(site: Site, *, done: bool) -> Finding:
    change, rules = site.change, load_rules()
    open_site = site.by == "codemod" and not done
    evidence = [f"- {change.before}", f"+ {change.after or '(taken away)'}"]
    if site.by != "codemod":
        evidence.append(
            f"carried by {'external_lib' if site.by == 'hook' else ', '.join(site.overrides)}: {site.reason}"
        )
    return Finding(
        rule=f"verl-{change.kind}",
        severity=Severity.ERROR if open_site else Severity.ADVICE,
        title=rules.kinds[change.kind].title,
        place=Place(site.file, change.line),
        evidence=tuple(evidence),
        cause=rules.kinds[change.kind].why,
        cure="Run `envbuilder patch verl` on it." if open_site else "",
        confidence=Confidence.SOURCED,
    )


def _facts(plan: Plan) -> dict[str, object]:
    return {
        "verl": plan.version,
        "hook": plan.hook,
        "dtype": plan.target.dtype,
        "attention": plan.target.attention,
        "compile": plan.target.compile,
        "files changed": sorted(plan.changes),
        "sites": [
            {
                "file": site.file,
                "line": site.change.line,
                "kind": site.change.kind,
                "before": site.change.before,
                "after": site.change.after,
                "why": load_rules().kinds[site.change.kind].why,
                "by": site.by,
                "reason": site.reason,
                "overrides": list(site.overrides),
            }
            for site in plan.sites
        ],
        "left alone": dict(plan.left),
    }
