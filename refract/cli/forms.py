"""The files a report may be written to, as options that score, rescore and render share."""

from __future__ import annotations

import argparse

from refract.cli.options import output_file

FORMS = {  # option, and what its help says
    "--html-out": "also write the report as one HTML file",
    "--markdown-out": "also write the report as Markdown, as for $GITHUB_STEP_SUMMARY",
    "--model-card-out": "also write a block of Markdown for a model card",
    "--junit": "also write JUnit XML: a suite for each candidate, a case for each axis and the composite",
    "--badge": "also write the verdict of the best candidate as an SVG picture",
}


def add_forms(parser: argparse._ActionsContainer) -> None:
    """Adds the options to a parser or a group of one."""
    for option, text in FORMS.items():
        parser.add_argument(option, type=output_file, metavar="FILE", help=text)
