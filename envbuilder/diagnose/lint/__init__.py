"""lint: faults in files that describe an environment, before they cost a build."""

from envbuilder.diagnose.lint.engine import FileResult, Linted, lint, lint_text

__all__ = ["FileResult", "Linted", "lint", "lint_text"]
