"""Explorables: figures with a script of their own, which work on the page without a kernel."""
