"""The notebooks run from top to bottom, what they show was saved, and their first cell finds the package anywhere."""

import ast
import pathlib
import re
import subprocess
import sys

import nbclient
import nbformat
import pytest

COLAB = pathlib.Path(__file__).parents[1] / 'colab'
NOTEBOOKS = sorted(COLAB.glob('*.ipynb'))
every_notebook = pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: p.stem)


def code_of(path):
  """Sources of the cells with code."""
  return [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == 'code']


@every_notebook
def test_outputs_are_saved(path):
  notebook = nbformat.read(path, 4)
  outputs = [o for cell in notebook.cells if cell.cell_type == 'code' for o in cell.outputs]
  assert any('image/png' in o.get('data', {}) for o in outputs)
  assert not any(o.output_type == 'error' for o in outputs)
  assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == 'code')
  said = ''.join(o.get('text', '') + o.get('data', {}).get('text/plain', '') for o in outputs)
  assert not re.findall(r'(?<![\w.])/(?:root|home|tmp|work|usr)\b\S*', said)


@pytest.mark.slow
@every_notebook
def test_notebooks_run(path):
  where = {'metadata': {'path': str(COLAB)}}  # as Jupyter does it
  nbclient.NotebookClient(nbformat.read(path, 4), timeout=600, resources=where).execute()


# Labels: encoded is what a codec produced, sent is what an interface carries.

def counted_but_not_sent(code):
  """Whether a notebook counts encoded bytes alone, and its words for people speak of sending."""
  texts = [node.value for node in ast.walk(ast.parse(re.sub(r'^%.*$', '', code, flags=re.M)))
           if isinstance(node, ast.Constant) and isinstance(node.value, str)]
  counted = any('encoded' in text for text in texts) or 'encoded_bytes' in code
  sent = 'sent_bytes' in code or "'encoded', 'moved', 'sent'" in code  # the second one is of fields named by a loop
  return counted and not sent and any(re.search(r'\bsent\b', text) for text in texts)


@every_notebook
def test_what_is_labelled_as_sent_was_counted_as_sent(path):
  assert not counted_but_not_sent('\n'.join(code_of(path)[1:]))


def test_a_wrong_label_is_found():
  assert counted_but_not_sent("total += receipt.encoded_bytes\nby.set(xlabel='MB sent by a worker')")
  assert not counted_but_not_sent("total += receipt.encoded_bytes\nby.set(xlabel='MB encoded by a worker')")
  assert not counted_but_not_sent("total += receipt.sent_bytes\nby.set(xlabel='MB sent by a worker')")


# The first cell.

INSTALL = code_of(NOTEBOOKS[0])[0]


@every_notebook
def test_the_first_cell_is_the_same_in_all_and_knows_no_address(path):
  first = code_of(path)[0]
  assert first == INSTALL
  assert first.startswith("REPOSITORY = ''")


def run_cell(tmp_path, cell=INSTALL, cwd=None, installed=None, pip=None):
  """Runs the cell where nothing is installed but what the test makes: a package, or a pip; then says sys.path[0]."""
  site = tmp_path / 'site'
  site.mkdir()
  for name, file, text in (('dct_jax', '__init__', installed), ('pip', '__main__', pip)):
    if text is not None:
      (site / name).mkdir()
      (site / name / f'{file}.py').write_text(text)
  if pip is not None:
    (site / 'pip/__init__.py').touch()
  program = f'{cell}\nimport sys\nprint("FIRST", sys.path[0])'
  cwd = cwd or tmp_path / 'elsewhere'
  cwd.mkdir(parents=True, exist_ok=True)
  # -S: without the packages of this environment.
  return subprocess.run([sys.executable, '-S', '-c', program], cwd=cwd, env={'PYTHONPATH': str(site)},
                        capture_output=True, text=True)


@pytest.mark.parametrize('where', ['.', 'colab'])
@pytest.mark.parametrize('installed', [None, ''])
def test_a_checkout_is_found_and_comes_first(where, installed, tmp_path):
  root = tmp_path / 'checkout'
  (root / 'dct_jax').mkdir(parents=True)
  (root / 'dct_jax/version.py').touch()
  done = run_cell(tmp_path, cwd=root / where, installed=installed)
  assert done.stdout.split() == ['FIRST', str(root.resolve())], done.stderr


def test_an_installed_package_needs_nothing(tmp_path):
  done = run_cell(tmp_path, installed='')
  assert done.returncode == 0, done.stderr


@pytest.mark.parametrize('a_directory', [False, True])
def test_without_anything_it_says_what_to_fill_in(a_directory, tmp_path):
  if a_directory:  # a clone in the working directory is a directory of the package's name, and not the package
    (tmp_path / 'site/dct_jax').mkdir(parents=True)
    (tmp_path / 'site').rename(tmp_path / 'elsewhere')
  done = run_cell(tmp_path, pip='raise SystemExit("not to be called")')
  assert done.returncode == 1
  last = done.stderr.strip().splitlines()[-1]
  assert last == ("ModuleNotFoundError: dct_jax is not here: fill in the address of its repository in the first line "
                  "of this cell, as in REPOSITORY = 'https://...'")


def filled_in(address):
  return INSTALL.replace("REPOSITORY = ''", f"REPOSITORY = '{address}'")


def test_an_address_is_installed_from(tmp_path):
  done = run_cell(tmp_path, filled_in('https://host/dct_jax'), pip='import sys; print(*sys.argv[1:], sep="|")')
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines()[0] == 'install|-q|dct_jax[experiments] @ git+https://host/dct_jax'


def test_errors_of_pip_are_shown_and_end_the_cell(tmp_path):
  broken = 'import sys; print("collecting"); print("no such repository", file=sys.stderr); sys.exit(3)'
  done = run_cell(tmp_path, filled_in('https://host/nothing'), pip=broken)
  assert done.returncode == 1 and 'CalledProcessError' in done.stderr
  assert 'no such repository' in done.stdout and 'collecting' in done.stdout
