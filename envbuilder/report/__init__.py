"""Findings, checks and verdicts, and how they are shown."""

from envbuilder.report.model import Check, Confidence, Finding, Report, Severity, Status, Verdict

__all__ = ["Check", "Confidence", "Finding", "Report", "Severity", "Status", "Verdict"]
