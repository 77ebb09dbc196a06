"""Sphinx's settings for the reference of the Python API: `make reference`."""

import roundscope

project = "Roundscope"
release = roundscope.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "sidebar_width": "200px"}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_admonition_for_examples = False
python_use_unqualified_type_names = True
