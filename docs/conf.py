"""Settings of the site; `make docs` builds it, without a network.

The source folder is the whole repository, not docs/ alone: pages link to each other by the paths that they have in the
repository, so that every link works on the site and in a file browser. Links to files that are no pages are downloads.
"""

import importlib
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

# Pages: headings have the anchors that file hosts give them; notebooks are shown with the outputs that were saved.
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


ROOM = re.compile(r'<!-- room (dct_jax[\w.]*) -->')
AUTOMODULE = """```{{eval-rst}}
.. automodule:: {name}
   :members:
   {options}
```
"""


def member(module, name):
  """What a name of a module stands for; modules need not have been imported."""
  if not hasattr(module, name):
    importlib.import_module(f'{module.__name__}.{name}')
  return getattr(module, name)


def public_modules(module):
  """A public module, and those that it names in its `__all__`, with theirs."""
  yield module
  for found in [member(module, name) for name in sorted(getattr(module, '__all__', ()))]:
    if inspect.ismodule(found):
      yield from public_modules(found)


def room(name):
  """What the page of a room says: every public module of it, and no class or function twice."""
  seen, text = set(), []
  for module in public_modules(importlib.import_module(name)):
    names = getattr(module, '__all__', ())
    here = {n: member(module, n) for n in names if callable(member(module, n))}
    twice = [n for n, x in here.items() if x in seen]
    seen |= set(here.values())
    options = [':imported-members:'] * bool(names) + [f':exclude-members: {", ".join(twice)}'] * bool(twice)
    heading = [f'## `{module.__name__}`\n'] if text else []
    text += heading + [AUTOMODULE.format(name=module.__name__, options='\n   '.join(options))]
  return '\n'.join(text)


def expand_rooms(app, docname, source):
  """Puts the API of a room where its page says so, so that a new public name needs no new line."""
  source[0] = ROOM.sub(lambda match: room(match[1]), source[0])


def skip_what_says_nothing(app, what, name, obj, skip, options):
  """Leaves out fields of named tuples and data classes, which their class describes."""
  if (getattr(obj, '__doc__', None) or '').startswith('Alias for field number') or inspect.ismodule(obj):
    return True
  return skip


def setup(app):
  """Connects what settings cannot say."""
  app.connect('source-read', expand_rooms)
  app.connect('autodoc-skip-member', skip_what_says_nothing)
