"""Settings of the site; `make docs` builds it, without a network.

The source folder is the whole repository, not docs/ alone: pages link to each other by the paths that they have in the
repository, so that every link works on the site and in a file browser. Links to files that are no pages are downloads.
"""

import inspect
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import dct_jax  # noqa: E402

project = 'dct_jax'
author = 'the authors of dct_jax'
project_copyright = 'the authors of dct_jax; Apache-2.0'
version = release = dct_jax.__version__

root_doc = 'docs/index'
include_patterns = ['docs/**', 'colab/*.ipynb', 'experiments/README.md', 'benchmarks/README.md', 'CONTRIBUTING.md',
                    'CHANGELOG.md']
exclude_patterns = ['.*', 'build', 'dist', 'runs', '**/__pycache__', '**/.ipynb_checkpoints']
extensions = ['myst_nb', 'sphinx.ext.autodoc', 'sphinx.ext.autosummary', 'sphinx.ext.napoleon', 'sphinx.ext.viewcode',
              'sphinx_copybutton']

# Pages: headings have the anchors that file hosts give them; notebooks are shown with the outputs that they were saved with.
myst_heading_anchors = 4
myst_enable_extensions = ['colon_fence']
nb_execution_mode = 'off'
nb_merge_streams = True
suppress_warnings = [
    'toc.empty_glob',   # a folder of pages may still be empty
    'myst.header',      # a page may begin with a picture, or leave a level out
    'misc.highlighting_failure',  # logs and tables stand in fences without a language
]

# The API: what a room names in `__all__`, in that order, from docstrings.
default_role = 'code'  # docstrings have names in single backticks
add_module_names = False
autosummary_generate = False
autodoc_member_order = 'bysource'
autodoc_typehints = 'none'  # docstrings say in words what arguments are; types are in the source, a click away
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
toc_object_entries = False

nitpicky = True
# What belongs to other packages has no page here, nor have classes that only types of fields name.
nitpick_ignore_regex = [('py:.*', r'(?!dct_jax\.).*'), ('py:class', '.*')]

html_theme = 'furo'
html_title = 'dct_jax'
html_extra_path = ['_extra']
html_static_path = ['_static']
html_css_files = ['site.css']
html_copy_source = False
html_show_sphinx = False
copybutton_prompt_text = r'\$ |>>> |\.\.\. '
copybutton_prompt_is_regexp = True


def skip_what_says_nothing(app, what, name, obj, skip, options):
  """Leaves out fields of named tuples and data classes, which their class describes."""
  if re.match(r'Alias for field number', getattr(obj, '__doc__', None) or '') or inspect.ismodule(obj):
    return True
  return skip


def setup(app):
  """Connects what the settings above cannot say."""
  app.connect('autodoc-skip-member', skip_what_says_nothing)
