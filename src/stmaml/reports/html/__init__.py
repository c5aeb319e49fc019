"""A report as one page that needs nothing else: styles, the little script and all figures are in it."""

from stmaml.reports.html.page import page

__all__ = ["page"]
