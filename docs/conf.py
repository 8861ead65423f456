"""Sphinx: these pages as a web site, without anything from the network (`make docs`)."""

project = "Governed speculative decoding"
copyright = "the authors; Apache-2.0"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = project
html_copy_source = False
myst_heading_anchors = 3
smartquotes = False
