"""A result of `lookupdb load` as plots: ``report`` chooses them, ``chart`` draws, ``axis`` says where values lie."""

from lookupdb.load.plots.report import render_report

__all__ = ["render_report"]
